"""Learn minimum-variance unbiased estimators from a simulator, and prove it."""

import importlib
from types import ModuleType

from ._assess import assess as assess
from ._average import Average as Average
from ._average import average as average
from ._averaged import Averaged as Averaged
from ._biased_bound import biased_crb as biased_crb
from ._blackbox import FailedDrawsWarning as FailedDrawsWarning
from ._blackbox import simulate as simulate
from ._bootstrap import BootstrapCorrected as BootstrapCorrected
from ._bootstrap import bootstrap_correct as bootstrap_correct
from ._bounds import Bound as Bound
from ._bounds import crb as crb
from ._draws import Failure as Failure
from ._export import Exported as Exported
from ._export import export_onnx as export_onnx
from ._fisher import fisher_information as fisher_information
from ._fit import Fit as Fit
from ._fit import Outcome as Outcome
from ._fit_data import fit_data as fit_data
from ._frozen import Affine as Affine
from ._frozen import Frozen as Frozen
from ._gaussian_information import gaussian_fisher_information as gaussian_fisher_information
from ._information import Information as Information
from ._linear import LinearEstimator as LinearEstimator
from ._linear import linear_bce as linear_bce
from ._linear import lmmse as lmmse
from ._linear import wls as wls
from ._losses import bce_loss as bce_loss
from ._losses import bias_reduced_loss as bias_reduced_loss
from ._losses import effective_bias_weight as effective_bias_weight
from ._losses import fisher_weighted_mse as fisher_weighted_mse
from ._losses import mse as mse
from ._losses import mse_over_crb as mse_over_crb
from ._losses import squared_bias as squared_bias
from ._mle import MaximumLikelihood as MaximumLikelihood
from ._mle import Solution as Solution
from ._mle import maximum_likelihood as maximum_likelihood
from ._model import Model as Model
from ._networks import Corrected as Corrected
from ._networks import DeepSet as DeepSet
from ._networks import Standardized as Standardized
from ._networks import standardize as standardize
from ._objectives import Loss as Loss
from ._objectives import bce as bce
from ._objectives import bias_reduced as bias_reduced
from ._objectives import emmse as emmse
from ._objectives import geometric as geometric
from ._objectives import norm as norm
from ._objectives import relative_mse as relative_mse
from ._problem import Draw as Draw
from ._problem import Problem as Problem
from ._refit import LinearReadout as LinearReadout
from ._refit import refit_last_layer as refit_last_layer
from ._registry import register as register
from ._repeats import Repeats as Repeats
from ._report import Assessment as Assessment
from ._report import PriorAverage as PriorAverage
from ._report import Report as Report
from ._saved import load as load
from ._saved import save as save
from ._shard_files import Shard as Shard
from ._shard_files import SimulatedDataError as SimulatedDataError
from ._simulated import SimulatedData as SimulatedData
from ._survey import Range as Range
from ._survey import Survey as Survey
from ._survey import survey as survey
from ._train import fit as fit
from ._types import BiasToleranceWarning as BiasToleranceWarning
from ._types import BoundError as BoundError
from ._types import CheckpointError as CheckpointError
from ._types import CheckpointWarning as CheckpointWarning
from ._types import ExportError as ExportError
from ._types import ExtrapolationWarning as ExtrapolationWarning
from ._types import IrregularModelError as IrregularModelError
from ._types import ModelFileError as ModelFileError
from ._types import NonFiniteWarning as NonFiniteWarning
from ._types import NoRepeatsWarning as NoRepeatsWarning
from ._types import OutsideTrainingWarning as OutsideTrainingWarning
from ._types import SimulatorError as SimulatorError
from ._types import UnreachedPrecisionWarning as UnreachedPrecisionWarning
from ._types import UnresolvedSignalWarning as UnresolvedSignalWarning
from ._version import __version__ as __version__

_MODULES = ("datasets", "distributed", "plot", "problems", "report", "sklearn")


def __getattr__(name: str) -> ModuleType:
    # Modules that not everyone needs are imported when they are first asked for.
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
