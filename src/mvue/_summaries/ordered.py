"""Statistics of what has an order: series, images, and vectors of which nothing is known.

In an exponential family, and for Gaussian data whose mean or covariance depends on theta, the score
is linear in first and second moments of x with coefficients that depend on theta. So the numbers
themselves and second moments that fit the layout come first: products at a lag for what is
stationary, its power spectrum where it is long, all products where they are few. Sizes and
quantiles are for what is not Gaussian.
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.types import Measurement
from .._numerics.sorting import sort
from .._runtime.jit import as_array, jit
from .._serialise.registry import register
from ..nn._frozen import Affine, Frozen
from ..nn._measurements import flatten
from .moments import Moments, joined
from .settings import SummariesSettings

LARGEST_DFT = 512  # samples whose Fourier transform is a product with a matrix: faster in batches


@register(name="mvue.OrderedStatistics")
class OrderedStatistics(Frozen):
    """Statistics of a series, an image, or a vector, in units of its typical size."""

    kind: Literal["series", "image", "vector"] = eqx.field(static=True)
    channel_axis: int | None = eqx.field(static=True)
    positive: bool = eqx.field(static=True)
    """Whether x is positive throughout, and so has logarithms."""
    scale: Affine
    """Brings x to a typical size of 1; its shift is zero unless x lies far from zero."""
    subspace: Affine | None
    """Of many numbers, the components that change with theta on average."""
    settings: SummariesSettings = eqx.field(static=True, default=SummariesSettings())

    def inputs(self, x: Measurement) -> Float[Array, " p"]:
        """What the network sees."""
        return joined(self.moments(x))

    def moments(self, x: Measurement) -> list[Moments]:
        """The inputs, part by part."""
        numbers = self._numbers(x)
        square = jnp.mean(numbers**2)
        floor = self.settings.relative_floor
        parts = [
            Moments(1, self._raw(numbers)),
            Moments(2, square[None]),
            Moments(None, jnp.log(jnp.sqrt(square) + floor)[None]),
        ]
        if self.positive and self.subspace is None:
            parts.append(Moments(None, jnp.log(jnp.maximum(numbers, 0.0) + floor**2)))
        parts += [Moments(2, products) for products in self._products(numbers)]
        return parts + self._of_neighbours(x)

    def natural(self, x: Measurement) -> Float[Array, " p"]:
        """Statistics of which estimates are sums: first and second moments."""
        if not self.settings.natural:
            return jnp.zeros(0)
        numbers = self._numbers(x)
        parts = [self._raw(numbers), jnp.mean(numbers**2)[None], *self._products(numbers)]
        return jnp.concatenate([*parts, *self._second_moments(x)])

    def _numbers(self, x: Measurement) -> Float[Array, " n"]:
        return self.scale(flatten(x))

    def _raw(self, numbers: Float[Array, " n"]) -> Float[Array, " r"]:
        return numbers if self.subspace is None else self.subspace(numbers)

    def _products(self, numbers: Float[Array, " n"]) -> list[Array]:
        n = numbers.shape[0]
        if n > self.settings.largest_quadratic:
            return []
        return [jnp.outer(numbers, numbers)[np.triu_indices(n)]]

    def _array(self, x: Measurement) -> Array:
        """The array with its channels last; complex numbers stay complex."""
        (leaf,) = jax.tree.leaves(x)
        leaf = leaf if jnp.iscomplexobj(leaf) else leaf.astype(float)
        shift = self.scale.shift * ((1 + 1j) if jnp.iscomplexobj(leaf) else 1)
        values = (leaf - shift) * self.scale.matrix
        if self.channel_axis is None:
            return values[..., None]
        return jnp.moveaxis(values, self.channel_axis, -1)

    def _of_neighbours(self, x: Measurement) -> list[Moments]:
        if self.kind == "vector":
            return []
        values = self._array(x)
        others = [self._correlations(values), *self._marginal(values)]
        if self.kind == "series":
            others += self._sizes(values) + self._log_spectrum(values)
        found = [Moments(2, part) for part in self._second_moments(x)]
        return found + [Moments(None, part) for part in others]

    def _second_moments(self, x: Measurement) -> list[Array]:
        """The mean, its products, products at lags about it, and the spectrum of a series."""
        if self.kind == "vector":
            return []
        values = self._array(x)
        space = tuple(range(values.ndim - 1))
        mean = jnp.mean(values, axis=space)
        centred = values - jnp.mean(values, axis=space, keepdims=True)
        lagged = [_lagged(centred, lag) for lag in self._lags(values.shape[:-1])]
        channels = np.triu_indices(mean.shape[0])
        first, others = lagged[0][channels], [part.ravel() for part in lagged[1:]]
        level = jnp.outer(mean, jnp.conj(mean))[channels]
        parts = [_reals(mean), _reals(level), _reals(jnp.concatenate([first, *others]))]
        return parts + ([self._spectrum(centred).ravel()] if self._has_spectrum(values) else [])

    def _correlations(self, values: Array) -> Array:
        """Products at lags as correlations, which do not depend on the scale of x.

        About the mean of the measurement and about zero: where the mean is known to be zero, that
        of a slow series tells more about its noise than about its level.
        """
        mean = jnp.mean(values, axis=tuple(range(values.ndim - 1)), keepdims=True)
        lags = self._lags(values.shape[:-1])
        found = []
        for centred in (values - mean, values):
            same, *lagged = (_lagged(centred, lag) for lag in lags)
            size = jnp.sqrt(jnp.diagonal(same).real + self.settings.relative_floor**2)
            unit = size[:, None] * size[None, :]
            found.append((same / unit)[np.triu_indices(len(size), 1)])
            found += [(part / unit).ravel() for part in lagged]
        return _reals(jnp.concatenate(found))

    def _lags(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Zero first; of two lags that are each other's negative, one."""
        many = int(np.prod(shape)) > self.settings.largest_lagged
        if len(shape) == 1:
            most = self.settings.lags // 2 if many else self.settings.lags
            return [(k,) for k in range(min(most, shape[0] - 1) + 1)]
        most = self.settings.grid_lags // 2 if many else self.settings.grid_lags
        rows, columns = (min(most, side - 1) for side in shape)
        near = [
            (i, j) for i in range(rows + 1) for j in range(-columns, columns + 1) if i > 0 or j >= 0
        ]
        near.sort(key=lambda lag: max(map(abs, lag)))
        far = [2**k for k in range(1, 16) if 2**k > most] if many else []
        down, right = ([k for k in far if k < side] for side in shape)
        return [*near, *((k, 0) for k in down), *((0, k) for k in right)]

    def _sizes(self, values: Array) -> list[Array]:
        """How absolute values go together with those before."""
        size = jnp.abs(values - jnp.mean(values, axis=0, keepdims=True))
        centred = size - jnp.mean(size, axis=0, keepdims=True)
        n = values.shape[0]
        lags = range(1, min(self.settings.size_lags, n - 1) + 1)
        return [jnp.sum(centred[k:] * centred[: n - k], axis=0) / n for k in lags]

    def _marginal(self, values: Array) -> list[Array]:
        """Moments and quantiles of the numbers, for each channel, as if they were a set."""
        columns = values.reshape(-1, values.shape[-1])
        if jnp.iscomplexobj(columns):
            columns = jnp.abs(columns)
        floor = self.settings.relative_floor
        mean = jnp.mean(columns, axis=0, keepdims=True)
        deviation = jnp.sqrt(jnp.mean((columns - mean) ** 2, axis=0) + floor**2)
        standard = (columns - mean) / deviation[None, :]
        powers = [jnp.mean(jnp.abs(standard), axis=0), jnp.mean(standard**4, axis=0)]
        parts = [jnp.log(deviation), jnp.mean(standard**3, axis=0), *map(jnp.log1p, powers)]
        count, n = self.settings.marginal_quantiles, columns.shape[0]
        if n <= self.settings.largest_lagged and n >= 2 * count:
            place = np.round(np.linspace(0, n - 1, count)).astype(int)
            ordered = jax.vmap(sort, in_axes=1)(columns)[:, place]
            parts.append(ordered.ravel())
            if self.positive:
                parts.append(jnp.log(jnp.maximum(ordered, 0.0) + floor**2).ravel())
        return parts

    def _has_spectrum(self, values: Array) -> bool:
        return self.kind == "series" and values.shape[0] >= self.settings.fewest_spectrum

    def _spectrum(self, centred: Array) -> Float[Array, "b c"]:
        """Mean power in bands of frequency, for each channel."""
        n, is_complex = centred.shape[0], jnp.iscomplexobj(centred)
        frequencies = np.fft.fftfreq(n) if is_complex else np.arange(n // 2 + 1) / n
        if n <= LARGEST_DFT:
            angle = -2 * np.pi * np.outer(np.round(frequencies * n), np.arange(n)) / n
            dtype = self.scale.matrix.dtype
            cosine, sine = (jnp.asarray(wave(angle), dtype) for wave in (np.cos, np.sin))
            real, imag = centred.real, centred.imag if is_complex else None
            re, im = cosine @ real, sine @ real
            if imag is not None:
                re, im = re - sine @ imag, im + cosine @ imag
            power = (re**2 + im**2) / n
        else:
            transform = jnp.fft.fft if is_complex else jnp.fft.rfft
            power = jnp.abs(transform(centred, axis=0)) ** 2 / n
        bands = _bands(frequencies, self.settings.bands)
        return jnp.asarray(bands, power.dtype) @ power

    def _log_spectrum(self, values: Array) -> list[Array]:
        if not self._has_spectrum(values):
            return []
        centred = values - jnp.mean(values, axis=0, keepdims=True)
        return [jnp.log(self._spectrum(centred).ravel() + self.settings.relative_floor**2)]


def _lagged(centred: Array, lag: tuple[int, ...]) -> Array:
    """Mean products of all channels with all channels at a distance, (c, c)."""
    ahead = tuple(
        slice(max(k, 0), n + min(k, 0)) for k, n in zip(lag, centred.shape[:-1], strict=True)
    )
    behind = tuple(
        slice(max(-k, 0), n - max(k, 0)) for k, n in zip(lag, centred.shape[:-1], strict=True)
    )
    channels = centred.shape[-1]
    one, other = centred[ahead].reshape(-1, channels), centred[behind].reshape(-1, channels)
    return one.T @ jnp.conj(other) / (centred.size // channels)


def _reals(values: Array) -> Array:
    """A vector of real numbers, complex ones as two."""
    flat = values.ravel()
    return jnp.concatenate([flat.real, flat.imag]) if jnp.iscomplexobj(flat) else flat


def _bands(frequencies: np.ndarray, count: int) -> np.ndarray:
    """Rows that average over bands: of equal ratios of the frequency, and of equal widths."""
    size = np.abs(frequencies)
    least = size[size > 0].min()
    edges = np.geomspace(least, 0.5, count + 1)
    ratio = np.clip(np.searchsorted(edges, size, side="right") - 1, 0, count - 1)
    width = np.minimum(
        (frequencies - frequencies.min()) / (np.ptp(frequencies) + 1e-12) * count, count - 1
    ).astype(int)
    rows = [(label == k) & (size > 0) for label in (ratio, width) for k in range(count)]
    kept = [row for row in rows if row.any()]
    return np.stack([row / row.sum() for row in kept])


def ordered_statistics(
    x: list[np.ndarray],
    kind: Literal["series", "image", "vector"],
    channel_axis: int | None,
    settings: SummariesSettings,
) -> OrderedStatistics:
    """The statistics for measurements like these, with two leading axes (N, M)."""
    flat = np.asarray(jit(jax.vmap(jax.vmap(flatten)))(x), np.float64)
    values = flat.reshape(-1, flat.shape[-1])
    whole = all(not jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in x)
    shift = typical_offset(values, settings)
    size = np.median(np.abs(values - shift))
    size = size if size > 0 else np.std(values)
    size = size if size > 0 else 1.0
    scale = Affine(as_array(shift), as_array(1 / size))
    subspace = None
    if flat.shape[-1] > settings.largest_raw:
        mean, axes = signal_subspace((flat - shift) / size, settings.components)
        subspace = Affine(as_array(mean), as_array(axes))
    positive = bool((values > 0).all()) and not whole and shift == 0
    return OrderedStatistics(kind, channel_axis, positive, scale, subspace, settings)


def typical_offset(values: np.ndarray, settings: SummariesSettings) -> float:
    """Where x lies, if that is far from zero compared with how x varies; else zero.

    Powers and products of numbers such as 300 ± 0.05 tell little in single precision.
    """
    middle = float(np.median(values))
    spread = float(np.sqrt(np.mean((values - middle) ** 2)))
    return middle if abs(middle) > settings.offset * spread else 0.0


def signal_subspace(flat: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Overall mean, and axes (n, k) along which means of units differ, the strongest first.

    Means over two halves of the repeats have independent noise, so that their cross-covariance is
    that of the means themselves; its negative eigenvalues show what is left of the noise.
    """
    units, repeats = flat.shape[:2]
    mean = flat.mean(axis=(0, 1))
    half = max(1, repeats // 2)
    one, other = (part.mean(axis=1) - mean for part in (flat[:, :half], flat[:, half:]))
    # All directions that can be seen lie in the span of the rows.
    rows = np.linalg.qr(np.concatenate([one, other]).T)[0].T
    cross = (one @ rows.T).T @ (other @ rows.T) / units
    power, axes = np.linalg.eigh((cross + cross.T) / 2)
    noise = max(-power.min(initial=0.0), 0.0)
    kept = np.flatnonzero(power > 1.5 * noise)[::-1][:most]
    directions = rows.T @ axes[:, kept]
    spread = np.sqrt(np.mean(((flat[:, 0] - mean) @ directions) ** 2, axis=0))
    return mean, directions / np.where(spread > 0, spread, 1.0)
