"""How often intervals cover, and how wide they are, at given values of the parameter."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from .._core.keys import fold_in_each
from .._core.problem import Problem
from .._core.types import Key, Measurement, Theta
from .._runtime.jit import held, jit
from .interval import Intervals

PIECE_NUMBERS = 2**22


@dataclasses.dataclass(frozen=True)
class Coverage:
    """Of the intervals of one estimator at K values; arrays of shape (K, d)."""

    level: float
    """The probability that was asked for."""
    rate: np.ndarray
    """How often the interval covers; an interval that is NaN does not."""
    rate_se: np.ndarray
    width: np.ndarray
    """Mean width of intervals with both ends within the range simulated."""
    width_se: np.ndarray
    open: np.ndarray
    """Which part of the intervals has an end that is not determined, or is NaN."""

    def columns(self) -> list[tuple[str, np.ndarray]]:
        """The arrays with their names."""
        fields = ("rate", "rate_se", "width", "width_se", "open")
        return [("coverage" + f[4:] if f[:4] == "rate" else f, getattr(self, f)) for f in fields]


def coverage_of(
    intervals: Intervals,
    problem: Problem,
    theta: Theta,
    *,
    repeats: int,
    key: Key,
    level: float | None = None,
) -> Coverage:
    """Simulate at each value and count; memory does not grow with the repeats.

    Args:
        intervals: to be judged.
        problem: where the measurements come from.
        theta: the values, with a leading axis.
        repeats: measurements at each.
        key: decides the measurements.
        level: another one than that of the intervals.
    """
    x, _ = problem.shapes()
    numbers = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(x))
    size = int(np.clip(PIECE_NUMBERS // max(numbers, 1), 1, repeats))
    function = intervals.predictor.function

    def estimates(key: Key, first: Array, one: Theta) -> Array:
        keys = fold_in_each(key, first + jnp.arange(size))

        def simulate(_: Key) -> Measurement:
            return jax.vmap(problem.simulate, in_axes=(0, None))(keys, one)

        return jax.vmap(lambda x: jnp.reshape(function(x), (-1,)))(held(simulate, key))

    run = jit(estimates)
    truth = np.asarray(jax.vmap(problem.y_of)(theta), np.float64)
    covered, closed, total, squares = (np.zeros(truth.shape) for _ in range(4))
    for k, y in enumerate(truth):
        one, of_value = jax.tree.map(lambda leaf, k=k: leaf[k], theta), jr.fold_in(key, k)
        for first in range(0, repeats, size):
            found = np.asarray(run(of_value, jnp.asarray(first), one))[: repeats - first]
            lower, upper, _, determined = intervals.of_estimates(found, level)
            covered[k] += ((lower <= y) & (y <= upper)).sum(axis=0)
            width = np.where(determined, upper - lower, 0.0)
            closed[k] += determined.sum(axis=0)
            total[k] += width.sum(axis=0)
            squares[k] += (width**2).sum(axis=0)
    rate = covered / repeats
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = total / closed
        variance = np.maximum(squares / closed - mean**2, 0)
        width_se = np.sqrt(variance / closed)
    # That of one more success and failure each: zero failures are no proof that there are none.
    smoothed = (covered + 1) / (repeats + 2)
    return Coverage(
        level=intervals.level if level is None else level,
        rate=rate,
        rate_se=np.sqrt(smoothed * (1 - smoothed) / repeats),
        width=mean,
        width_se=width_se,
        open=1 - closed / repeats,
    )
