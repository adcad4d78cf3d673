"""Experiments that anyone can repeat with one command.

One file each, or one folder with its helpers inside; a new experiment belongs here.
"""

from ._common import Experiment as Experiment
from ._common import InterruptedRunError as InterruptedRunError
from ._common import OptionError as OptionError
from .cifar10.experiment import EXPERIMENT as _CIFAR10
from .covariance import EXPERIMENT as _COVARIANCE
from .field.experiment import EXPERIMENT as _FIELD
from .linear.experiment import EXPERIMENT as _LINEAR
from .linear.regularization import EXPERIMENT as _REGULARIZATION
from .rssi.experiment import EXPERIMENT as _RSSI
from .sensors.experiment import EXPERIMENT as _SENSORS
from .snr import EXPERIMENT as _SNR
from .textbook.experiment import EXPERIMENT as _TEXTBOOK

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        _SNR,
        _COVARIANCE,
        _RSSI,
        _CIFAR10,
        _SENSORS,
        _LINEAR,
        _REGULARIZATION,
        _TEXTBOOK,
        _FIELD,
    )
}
"""All experiments by name."""
