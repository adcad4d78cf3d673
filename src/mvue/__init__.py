"""Learn minimum-variance unbiased estimators from a simulator, and prove it."""

import importlib
from types import ModuleType

from ._assessment.assess import assess as assess
from ._assessment.biased_bound import biased_crb as biased_crb
from ._assessment.report import Assessment as Assessment
from ._assessment.report import PriorAverage as PriorAverage
from ._assessment.report import Report as Report
from ._averaging.average import Average as Average
from ._averaging.average import average as average
from ._averaging.running import Averaged as Averaged
from ._blackbox.simulate import simulate as simulate
from ._bounds.crb import Bound as Bound
from ._bounds.crb import crb as crb
from ._bounds.fisher import fisher_information as fisher_information
from ._bounds.gaussian import gaussian_fisher_information as gaussian_fisher_information
from ._bounds.result import Information as Information
from ._core.problem import Draw as Draw
from ._core.problem import Problem as Problem
from ._data.repeats import Repeats as Repeats
from ._data.shards import Failure as Failure
from ._data.shards import Shard as Shard
from ._data.simulated import SimulatedData as SimulatedData
from ._likelihood.bootstrap import BootstrapCorrected as BootstrapCorrected
from ._likelihood.bootstrap import bootstrap_correct as bootstrap_correct
from ._likelihood.mle import MaximumLikelihood as MaximumLikelihood
from ._likelihood.mle import Solution as Solution
from ._likelihood.mle import maximum_likelihood as maximum_likelihood
from ._linear.known_model import LinearEstimator as LinearEstimator
from ._linear.known_model import linear_bce as linear_bce
from ._linear.known_model import lmmse as lmmse
from ._linear.known_model import wls as wls
from ._linear.refit import LinearReadout as LinearReadout
from ._linear.refit import refit_last_layer as refit_last_layer
from ._models.model import Model as Model
from ._models.onnx import Exported as Exported
from ._models.onnx import export_onnx as export_onnx
from ._models.save import load as load
from ._models.save import save as save
from ._recipe.network import Corrected as Corrected
from ._recipe.survey import Range as Range
from ._recipe.survey import Survey as Survey
from ._recipe.survey import survey as survey
from ._serialise.registry import register as register
from ._training.fit import fit as fit
from ._training.fit_data import fit_data as fit_data
from ._training.result import Fit as Fit
from ._training.result import Outcome as Outcome
from ._version import __version__ as __version__
from .exceptions import BiasToleranceWarning as BiasToleranceWarning
from .exceptions import BoundError as BoundError
from .exceptions import CheckpointError as CheckpointError
from .exceptions import CheckpointWarning as CheckpointWarning
from .exceptions import ExportError as ExportError
from .exceptions import ExtrapolationWarning as ExtrapolationWarning
from .exceptions import FailedDrawsWarning as FailedDrawsWarning
from .exceptions import IrregularModelError as IrregularModelError
from .exceptions import ModelFileError as ModelFileError
from .exceptions import NonFiniteWarning as NonFiniteWarning
from .exceptions import NoRepeatsWarning as NoRepeatsWarning
from .exceptions import OutsideTrainingWarning as OutsideTrainingWarning
from .exceptions import SimulatedDataError as SimulatedDataError
from .exceptions import SimulatorError as SimulatorError
from .exceptions import UnreachedPrecisionWarning as UnreachedPrecisionWarning
from .exceptions import UnresolvedSignalWarning as UnresolvedSignalWarning
from .losses._functions import bce_loss as bce_loss
from .losses._functions import bias_reduced_loss as bias_reduced_loss
from .losses._functions import effective_bias_weight as effective_bias_weight
from .losses._functions import fisher_weighted_mse as fisher_weighted_mse
from .losses._functions import mse as mse
from .losses._functions import mse_over_crb as mse_over_crb
from .losses._functions import squared_bias as squared_bias
from .losses._objectives import Loss as Loss
from .losses._objectives import bce as bce
from .losses._objectives import bias_reduced as bias_reduced
from .losses._objectives import emmse as emmse
from .losses._objectives import geometric as geometric
from .losses._objectives import norm as norm
from .losses._objectives import relative_mse as relative_mse
from .nn._frozen import Affine as Affine
from .nn._frozen import Frozen as Frozen
from .nn._sets import DeepSet as DeepSet
from .nn._standardize import Standardized as Standardized
from .nn._standardize import standardize as standardize

_MODULES = ("datasets", "distributed", "plot", "problems", "report", "sklearn")


def __getattr__(name: str) -> ModuleType:
    # Modules that not everyone needs are imported when they are first asked for.
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
