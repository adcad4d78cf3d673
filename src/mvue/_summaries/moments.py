"""Which summaries are moments of x: the mean of these as a function of theta is simple."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float


class Moments(NamedTuple):
    """Some summaries of a measurement, and what they are."""

    order: int | None
    """1 where they are linear in x, 2 for products of two numbers or less; None for others."""
    values: Float[Array, " p"]


def joined(parts: list[Moments]) -> Float[Array, " p"]:
    """All summaries."""
    return jnp.concatenate([part.values for part in parts])
