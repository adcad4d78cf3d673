"""Experiments that anyone can repeat with one command, one module each."""

from ._common import Experiment as Experiment
from ._common import InterruptedRunError as InterruptedRunError
from ._common import OptionError as OptionError
from .cifar10 import EXPERIMENT as _CIFAR10
from .covariance import EXPERIMENT as _COVARIANCE
from .linear import EXPERIMENT as _LINEAR
from .regularization import EXPERIMENT as _REGULARIZATION
from .rssi import EXPERIMENT as _RSSI
from .sensors import EXPERIMENT as _SENSORS
from .snr import EXPERIMENT as _SNR
from .textbook import EXPERIMENT as _TEXTBOOK

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
    )
}
"""All experiments by name."""
