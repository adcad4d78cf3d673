"""Where default fits draw parameters: independently, evenly in standard deviations."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from .._core.coordinates import Coordinates
from .._core.types import Key, Theta
from .._runtime.jit import as_array


@dataclasses.dataclass(frozen=True, eq=False)
class TrainingPrior:
    """Independent coordinates of theta, drawn from tables of equally likely steps.

    Args:
        coordinates: how theta is made of them.
        tables: values at equal distances, (p, table).
        undefined: share of draws, beyond the range of interest, where the simulator is undefined.
    """

    coordinates: Coordinates
    tables: Float[Array, "p t"]
    undefined: float = 0.0

    @classmethod
    def of(
        cls, coordinates: Coordinates, tables: np.ndarray, undefined: float = 0.0
    ) -> "TrainingPrior":
        """From tables in double precision."""
        return cls(coordinates, as_array(tables), undefined)

    def sample(self, key: Key) -> Theta:
        """One theta."""
        p, size = self.tables.shape
        place = jr.uniform(key, (p,)) * (size - 1)
        grid = jnp.arange(size, dtype=place.dtype)
        values = jax.vmap(lambda at, table: jnp.interp(at, grid, table))(place, self.tables)
        return self.coordinates.to_theta(values)

    def places(self, theta: Theta) -> Float[Array, " p"]:
        """Where theta lies in its ranges, -1 … 1, in the scale of the standard deviation."""
        grid = jnp.linspace(-1.0, 1.0, self.tables.shape[1])
        values = self.coordinates.from_theta(theta)
        return jax.vmap(lambda value, table: jnp.interp(value, table, grid))(values, self.tables)

    def theta_at(self, places: Float[Array, " p"]) -> Theta:
        """The theta at these places."""
        grid = jnp.linspace(-1.0, 1.0, self.tables.shape[1])
        values = jax.vmap(lambda at, table: jnp.interp(at, grid, table))(places, self.tables)
        return self.coordinates.to_theta(values)
