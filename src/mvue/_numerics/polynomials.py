"""Smooth functions on the cube -1 … 1: Legendre polynomials, and layers at its faces.

A bias is a smooth function of the parameter, except near the ends of what was trained on: there it
changes within a few standard deviations, which of a wide range no polynomial follows.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

LAYERS = (1.0, 3.0, 9.0)  # standard deviations
NARROW = 16.0  # layers of a range so many times as wide; a narrower one is left to polynomials

Layer = tuple[int, int, float]
"""A coordinate, its end (-1 or 1), and the depth of the layer in half ranges."""


def legendre(at: Float[Array, " k"], highest: int) -> Float[Array, "n k"]:
    """Legendre polynomials of each coordinate, up to a degree."""
    found = [jnp.ones_like(at), at]
    for n in range(1, highest):
        found.append(((2 * n + 1) * at * found[n] - n * found[n - 1]) / (n + 1))
    return jnp.stack(found[: highest + 1])


def layers_of(widths: Sequence[float], most: int) -> tuple[Layer, ...]:
    """The layers of coordinates whose ranges are so many standard deviations wide.

    Of many coordinates there are fewer, the deepest first.
    """
    found = [
        (k, end, 2 * depth / width)
        for depth in reversed(LAYERS)
        for k, width in enumerate(widths)
        if width >= NARROW * depth
        for end in (-1, 1)
    ]
    return tuple(found[:most])


def layer_values(at: Float[Array, " k"], layers: tuple[Layer, ...]) -> Float[Array, " l"]:
    """One at the end, and falling inwards."""
    if not layers:
        return jnp.zeros(0, at.dtype)
    coordinate, end, depth = (np.array(column) for column in zip(*layers, strict=True))
    distance = jnp.maximum(1 - end * at[coordinate], 0.0)
    return jnp.exp(-distance / depth)
