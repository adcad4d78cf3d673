"""An emulator: the mean of summaries as a function of theta, by least squares.

Its terms are polynomials of each coordinate and plane waves. The means of a tone, a chirp or an
array are such waves, of several coordinates at once; what is smooth needs few. Waves are drawn in
proportion to how much of what is still unexplained they explain alone, and moved to where they
explain most: random features that are aligned with what they are for (Sinha and Duchi, Learning
kernels with random features, 2016), round by round as in matching pursuit.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._numerics.polynomials import legendre
from .._recipe.settings import MinimumDistanceSettings
from .._runtime.jit import as_array
from .._serialise.registry import register
from ..nn._frozen import Frozen

HELD_OUT = 8  # one unit in so many tells whether more waves help
SLOWEST = 0.5  # radians from the middle of a range to its end
STEP = 1.0  # radians by which waves that explain something are varied
ACTIVE = 0.7  # share of waves that change along a coordinate
POOL = 4  # waves that are improved for each that is taken
CLIMBS, CLIMB = 8, 0.6  # steps uphill, and the length of the first in radians
APART = 0.4  # radians between waves of one round


@register(name="mvue.Emulator")
class Emulator(Frozen):
    """The mean of summaries at places within -1 … 1."""

    frequencies: Float[Array, "f q"]
    """Of the waves, in radians from the middle of a range to its end."""
    coefficients: Float[Array, "p s"]
    """Of a constant, polynomials of each coordinate, cosines and sines."""

    @property
    def degree(self) -> int:
        """Of the polynomials."""
        waves, q = self.frequencies.shape
        return (self.coefficients.shape[0] - 1 - 2 * waves) // q

    def __call__(self, place: Float[Array, " q"]) -> Float[Array, " s"]:
        """The mean."""
        return self.terms(place) @ self.coefficients

    def terms(self, place: Float[Array, " q"]) -> Float[Array, " p"]:
        """What it is linear in."""
        phase = self.frequencies @ place
        powers = legendre(place, self.degree)[1:].ravel()
        return jnp.concatenate([jnp.ones(1, place.dtype), powers, jnp.cos(phase), jnp.sin(phase)])

    def with_slopes(
        self, place: Float[Array, " q"]
    ) -> tuple[Float[Array, " s"], Float[Array, "q s"]]:
        """The mean and its derivatives."""
        terms, push = jax.linearize(self.terms, place)
        tangents = jax.vmap(push)(jnp.eye(place.shape[0], dtype=place.dtype))
        rows = jnp.concatenate([terms[None], tangents]) @ self.coefficients
        return rows[0], rows[1:]


class Emulated(NamedTuple):
    """An emulator and its error."""

    emulator: Emulator
    error: float
    """Mean squared, over the variance of the noise of one measurement, on units held out."""


def fit_emulator(
    places: np.ndarray,
    means: np.ndarray,
    noise: float,
    finest: np.ndarray,
    settings: MinimumDistanceSettings,
    rng: np.random.Generator,
) -> Emulated:
    """Least squares with as many waves as lower the error on units that were held out.

    Args:
        places: of theta, (n, q), within -1 … 1.
        means: of summaries over the repeats of each unit, (n, s), whitened: the noise of a single
            measurement has variance 1.
        noise: the variance of that of the means.
        finest: the highest frequency of waves along each coordinate, (q,).
        settings: how many waves.
        rng: for the waves.
    """
    fitted = np.arange(len(places)) % HELD_OUT != 0
    found = _Waves(places, means, fitted, settings)
    best, frequencies = None, np.zeros((0, places.shape[1]))
    while True:
        coefficients, rest = found.solve(frequencies)
        error = float((rest[~fitted] ** 2).mean() - noise)
        worse = best is not None and error > settings.gain * best.error
        if best is None or error < best.error:
            emulator = Emulator(as_array(frequencies), as_array(coefficients))
            best = Emulated(emulator, error)
        if worse or error < settings.exact or len(frequencies) >= settings.most_waves:
            return best
        more = _chosen(places, rest, fitted, frequencies, finest, settings, rng)
        frequencies = np.concatenate([frequencies, more])


class _Waves:
    """Least squares on polynomials and waves; terms are kept from one round to the next."""

    def __init__(
        self,
        places: np.ndarray,
        means: np.ndarray,
        fitted: np.ndarray,
        settings: MinimumDistanceSettings,
    ) -> None:
        self.places, self.means, self.fitted = places, means, fitted
        self.ridge = settings.ridge
        degrees = np.polynomial.legendre.legvander(places, settings.degree)[..., 1:]
        fixed = degrees.swapaxes(1, 2).reshape(len(places), -1)
        self.fixed = np.concatenate([np.ones((len(places), 1)), fixed], axis=1).astype(np.float32)
        self.cosines = self.sines = np.zeros((len(places), 0), np.float32)

    def solve(self, frequencies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients, in the order of the terms of `Emulator`, and what is left of the means."""
        phase = (self.places @ frequencies[self.cosines.shape[1] :].T).astype(np.float32)
        self.cosines = np.concatenate([self.cosines, np.cos(phase)], axis=1)
        self.sines = np.concatenate([self.sines, np.sin(phase)], axis=1)
        terms = np.concatenate([self.fixed, self.cosines, self.sines], axis=1)
        some, means = terms[self.fitted], self.means[self.fitted]
        gram = (some.T @ some).astype(np.float64) / len(some)
        cross = (some.T @ means).astype(np.float64) / len(some)
        coefficients = np.linalg.solve(gram + self.ridge * np.eye(len(gram)), cross)
        return coefficients, self.means - terms @ coefficients.astype(np.float32)


def _chosen(
    places: np.ndarray,
    rest: np.ndarray,
    fitted: np.ndarray,
    before: np.ndarray,
    finest: np.ndarray,
    settings: MinimumDistanceSettings,
    rng: np.random.Generator,
) -> np.ndarray:
    """Frequencies of waves that explain most of what is left of the means, (waves, q).

    Some are drawn from many by what they explain, moved to where they explain most, and of those
    that meet there one is taken.
    """
    units = rng.permutation(np.flatnonzero(fitted))[: settings.seen]
    places, rest = places[units].astype(np.float32), rest[units]
    drawn = _candidates(before, finest, settings.candidates, rng)
    power = _power(places, rest, drawn)
    power = np.maximum(power - np.median(power) / 2, 0.0) + np.finfo(power.dtype).tiny
    count = min(POOL * settings.waves, len(drawn))
    some = drawn[rng.choice(len(drawn), size=count, replace=False, p=power / power.sum())]
    some = _climbed(places[: len(places) // 2], rest[: len(rest) // 2], some)
    found: list[np.ndarray] = []
    for wave in some[np.argsort(-_power(places, rest, some))]:
        apart = [min(np.abs(wave - one).max(), np.abs(wave + one).max()) for one in found]
        if min(apart, default=np.inf) > APART:
            found.append(wave)
    return np.array(found[: settings.waves])


def _candidates(
    before: np.ndarray, finest: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
    """Frequencies of all sizes, and half of them near to those that were chosen before."""
    q = len(finest)
    highest = np.maximum(finest, 2 * SLOWEST)
    sizes = SLOWEST * (highest / SLOWEST) ** rng.uniform(size=(count, q))
    signs = rng.choice([-1.0, 1.0], size=(count, q))
    active = rng.uniform(size=(count, q)) < ACTIVE
    active[np.arange(count), rng.integers(q, size=count)] = True
    new = np.where(active, signs * sizes, 0.0)
    if len(before):
        near = before[rng.integers(len(before), size=count // 2)]
        new[: len(near)] = near + STEP * rng.normal(size=near.shape)
    return new


def _power(places: np.ndarray, rest: np.ndarray, waves: np.ndarray) -> np.ndarray:
    """What each wave explains alone, up to a factor."""
    phase = places @ waves.T.astype(np.float32)
    parts = (np.cos(phase).T @ rest, np.sin(phase).T @ rest)
    return np.sum([(part.astype(np.float64) ** 2).sum(axis=1) for part in parts], axis=0)


def _climbed(places: np.ndarray, rest: np.ndarray, waves: np.ndarray) -> np.ndarray:
    """Waves moved uphill, by shorter and shorter steps, to where they explain more."""
    waves = waves.astype(np.float32)
    for k in range(CLIMBS):
        phase = places @ waves.T
        cosines, sines = np.cos(phase), np.sin(phase)
        slope = cosines * (rest @ (sines.T @ rest).T) - sines * (rest @ (cosines.T @ rest).T)
        uphill = slope.T @ places
        length = np.linalg.norm(uphill, axis=1, keepdims=True)
        waves = waves + CLIMB * 0.85**k * uphill / np.maximum(length, np.finfo(length.dtype).tiny)
    return waves.astype(np.float64)
