"""Statistics of sets: independent draws, of scalars or of vectors, whose order says nothing.

Sufficient statistics of common models are sums, extremes, and powers and logarithms of these. With
a choice of them as input, a small network has little left to learn.
"""

import functools
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.types import Measurement
from .._numerics.small_matrices import cholesky, invert
from .._numerics.sorting import LONGEST, sort
from .._serialise.registry import register
from ..nn._frozen import Affine, Frozen
from ..nn._measurements import flatten, stack_elements
from .moments import Moments, joined
from .settings import SummariesSettings

Kind = Literal["scalars", "vectors", "flat"]

LARGEST_PRODUCT = 1024  # numbers whose quantiles are a product with a matrix: faster than to gather


@register(name="mvue.Statistics")
class Statistics(Frozen):
    """Statistics of a measurement: of a set of scalars, a set of vectors, or any numbers."""

    kind: Kind = eqx.field(static=True)
    positive: bool = eqx.field(static=True)
    """Whether x is positive throughout; logarithms then take the place of arcsinh."""
    scale: Affine
    """Gives x a typical size of 1; its shift is zero unless x lies far from zero."""
    axes: Float[Array, "p p"] | None = None
    """Principal directions of the elements of a set of vectors, as columns, the strongest first."""
    whitening: Float[Array, "p p"] | None = None
    """Makes the noise of set elements even in all directions, and one if none seen was quieter."""
    settings: SummariesSettings = eqx.field(static=True, default=SummariesSettings())
    axis: int = eqx.field(static=True, default=0)
    """Of x, which counts the elements of a set."""
    in_blocks: bool = eqx.field(static=True, default=False)
    """Whether the order of a large set of scalars is that of its blocks; False in files of earlier
    versions."""

    def rows(self, x: Measurement) -> Float[Array, "n p"]:
        """The elements of a set, without an offset."""
        if self.axis:
            x = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, self.axis, 0), x)
        return stack_elements(x) - self.scale.shift

    def inputs(self, x: Measurement) -> Float[Array, " p"]:
        """What the network sees: statistics whose size is tame whatever the scale of x."""
        return joined(self.moments(x))

    def moments(self, x: Measurement) -> list[Moments]:
        """The inputs, part by part."""
        if self.kind == "flat":
            return [Moments(None, self._of_numbers(flatten(x)))]
        rows = self.rows(x)
        if self.kind == "vectors":
            others = [*self._of_powers(rows), *self._mean_in_noise(rows)]
            return [*_of_vectors(rows, self.settings), *(Moments(None, part) for part in others)]
        return [Moments(None, self._of_scalars(rows[:, 0]))]

    def natural(self, x: Measurement) -> Float[Array, " p"]:
        """Statistics in the units of x and of its powers, whose sums are estimates themselves."""
        if not self.settings.natural:
            return jnp.zeros(0)
        if self.kind == "flat":
            values = flatten(x)
            if values.shape[0] > self.settings.largest_quadratic:
                return jnp.append(values, jnp.mean(values**2))
            return jnp.concatenate([values, _products(values, self.settings)])
        rows = self.rows(x)
        if self.kind == "vectors":
            parts = [*self._power_ratios(rows), *self._mean_in_noise(rows)]
            return jnp.concatenate([_natural_of_vectors(rows, self.settings), *parts])
        values = rows[:, 0]
        mean = jnp.mean(values)
        if values.shape[0] == 1:
            return jnp.stack([mean, mean**2])
        ordered = self._ordered(values)
        variance = jnp.var(values)
        deviation = _root(variance)
        spread = [deviation, variance, mean**2, jnp.mean(jnp.abs(values))]
        inverse = [1 / (mean + self._floor)] if self.positive else []
        if self.whitening is not None and values.shape[0] >= self.settings.fewest_inverse:
            own = variance * self.whitening[0, 0] ** 2
            inverse.append(1 / jnp.maximum(own, self.settings.least_noise))
        return jnp.stack([mean, *spread, ordered[0], ordered[-1], _median(ordered), *inverse])

    def elements(self, x: Measurement) -> Float[Array, "n q"]:
        """The elements of a set, for a network that learns sums of its own."""
        rows = self.rows(x)
        curved = jnp.arcsinh(rows * self.scale.matrix)
        return jnp.concatenate([curved, self._compress(rows)], 1) if self.positive else curved

    def _of_scalars(self, values: Float[Array, " n"]) -> Float[Array, " p"]:
        n, ordered = values.shape[0], self._ordered(values)
        values = ordered if ordered.shape[0] == n else values
        compressed = self._compress(values)
        mean, size = jnp.mean(values), jnp.mean(jnp.abs(values))
        summary = [mean, mean**2, size, jnp.log(size + self._floor), jnp.mean(compressed)]
        if n == 1:
            return jnp.stack(summary)
        deviation = _root(jnp.var(values))
        summary += [deviation, deviation**2, jnp.log(deviation + self._floor)]
        summary += [jnp.log(_root(jnp.var(compressed)) + self.settings.relative_floor)]
        if not self.positive:  # where signs are random, the noise shows in the absolute values
            summary += [jnp.log(_root(jnp.var(jnp.abs(values))) + self._floor)]
        root = _root(jnp.mean(values**2)) + self.settings.relative_floor * self._floor
        own = jnp.abs(values / root)
        powers = jnp.stack([jnp.mean(own), *(jnp.mean(own**k) for k in (3, 4, 6))])
        summary += [jnp.mean((values / root) ** 3), *jnp.log(powers + self.settings.relative_floor)]
        if n > self.settings.largest_sorted:
            values = _quantiles(ordered, self.settings.largest_sorted)
            compressed = self._compress(values)
        standard = (values - mean) / (deviation + self.settings.relative_floor * self._floor)
        both = [jnp.arcsinh(values * self.scale.matrix)] if self.positive else []
        return jnp.concatenate([jnp.stack(summary), values, compressed, standard, *both])

    def _ordered(self, values: Float[Array, " n"]) -> Float[Array, " m"]:
        """In ascending order; of a large set, average order statistics of its blocks.

        Between the least and the largest of all. These averages tell as much as quantiles do, and
        blocks are sorted many times as fast.
        """
        n = values.shape[0]
        if n <= LONGEST or not self.in_blocks:
            return sort(values)
        blocks = -(-n // LONGEST)
        size = n // blocks  # the few elements that are left over are in the moments
        ordered = jax.vmap(sort)(values[: blocks * size].reshape(blocks, size)).mean(axis=0)
        return jnp.concatenate([jnp.min(values)[None], ordered[1:-1], jnp.max(values)[None]])

    def _of_numbers(self, values: Float[Array, " p"]) -> Float[Array, " f"]:
        square = jnp.mean(values**2)
        parts = [values, jnp.stack([square, jnp.log(_root(square) + self._floor)])]
        if self.positive:
            parts.append(self._compress(values))
        if values.shape[0] <= self.settings.largest_quadratic:
            parts.append(_products(values, self.settings))
        return jnp.concatenate(parts)

    def _powers(self, rows: Float[Array, "n p"]) -> list[tuple[Array, Array, Array]]:
        """Along each principal direction, and along the first and the last few together."""
        if self.axes is None:
            return []
        along = rows @ self.axes
        powers = [jnp.mean(along**2, axis=0)]
        if rows.shape[0] > 1:
            powers.append(jnp.var(along, axis=0))
        return [(power, jnp.cumsum(power), jnp.cumsum(power[::-1])[::-1]) for power in powers]

    def _of_powers(self, rows: Float[Array, "n p"]) -> list[Array]:
        return [
            0.5 * jnp.log(part + self._floor**2)
            for power, first, last in self._powers(rows)
            for part in (power, first[1:], last[1:-1])
        ]

    def _power_ratios(self, rows: Float[Array, "n p"]) -> list[Array]:
        """Signal over noise, if some directions have the one and all have the other."""
        return [first[:-1] / (last[1:] + self._floor**2) for _, first, last in self._powers(rows)]

    def _mean_in_noise(self, rows: Float[Array, "n p"]) -> list[Array]:
        if self.whitening is None or not self.settings.natural:
            return []
        return [against_noise([rows], self.whitening, self.settings.least_noise)]

    def _compress(self, values: Array) -> Array:
        if self.positive:
            return jnp.log(jnp.maximum(values, 0.0) + self.settings.relative_floor * self._floor)
        return jnp.arcsinh(values * self.scale.matrix)

    @property
    def _floor(self) -> Array:
        return self.settings.relative_floor / self.scale.matrix


def principal_axes(values: np.ndarray) -> np.ndarray:
    """Principal directions of set elements (R, n, p); each measurement counts the same."""
    moments = np.einsum("rni,rnj->rij", values, values)
    total = np.trace(moments, axis1=1, axis2=2)
    mean = np.mean(moments[total > 0] / total[total > 0, None, None], axis=0)
    return np.linalg.eigh(mean)[1][:, ::-1]


def whitening_of(values: np.ndarray, least: float) -> np.ndarray | None:
    """From set elements (R, n, p), if none is without noise; each measurement counts the same."""
    if (np.ptp(values, axis=1) == 0).any() or (values == np.round(values)).all():
        return None
    centred = values - values.mean(axis=1, keepdims=True)
    moments = np.einsum("rni,rnj->rij", centred, centred)
    size = np.trace(moments, axis1=1, axis2=2)
    powers, directions = np.linalg.eigh(np.mean(moments / size[:, None, None], axis=0))
    if powers[0] < least * powers[-1]:
        return None
    even = directions / np.sqrt(powers)
    return even / np.sqrt(np.mean((centred @ even) ** 2, axis=(1, 2)).min())


def _median(ordered: Float[Array, " n"]) -> Float[Array, ""]:
    n = ordered.shape[0]
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def _quantiles(ordered: Float[Array, " n"], count: int) -> Float[Array, " q"]:
    """Quantiles at equal steps of rank."""
    last = ordered.shape[0] - 1
    place = np.linspace(0, last, count)
    if last < LARGEST_PRODUCT:
        shares = np.maximum(1 - np.abs(place[:, None] - np.arange(last + 1)), 0.0)
        return jnp.asarray(shares, ordered.dtype) @ ordered
    below = place.astype(int)
    share = jnp.asarray(place - below, ordered.dtype)
    return ordered[below] * (1 - share) + ordered[np.minimum(below + 1, last)] * share


def _of_vectors(rows: Float[Array, "n p"], settings: SummariesSettings) -> list[Moments]:
    """Means and second moments, and these as scales, correlations and regressions."""
    parts = [Moments(1, jnp.mean(rows, axis=0))]
    if rows.shape[1] > settings.largest_pairs:
        power = jnp.mean(rows**2, axis=0)
        parts += [Moments(2, power), Moments(None, jnp.log(_root(power)))]
        return [*parts, Moments(2, jnp.var(rows, axis=0))]
    upper = functools.partial(_upper, largest=settings.largest_pairs)
    for moments, freedom in _second_moments(rows, settings.largest_inverse):
        p = moments.shape[0]
        scales, correlations = _scales_and_correlations(moments)
        others = [jnp.log(scales), upper(correlations, 1)]
        if freedom > p:
            factor = cholesky(correlations + 1e-6 * jnp.eye(p))
            diagonal = jnp.diagonal(factor)
            regressions = factor / diagonal[None, :]
            others += [jnp.log(diagonal)[1:], regressions[np.tril_indices(p, -1)]]
        parts += [Moments(2, upper(moments)), *(Moments(None, part) for part in others)]
    return parts


def _natural_of_vectors(
    rows: Float[Array, "n p"], settings: SummariesSettings
) -> Float[Array, " f"]:
    """Moments, their products and inverses, and the slope of each component against each other."""
    p = rows.shape[1]
    mean, parts = jnp.mean(rows, axis=0), []
    if p > settings.largest_pairs:
        return jnp.concatenate([mean, jnp.mean(rows**2, axis=0), jnp.var(rows, axis=0)])
    upper = functools.partial(_upper, largest=settings.largest_pairs)
    for moments, freedom in _second_moments(rows, settings.largest_inverse):
        parts.append(upper(moments))
        scales, correlations = _scales_and_correlations(moments)
        if p <= settings.largest_quartic:
            parts.append(_products(upper(moments), settings))
            parts += [upper(correlations, 1), upper(correlations, 1) ** 3]
        if p <= settings.largest_inverse and freedom > p + 3:  # else inverses have no variance
            inverse = invert(correlations + 1e-6 * jnp.eye(p))[0]
            parts.append(upper(inverse / scales[:, None] / scales[None, :]))
            slopes = correlations * scales[:, None] / scales[None, :]
            parts.append(slopes[~np.eye(p, dtype=bool)])
    if p <= settings.largest_inverse:
        parts.append(_products(mean, settings))
    return jnp.concatenate([mean, *parts])


def against_noise(
    sets: list[Float[Array, "_ p"]], whitening: Float[Array, "p p"], least_noise: float
) -> Float[Array, " f"]:
    """A mean, or the difference of two, in units of the noise in the sets, and its square."""
    means = [jnp.mean(rows, axis=0) for rows in sets]
    mean = (means[0] if len(means) == 1 else means[0] - means[1]) @ whitening
    ratio = mean / jnp.sqrt(jnp.maximum(_noise(sets, whitening), least_noise))
    return jnp.append(ratio, jnp.sum(ratio**2))


def _noise(sets: list[Float[Array, "_ p"]], whitening: Float[Array, "p p"]) -> Float[Array, ""]:
    """The variance within sets."""
    centred = [(rows - jnp.mean(rows, axis=0, keepdims=True)) @ whitening for rows in sets]
    freedom = sum((rows.shape[0] - 1) * rows.shape[1] for rows in sets)
    return jnp.asarray(sum(jnp.sum(part**2) for part in centred) / freedom)


def _second_moments(
    rows: Float[Array, "n p"], largest: int
) -> list[tuple[Float[Array, "p p"], int]]:
    """About zero and, of few components, about the mean; with their degrees of freedom."""
    n, p = rows.shape
    about_zero = rows.T @ rows / n
    if n < 2 or p > largest:
        return [(about_zero, n)]
    centred = rows - jnp.mean(rows, axis=0, keepdims=True)
    return [(about_zero, n), (centred.T @ centred / n, n - 1)]


def _scales_and_correlations(
    moments: Float[Array, "p p"],
) -> tuple[Float[Array, " p"], Float[Array, "p p"]]:
    scales = _root(jnp.diagonal(moments))
    return scales, moments / scales[:, None] / scales[None, :]


def _products(values: Float[Array, " p"], settings: SummariesSettings) -> Float[Array, " q"]:
    return _upper(jnp.outer(values, values), largest=settings.largest_pairs)


def _upper(matrix: Float[Array, "p p"], offset: int = 0, *, largest: int) -> Float[Array, " q"]:
    if matrix.shape[0] > largest:
        raise ValueError(
            f"products of all pairs of {matrix.shape[0]:,} numbers are too many, at most "
            f"{largest:,} will do: give a network of your own"
        )
    return matrix[np.triu_indices(matrix.shape[0], offset)]


def _root(value: Array) -> Array:
    """A square root whose derivative at zero is finite."""
    return jnp.sqrt(value + jnp.finfo(value.dtype).tiny)
