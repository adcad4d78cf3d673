"""Networks and parts of networks that are not tied to one problem.

A network is any function of ONE measurement whose arrays are trained; Equinox modules are.
"""

from ._frozen import Affine as Affine
from ._frozen import Frozen as Frozen
from ._sets import DeepSet as DeepSet
from ._standardize import Standardized as Standardized
from ._standardize import standardize as standardize
