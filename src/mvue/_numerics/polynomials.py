"""Smooth functions on the cube -1 … 1: Legendre polynomials, ripples, and layers at its faces.

A bias is a smooth function of the parameter. Of a range that is hundreds of standard deviations
wide, it may change within a few dozen of them, and near the ends of what was trained on within a
few: polynomials of a low degree follow neither.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

LAYERS = (1.0, 3.0, 9.0)  # standard deviations
NARROW = 16.0  # layers of a range so many times as wide; a narrower one is left to polynomials

RIPPLE = 16.0  # standard deviations of the shortest cycle

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


def ripples_of(widths: Sequence[float], most: int) -> tuple[tuple[int, int], ...]:
    """Coordinates and numbers of half cycles of sines and cosines, of ranges that are wide."""
    wide = [k for k, width in enumerate(widths) if width >= 4 * RIPPLE]
    found = [
        (k, cycles) for cycles in range(1, most + 1) for k in wide if cycles <= widths[k] / RIPPLE
    ]
    return tuple(found[: most // 2])


def ripple_values(
    at: Float[Array, " k"], ripples: tuple[tuple[int, int], ...]
) -> Float[Array, " r"]:
    """Sines and cosines of the coordinates."""
    if not ripples:
        return jnp.zeros(0, at.dtype)
    coordinate, cycles = (np.array(column) for column in zip(*ripples, strict=True))
    phase = jnp.pi * cycles * at[coordinate]
    return jnp.concatenate([jnp.sin(phase), jnp.cos(phase)])


def layer_values(at: Float[Array, " k"], layers: tuple[Layer, ...]) -> Float[Array, " l"]:
    """One at the end, and falling inwards."""
    if not layers:
        return jnp.zeros(0, at.dtype)
    coordinate, end, depth = (np.array(column) for column in zip(*layers, strict=True))
    distance = jnp.maximum(1 - end * at[coordinate], 0.0)
    return jnp.exp(-distance / depth)
