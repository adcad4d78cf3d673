"""The closed-form start of the default network: linear bias constrained estimation on summaries.

Two steps. The plug-in estimate: least squares on statistics and random features, of y in a
variance-stabilised scale, taken back to the units of y. The baseline: a linear bias constrained
estimate from the plug-in and natural statistics (means, variances, products, inverses, extremes),
with errors weighted by the survey. Where the answer is linear in these statistics, the baseline is
nearly the answer.
"""

import dataclasses
import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.keys import host_random, several
from .._core.types import Key
from .._linear.spectrum import clipped_coefficients
from .._recipe.settings import BaselineSettings
from .._recipe.survey import Survey
from .._runtime.jit import as_array, jit
from .._runtime.threads import on_one_thread
from .._serialise.registry import register
from ..nn._frozen import Affine, Frozen
from ..nn._standardize import mean_and_deviation
from .pieces import Piece, Pieces, trimmed
from .plug_in import (
    FARTHEST,
    WIDENED,
    PlugIn,
    fit_plug_in,
    scaled,
    scaling_of,
    seen_of,
    within,
)

MUCH_BETTER = 0.9  # share of the squared error that is left
FAR = 5.0  # expected errors: larger ones do not count for more


@register(name="mvue.Baseline")
class Baseline(Frozen):
    """A linear function of natural statistics, and of the plug-in estimate and its corrections.

    Corrections are statistics in units of the standard deviation of the plug-in estimate.
    """

    natural: Affine
    weights: Float[Array, "d q"]
    reach: Float[Array, " d"] | None = None
    """How far from the plug-in estimate it is left as it is, in standard deviations of that; None
    for anywhere, as in files of earlier versions. Inverses grow without bound where readings are
    all equal, and the plug-in estimate does not."""
    seen: Float[Array, "2 f"] | None = None
    """As in `PlugIn`, of the natural statistics."""

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
        estimate = of_plug_in[:, 0] * plug_in + corrections + of_natural @ self._shared(natural)
        if self.reach is None:
            return estimate
        distance = (estimate - plug_in) * jnp.exp(-log_sd)
        beyond = jnp.clip(jnp.abs(distance) - self.reach, 0.0, FARTHEST)
        closer = jnp.sign(distance) * (self.reach + jnp.log1p(beyond))
        return jnp.where(beyond == 0, estimate, plug_in + closer * jnp.exp(log_sd))

    def row(self, plug_in: Array, log_sd: Array, inputs: Array, natural: Array) -> Array:
        """What the estimate of one component is a linear function of, (q,)."""
        corrections = jnp.exp(log_sd) * jnp.append(inputs, 1.0)
        return jnp.concatenate([plug_in[None], corrections, self._shared(natural)])

    def _shared(self, natural: Float[Array, " f"]) -> Float[Array, " g"]:
        return jnp.append(within(scaled(self.natural, natural), self.seen), 1.0)


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


@on_one_thread
def fit_baseline(
    pieces_of: Pieces, survey: Survey, *, only_plug_in: bool = False, key: Key
) -> Start:
    """Both steps, or the first, from simulations of the problem to be trained on."""
    settings, table = survey.recipe.baseline, survey.recipe.survey.table
    simulate_key, hidden_key = several(key, 2)
    few = settings.plug_in_units // pieces_of.units
    few = max(1, min(few, math.ceil(settings.pieces * pieces_of.share)))
    pieces = pieces_of(simulate_key, settings.pieces + 1)
    fresh, *some = itertools.islice(pieces, few + 1)
    first = Piece(*(np.concatenate(part) for part in zip(*some, strict=True)))
    plug_in = fit_plug_in(first, hidden_key, table, settings)
    if only_plug_in:
        return Start(plug_in, None, ())
    fitting = _LinearFit(plug_in, first.natural, settings)
    start = fitting.best(some, fresh)
    if max(start.error) > settings.hopeless:
        return start
    start = fitting.best([*some, *pieces], fresh)
    if max(start.error) <= survey.recipe.network.good_start:
        return start
    return start._replace(explained=fitting.explained(start, some, fresh, host_random(key)))


class _LinearFit:
    """Weighted linear bias constrained estimation on the rows of `Baseline`."""

    def __init__(self, plug_in: PlugIn, natural: np.ndarray, settings: BaselineSettings) -> None:
        self.plug_in, self.settings = plug_in, settings
        scaling = scaling_of(natural, settings.fewest_draws)
        seen = seen_of(scaling, natural, settings.largest_input)
        unfitted = Baseline(scaling, as_array(np.zeros((0, 0))), seen=seen)
        self.of_weights = lambda weights: dataclasses.replace(unfitted, weights=weights)

        @jit
        def rows(inputs: Array, natural: Array, j: Array) -> Array:
            """Of one component: those of all at once would be too many."""

            def one(inputs: Array, natural: Array) -> Array:
                plugged, log_sd, _ = plug_in(inputs)
                return unfitted.row(plugged[j], log_sd[j], plug_in.inputs(inputs), natural)

            return jax.vmap(jax.vmap(one))(inputs, natural)

        @jit
        def estimate(weights: Array, inputs: Array, natural: Array) -> tuple[Array, Array]:
            """And how far it is from the plug-in estimate, in standard deviations."""

            def one(inputs: Array, natural: Array) -> tuple[Array, Array]:
                plugged, log_sd, _ = plug_in(inputs)
                baseline = self.of_weights(weights)
                found = baseline(plugged, log_sd, plug_in.inputs(inputs), natural)
                return found, (found - plugged) * jnp.exp(-log_sd)

            return jax.vmap(jax.vmap(one))(inputs, natural)

        self._rows, self._estimate = rows, estimate

    def best(self, pieces: list[Piece], fresh: Piece) -> Start:
        """With the first ridge, unless a later one is much better on simulations that are new."""
        starts = [
            Start(self.plug_in, self.of_weights(weights), self._error(weights, fresh))
            for weights in self._fitted(pieces)
        ]
        best = min(starts, key=lambda start: max(start.error))
        best = best if max(best.error) < MUCH_BETTER * max(starts[0].error) else starts[0]
        return self._bounded(best, fresh)

    def explained(
        self, start: Start, pieces: list[Piece], fresh: Piece, rng: np.random.Generator
    ) -> tuple[float, ...]:
        """The share of the squared error that random features of the summaries explain.

        The expected error is that which a small step of theta allows. Where the support of the data
        moves with theta, no estimator may come near it, and none of the error can be explained.
        """
        assert start.baseline is not None
        weights = start.baseline.weights
        size, count = fresh.inputs.shape[2], self.settings.richer_features
        hidden = as_array(self.settings.feature_scale * rng.normal(size=(size, count)) / size**0.5)
        offsets = as_array(rng.normal(size=count))

        @jit
        @jax.vmap
        @jax.vmap
        def features(inputs: Array) -> Array:
            standard = self.plug_in.inputs(inputs)
            return jnp.concatenate([standard, jax.nn.gelu(standard @ hidden + offsets)])

        def rows_and_errors(piece: Piece) -> tuple[np.ndarray, np.ndarray]:
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

    def _bounded(self, start: Start, fresh: Piece) -> Start:
        """The same, tamed where it is farther out than it ever was.

        From the plug-in estimate, or beyond the values that are trained on.
        """
        assert start.baseline is not None
        weights = start.baseline.weights
        estimate, distance = self._estimate(weights, fresh.inputs, fresh.natural)
        beyond = jit(jax.vmap(jax.vmap(start.plug_in.distance)))(estimate)

        def reach(sizes: Any) -> Array:
            farthest = np.nanmax(np.asarray(sizes, np.float64), axis=(0, 1), initial=0.0)
            return as_array(np.maximum(self.settings.least_reach, WIDENED * farthest))

        return start._replace(
            plug_in=dataclasses.replace(start.plug_in, beyond=reach(beyond)),
            baseline=dataclasses.replace(start.baseline, reach=reach(np.abs(distance))),
        )

    def _fitted(self, pieces: list[Piece]) -> list[Array]:
        """The weights, for each ridge."""
        total: list[_UnitMoments] = []
        for piece in pieces:
            d = piece.y.shape[1]
            for j in range(d):
                rows = self._rows(piece.inputs, piece.natural, as_array(j, int))
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
            as_array(np.stack([moments.solve(weight, ridge) for moments in total]))
            for ridge in self.settings.linear_ridges
        ]

    def _error(self, weights: Array, piece: Piece) -> tuple[float, ...]:
        """Mean squared errors over the expected ones; the few largest do not count."""
        return trimmed(np.mean(self._errors(weights, piece) ** 2, axis=1))

    def _errors(self, weights: Array, piece: Piece) -> np.ndarray:
        """In units of the expected ones, (N, M, d)."""
        estimates, _ = self._estimate(weights, piece.inputs, piece.natural)
        estimates = np.asarray(estimates, np.float64)
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
