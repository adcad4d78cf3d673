"""Weighted running averages that can be merged: estimates arrive in any order and in any pieces.

What is kept of a set of estimates does not depend on the unit of their weights: with the shares
p_j = w_j / Σ w, besides the mean the sums of p², p² (y - mean), p² (y - mean)² and of p_i p_j over
all i ≠ j. Those of two sets give those of their union exactly (in the manner of Chan, Golub and
LeVeque), without a difference of large numbers.
"""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._core.checks import check_count, refuse_masked
from .._core.estimators import is_traced

NonFinite = Literal["error", "skip"]


class RunningAverage(eqx.Module):
    """The average of some estimates so far: add estimates, merge two of them, read the result.

    Nothing is changed in place: `add` and `merge` return a new one. The result does not depend on
    the order or on how the estimates were split, but for rounding. Outside of compiled functions
    all is kept in NumPy arrays of float64; inside, in the precision of the estimates, and it may be
    the carry of a `jax.lax.scan`. Leading axes stand for several averages side by side.

    With weights w_j, of which 1 is the default, the estimate is Σ w_j y_j / Σ w_j and its squared
    standard error

        Σ w_j² (y_j - estimate)² / ((Σ w_j)² - Σ w_j²),

    which is without bias for estimates of equal weight and variance, and for weights in inverse
    proportion to the variances, and consistent whatever the variances are. It tells the spread of
    the average alone: a bias that all estimates share cannot be seen in it.
    """

    count: Any
    """How many estimates are in, those of no weight not counted; (...)."""
    skipped: Any
    """How many were left out because they were not finite, where that was asked for; (...)."""
    weight: Any
    """Sum of the weights, (..., d)."""
    mean: Any
    """Weighted mean, rounded; 0 where there is no estimate yet."""
    mean_rest: Any
    """What rounding took from the mean: a million small steps would be lost without it."""
    share_squared: Any
    """Sum of p²."""
    tilt: Any
    """Sum of p² (y - mean)."""
    spread: Any
    """Sum of p² (y - mean)²."""
    share_cross: Any
    """Sum of p_i p_j over i ≠ j."""

    @classmethod
    def empty(cls, d: int) -> "RunningAverage":
        """The average of no estimates of d components: the start of a stream."""
        check_count("d", d)
        none, zeros = np.zeros((), np.int64), np.zeros(d)
        return cls(none, none, *(zeros,) * 7)

    @classmethod
    def of(
        cls,
        estimates: Any,
        weights: Any = None,
        mask: Any = None,
        *,
        nonfinite: NonFinite = "error",
    ) -> "RunningAverage":
        """The average of many estimates at once.

        Args:
            estimates: shape (..., M, d), M estimates of d components.
            weights: not negative, shape (..., M), or (..., M, d) for weights by component; for
                example inverse variances. Equal by default. No weight is as good as a mask.
            mask: True for the estimates that are there, shape (..., M) or (..., M, d). The others
                may be anything.
            nonfinite: what to do about an estimate that is not finite and not masked: "error", or
                "skip" to leave it out and count it. Inside of compiled functions, where nothing can
                be raised, an error is a result of NaN.
        """
        if nonfinite not in ("error", "skip"):
            raise ValueError(f"nonfinite must be 'error' or 'skip', got {nonfinite!r}")
        xp: Any = jnp if is_traced(estimates, weights, mask) else np
        values = _given(xp, "estimates", estimates)
        if values.ndim < 2 or values.shape[-2] == 0:
            raise ValueError(
                f"estimates must have shape (..., M, d) with M > 0, got shape {values.shape}: M "
                "numbers are estimates[:, None], one estimate is added with add"
            )
        w = xp.ones_like(values)
        if weights is not None:
            w = _by_component("weights", _given(xp, "weights", weights), values.shape, xp)
        there = xp.ones(values.shape, bool)
        if mask is not None:
            refuse_masked("mask", mask)
            there = _by_component("mask", xp.asarray(mask), values.shape, xp)
        if there.dtype != bool:
            raise TypeError(f"mask must be of booleans, got {there.dtype}: give mask != 0")
        wrong = there & ~(xp.isfinite(w) & (w >= 0))
        there = there & (w != 0)
        failed = (there & ~xp.isfinite(values)).any(axis=-1, keepdims=True)
        if nonfinite == "skip":
            there = there & ~failed
        if xp is np:
            _refuse("weights must be finite and not negative", w, wrong.any(axis=-1))
            if nonfinite == "error":
                hint = "mask them, or leave them out with nonfinite='skip'"
                _refuse(f"estimates must be finite ({hint})", values, failed[..., 0])
        w = xp.where(wrong, xp.nan, xp.where(there, w, 0.0))
        if xp is np:
            with np.errstate(over="ignore"):
                total = w.sum(axis=-2)
            _refuse("weights must have a finite sum", total, np.asarray(np.isinf(total).any(-1)))
        skipped = (failed[..., 0] & (nonfinite == "skip")).sum(axis=-1)
        used = (w > 0).any(axis=-1).sum(axis=-1)
        equal = weights is None and mask is None and nonfinite == "error"
        return cls(used, skipped, *_totals(xp, xp.where(there, values, 0.0), w, equal=equal))

    def add(self, estimate: Any, weight: Any = 1.0) -> "RunningAverage":
        """With one more estimate, (d,), of a weight that is a number or one for each component."""
        xp: Any = jnp if is_traced(estimate, weight) else np
        value, w = _given(xp, "estimate", estimate), _given(xp, "weight", weight)
        shape = self.mean.shape
        if value.shape == () and shape == (1,):
            value = value[None]
        if value.shape != shape:
            raise ValueError(f"estimate must have shape {shape}, got {value.shape}")
        if w.shape not in ((), shape):
            raise ValueError(f"weight must be a number or of shape {shape}, got {w.shape}")
        one = xp.broadcast_to(w, shape)[..., None, :]
        return self.merge(RunningAverage.of(value[..., None, :], one))

    def merge(self, other: "RunningAverage") -> "RunningAverage":
        """Of the estimates of both."""
        if not isinstance(other, RunningAverage):
            raise TypeError(f"other must be a RunningAverage, got {type(other).__name__}")
        if self.mean.shape != other.mean.shape:
            raise ValueError(
                f"other must be of the same shape, {self.mean.shape}, got {other.mean.shape}"
            )
        xp: Any = jnp if is_traced(self, other) else np
        a, b = (jax.tree.map(lambda leaf: _floating(xp, leaf), one) for one in (self, other))
        with np.errstate(over="ignore"):
            total = _finite(xp, a.weight + b.weight)
        unit = xp.where(total == 0, 1.0, total)
        of_a, of_b = a.weight / unit, b.weight / unit
        apart = (b.mean - a.mean) + (b.mean_rest - a.mean_rest)
        mean, rest = _two_sum(a.mean, a.mean_rest + of_b * apart)
        parts = zip(a._moved(-of_b * apart), b._moved(of_a * apart), strict=True)
        squared, tilt, spread = (of_a**2 * one + of_b**2 * two for one, two in parts)
        cross = of_a**2 * a.share_cross + of_b**2 * b.share_cross + 2 * of_a * of_b
        return RunningAverage(
            self.count + other.count,
            self.skipped + other.skipped,
            total,
            mean,
            rest,
            squared,
            tilt,
            spread,
            cross,
        )

    @property
    def estimate(self) -> Any:
        """The weighted average, (..., d); NaN where there is no estimate."""
        xp, (weight, mean, rest) = _arrays(self.weight, self.mean, self.mean_rest)
        return xp.where(weight > 0, mean + rest, xp.nan)

    @property
    def standard_error(self) -> Any:
        """Of the average, (..., d); infinite for a single estimate, NaN for none."""
        xp, (weight, spread, cross) = _arrays(self.weight, self.spread, self.share_cross)
        several = cross > 0
        error = xp.sqrt(spread / xp.where(several, cross, 1.0))
        return xp.where(weight > 0, xp.where(several, error, xp.inf), xp.nan)

    @property
    def effective_count(self) -> Any:
        """How many estimates of equal weight are worth as much, (Σ w)² / Σ w², (..., d)."""
        xp, (squared,) = _arrays(self.share_squared)
        return xp.where(squared > 0, 1 / xp.where(squared > 0, squared, 1.0), 0.0)

    def _moved(self, by: Any) -> tuple[Any, Any, Any]:
        """Sums of p², and about a point from which the mean is `by` away."""
        return (
            self.share_squared,
            self.tilt + by * self.share_squared,
            self.spread + 2 * by * self.tilt + by**2 * self.share_squared,
        )

    def __str__(self) -> str:
        if np.ndim(self.count):
            d = self.mean.shape[-1]
            return f"RunningAverage: {np.size(self.count):,} averages of {d} components"
        pairs = zip(self.estimate, self.standard_error, strict=True)
        values = ", ".join(f"{value:.6g} ± {error:.2g}" for value, error in pairs)
        skipped = f", {int(self.skipped):,} not finite and left out" if self.skipped else ""
        return f"RunningAverage: {values} ({int(self.count):,} estimates{skipped})"


def _totals(xp: Any, values: Any, w: Any, *, equal: bool) -> tuple[Any, ...]:
    """The fields of an average but the counts, of estimates (..., M, d); `equal`: weights are 1.

    Estimates without weight must be zero.
    """
    total = _finite(xp, w.sum(axis=-2))
    share = w / xp.where(total > 0, total, 1.0)[..., None, :]
    first = (share * values).sum(axis=-2)
    more = (share * (values - first[..., None, :])).sum(axis=-2)
    mean, rest = _two_sum(first, xp.where(total > 0, more, 0.0))
    away = (values - mean[..., None, :]) - rest[..., None, :]
    squared = share**2
    if equal:
        cross = xp.full_like(total, 1 - 1 / values.shape[-2])
    else:
        none = xp.zeros_like(share[..., :1, :])
        before = xp.concatenate([none, xp.cumsum(share, axis=-2)[..., :-1, :]], axis=-2)
        cross = 2 * (share * before).sum(axis=-2)
    return (
        total,
        mean,
        rest,
        squared.sum(axis=-2),
        (squared * away).sum(axis=-2),
        (squared * away**2).sum(axis=-2),
        cross,
    )


def _two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """The rounded sum, and exactly what rounding took from it (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _arrays(*values: Any) -> tuple[Any, list[Any]]:
    """The library to compute with, and the numbers as its floating arrays."""
    xp = jnp if is_traced(values) else np
    return xp, [_floating(xp, value) for value in values]


def _finite(xp: Any, total: Any) -> Any:
    """NaN in the place of a sum that has overflown: no share of it is known."""
    return xp.where(xp.isfinite(total), total, xp.nan)


def _given(xp: Any, name: str, value: Any) -> Any:
    """What a user gives, if it is real numbers without a mask."""
    refuse_masked(name, value)
    array = xp.asarray(value)
    if not (jnp.issubdtype(array.dtype, np.number) or array.dtype == bool) or jnp.issubdtype(
        array.dtype, np.complexfloating
    ):
        raise TypeError(f"{name} must be real numbers, got {array.dtype}")
    return _floating(xp, array)


def _floating(xp: Any, value: Any) -> Any:
    return xp.asarray(value, np.float64 if xp is np else jnp.result_type(float))


def _by_component(name: str, given: Any, shape: tuple[int, ...], xp: Any) -> Any:
    """Weights or a mask, one number for each component of each estimate."""
    if given.shape == shape[:-1]:
        given = given[..., None]
    elif given.shape != shape:
        raise ValueError(
            f"{name} must have shape {shape[:-1]}, or {shape} by component, got {given.shape}"
        )
    return xp.broadcast_to(given, shape)


def _refuse(expected: str, values: np.ndarray, bad: np.ndarray) -> None:
    """Name the first of those that are not as expected."""
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        place = where[0] if len(where) == 1 else where
        raise ValueError(
            f"{expected}, got {int(bad.sum()):,} of {bad.size:,} that are not, the first at "
            f"{place}: {values[where]}"
        )
