"""Estimators with the interface of scikit-learn, for data with repeated measurements.

Rows of X with the same parameter form a *unit*. By default these are the rows with exactly equal
y; `unit_ids` says it where y cannot.
"""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise ImportError("mvue.sklearn needs scikit-learn: pip install 'mvue[sklearn]'") from error

from .._linear.path import LinearBCEPath as LinearBCEPath
from . import _adapter as _adapter  # registers what may stand in model files
from ._linear import LinearBCE as LinearBCE
from ._linear_cv import LinearBCECV as LinearBCECV
from ._linear_cv import linear_bce_path as linear_bce_path
from ._measures import BiasDecomposition as BiasDecomposition
from ._measures import SquaredBias as SquaredBias
from ._measures import bias_decomposition as bias_decomposition
from ._measures import make_squared_bias_scorer as make_squared_bias_scorer
from ._measures import mean_squared_bias as mean_squared_bias
from ._measures import mean_squared_bias_scorer as mean_squared_bias_scorer
from ._network import BCERegressor as BCERegressor
from ._splits import WithinUnitsBlockSplit as WithinUnitsBlockSplit
from ._splits import WithinUnitsShuffleSplit as WithinUnitsShuffleSplit
from ._splits import unit_ids_of as unit_ids_of
