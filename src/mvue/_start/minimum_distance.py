"""A start by minimum distance: the theta whose mean summaries are nearest to those seen.

Simulated minimum distance, or indirect inference, with an emulator in place of simulations: the
nearest of many values of theta, and steps of Gauss and Newton from there. Summaries are whitened by
their noise, averaged over theta, so that the estimate is efficient where that noise is the same
everywhere, as that of a signal in noise is; elsewhere stages of learned Fisher scoring weight what
is left of the summaries by what the noise is at the estimate.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.keys import host_random
from .._core.types import Key
from .._numerics.small_matrices import invert
from .._recipe.settings import MinimumDistanceSettings
from .._runtime.jit import as_array, jit
from .._serialise.registry import register
from ..nn._frozen import Frozen
from .emulator import Emulator, fit_emulator
from .pieces import Piece
from .plug_in import PlugIn

BEYOND = 4.0  # standard deviations beyond the ends of what is trained on
DAMPING = 0.05  # of the steps, as a share of the information
LEAST_INFORMATION = 0.01  # in units of the expected one, where a step is taken at all


class Nearest(NamedTuple):
    """What minimum distance finds for one measurement."""

    place: Float[Array, " q"]
    """Of theta, within about -1 … 1."""
    rest: Float[Array, " s"]
    """What is left of the whitened summaries."""


@register(name="mvue.MinimumDistance")
class MinimumDistance(Frozen):
    """The theta whose emulated mean summaries are nearest to those of a measurement."""

    whitening: Float[Array, "p s"]
    emulator: Emulator
    codes: Float[Array, "g q"]
    """Places of which the nearest is the first estimate."""
    predicted: Float[Array, "g s"]
    """The mean summaries there."""
    halves: Float[Array, " g"]
    """Half of the squares of these."""
    gains: Float[Array, "g q s"]
    """What takes the rest of the summaries to a step from there."""
    unit: tuple[float, ...] = eqx.field(static=True)
    """The standard deviation of each coordinate of theta, in shares of half its range."""
    farthest_step: float = eqx.field(static=True)
    """In standard deviations."""

    def __call__(self, inputs: Float[Array, " p"]) -> Nearest:
        """From standardised summaries: the nearest code, and three steps of Gauss and Newton.

        The gain of the first was computed beforehand, that of the last is that of the second.
        """
        seen = inputs @ self.whitening
        code = jnp.argmax(self.predicted @ seen - self.halves)
        place = self._moved(self.codes[code], self.gains[code] @ (seen - self.predicted[code]))
        mean, gain = mean_and_gain(self.emulator, place, self.unit)
        place = self._moved(place, gain @ (seen - mean))
        place = self._moved(place, gain @ (seen - self.emulator(place)))
        return Nearest(place, seen - self.emulator(place))

    def _moved(self, place: Array, step: Array) -> Array:
        """By a step in standard deviations, not too far, and within reach of the ends."""
        unit, most = jnp.asarray(self.unit, place.dtype), self.farthest_step
        end = 1 + BEYOND * unit
        return jnp.clip(place + unit * most * jnp.tanh(step / most), -end, end)


def mean_and_gain(
    emulator: Emulator, place: Float[Array, " q"], unit: tuple[float, ...]
) -> tuple[Float[Array, " s"], Float[Array, "q s"]]:
    """The mean summaries at a place, and what takes the rest of them to a step.

    The step is in standard deviations. It is damped a little, so that a coordinate which summaries
    do not tell there stays as it is.
    """
    mean, slopes = emulator.with_slopes(place)
    slopes = slopes * jnp.asarray(unit, place.dtype)[:, None]
    information = slopes @ slopes.T
    diagonal = DAMPING * jnp.diagonal(information) + LEAST_INFORMATION
    return mean, invert(information + diagonal[:, None] * np.eye(len(unit)))[0] @ slopes


class MeanSummaries(NamedTuple):
    """Means of standardised summaries over the repeats of each unit, and what their noise is."""

    places: np.ndarray
    """Where theta lies in its ranges, (n, q)."""
    means: np.ndarray
    """(n, p)."""
    within: np.ndarray
    """The covariance of one measurement, averaged over units, (p, p)."""
    repeats: int


def mean_summaries(pieces: Iterable[Piece], plug_in: PlugIn) -> MeanSummaries:
    """From simulations; `plug_in` standardises summaries."""

    @jit
    def moments(inputs: Array) -> tuple[Array, Array]:
        values = jax.vmap(jax.vmap(plug_in.inputs))(inputs)
        mean = jnp.mean(values, axis=1)
        centred = (values - mean[:, None, :]).reshape(-1, values.shape[2])
        return mean, centred.T @ centred / (values.shape[1] - 1)

    places, means, within, units, repeats = [], [], 0.0, 0, 2
    for piece in pieces:
        mean, noise = moments(piece.inputs)
        places.append(np.asarray(piece.places, np.float64))
        means.append(np.asarray(mean, np.float64))
        within = within + np.asarray(noise, np.float64)
        units, repeats = units + len(mean), piece.inputs.shape[1]
    return MeanSummaries(
        np.concatenate(places), np.concatenate(means), np.asarray(within) / units, repeats
    )


def fit_minimum_distance(
    seen: MeanSummaries,
    widths: Sequence[float],
    settings: MinimumDistanceSettings,
    among: np.ndarray,
    *,
    key: Key,
) -> MinimumDistance | None:
    """From simulations of the problem to be trained on; None where summaries tell too little.

    Args:
        seen: mean summaries, and their noise.
        widths: of the ranges of theta, in standard deviations.
        settings: how many waves and steps.
        among: the summaries that may be compared.
        key: for the waves.
    """
    rng = host_random(key)
    whitening = _directions(np.cov(seen.means.T), seen.within, seen.repeats, among, settings)
    if whitening.shape[1] < len(widths):
        return None
    unit = tuple(2 / max(width, 1.0) for width in widths)
    finest = np.pi / 2 / (np.asarray(unit) * settings.finest_wave)
    means = (seen.means @ whitening).astype(np.float32)
    noise = 1 / seen.repeats
    emulator, _ = fit_emulator(seen.places, means, noise, finest, settings, rng)
    codes = codes_of(emulator, unit, settings.codes, rng)
    return MinimumDistance(as_array(whitening), emulator, *codes, unit, settings.farthest_step)


def with_codes(distance: MinimumDistance, count: int, *, key: Key) -> MinimumDistance:
    """The same with so many values of theta of which the nearest is the first estimate."""
    codes = codes_of(distance.emulator, distance.unit, count, host_random(key))
    fields = ("codes", "predicted", "halves", "gains")
    return dataclasses.replace(distance, **dict(zip(fields, codes, strict=True)))


def codes_of(
    emulator: Emulator, unit: tuple[float, ...], count: int, rng: np.random.Generator
) -> tuple[Array, Array, Array, Array]:
    """Places, mean summaries there, half of the squares of these, and gains."""
    codes = as_array(rng.uniform(-1, 1, size=(count, len(unit))))
    of_codes = jax.vmap(mean_and_gain, in_axes=(None, 0, None))
    predicted, gains = jit(of_codes, static_argnums=2)(emulator, codes, unit)
    return codes, predicted, jnp.sum(predicted**2, axis=1) / 2, gains


def _directions(
    between: np.ndarray,
    within: np.ndarray,
    repeats: int,
    among: np.ndarray,
    settings: MinimumDistanceSettings,
) -> np.ndarray:
    """Combinations of summaries with noise of variance 1, those with most signal, (p, s)."""
    size = np.diagonal(within)
    ratio = np.where(size > 0, np.diagonal(between) / np.where(size > 0, size, 1.0), 0.0)
    among = among[size[among] > 0]
    kept = np.sort(among[np.argsort(-ratio[among])[: settings.largest_whitened]])
    if not len(kept):
        return np.zeros((len(within), 0))
    power, axes = np.linalg.eigh(within[np.ix_(kept, kept)])
    good = power > settings.least_noise * power[-1]
    even = axes[:, good] / np.sqrt(power[good])
    signal, turned = np.linalg.eigh(even.T @ between[np.ix_(kept, kept)] @ even)
    # Means over repeats have noise of their own.
    shown = np.flatnonzero(signal > 1.5 / repeats)[::-1][: settings.directions]
    whitening = np.zeros((len(within), len(shown)))
    whitening[kept] = even @ turned[:, shown]
    return whitening
