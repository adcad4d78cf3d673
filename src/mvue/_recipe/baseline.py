"""The closed-form start of the default network: linear bias constrained estimation on summaries.

Two steps. The plug-in estimate: least squares on statistics and random features, of y in a
variance-stabilised scale, taken back to the units of y. The baseline: a linear bias constrained
estimate from the plug-in and natural statistics (means, variances, products, inverses, extremes),
with errors weighted by the survey. Where the answer is linear in these statistics, the baseline is
nearly the answer.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from .._core.keys import host_random, several
from .._core.problem import Problem
from .._core.sampling import finite_units
from .._core.types import Key
from .._linear.spectrum import clipped_coefficients
from .._runtime.jit import jit
from .._serialise.registry import register
from ..nn._frozen import Affine, Frozen
from ..nn._standardize import mean_and_deviation
from .settings import BaselineSettings
from .survey import Survey, unit_scale

MUCH_BETTER = 0.9  # share of the squared error that is left
FAR = 5.0  # expected errors: larger ones do not count for more
FARTHEST = 1e12  # standard deviations; larger numbers may be infinite


@register(name="mvue.PlugIn")
class PlugIn(Frozen):
    """y and its standard deviation from statistics of x, by regression with random features."""

    scaling: Affine
    hidden: Float[Array, "p h"]
    offsets: Float[Array, " h"]
    readout: Float[Array, "q d"]
    """To y in a scale in which its standard deviation is one."""
    log_sd_readout: Float[Array, "q d"]
    log_sd_range: Float[Array, "2 d"]
    scale: Float[Array, "d t"]
    """Equally spaced values in that scale, for each component."""
    table: Float[Array, "d t"]
    """The y that belong to them."""
    largest_input: float = eqx.field(static=True, default=BaselineSettings.largest_input)
    """Standard deviations up to which inputs are as they are."""

    def __call__(self, statistics: Float[Array, " p"]) -> tuple[Array, Array, Array]:
        """The estimate, the logarithm of its standard deviation, and both as network inputs."""
        values = self.features(statistics)
        place = values @ self.readout
        log_sd = values @ self.log_sd_readout
        log_sd = jnp.clip(log_sd, self.log_sd_range[0], self.log_sd_range[1])
        low, high = self.scale[:, 0], self.scale[:, -1]
        middle = (place - (low + high) / 2) / (high - low) * 3
        y = jax.vmap(extended_interp)(place, self.scale, self.table)
        return y, log_sd, jnp.concatenate([middle, log_sd])

    def inputs(self, statistics: Float[Array, " p"]) -> Float[Array, " p"]:
        """Standardised statistics, for networks: what is far out is brought closer."""
        standard = _scaled(self.scaling, statistics)
        size = jnp.abs(standard)
        beyond = jnp.clip(size - self.largest_input, 0.0, FARTHEST)
        return jnp.sign(standard) * (jnp.minimum(size, self.largest_input) + jnp.log1p(beyond))

    def features(self, statistics: Float[Array, " p"]) -> Float[Array, " q"]:
        """Standardised statistics, random features of them, and a constant."""
        standard = self.inputs(statistics)
        curved = jax.nn.gelu(standard @ self.hidden + self.offsets)
        return jnp.concatenate([standard, curved, jnp.ones(1, standard.dtype)])


@register(name="mvue.Baseline")
class Baseline(Frozen):
    """A linear function of natural statistics, and of the plug-in estimate and its corrections.

    Corrections are statistics in units of the standard deviation of the plug-in estimate.
    """

    natural: Affine
    weights: Float[Array, "d q"]

    def __call__(
        self,
        plug_in: Float[Array, " d"],
        log_sd: Float[Array, " d"],
        inputs: Float[Array, " p"],
        natural: Float[Array, " f"],
    ) -> Float[Array, " d"]:
        """The estimate."""
        # Products with the parts of the rows: the rows of a batch are too many to be built.
        size = inputs.shape[0] + 1
        of_plug_in, of_corrections, of_natural = jnp.split(self.weights, [1, 1 + size], axis=1)
        corrections = jnp.exp(log_sd) * (of_corrections @ jnp.append(inputs, 1.0))
        return of_plug_in[:, 0] * plug_in + corrections + of_natural @ self._shared(natural)

    def row(self, plug_in: Array, log_sd: Array, inputs: Array, natural: Array) -> Array:
        """What the estimate of one component is a linear function of, (q,)."""
        corrections = jnp.exp(log_sd) * jnp.append(inputs, 1.0)
        return jnp.concatenate([plug_in[None], corrections, self._shared(natural)])

    def _shared(self, natural: Float[Array, " f"]) -> Float[Array, " g"]:
        return jnp.append(_scaled(self.natural, natural), 1.0)


class _Piece(NamedTuple):
    """What is seen of some units; arrays with leading axes (N, M) or (N,)."""

    inputs: np.ndarray
    natural: np.ndarray
    y: np.ndarray
    log_sd: np.ndarray
    efficient: np.ndarray
    """Errors of an efficient estimator; zero where they are not known."""


class Start(NamedTuple):
    """The start in closed form, and how good it is."""

    plug_in: PlugIn
    baseline: Baseline | None
    error: tuple[float, ...]
    """Its mean squared error over the expected one, on simulations that it was not fitted to; one
    for each component."""
    explained: tuple[float, ...] = ()
    """The share of that which a richer regression on the summaries explains; empty where it was
    not looked for."""


def fit_baseline(
    problem: Problem, survey: Survey, *, only_plug_in: bool = False, key: Key
) -> Start:
    """Both steps, or the first, from simulations of the problem to be trained on."""
    settings, table = survey.recipe.baseline, survey.recipe.survey.table
    simulate_key, hidden_key = several(key, 2)
    few = max(1, settings.plug_in_units // settings.units)
    pieces = _simulated(problem, survey, simulate_key, settings.pieces + 1)
    fresh, *some = itertools.islice(pieces, few + 1)
    first = _Piece(*(np.concatenate(part) for part in zip(*some, strict=True)))
    plug_in = _fit_plug_in(first, hidden_key, table, settings)
    if only_plug_in:
        return Start(plug_in, None, ())
    fitting = _LinearFit(plug_in, _scaling(first.natural, settings.fewest_draws), settings)
    start = fitting.best(some, fresh)
    if max(start.error) > settings.hopeless:
        return start
    start = fitting.best([*some, *pieces], fresh)
    if max(start.error) <= survey.recipe.network.good_start:
        return start
    return start._replace(explained=fitting.explained(start, some, fresh, host_random(key)))


def _simulated(problem: Problem, survey: Survey, key: Key, count: int) -> Iterator[_Piece]:
    """At most `count` pieces of simulations, as many as memory allows."""
    settings = survey.recipe.baseline

    @jit
    def simulate(key: Key) -> tuple[Array, ...]:
        draw = problem.draw(key, settings.units, settings.repeats)
        inputs = jax.vmap(jax.vmap(survey.statistics.inputs))(draw.x)
        natural = jax.vmap(jax.vmap(survey.statistics.natural))(draw.x)
        finite = finite_units(draw)
        for part in (inputs, natural):
            finite &= jnp.isfinite(part).all(axis=(1, 2))
        efficient = jnp.zeros((*inputs.shape[:2], draw.y.shape[1]))
        if survey.efficient_error is not None:
            of_units = jax.vmap(jax.vmap(survey.efficient_error, in_axes=(None, 0)))
            efficient = of_units(draw.theta, draw.x)
            efficient = jnp.where(jnp.isfinite(efficient), efficient, 0.0)
        log_sd = jax.vmap(survey.log_sd)(draw.theta)
        return inputs, natural, draw.y, log_sd, efficient, finite

    made = 0
    while made < count:
        *parts, finite = map(np.asarray, simulate(jr.fold_in(key, made)))
        made += 1
        yield _Piece(*(part[finite] for part in parts))
        if made == 1:
            inputs, natural, y, *_ = parts
            numbers = sum(part.size for part in parts)
            terms = 2 + inputs.shape[2] + natural.shape[2]
            work = 2 * y.shape[1] * inputs.shape[0] * inputs.shape[1] * terms**2
            most = min(settings.largest_total // numbers, settings.operations // work)
            count = int(np.clip(most, 2, count))


def _fit_plug_in(piece: _Piece, key: Key, table_size: int, settings: BaselineSettings) -> PlugIn:
    """Least squares for y in the scale of its standard deviation, and for that deviation."""
    inputs, y, log_sd = (p.astype(np.float64) for p in (piece.inputs, piece.y, piece.log_sd))
    d, size = y.shape[1], inputs.shape[2]
    pairs = [unit_scale(y[:, j], log_sd[:, j], table_size) for j in range(d)]
    scale, table = (np.stack(parts) for parts in zip(*pairs, strict=True))
    place = np.stack([np.interp(y[:, j], table[j], scale[j]) for j in range(d)], axis=1)
    rng = host_random(key)
    shape = size, settings.random_features
    empty = jnp.zeros((0, d))
    plug_in = PlugIn(
        scaling=_scaling(inputs, settings.fewest_draws),
        hidden=_array(settings.feature_scale * rng.normal(size=shape) / np.sqrt(size)),
        offsets=_array(rng.normal(size=shape[1:])),
        readout=empty,
        log_sd_readout=empty,
        log_sd_range=_array(np.stack([log_sd.min(axis=0) - 1, log_sd.max(axis=0) + 1])),
        scale=_array(scale),
        table=_array(table),
        largest_input=settings.largest_input,
    )
    rows = jit(jax.vmap(plug_in.features))(_array(inputs.reshape(-1, size)))
    rows = np.asarray(rows, np.float64)
    both = np.repeat(np.concatenate([place, log_sd], axis=1), inputs.shape[1], axis=0)
    both[:, :d] += (piece.efficient * np.exp(-log_sd)[:, None, :]).reshape(-1, d)
    gram = rows.T @ rows / len(rows) + settings.ridge * np.eye(rows.shape[1])
    solution = np.linalg.solve(gram, rows.T @ both / len(rows))
    return dataclasses.replace(
        plug_in, readout=_array(solution[:, :d]), log_sd_readout=_array(solution[:, d:])
    )


class _LinearFit:
    """Weighted linear bias constrained estimation on the rows of `Baseline`."""

    def __init__(self, plug_in: PlugIn, scaling: Affine, settings: BaselineSettings) -> None:
        self.plug_in, self.settings = plug_in, settings
        unfitted = Baseline(scaling, jnp.zeros((0, 0)))
        self.of_weights = lambda weights: dataclasses.replace(unfitted, weights=weights)

        @jit
        def rows(inputs: Array, natural: Array, j: Array) -> Array:
            """Of one component: those of all at once would be too many."""

            def one(inputs: Array, natural: Array) -> Array:
                plugged, log_sd, _ = plug_in(inputs)
                return unfitted.row(plugged[j], log_sd[j], plug_in.inputs(inputs), natural)

            return jax.vmap(jax.vmap(one))(inputs, natural)

        @jit
        def estimate(weights: Array, inputs: Array, natural: Array) -> Array:
            def one(inputs: Array, natural: Array) -> Array:
                plugged, log_sd, _ = plug_in(inputs)
                baseline = self.of_weights(weights)
                return baseline(plugged, log_sd, plug_in.inputs(inputs), natural)

            return jax.vmap(jax.vmap(one))(inputs, natural)

        self._rows, self._estimate = rows, estimate

    def best(self, pieces: list[_Piece], fresh: _Piece) -> Start:
        """With the first ridge, unless a later one is much better on simulations that are new."""
        starts = [
            Start(self.plug_in, self.of_weights(weights), self._error(weights, fresh))
            for weights in self._fitted(pieces)
        ]
        best = min(starts, key=lambda start: max(start.error))
        return best if max(best.error) < MUCH_BETTER * max(starts[0].error) else starts[0]

    def explained(
        self, start: Start, pieces: list[_Piece], fresh: _Piece, rng: np.random.Generator
    ) -> tuple[float, ...]:
        """The share of the squared error that random features of the summaries explain.

        The expected error is that which a small step of theta allows. Where the support of the data
        moves with theta, no estimator may come near it, and none of the error can be explained.
        """
        assert start.baseline is not None
        weights = start.baseline.weights
        size, count = fresh.inputs.shape[2], self.settings.richer_features
        hidden = _array(self.settings.feature_scale * rng.normal(size=(size, count)) / size**0.5)
        offsets = _array(rng.normal(size=count))

        @jit
        @jax.vmap
        @jax.vmap
        def features(inputs: Array) -> Array:
            standard = self.plug_in.inputs(inputs)
            return jnp.concatenate([standard, jax.nn.gelu(standard @ hidden + offsets)])

        def rows_and_errors(piece: _Piece) -> tuple[np.ndarray, np.ndarray]:
            errors = np.clip(self._errors(weights, piece), -FAR, FAR)
            rows = np.asarray(features(piece.inputs), np.float64)
            return rows.reshape(-1, rows.shape[2]), errors.reshape(-1, errors.shape[2])

        rows, errors = (np.concatenate(p) for p in zip(*map(rows_and_errors, pieces), strict=True))
        mean, deviation = mean_and_deviation(rows)
        deviation = np.where(deviation > 0, deviation, np.inf)
        rows = (rows - mean) / deviation
        gram = rows.T @ rows / len(rows) + self.settings.ridge * np.eye(rows.shape[1])
        average = errors.mean(axis=0)
        readout = np.linalg.solve(gram, rows.T @ (errors - average) / len(rows))
        rows, errors = rows_and_errors(fresh)
        rest = errors - average - (rows - mean) / deviation @ readout
        return tuple((1 - (rest**2).mean(axis=0) / (errors**2).mean(axis=0)).tolist())

    def _fitted(self, pieces: list[_Piece]) -> list[Array]:
        """The weights, for each ridge."""
        total: list[_UnitMoments] = []
        for piece in pieces:
            d = piece.y.shape[1]
            for j in range(d):
                rows = self._rows(piece.inputs, piece.natural, jnp.asarray(j))
                rows = np.asarray(rows, np.float64)
                total = total or [_UnitMoments(rows.shape[2]) for _ in range(d)]
                finite = np.isfinite(rows).all(axis=(1, 2))
                scale = np.exp(-piece.log_sd[finite, j].astype(np.float64))
                total[j].add(
                    rows[finite] * scale[:, None, None],
                    piece.y[finite, j] * scale,
                    piece.efficient[finite, :, j] * scale[:, None],
                )
        weight = self.settings.bias_weight
        return [
            _array(np.stack([moments.solve(weight, ridge) for moments in total]))
            for ridge in self.settings.linear_ridges
        ]

    def _error(self, weights: Array, piece: _Piece) -> tuple[float, ...]:
        """Mean squared errors over the expected ones; the few largest do not count."""
        squares = np.mean(self._errors(weights, piece) ** 2, axis=1)
        squares = np.where(np.isfinite(squares), squares, np.inf)
        largest = np.quantile(squares, 0.98, axis=0)
        return tuple(np.minimum(squares, largest).mean(axis=0).tolist())

    def _errors(self, weights: Array, piece: _Piece) -> np.ndarray:
        """In units of the expected ones, (N, M, d)."""
        estimates = np.asarray(self._estimate(weights, piece.inputs, piece.natural), np.float64)
        return (estimates - piece.y[:, None, :]) * np.exp(-piece.log_sd)[:, None, :]


class _UnitMoments:
    """Second moments of rows, within and between units, with the target and with its noise.

    The target of errors is that of an efficient estimator, noise included; that of the bias is the
    truth.
    """

    def __init__(self, size: int) -> None:
        self.total, self.within = np.zeros((size, size)), np.zeros((size, size))
        self.cross, self.noise_cross, self.units = np.zeros(size), np.zeros(size), 0

    def add(self, rows: np.ndarray, target: np.ndarray, noise: np.ndarray) -> None:
        units, m, size = rows.shape
        flat, mean = rows.reshape(-1, size), rows.mean(axis=1)
        total = flat.T @ flat / m
        self.total += total
        self.within += (total - mean.T @ mean) * (m / (m - 1))
        self.cross += mean.T @ target
        self.noise_cross += flat.T @ noise.ravel() / m
        self.units += units

    def solve(self, bias_weight: float, ridge: float) -> np.ndarray:
        """The coefficients of least squared error and bias."""
        cross = self.cross + self.noise_cross / (1 + bias_weight)
        return clipped_coefficients(self.total, self.within, cross, bias_weight, ridge)


def extended_interp(at: Array, scale: Array, table: Array) -> Array:
    """Interpolation that goes on beyond both ends with the slopes it has there."""
    below = (table[1] - table[0]) / (scale[1] - scale[0])
    above = (table[-1] - table[-2]) / (scale[-1] - scale[-2])
    inner = jnp.interp(at, scale, table)
    return inner + jnp.minimum(at - scale[0], 0) * below + jnp.maximum(at - scale[-1], 0) * above


def _scaled(scaling: Affine, statistics: Float[Array, " p"]) -> Float[Array, " p"]:
    """Standardised statistics; zero for those that are left out, even where they are infinite."""
    return jnp.where(scaling.matrix == 0, 0.0, scaling(statistics))


def _scaling(statistics: np.ndarray, fewest_draws: int) -> Affine:
    """To mean 0 and deviation 1, (N, M, p) to p; to zero what does not vary, or too wildly.

    A statistic whose fourth moment a handful of the draws carry, such as the mean of data without
    one, has no scale to go by: the next such draw is larger than all before.
    """
    n, m, size = statistics.shape
    values = statistics.reshape(n * m, size).astype(np.float64)
    mean, deviation = mean_and_deviation(values)
    varies = deviation > 0
    deviation = np.where(varies, deviation, 1.0)
    kurtosis = np.mean(((values - mean) / deviation) ** 4, axis=0)
    useful = varies & (kurtosis < len(values) / fewest_draws)
    return Affine(_array(np.where(useful, mean, 0.0)), _array(np.where(useful, 1 / deviation, 0.0)))


def _array(values: np.ndarray) -> Array:
    return jnp.asarray(values, jnp.result_type(float))
