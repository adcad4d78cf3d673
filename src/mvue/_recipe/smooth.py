"""Kernel ridge regression: a smooth function through scattered noisy values."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._runtime.jit import as_array
from .._runtime.threads import on_one_thread
from ..nn._frozen import Frozen
from .settings import ErrorModelSettings


class Smooth(Frozen):
    """A linear trend plus a sum of Gaussian bumps at the points it was fitted to."""

    points: Float[Array, "n p"]
    heights: Float[Array, "n d"]
    trend: Float[Array, "q d"]
    low: Float[Array, " d"]
    high: Float[Array, " d"]
    length: float = eqx.field(static=True)
    left_out: float = eqx.field(static=True)
    """Mean squared error at points that are left out."""

    def __call__(self, place: Float[Array, " p"]) -> Float[Array, " d"]:
        """The value at one place, within the range of those it was fitted to."""
        # Summed one by one: a reduction over a short axis is slow, and more so in a batch.
        distance = sum((self.points[:, i] - place[i]) ** 2 for i in range(place.shape[0]))
        bumps = jnp.exp(-distance / (2 * self.length**2))
        value = self.trend[0] + place @ self.trend[1:] + bumps @ self.heights
        return jnp.clip(value, self.low, self.high)


@on_one_thread
def smooth(points: np.ndarray, values: np.ndarray, settings: ErrorModelSettings) -> Smooth:
    """Fit values (n, d) at points (n, p); length and noise by leaving one out."""
    design = np.concatenate([np.ones((len(points), 1)), points], axis=1)
    trend = np.linalg.lstsq(design, values, rcond=None)[0]
    rest = values - design @ trend
    distance = ((points[:, None] - points[None]) ** 2).sum(axis=-1)
    best, length, heights = np.mean(rest**2), settings.lengths[-1], np.zeros_like(rest)
    for scale in settings.lengths:
        eigenvalues, vectors = np.linalg.eigh(np.exp(-distance / (2 * scale**2)))
        projected = vectors.T @ rest
        for noise in settings.noises:
            inverse = 1 / (np.maximum(eigenvalues, 0) + noise)
            weights = vectors @ (inverse[:, None] * projected)
            diagonal = (vectors**2) @ inverse
            left_out = np.mean((weights / diagonal[:, None]) ** 2)
            if left_out < best:
                best, length, heights = left_out, scale, weights
    return Smooth(
        as_array(points),
        as_array(heights),
        as_array(trend),
        as_array(values.min(axis=0)),
        as_array(values.max(axis=0)),
        length,
        float(best),
    )
