"""Errors of estimators by Monte Carlo, in pieces, so that memory does not grow with the repeats.

Estimators may take long to compile. So one program simulates and estimates a number of
measurements, and small programs of their own reduce the errors.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from .._core.keys import fold_in_each
from .._core.problem import Problem
from .._core.types import Estimator, Key, Theta
from .._numerics.moments import ErrorMoments, merge, moments_of, rescale, summarize
from .._runtime.devices import everywhere, mapped, mesh_for, same_everywhere, whole_shares
from .._runtime.jit import held, in_either_precision
from .._runtime.progress import Progress
from ..losses._functions import unit_mse, unit_squared_bias
from .report import PriorAverage

PIECE_NUMBERS = 2**22  # numbers of x, or of estimates, held at a time: 16 MB in float32
PRIOR_REPLICATES = 8
FEWEST_UNITS = 256

T = TypeVar("T")


class _Rows(NamedTuple):
    """Measurements to be made, one in a row."""

    which: Array  # the number of its value or unit, (R,)
    repeat: Array  # (R,)
    theta: Theta  # (R, ...)
    truth: Array  # (R, d)


class _ErrorTotals(NamedTuple):
    errors: ErrorMoments  # leading axes (estimators, values), d components
    squares: ErrorMoments  # leading axes (pairs, values), two components


class ErrorsAtValues(NamedTuple):
    """Moments of errors at each value."""

    errors: ErrorMoments  # leading axes (estimators, values), d components
    squares: list[ErrorMoments]  # squared errors of each pair of estimators, (K, 2)
    repeats: int


class ErrorPieces:
    """Moments of the errors of some estimators on the same measurements.

    Args:
        problem: where the measurements come from.
        functions: the estimators.
        transform: of estimates, before they are judged.
        values: how many values of theta there are to judge them at.
        repeats: measurements at each.
        looks: numbers of repeats after which it may be enough; by default at the end only.
    """

    def __init__(
        self,
        problem: Problem,
        functions: tuple[Estimator, ...],
        transform: Callable[[Any], Any],
        values: int,
        repeats: int,
        looks: Sequence[int] | None = None,
    ) -> None:
        self.problem, self.functions, self.transform = problem, functions, transform
        self.values, self.repeats = values, repeats
        self.looks = looks or [repeats]
        x, y = problem.shapes()
        numbers = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(x))
        judged = jax.eval_shape(transform, y).shape[0] * len(functions)
        wanted = max(values * (looks or [repeats])[0], FEWEST_UNITS * PRIOR_REPLICATES)
        rows = min(PIECE_NUMBERS // max(numbers, judged, 1), wanted)
        self.rows = whole_shares(max(rows, values, PRIOR_REPLICATES))
        self.mesh = mesh_for(self.rows)
        self.errors = self._compiled(
            lambda key, rows: mapped(self._errors, self.mesh, key, rows)
        )  # (R, E, d)

    def _errors(self, key: Key, rows: _Rows) -> Float[Array, "r e d"]:
        keys = jax.vmap(lambda a, b: jr.fold_in(jr.fold_in(key, a), b))(rows.which, rows.repeat)
        x = held(lambda _: jax.vmap(self.problem.simulate)(keys, rows.theta), key)
        estimates = [
            jax.vmap(lambda one, f=f: self.transform(jnp.reshape(f(one), (-1,))))(x)
            for f in self.functions
        ]
        return jnp.stack(estimates, axis=1) - rows.truth[:, None, :]

    def at_values(
        self,
        theta: Theta,
        truth: Array,
        key: Key,
        progress: Progress,
        enough: Callable[[ErrorMoments, int], bool] | None = None,
    ) -> "ErrorsAtValues":
        """Moments of errors at each value, from as many repeats as are enough, all at most.

        Args:
            theta: the values.
            truth: what is to be estimated at each.
            key: decides the measurements.
            progress: told how far it is.
            enough: asked at each look before the last, with the moments so far and their repeats.
        """
        size, repeats = self.rows // self.values, self.repeats
        pairs = np.array(pairs_of(range(len(self.functions))), int).reshape(-1, 2)

        def rows(start: Array, theta: Theta, truth: Array) -> _Rows:
            number = jnp.arange(self.rows)
            which = jnp.minimum(number // size, self.values - 1)
            here, there = (jax.tree.map(lambda leaf: leaf[which], part) for part in (theta, truth))
            return _Rows(which, start + number % size, here, there)

        def reduce(start: Array, errors: Array, unit: Array) -> _ErrorTotals:
            errors = errors[: self.values * size].reshape(self.values, size, *errors.shape[1:])
            errors = errors.transpose(2, 0, 1, 3)
            wanted = jnp.broadcast_to(start + jnp.arange(size) < repeats, (self.values, size))
            finite = jnp.isfinite(errors).all(axis=-1) & wanted[None]
            common = unit.max(axis=-1)[..., None, None]
            squares = ((errors / common) ** 2).sum(axis=-1)

            def pair(which: Array) -> ErrorMoments:
                both = jnp.stack([squares[which[0]], squares[which[1]]], axis=-1)
                return moments_of(both, finite[which[0]] & finite[which[1]])

            return _ErrorTotals(
                moments_of(errors / unit[:, :, None, :], finite), jax.lax.map(pair, pairs)
            )

        def largest(errors: Array) -> Array:
            errors = errors[: self.values * size].reshape(self.values, size, *errors.shape[1:])
            return jnp.where(jnp.isfinite(errors), jnp.abs(errors), 0.0).max(axis=1).swapaxes(0, 1)

        rows, reduce, largest = map(self._compiled, (rows, reduce, largest))
        unit = jnp.ones((len(self.functions), *truth.shape), truth.dtype)
        total, reached, looks = None, 0, list(self.looks)
        with progress.stage("assessing", repeats) as advance:
            advance(0, "compiling")
            for begin in range(0, repeats, size):
                start = jnp.asarray(begin)
                errors = in_either_precision(
                    lambda start=start: self.errors(key, rows(start, theta, truth))
                )
                if total is None:
                    # Powers of very small or large errors would leave the range of single
                    # precision: the first piece tells their size, in which all are measured.
                    # Each estimator has its own, for one that diverges must not hide another.
                    rms = rms_of(reduce(start, errors, unit).errors.on_host())
                    if not _usable(rms).all():
                        most = np.asarray(largest(errors), np.float64)
                        scale = jnp.asarray(np.where(most > 0, most, 1.0), truth.dtype)
                        within = rms_of(reduce(start, errors, scale).errors.on_host())
                        rms = np.where(_usable(rms), rms, within * most)
                    unit = jnp.asarray(np.where(_usable(rms), rms, 1.0), truth.dtype)
                part = reduce(start, errors, unit)
                total = part if total is None else _ErrorTotals(*map(merge, total, part))
                reached = min(begin + size, repeats)
                advance(reached)
                if enough is not None and looks[0] <= reached < repeats:
                    looks = [look for look in looks if look > reached]
                    units = np.asarray(unit, np.float64)
                    if enough(rescale(total.errors.on_host(), units), reached):
                        break
        assert total is not None
        units = np.asarray(unit, np.float64)
        common = units.max(axis=-1) ** 2
        squares = [
            rescale(ErrorMoments(*(leaf[p] for leaf in total.squares.on_host())), common[pair].T)
            for p, pair in enumerate(pairs)
        ]
        return ErrorsAtValues(rescale(total.errors.on_host(), units), squares, reached)

    def over_prior(self, key: Key, repeats: int) -> list[PriorAverage]:
        """Averages over the prior of squared error and squared bias.

        Args:
            key: decides the units and their measurements.
            repeats: about how many measurements in all.
        """
        units = max(FEWEST_UNITS, repeats // PRIOR_REPLICATES)
        m = PRIOR_REPLICATES
        size = self.rows // m
        theta_key, draw_key = jr.split(key)

        def rows(start: Array, key: Key) -> _Rows:
            which = start + jnp.minimum(jnp.arange(self.rows) // m, size - 1)
            theta = jax.vmap(self.problem.sample_prior)(fold_in_each(key, which))
            truth = jax.vmap(lambda one: self.transform(self.problem.y_of(one)))(theta)
            return _Rows(which, jnp.arange(self.rows) % m, theta, truth)

        def reduce(start: Array, errors: Array, unit: Array) -> ErrorMoments:
            errors = errors[: size * m].reshape(size, m, *errors.shape[1:]).transpose(2, 0, 1, 3)
            errors = errors / unit[:, None, None, None]
            mse = jax.vmap(unit_mse)(errors).sum(axis=-1)
            bias2 = jax.vmap(lambda e: unit_squared_bias(e, "unbiased"))(errors).sum(axis=-1)
            both = jnp.stack([mse, bias2], axis=-1)
            wanted = start + jnp.arange(size) < units
            return moments_of(both, jnp.isfinite(both).all(axis=-1) & wanted[None])

        def sizes(errors: Array) -> tuple[Array, Array]:
            """The largest error of each estimator, and the root mean square in units of it."""
            errors = jnp.where(jnp.isfinite(errors), errors, 0.0)
            most = jnp.abs(errors).max(axis=(0, 2))
            most = jnp.where(most > 0, most, 1.0)
            return most, jnp.sqrt(jnp.mean((errors / most[None, :, None]) ** 2, axis=(0, 2)))

        rows, reduce, sizes = map(self._compiled, (rows, reduce, sizes))
        total, unit = None, np.ones(len(self.functions))
        for start in map(jnp.asarray, range(0, units, size)):
            errors = self.errors(draw_key, rows(start, theta_key))
            if total is None:
                # Errors at chosen values may be of another size than those over the prior.
                most, share = (np.asarray(part, np.float64) for part in sizes(errors))
                unit = np.where(_usable(most * share), most * share, 1.0)
            part = reduce(start, errors, jnp.asarray(unit, errors.dtype))
            total = part if total is None else merge(total, part)
        assert total is not None
        total = rescale(total.on_host(), np.stack([unit**2] * 2, axis=-1))
        stats = summarize(total)
        return [
            PriorAverage(mean[0], se[0], mean[1], se[1], int(units - number))
            for mean, se, number in zip(
                stats.bias.tolist(), stats.bias_se.tolist(), total.number, strict=True
            )
        ]

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return everywhere(same_everywhere(function, self.mesh), self.mesh)


def pairs_of(names: Sequence[T]) -> list[tuple[T, T]]:
    """Every two of them, in the order of their squared errors."""
    return [(names[i], names[j]) for i in range(len(names)) for j in range(i)]


def _usable(size: np.ndarray) -> np.ndarray:
    """Which sizes can be units."""
    return np.isfinite(size) & (size > 0)


def rms_of(errors: ErrorMoments) -> np.ndarray:
    """Root mean squared errors."""
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = np.einsum("...ii->...i", errors.second) / errors.number[..., None]
        return np.sqrt(errors.mean**2 + variance)
