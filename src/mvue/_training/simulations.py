"""Batches of fresh simulations, as training and validation take them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from .._core.problem import Draw, Problem
from .._core.sampling import finite_units
from .._core.types import Key, Measurement
from .._runtime.devices import divided
from ..losses._functions import unit_mse, unit_squared_bias

VALIDATION_BATCHES = 4


class Simulations:
    """N unknowns and M measurements of each, simulated anew for every step.

    Args:
        problem: what to simulate.
        batch_size: N.
        repeats: M.
        mesh: the devices that simulate.
    """

    def __init__(
        self, problem: Problem, batch_size: int, repeats: int, mesh: Mesh | None = None
    ) -> None:
        self.problem, self.batch_size, self.repeats = problem, batch_size, repeats
        self.mesh = mesh
        self.sizes = {"batch_size": batch_size}
        self.d = problem.shapes()[1].shape[0]

    def draw(self, key: Key, pool: Any) -> tuple[Draw, Int[Array, ""]]:
        """A batch, and how many unknowns were replaced because their simulation failed."""
        del pool  # nothing is kept
        return self.draw_units(key, self.batch_size)

    def draw_units(self, key: Key, units: int) -> tuple[Draw, Int[Array, ""]]:
        """A batch of another size."""
        mesh = self.mesh if self.mesh is not None and units % self.mesh.size == 0 else None

        def unit(i: Array, key: Key) -> Draw:
            return self.problem.draw_unit(key, i, self.repeats)

        return _replace_nonfinite(divided(unit, mesh, units, key))

    def moments(self, estimates: Float[Array, "n m d"], draw: Draw) -> tuple[Array, Array]:
        """Mean squared error and mean squared bias of a batch."""
        mse, bias2 = _moments(estimates, draw.y)
        return mse.mean(), bias2.mean()

    def judge(
        self,
        estimate: Callable[[Measurement], Array],
        loss: Callable[..., Any],
        key: Key,
        pool: Any,
    ) -> dict[str, Array]:
        """Loss, MSE and squared bias on unknowns that training never sees.

        The same draws every time, simulated anew, so that they cost no memory.
        """

        def batch(i: Array) -> tuple[Array, Array, Array]:
            draw, _ = self.draw(jr.fold_in(key, i), pool)
            estimates = estimate(draw.x)
            mse, bias2 = _moments(estimates, draw.y)
            return loss(estimates, draw, jnp.asarray(1.0)), mse, bias2

        losses, mse, bias2 = jax.lax.map(batch, jnp.arange(VALIDATION_BATCHES))
        root = jnp.sqrt(mse.size)
        return {
            "loss": losses.mean(),
            "mse": mse.mean(),
            "mse_se": mse.std() / root,
            "squared_bias": bias2.mean(),
            "squared_bias_se": bias2.std() / root,
        }


def _moments(estimates: Array, y: Array) -> tuple[Array, Array]:
    """Squared error and squared bias of each unknown, summed over components, (N,)."""
    errors = estimates - y[:, None, :]
    mse = unit_mse(errors).sum(axis=-1)
    if errors.shape[1] < 2:
        return mse, jnp.full_like(mse, jnp.nan)
    return mse, unit_squared_bias(errors, "unbiased").sum(axis=-1)


def _replace_nonfinite(draw: Draw) -> tuple[Draw, Int[Array, ""]]:
    """Put another unknown of the batch in the place of each whose simulation failed.

    Whole unknowns are replaced: leaving out single measurements would change the distribution
    that the estimator is judged by.
    """
    finite = finite_units(draw)
    n = finite.shape[0]
    # The j-th failed unknown is replaced by the j-th good one.
    good_first = jnp.argsort(~finite, stable=True)
    source = jnp.where(finite, jnp.arange(n), good_first[(jnp.cumsum(~finite) - 1) % n])
    bad = n - finite.sum()
    draw = jax.lax.cond(
        bad > 0, lambda d: jax.tree.map(lambda leaf: leaf[source], d), lambda d: d, draw
    )
    return draw, bad
