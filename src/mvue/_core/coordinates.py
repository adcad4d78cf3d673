"""Theta as one vector of coordinates that are free of each other.

They are the numbers of theta, perhaps on another scale; or, of what is constrained otherwise, such
as a simplex, coordinates without bounds. The ranges of a survey and the box of a likelihood search
are stated in them.
"""

import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .theta import ThetaLayout, element_names
from .types import Theta


class Numbers(eqx.Module):
    """Coordinates that are the numbers of an array of theta themselves."""

    shape: tuple[int, ...] = eqx.field(static=True)
    whole: bool = eqx.field(static=True, default=False)
    """Whether only whole numbers make sense."""

    @property
    def size(self) -> int:
        """How many coordinates there are."""
        return math.prod(self.shape)

    def to_theta(self, u: Any) -> Any:
        """The array at the coordinates u, a vector."""
        u = u.round().astype(int) if self.whole else u
        return u.reshape(self.shape)

    def from_theta(self, array: Any) -> Array:
        """The coordinates of an array, a vector."""
        return jnp.ravel(array).astype(float)


class Scaled(eqx.Module):
    """The numbers of an array, each on a linear or logarithmic scale of its own."""

    offset: np.ndarray
    factor: np.ndarray
    is_log: np.ndarray

    @property
    def size(self) -> int:
        """How many coordinates there are."""
        return self.offset.size

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.offset.shape

    def to_theta(self, u: Any) -> Any:
        """The array at the coordinates u, a vector."""
        u = u.reshape(self.shape)
        exponent = jnp.where(self.is_log, u, 0.0)
        offset, factor = jnp.asarray(self.offset, u.dtype), jnp.asarray(self.factor, u.dtype)
        return offset + factor * jnp.where(self.is_log, jnp.exp(exponent), u)

    def from_theta(self, array: Any) -> Array:
        """The coordinates of an array, a vector."""
        array = jnp.asarray(array, jnp.result_type(float))
        ratio = (array - jnp.asarray(self.offset, array.dtype)) / jnp.asarray(
            self.factor, array.dtype
        )
        logarithm = jnp.log(jnp.where(self.is_log, ratio, 1.0))
        return jnp.where(self.is_log, logarithm, ratio).ravel()


class Bijection(eqx.Module):
    """Coordinates without bounds of what is constrained otherwise, a simplex for example."""

    transform: Any
    shape: tuple[int, ...] = eqx.field(static=True)
    """Of the coordinates, before they are a vector."""

    @classmethod
    def of(cls, transform: Any, array: Any) -> "Bijection":
        """Those of an array like this one, in which a numpyro transform has its values."""
        return cls(transform, jax.eval_shape(lambda t: transform.inv(t), array).shape)

    @property
    def size(self) -> int:
        """How many coordinates there are."""
        return math.prod(self.shape)

    def to_theta(self, u: Any) -> Any:
        """The array at the coordinates u, a vector."""
        return self.transform(u.reshape(self.shape))

    def from_theta(self, array: Any) -> Array:
        """The coordinates of an array, a vector."""
        return self.transform.inv(jnp.asarray(array, jnp.result_type(float))).ravel()


class Coordinates(eqx.Module):
    """One vector of coordinates for all of theta."""

    maps: tuple[Numbers | Scaled | Bijection, ...]
    """From coordinates to each array of theta and back."""
    structure: Any = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    """What the coordinates are called, such as ``h`` or ``theta[0]``."""

    @classmethod
    def of(cls, layout: ThetaLayout, maps: Sequence[Numbers | Scaled | Bijection]) -> "Coordinates":
        """Coordinates of all arrays of theta, from those of each."""
        names = [
            [f"{array} (free {i})" for i in range(mapped.size)]
            if isinstance(mapped, Bijection)
            else element_names(array, mapped.shape)
            for array, mapped in zip(layout.arrays, maps, strict=True)
        ]
        return cls(tuple(maps), layout.structure, tuple(name for part in names for name in part))

    def to_theta(self, u: Float[Array | np.ndarray, " p"]) -> Theta:
        """Theta at the coordinates u."""
        ends = np.cumsum([mapped.size for mapped in self.maps])
        parts = [u[end - mapped.size : end] for mapped, end in zip(self.maps, ends, strict=True)]
        arrays = [mapped.to_theta(part) for mapped, part in zip(self.maps, parts, strict=True)]
        return jax.tree.unflatten(self.structure, arrays)

    def from_theta(self, theta: Theta) -> Float[Array, " p"]:
        """The coordinates of theta."""
        arrays = self.structure.flatten_up_to(theta)
        parts = [mapped.from_theta(array) for mapped, array in zip(self.maps, arrays, strict=True)]
        return jnp.concatenate(parts)
