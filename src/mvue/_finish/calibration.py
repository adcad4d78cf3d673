"""Calibration: smooth functions of the estimate that take out what is left of its bias.

The corrected estimate is T + s(T) · B(T) c, with polynomials B of the estimate in a scale in which
its standard deviation s is about one. Its bias is linear in c, so that the c of least squared bias
(linear BCE with λ = ∞) is in closed form, from products of different repeats of the same unit,
which have independent noise. It is kept where simulations that it was not fitted to show less bias
at no more error.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._core.keys import several
from .._core.sampling import Batches, Simulations
from .._core.types import Estimator, Key, Measurement, Theta
from .._default.excess import ExcessSums, excess_model
from .._default.scoring import Scored
from .._numerics.polynomials import (
    Layer,
    layer_values,
    layers_of,
    legendre,
    ripple_values,
    ripples_of,
)
from .._recipe.cost import affordable
from .._recipe.settings import CalibrationSettings
from .._runtime.jit import as_array, jit
from .._serialise.registry import register
from .._start.plug_in import extended_interp
from ..nn._frozen import Frozen
from ..nn._staged import Staged, finish, prepare

FARTHEST = 1.2  # half ranges from the middle: polynomials are not continued beyond

T = TypeVar("T")


@register(name="mvue.Calibration")
class Calibration(Frozen):
    """A smooth function of an estimate that is added to it."""

    scale: Float[Array, "d t"]
    """Equally spaced values in a scale in which the standard deviation is about one."""
    table: Float[Array, "d t"]
    """The y that belong to them."""
    coefficients: Float[Array, "d q"]
    powers: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    """The degree of each polynomial in each of the coordinates: y, then nuisance parameters."""
    layers: tuple[Layer, ...] = eqx.field(static=True)
    """At the ends of the coordinates."""
    ripples: tuple[tuple[int, int], ...] = eqx.field(static=True)
    """Coordinates of wide ranges and cycles within them."""

    def __call__(
        self, estimate: Float[Array, " d"], nuisances: Float[Array, " k"]
    ) -> Float[Array, " d"]:
        """The corrected estimate."""
        features, size = self.parts(estimate, nuisances)
        return estimate + size * (self.coefficients @ features)

    def place(self, y: Float[Array, " d"]) -> Float[Array, " d"]:
        """Where y lies in its range, within about -1 … 1, in the scale of its deviation."""
        low, high = self.scale[:, 0], self.scale[:, -1]
        place = jax.vmap(extended_interp)(y, self.table, self.scale)
        return (place - (low + high) / 2) / ((high - low) / 2)

    def parts(self, estimate: Array, nuisances: Array) -> tuple[Array, Array]:
        """The polynomials, (q,), and the standard deviation of each component."""
        place = self.place(estimate)
        at = jnp.clip(jnp.concatenate([place, nuisances]), -FARTHEST, FARTHEST)
        step = self.scale[:, 1] - self.scale[:, 0]
        slopes = jnp.asarray(jnp.gradient(self.table, axis=1)) / step[:, None]
        grid = jnp.linspace(-1.0, 1.0, self.table.shape[1])
        size = jax.vmap(lambda value, slope: jnp.interp(value, grid, slope))(
            jnp.clip(place, -1.0, 1.0), slopes
        )
        parts = (
            _polynomials(at, self.powers),
            layer_values(at, self.layers),
            ripple_values(at, self.ripples),
        )
        return jnp.concatenate(parts), size


@register(name="mvue.Calibrated")
class Calibrated(Staged):
    """A network and the calibration of its estimates."""

    network: Estimator
    calibration: Calibration

    def prepare(self, x: Measurement) -> PyTree:
        """The first stage of the network."""
        return prepare(self.network, x)

    def finish(self, prepared: PyTree) -> Float[Array, " d"]:
        """The calibrated estimate."""
        return self.calibration(*estimate_and_nuisances(self.network, prepared))


def estimate_and_nuisances(network: Estimator, prepared: PyTree) -> tuple[Array, Array]:
    """The estimate, and those of nuisance parameters that the network makes on the way."""
    if isinstance(network, Scored):
        state = network.states(prepared)[-1]
        estimate = network.in_units(state)
        return estimate, state[estimate.shape[0] :]
    return finish(network, prepared), jnp.zeros(0)


class CalibrationResult(NamedTuple):
    """What became of a calibration."""

    estimator: Estimator
    note: str


class _BiasMoments(NamedTuple):
    """Of one piece: products of different repeats, summed over units."""

    gram: Any  # (d, q, q)
    cross: Any  # (d, q)
    units: Any


def calibrate(
    estimator: Estimator,
    simulations: Simulations,
    log_sd: Callable[[Theta], Array],
    tables: tuple[Array, Array],
    seconds: float,
    settings: CalibrationSettings,
    *,
    key: Key,
) -> CalibrationResult:
    """The estimator with the calibration that least bias asks for, where it helps.

    Args:
        estimator: to be calibrated.
        simulations: of what it was trained on, and what its first stage makes of them.
        log_sd: logarithm of the error to expect at one theta.
        tables: a scale in which the standard deviation of y is about one, and the y there, (d, t).
        seconds: that one simulation takes.
        settings: how many simulations.
        key: for the simulations.
    """
    x, y = simulations.problem.shapes()
    d, repeats = y.shape[0], simulations.repeats
    nuisances = jax.eval_shape(
        lambda one: estimate_and_nuisances(estimator, prepare(estimator, one))[1], x
    ).shape[0]
    powers = _powers(d, nuisances, settings)
    scale = np.asarray(tables[0], np.float64)
    widths = (scale[:, -1] - scale[:, 0]).tolist()
    layers = layers_of(widths, settings.most_layers)
    ripples = ripples_of(widths, settings.most_ripples)
    terms = len(powers) + len(layers) + 2 * len(ripples)
    unfitted = Calibration(*tables, as_array(np.zeros((d, terms))), powers, layers, ripples)
    numbers = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(x))
    at_once = simulations.count * simulations.units * repeats
    draws = settings.draws * affordable(settings.draws, seconds, settings.seconds)
    pieces = max(2, math.ceil(draws / at_once))
    pieces = int(np.clip(settings.budget // (at_once * numbers), 2, pieces))
    arrays, static = eqx.partition(estimator, eqx.is_array)

    units_of_y = tuple(2 / max(width, 1.0) for width in widths)
    excess = excess_model(units_of_y, settings.excess_degree, settings.most_layers)

    def rows(
        batch: Batches, arrays: PyTree, larger: Array
    ) -> tuple[Array, Array, Array, Array | None]:
        """Errors (N, M, d) and features (N, M, d, q), both in units of the error to expect.

        That is the expected one or, where errors are `larger`, the measured one. And a part of the
        errors that is known to be noise.
        """
        network, draw = eqx.combine(arrays, static), batch.draw

        def one(prepared: PyTree) -> tuple[Array, Array]:
            estimate, nuisances = estimate_and_nuisances(network, prepared)
            features, size = unfitted.parts(estimate, nuisances)
            return estimate, size[:, None] * features[None, :]

        estimates, features = jax.vmap(jax.vmap(one))(batch.seen)
        above = jax.vmap(lambda y: excess.of(larger, unfitted.place(y)))(draw.y)
        unit = jnp.exp(-jax.vmap(log_sd)(draw.theta) - above / 2)[:, None, :]
        errors, features = (estimates - draw.y[:, None, :]) * unit, features * unit[..., None]
        good = batch.finite & jnp.isfinite(errors).all(axis=(1, 2))
        good &= jnp.isfinite(features).all(axis=(1, 2, 3))
        # A unit with an error without bounds would decide about all others.
        good &= (jnp.abs(errors) < settings.largest_error).all(axis=(1, 2))
        return errors, features, good, None if batch.noise is None else batch.noise * unit

    @jit
    def excess_sums(batches: Batches, arrays: PyTree) -> ExcessSums:
        network = eqx.combine(arrays, static)

        def of_batch(batch: Batches) -> ExcessSums:
            draw = batch.draw
            estimates = jax.vmap(jax.vmap(lambda one: finish(network, one)))(batch.seen)
            unit = jnp.exp(-jax.vmap(log_sd)(draw.theta))[:, None, :]
            errors = (estimates - draw.y[:, None, :]) * unit
            return excess.sums(jax.vmap(unfitted.place)(draw.y), errors)

        return _summed(jax.lax.map(of_batch, batches))

    @jit
    def measured(
        batches: Batches, arrays: PyTree, larger: Array, coefficients: Array
    ) -> tuple[_BiasMoments, Array, Array]:
        """Moments that a correction is fitted to, and what one comes to.

        That is squared bias and squared error of each unit before and after it, (K, 2, N, 2, d),
        and which units are good, (K, N).
        """

        def of_batch(batch: Batches) -> tuple[_BiasMoments, Array, Array]:
            errors, features, good, noise = rows(batch, arrays, larger)
            keep = good[:, None, None]
            errors = jnp.where(keep, errors, 0.0)
            features = jnp.where(keep[..., None], features, 0.0)
            after = errors + jnp.einsum("nmjq,jq->nmj", features, coefficients)
            both = jnp.stack([errors, after], axis=1)
            rest = both - (0.0 if noise is None else jnp.where(keep, noise, 0.0)[:, None])
            bias = jnp.sum(rest, axis=2) ** 2 - jnp.sum(rest**2, axis=2)
            values = jnp.stack([bias / (repeats * (repeats - 1)), jnp.mean(both**2, axis=2)])
            whole, total = features.sum(axis=1), rest[:, 0].sum(axis=1)
            gram = jnp.einsum("njq,njr->jqr", whole, whole)
            gram -= jnp.einsum("nmjq,nmjr->jqr", features, features)
            cross = jnp.einsum("njq,nj->jq", whole, total)
            cross -= jnp.einsum("nmjq,nmj->jq", features, rest[:, 0])
            return _BiasMoments(gram, cross, good.sum()), values, good

        moments, values, good = jax.lax.map(of_batch, batches)
        return _summed(moments), values, good

    fit_key, judge_key, excess_key = several(key, 3)

    def simulated(key: Key, piece: int) -> Batches:
        return simulations.at(key, piece * simulations.count)

    sums = [excess_sums(simulated(excess_key, i), arrays) for i in range(max(1, pieces // 8))]
    larger = excess.solve(jax.tree.map(lambda *parts: sum(map(np.asarray, parts)), *sums))
    total: list[np.ndarray] | None = None
    for i in range(pieces):
        found = measured(simulated(fit_key, i), arrays, larger, unfitted.coefficients)[0]
        part = [np.asarray(p, np.float64) for p in found]
        total = part if total is None else [a + b for a, b in zip(total, part, strict=True)]
    assert total is not None
    gram, cross, count = total
    size = max(float(count), 1.0) * repeats * (repeats - 1)
    solutions = [_solve(gram[j] / size, cross[j] / size, settings.ridge) for j in range(d)]
    coefficients = np.stack(solutions)
    shown: list[np.ndarray] = []
    for i in range(max(1, pieces // 4)):
        solved = as_array(coefficients)
        _, values, good = measured(simulated(judge_key, i), arrays, larger, solved)
        values = np.asarray(values, np.float64).swapaxes(0, 1)
        shown.append(values[:, np.asarray(good)])
    values = np.concatenate(shown, axis=1)  # (2, N, 2, d)
    if values.shape[1] < 2:
        return CalibrationResult(estimator, "none: too few finite estimates to fit one")
    mean = values.mean(axis=1)
    se = values.std(axis=1) / np.sqrt(values.shape[1])
    change = values[0, :, 1] - values[0, :, 0]
    less = change.mean(axis=0) < -change.std(axis=0) / np.sqrt(values.shape[1])
    no_worse = mean[1, 1] <= mean[1, 0] + se[1, 0]
    helps = less & no_worse
    if not helps.any():
        return CalibrationResult(
            estimator, "none: smooth functions of the estimate do not lower its bias further"
        )
    kept = jnp.asarray(np.where(helps[:, None], coefficients, 0.0), tables[0].dtype)
    calibration = Calibration(*tables, kept, powers, layers, ripples)
    rms = np.sqrt(np.maximum(mean[0], 0))
    worst = int(np.argmax(np.where(helps, rms[0], -1)))
    note = (
        f"{terms} smooth functions of the estimate"
        f"{'' if d == 1 else f' for {helps.sum()} of {d} components'}: root mean squared bias over "
        f"the expected error {rms[0, worst]:.3g} → {rms[1, worst]:.3g}"
    )
    return CalibrationResult(Calibrated(estimator, calibration), note)


def _summed(tree: T) -> T:
    return jax.tree.map(lambda leaf: leaf.sum(axis=0), tree)


def _solve(gram: np.ndarray, cross: np.ndarray, ridge: float) -> np.ndarray:
    """Minus the solution of least squares, in directions that the simulations resolve."""
    power, axes = np.linalg.eigh((gram + gram.T) / 2)
    floor = ridge * power[-1] + max(-power[0], 0.0)
    gain = np.where(power > floor, 1 / np.where(power > floor, power, 1.0), 0.0)
    return -axes @ (gain * (axes.T @ cross))


def _powers(d: int, nuisances: int, settings: CalibrationSettings) -> tuple[tuple[int, ...], ...]:
    """Degrees of the polynomials: of each coordinate alone, and products of two where few."""
    count = d + nuisances
    degree = settings.degree if count == 1 else settings.degree_of_many
    if 1 + count * degree > settings.most_terms:
        degree = max(1, (settings.most_terms - 1) // count)
    found = [tuple(0 for _ in range(count))]
    for k in range(count):
        found += [tuple(n if i == k else 0 for i in range(count)) for n in range(1, degree + 1)]
    pairs = list(itertools.combinations(range(count), 2))
    if len(found) + len(pairs) <= settings.most_terms:
        found += [tuple(int(i in pair) for i in range(count)) for pair in pairs]
    return tuple(found)


def _polynomials(at: Float[Array, " k"], powers: tuple[tuple[int, ...], ...]) -> Array:
    """Products of Legendre polynomials."""
    table = legendre(at, max(max(term) for term in powers))
    product = jnp.ones(len(powers), at.dtype)
    degrees = np.array(powers)
    for k in range(at.shape[0]):
        product = product * table[degrees[:, k], k]
    return product
