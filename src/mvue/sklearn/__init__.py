"""Estimators with the interface of scikit-learn, for data with repeated measurements.

Rows of X with the same unknown form a *unit*. By default these are the rows with exactly equal
y; `unit_ids` says it where y cannot.
"""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise ImportError("mvue.sklearn needs scikit-learn: pip install 'mvue[sklearn]'") from error

from .._linear_path import LinearBCEPath as LinearBCEPath
from ._linear import LinearBCE as LinearBCE
from ._linear import LinearBCECV as LinearBCECV
from ._linear import linear_bce_path as linear_bce_path
