"""Sets of measurements: of one size along an axis, or of different sizes in a list."""

from typing import Any

import jax
import numpy as np

from .._core.checks import all_as_numbers, as_numbers
from .._core.estimators import is_traced
from .running import NonFinite, RunningAverage


class Sets:
    """Sets of different sizes: estimated from together, averaged one by one."""

    def __init__(self, sets: list[Any], weights: Any, mask: Any) -> None:
        if not sets:
            raise ValueError("x must hold at least one set, got an empty list")
        if is_traced(sets, mask):
            raise TypeError(
                "a list of sets cannot be averaged inside of a compiled function: pad the sets to "
                "one size and give a mask"
            )
        for name, given in (("weights", weights), ("mask", mask)):
            if given is not None and not callable(given) and len(given) != len(sets):
                raise ValueError(
                    f"{name} must have one entry for each of the {len(sets)} sets of x, got "
                    f"{len(given)}"
                )
        for i, one in enumerate(sets):
            if any(np.ndim(leaf) == 0 for leaf in jax.tree.leaves(one)):
                raise ValueError(
                    "x must be an array of measurements, or a list of sets of them, each an array; "
                    f"got a list with numbers in entry {i}: give np.asarray(x) for one set"
                )
        sets = [all_as_numbers("x", one) for one in sets]
        self.sizes = [leading_shape(one, 0)[0] for one in sets]
        if 0 in self.sizes:
            empty = self.sizes.index(0)
            raise ValueError(f"x must hold no empty set, got one at {empty}: leave it out")
        self.weights = None if callable(weights) else weights
        self.rows = jax.tree.map(lambda *leaves: np.concatenate(leaves), *sets)
        self.there = None
        if mask is not None:
            pairs = enumerate(zip(mask, self.sizes, strict=True))
            parts = [checked_mask(f"mask[{i}]", one, (size,)) for i, (one, size) in pairs]
            self.there = np.concatenate(parts)

    def averaged(self, values: Any, weighed: Any, nonfinite: NonFinite) -> RunningAverage:
        """One average for each set, side by side."""
        results, begin = [], 0
        for i, size in enumerate(self.sizes):
            own = slice(begin, begin + size)
            begin += size
            weights = None if self.weights is None else self.weights[i]
            weights = weights if weighed is None else weighed[own]
            mask = None if self.there is None else self.there[own]
            results.append(RunningAverage.of(values[own], weights, mask, nonfinite=nonfinite))
        return jax.tree.map(lambda *leaves: np.stack(leaves), *results)


def leading_shape(x: Any, axis: int) -> tuple[int, ...]:
    """The axes of x up to the one of the measurements, which all leaves must share."""
    leaves = jax.tree.leaves(x)
    if not leaves:
        raise ValueError("x must hold arrays, got none")
    shapes = {np.shape(leaf)[: axis + 1] for leaf in leaves}
    if len(shapes) != 1 or len(next(iter(shapes))) != axis + 1:
        raise ValueError(
            f"x must have the measurements along axis {axis} of all its arrays, in equal number; "
            f"got shapes {', '.join(str(np.shape(leaf)) for leaf in leaves)}"
        )
    return next(iter(shapes))


def checked_mask(name: str, mask: Any, shape: tuple[int, ...]) -> Any:
    mask = as_numbers(name, mask)
    if mask.shape != shape or mask.dtype != bool:
        raise ValueError(
            f"{name} must hold booleans of shape {shape}, one for each measurement; got "
            f"{mask.dtype} of shape {mask.shape}"
        )
    return mask
