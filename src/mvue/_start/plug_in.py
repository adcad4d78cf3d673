"""The plug-in estimate: least squares on summaries and random features of them.

Of y in a variance-stabilised scale, taken back to the units of y.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.keys import host_random
from .._core.types import Key
from .._recipe.settings import BaselineSettings
from .._recipe.survey import unit_scale
from .._runtime.jit import as_array, jit
from .._serialise.registry import register
from ..nn._frozen import Affine, Frozen
from ..nn._standardize import mean_and_deviation
from .pieces import Piece

FARTHEST = 1e12  # standard deviations; larger numbers may be infinite
RESOLVED = 1e-6  # of a range, in single precision
WIDENED = 1.25  # what simulations show, for those that were not seen


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
    seen: Float[Array, "2 p"] | None = None
    """The smallest and the largest standardised statistics that are told from those beyond; None
    for any, as in files of earlier versions. Logarithms of a spread that is rounding, and ratios
    to it, are far from all that simulations show."""
    beyond: Float[Array, " d"] | None = None
    """How far beyond the ends of the table an estimate is left as it is, in standard deviations;
    None for anywhere."""

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
        standard = within(scaled(self.scaling, statistics), self.seen)
        size = jnp.abs(standard)
        beyond = jnp.clip(size - self.largest_input, 0.0, FARTHEST)
        return jnp.sign(standard) * (jnp.minimum(size, self.largest_input) + jnp.log1p(beyond))

    def held(self, estimate: Float[Array, " d"]) -> Float[Array, " d"]:
        """An estimate, brought closer where it is farther beyond the table than any was."""
        if self.beyond is None:
            return estimate
        for end, sd in self._ends():
            excess = jnp.clip((estimate - end) / sd - self.beyond, 0.0, FARTHEST)
            closer = end + sd * (self.beyond + jnp.log1p(excess))
            estimate = jnp.where(excess > 0, closer, estimate)
        return estimate

    def distance(self, estimate: Float[Array, " d"]) -> Float[Array, " d"]:
        """How far an estimate is beyond the table, in standard deviations; negative within."""
        return jnp.maximum(*((estimate - end) / sd for end, sd in self._ends()))

    def _ends(self) -> list[tuple[Array, Array]]:
        """Both ends of the table, and the standard deviation there, with the sign of the way out.

        Of a wide table the deviation at an end may be less than single precision resolves.
        """
        step = (self.scale[:, -1] - self.scale[:, 0]) / (self.scale.shape[1] - 1)
        low, high = self.table[:, 0], self.table[:, -1]
        least = RESOLVED * (high - low)
        below = jnp.maximum((self.table[:, 1] - low) / step, least)
        above = jnp.maximum((high - self.table[:, -2]) / step, least)
        return [(low, -below), (high, above)]

    def features(self, statistics: Float[Array, " p"]) -> Float[Array, " q"]:
        """Standardised statistics, random features of them, and a constant."""
        standard = self.inputs(statistics)
        curved = jax.nn.gelu(standard @ self.hidden + self.offsets)
        return jnp.concatenate([standard, curved, jnp.ones(1, standard.dtype)])


def fit_plug_in(piece: Piece, key: Key, table_size: int, settings: BaselineSettings) -> PlugIn:
    """Least squares for y in the scale of its standard deviation, and for that deviation."""
    inputs, y, log_sd = (p.astype(np.float64) for p in (piece.inputs, piece.y, piece.log_sd))
    d, size = y.shape[1], inputs.shape[2]
    pairs = [unit_scale(y[:, j], log_sd[:, j], table_size) for j in range(d)]
    scale, table = (np.stack(parts) for parts in zip(*pairs, strict=True))
    place = np.stack([np.interp(y[:, j], table[j], scale[j]) for j in range(d)], axis=1)
    rng = host_random(key)
    shape = size, settings.random_features
    empty = as_array(np.zeros((0, d)))
    plug_in = PlugIn(
        scaling=scaling_of(inputs, settings.fewest_draws),
        hidden=as_array(settings.feature_scale * rng.normal(size=shape) / np.sqrt(size)),
        offsets=as_array(rng.normal(size=shape[1:])),
        readout=empty,
        log_sd_readout=empty,
        log_sd_range=as_array(np.stack([log_sd.min(axis=0) - 1, log_sd.max(axis=0) + 1])),
        scale=as_array(scale),
        table=as_array(table),
        largest_input=settings.largest_input,
    )
    plug_in = dataclasses.replace(
        plug_in, seen=seen_of(plug_in.scaling, inputs, settings.largest_input)
    )
    rows = jit(jax.vmap(plug_in.features))(as_array(inputs.reshape(-1, size)))
    rows = np.asarray(rows, np.float64)
    both = np.repeat(np.concatenate([place, log_sd], axis=1), inputs.shape[1], axis=0)
    both[:, :d] += (piece.efficient * np.exp(-log_sd)[:, None, :]).reshape(-1, d)
    gram = rows.T @ rows / len(rows) + settings.ridge * np.eye(rows.shape[1])
    solution = np.linalg.solve(gram, rows.T @ both / len(rows))
    return dataclasses.replace(
        plug_in, readout=as_array(solution[:, :d]), log_sd_readout=as_array(solution[:, d:])
    )


def extended_interp(at: Array, scale: Array, table: Array) -> Array:
    """Interpolation that goes on beyond both ends with the slopes it has there."""
    below = (table[1] - table[0]) / (scale[1] - scale[0])
    above = (table[-1] - table[-2]) / (scale[-1] - scale[-2])
    inner = jnp.interp(at, scale, table)
    return inner + jnp.minimum(at - scale[0], 0) * below + jnp.maximum(at - scale[-1], 0) * above


def scaled(scaling: Affine, statistics: Float[Array, " p"]) -> Float[Array, " p"]:
    """Standardised statistics; zero for those that are left out, even where they are infinite."""
    return jnp.where(scaling.matrix == 0, 0.0, scaling(statistics))


def within(standard: Array, seen: Array | None) -> Array:
    """Standardised statistics, held at the ends of what was seen."""
    return standard if seen is None else jnp.clip(standard, seen[0], seen[1])


def seen_of(scaling: Affine, statistics: np.ndarray, least: float) -> Float[Array, "2 p"]:
    """Ends of standardised statistics (N, M, p), widened, and some deviations away at least."""
    shift, matrix = np.asarray(scaling.shift), np.asarray(scaling.matrix)
    # A statistic that is left out may be anything.
    standard = np.where(matrix == 0, 0.0, (statistics - shift) * matrix)
    low, high = standard.min(axis=(0, 1)), standard.max(axis=(0, 1))
    return as_array(
        np.stack([np.minimum(WIDENED * low, -least), np.maximum(WIDENED * high, least)])
    )


def scaling_of(statistics: np.ndarray, fewest_draws: int) -> Affine:
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
    return Affine(
        as_array(np.where(useful, mean, 0.0)), as_array(np.where(useful, 1 / deviation, 0.0))
    )
