"""`interval`: confidence intervals of any estimator, from simulations of its problem."""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from .._core.checks import check_count, checked_names
from .._core.estimators import Carrier, MeasurementSpec, Predictor, is_traced
from .._core.keys import key_for
from .._core.problem import Problem, check_problem
from .._core.sampling import MOST_BATCHES, Simulations
from .._core.types import Estimator, Key, Measurement
from ..exceptions import CoverageWarning, NonFiniteWarning
from .curves import IntervalCurves, draws_for, learn, missed
from .host import as_jax_function, example_of, own_errors

SIMULATIONS = 2**17
UNIT_NUMBERS = 2**21  # of measurements, held at a time
Method = Literal["inverted", "plug_in"]


class Interval(NamedTuple):
    """Intervals of one measurement, arrays of shape (d,), or of a batch, (n, d)."""

    lower: np.ndarray
    upper: np.ndarray
    estimate: np.ndarray
    determined: np.ndarray
    """Whether both ends lie within the range that was simulated. An end beyond it is infinite;
    where all of an interval is beyond, its near end is the end of that range."""


class Region(NamedTuple):
    """An ellipse for all parameters: y with (y - centre)ᵀ matrix⁻¹ (y - centre) ≤ 1."""

    centre: np.ndarray
    """The estimate, (d,), or those of a batch, (n, d)."""
    matrix: np.ndarray
    """(d, d) or (n, d, d)."""

    def contains(self, y: Any) -> np.ndarray:
        """Whether parameters, (d,) or (n, d), are within."""
        away = np.asarray(y, np.float64) - self.centre
        inverse = np.linalg.pinv(np.nan_to_num(self.matrix), hermitian=True)
        inside = np.einsum("...j,...jk,...k->...", away, inverse, away) <= 1
        return inside & np.isfinite(self.matrix).all(axis=(-1, -2))


@dataclasses.dataclass(frozen=True, eq=False)
class Intervals:
    """Confidence intervals of an estimator; what `interval` returns.

    ``intervals(x)`` gives those of one measurement or of a batch, at any level that the
    simulations resolve.
    """

    predictor: Predictor
    """What estimates."""
    curves: IntervalCurves
    """What was learned from simulations."""
    names: tuple[str, ...]
    """Of the parameters."""
    level: float = 0.9
    method: Method = "inverted"

    def __call__(self, x: Measurement, *, level: float | None = None) -> Interval:
        """Lower and upper ends for each parameter.

        Args:
            x: one measurement, or a batch with one axis more in front.
            level: the probability with which an interval covers; by default that of these.
        """
        estimates, is_batch = self._estimates(x)
        found = Interval(*self.of_estimates(estimates, level))
        return found if is_batch else Interval(*(part[0] for part in found))

    def region(self, x: Measurement, *, level: float | None = None) -> Region:
        """An ellipse that covers all parameters at once.

        Its size is the same for all measurements, in units of the standard deviations at the
        estimate: it covers with the given probability on average over the parameters simulated.

        Args:
            x: one measurement or a batch.
            level: as in a call.
        """
        level = self.level if level is None else checked_level(level)
        estimates, is_batch = self._estimates(x)
        matrices = self.curves.matrices(estimates, level)
        return Region(estimates, matrices) if is_batch else Region(estimates[0], matrices[0])

    def of_estimates(
        self, estimates: np.ndarray, level: float | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Lower and upper ends, the estimates, and whether both ends are determined, (n, d)."""
        level = self.level if level is None else checked_level(level)
        estimates = np.asarray(estimates, np.float64).reshape(-1, len(self.names))
        with np.errstate(invalid="ignore"):
            ends = self.curves.plug_in_ends if self.method == "plug_in" else self.curves.ends
            lower, upper, determined = ends(estimates, level)
        return lower, upper, estimates, determined

    def _estimates(self, x: Measurement) -> tuple[np.ndarray, bool]:
        """Estimates, (n, d), and whether x was a batch."""
        if is_traced(x):
            raise TypeError("intervals are NumPy: call them outside of jax.jit and jax.vmap")
        spec = self.predictor._spec
        assert spec is not None
        x = spec.arrays(x)
        if spec.is_batch(x):
            found = self.predictor.predict(x, warn=False)
            return np.asarray(found, np.float64).reshape(-1, len(self.names)), True
        one = jax.tree.map(lambda leaf: leaf[None], x)
        found = self.predictor.predict(one, warn=False)
        return np.asarray(found, np.float64).reshape(1, len(self.names)), False

    @functools.cached_property
    def y_range(self) -> np.ndarray:
        """The range of parameters that was simulated, (2, d)."""
        return np.stack([self.curves.y[:, 0], self.curves.y[:, -1]])

    def __str__(self) -> str:
        kind = "T ± z sd(T)" if self.method == "plug_in" else "quantiles of T given y, inverted"
        ranges = [
            f"{name} {low:.4g} … {high:.4g}"
            for name, low, high in zip(self.names, *self.y_range, strict=True)
        ]
        lines = [
            f"Intervals: {self.level:.4g} for {', '.join(self.names)}",
            f"  method     {kind}",
            f"  learned    from {self.curves.draws:,} simulations, levels up to "
            f"{self.curves.most_level:.4g}",
            f"  range      {', '.join(ranges)}; ends beyond are infinite",
        ]
        discrete = [n for n, v in zip(self.names, self.curves.values, strict=True) if v.size]
        if discrete:
            lines.append(f"  discrete   {', '.join(discrete)}: coverage is at least the level")
        if self.curves.failures:
            lines.append(
                f"  failures   {self.curves.failures:,} simulations had no finite estimate: there "
                "the interval is NaN, and coverage is that of the others"
            )
        return "\n".join(lines)

    __repr__ = __str__


class _Plain(Predictor):
    """A function with the shape of its measurements."""

    def __init__(self, function: Estimator, spec: MeasurementSpec) -> None:
        self._function, self._shape = function, spec

    @property
    def function(self) -> Estimator:
        """The function itself."""
        return self._function

    @property
    def _spec(self) -> MeasurementSpec:
        return self._shape


def interval(
    estimator: Estimator | Carrier,
    problem: Problem,
    *,
    key: Key,
    level: float = 0.9,
    method: Method = "inverted",
    simulations: int = SIMULATIONS,
) -> Intervals:
    """Confidence intervals for the parameters, from any estimator of them.

    Parameters are drawn from the prior and measured; the quantiles of the estimate are learned as
    smooth functions of the parameter. An interval has all parameters for which the observed
    estimate lies between its quantiles, so that it covers with the given probability at every
    value, as far as other parameters that matter are estimated, too. See the guide.

    Args:
        estimator: a function of one measurement that returns y, a `Fit` or a `Model`.
        problem: where measurements come from. Its prior says which range to simulate, which should
            reach some standard deviations beyond what is of interest.
        key: decides all random numbers.
        level: the probability with which an interval covers; others can be asked for later.
        method: ``"inverted"``, as above; ``"plug_in"`` takes z standard deviations to each side of
            the estimate, as large as they are there.
        simulations: how many; high levels need more.

    Returns:
        Intervals, to be called with measurements.
    """
    check_problem(problem)
    level = checked_level(level)
    if method not in get_args(Method):
        raise ValueError(f"method must be 'inverted' or 'plug_in', got {method!r}")
    check_count("simulations", simulations)
    if simulations < draws_for(level):
        raise ValueError(
            f"level {level:g} needs about {draws_for(level):,} simulations, got "
            f"simulations={simulations:,}"
        )
    x, y = problem.shapes()
    function = as_jax_function("estimator", estimator, example_of(problem), y.shape[0])
    truth, estimates, failures = _simulated(problem, function, simulations, key)
    if failures:
        warnings.warn(
            f"{failures:,} of {simulations:,} simulations had no finite estimate: they are left "
            "out, and the interval of such a measurement is NaN",
            NonFiniteWarning,
            stacklevel=2,
        )
    curves = learn(truth, estimates, failures, level)
    names = checked_names(problem.names, y.shape[0])
    if method == "inverted":
        for j, place, share in missed(curves, truth, estimates, level):
            warnings.warn(
                f"intervals of {names[j]} cover {share:.0%} instead of {level:.0%} near "
                f"{names[j]} = {place:.4g}: errors change there more abruptly than smooth "
                "functions of the parameter do. Judge them with assess(level=...), or make "
                "intervals for either part of the range by itself",
                CoverageWarning,
                stacklevel=2,
            )
    predictor = estimator if isinstance(estimator, Predictor) else None
    if predictor is None or predictor._spec is None:
        predictor = _Plain(function, MeasurementSpec(x))
    return Intervals(predictor, curves, problem.names or (), level, method)


def _simulated(
    problem: Problem, function: Estimator, wanted: int, key: Key
) -> tuple[np.ndarray, np.ndarray, int]:
    """Parameters and estimates of simulations, (n, d), and how many were left out."""
    x, _ = problem.shapes()
    numbers = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(x))
    # No more than asked for: a function in NumPy takes its time.
    units = int(np.clip(UNIT_NUMBERS // max(numbers, 1), 1, -(-wanted // MOST_BATCHES)))
    see: Callable[[Any, Measurement], Any] = lambda _, one: jnp.reshape(function(one), (-1,))  # noqa: E731
    drawn = Simulations(problem, units, 1, see)
    key, truth, estimates, reached = key_for("interval", key), [], [], 0
    with own_errors({"estimator": function}):
        while reached < wanted:
            batches = drawn.at(key, reached // units)
            shape = (-1, batches.draw.y.shape[-1])
            truth.append(np.asarray(batches.draw.y, np.float64).reshape(shape))
            estimates.append(np.asarray(batches.seen, np.float64).reshape(shape))
            reached += len(truth[-1])
    y, t = np.concatenate(truth)[:wanted], np.concatenate(estimates)[:wanted]
    good = np.isfinite(t).all(axis=1) & np.isfinite(y).all(axis=1)
    return y[good], t[good], int(wanted - good.sum())


def checked_level(level: float) -> float:
    """A level of confidence, or an error."""
    if isinstance(level, bool) or not isinstance(level, (int, float, np.floating)):
        raise TypeError(f"level must be a number between 0 and 1, got {level!r}")
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, such as 0.9, got {level!r}")
    return float(level)
