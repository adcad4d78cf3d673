"""Experiments that anyone can repeat with one command, one module each."""

from ._common import Experiment as Experiment
from ._common import InterruptedRunError as InterruptedRunError
from .snr import EXPERIMENT as _SNR

EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in (_SNR,)}
"""All experiments by name."""
