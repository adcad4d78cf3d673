"""Type aliases for the things that every room speaks of.

Axes are always in the order ``(N, M, ...)``: N units (parameter values), M repeats of each, then
the shape of one measurement or the d components of y.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

from jaxtyping import Array, PyTree

Theta: TypeAlias = PyTree
"""Everything the simulator needs: the parameter of interest and the nuisance parameters."""

Measurement: TypeAlias = PyTree
"""What an estimator sees: an array or a pytree of arrays."""

Estimator: TypeAlias = Callable[[Any], Any]
"""A function of ONE measurement that returns one estimate; batching happens outside."""

Key: TypeAlias = Array
