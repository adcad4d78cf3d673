"""Learn minimum-variance unbiased estimators from a simulator, and prove it."""

import importlib
from types import ModuleType

from . import exceptions as exceptions
from . import losses as losses
from . import nn as nn
from ._assessment.assess import assess as assess
from ._assessment.certificate import BiasLimit as BiasLimit
from ._assessment.report import Report as Report
from ._averaging.average import Average as Average
from ._averaging.average import average as average
from ._averaging.running import RunningAverage as RunningAverage
from ._blackbox.simulate import simulate as simulate
from ._bounds.crb import Bound as Bound
from ._bounds.crb import crb as crb
from ._bounds.fisher import fisher_information as fisher_information
from ._bounds.gaussian import gaussian_fisher_information as gaussian_fisher_information
from ._bounds.larger import barankin as barankin
from ._bounds.larger import bhattacharyya as bhattacharyya
from ._core.problem import Draw as Draw
from ._core.problem import Problem as Problem
from ._data.repeats import Repeats as Repeats
from ._data.simulated import SimulatedData as SimulatedData
from ._information.bound import information_bound as information_bound
from ._intervals.interval import interval as interval
from ._likelihood.bootstrap import bootstrap_correct as bootstrap_correct
from ._likelihood.mle import maximum_likelihood as maximum_likelihood
from ._linear.known_model import linear_bce as linear_bce
from ._linear.known_model import lmmse as lmmse
from ._linear.known_model import wls as wls
from ._linear.refit import refit_last_layer as refit_last_layer
from ._models.model import Model as Model
from ._models.onnx import export_onnx as export_onnx
from ._models.save import load as load
from ._models.save import save as save
from ._reality.check import check as check
from ._recipe.settings import Recipe as Recipe
from ._recipe.survey import survey as survey
from ._serialise.registry import register as register
from ._training.fit import fit as fit
from ._training.fit_data import fit_data as fit_data
from ._training.result import Fit as Fit
from ._training.result import Outcome as Outcome
from ._version import __version__ as __version__
from .losses import bce as bce
from .losses import emmse as emmse
from .nn import standardize as standardize

_MODULES = ("datasets", "distributed", "problems", "sklearn")


def __getattr__(name: str) -> ModuleType:
    # Modules that not everyone needs are imported when they are first asked for.
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
