"""Batches of fixed data, and the loss on them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from .._core.problem import Draw
from .._core.types import Key, Measurement
from .._data.repeats import Pool
from ..losses._functions import Penalty, masked_squared_bias, squared_bias_of_sums
from ..losses._objectives import Terms


class FixedData:
    """Batches of rows, for the error, and of whole units, for the bias.

    Args:
        d: components of y.
        rows: rows in a batch.
        units: units in a batch; 0 if there is no penalty.
        repeats: rows of a unit at most: of larger ones, a random part is taken.
        mesh: the devices that estimate.
    """

    def __init__(
        self, d: int, rows: int, units: int, repeats: int, mesh: Mesh | None = None
    ) -> None:
        self.d, self.rows, self.units, self.repeats = d, rows, units, repeats
        self.batch_size, self.mesh = rows, mesh
        self.sizes = {"batch_rows": rows, "batch_units": units}

    def draw(self, key: Key, pool: Pool) -> tuple[Draw, Int[Array, ""]]:
        """A batch of rows, then of units, padded; theta says which rows are there."""
        row_key, unit_key, place_key = jr.split(key, 3)
        row = jr.randint(row_key, (self.rows,), 0, pool.rows)
        which = jr.randint(unit_key, (self.units,), 0, pool.penalised_units)
        which = pool.penalised[which]
        size = pool.size[which][:, None]
        place = jnp.arange(self.repeats)[None, :]
        present = place < size
        # Rows were shuffled within units: any part that wraps around is a random one.
        offset = jr.randint(place_key, (self.units, 1), 0, size)
        places = pool.start[which][:, None] + (place + offset) % size
        index = jnp.concatenate([row, places.ravel()])
        there = jnp.concatenate([jnp.ones(self.rows, bool), present.ravel()])
        x = jax.tree.map(lambda leaf: leaf[index][:, None], pool.x)
        return Draw({"present": there}, pool.y[pool.unit[index]], x), jnp.asarray(0)

    def parts(self, estimates: Float[Array, "t 1 d"], draw: Draw) -> "Parts":
        """Errors of a batch, of its rows and of its units."""
        errors = estimates[:, 0] - draw.y
        shape = (self.units, self.repeats)
        return Parts(
            errors[: self.rows],
            draw.y[: self.rows],
            errors[self.rows :].reshape(*shape, self.d),
            draw.y[self.rows :].reshape(*shape, self.d)[:, 0],
            draw.theta["present"][self.rows :].reshape(shape),
        )

    def moments(self, estimates: Float[Array, "t 1 d"], draw: Draw) -> tuple[Array, Array]:
        """Mean squared error of the rows, and unbiased squared bias of the units."""
        parts = self.parts(estimates, draw)
        mse = (parts.rows**2).sum(axis=-1).mean()
        if not self.units:
            return mse, jnp.full_like(mse, jnp.nan)
        bias2 = masked_squared_bias(parts.units, parts.present, "unbiased").sum(axis=-1)
        return mse, bias2.mean()  # NaN where units have one row

    def judge(
        self,
        estimate: Callable[[Measurement], Array],
        loss: Callable[..., Any],
        key: Key,
        pool: Pool,
    ) -> dict[str, Array]:
        """Loss, MSE and unbiased squared bias on all of a pool, with standard errors over units."""
        del key  # nothing is drawn
        assert isinstance(loss, DataLoss)
        y = pool.y[pool.unit]
        there = (jnp.arange(len(pool.unit)) < pool.rows)[:, None]
        errors = jnp.where(there, estimate(pool.x[:, None])[:, 0] - y, 0.0)

        def per_unit(values: Array) -> Array:
            return jax.ops.segment_sum(values, pool.unit, len(pool.size))

        weights = loss.weights(pool.y)
        total, squares = per_unit(errors), per_unit(errors**2)
        count = pool.size[:, None].astype(errors.dtype)
        twice = pool.size > 1
        bias2 = squared_bias_of_sums(total, squares, jnp.maximum(count, 2.0), "unbiased")
        mse, mse_se = _ratio(squares.sum(axis=-1), pool.size, pool.size > 0)
        bias, bias_se = _ratio(bias2.sum(axis=-1), jnp.ones_like(pool.size), twice)
        weighted_mse, _ = _ratio((squares * weights).sum(axis=-1), pool.size, pool.size > 0)
        weighted_bias, _ = _ratio((bias2 * weights).sum(axis=-1), jnp.ones_like(pool.size), twice)
        lam = loss.terms.bias_weight(jnp.asarray(1.0))
        # Without repeats there is no telling bias from noise: the penalty counts all as bias.
        penalty = jnp.where(twice.any(), weighted_bias, weighted_mse)
        return {
            "loss": weighted_mse + jnp.where(lam > 0, lam * penalty, 0.0),
            "mse": mse,
            "mse_se": mse_se,
            "squared_bias": bias,
            "squared_bias_se": bias_se,
        }


class Parts(NamedTuple):
    """Errors in a batch of fixed data."""

    rows: Float[Array, "b d"]
    row_y: Float[Array, "b d"]
    units: Float[Array, "k m d"]
    unit_y: Float[Array, "k d"]
    present: Array


class DataLoss:
    """Mean squared error of rows + λ · squared bias of units.

    Args:
        terms: of the loss.
        penalty: which estimate of the squared bias.
        source: of the batches.
    """

    def __init__(self, terms: Terms, penalty: Penalty, source: FixedData) -> None:
        self.terms, self.source = terms, source
        self.penalty: Penalty = penalty

    def weights(self, y: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """The weight of each component of some unknowns."""
        if self.terms.weight is None:
            return jnp.ones_like(y)
        weights = jax.vmap(self.terms.weight)(y)
        return jnp.broadcast_to(weights.reshape(len(y), -1), y.shape)

    def __call__(self, estimates: Array, draw: Draw, progress: Any) -> Array:
        """The loss of one batch."""
        parts = self.source.parts(estimates, draw)
        mse = (parts.rows**2 * self.weights(parts.row_y)).sum(axis=-1).mean()
        if not self.source.units:
            return mse
        bias2 = masked_squared_bias(parts.units, parts.present, self.penalty)
        bias2 = (bias2 * self.weights(parts.unit_y)).sum(axis=-1).mean()
        return mse + self.terms.bias_weight(progress) * bias2


def _ratio(values: Array, counts: Array, use: Array) -> tuple[Array, Array]:
    """Sum of values over sum of counts, with its standard error over units."""
    number = jnp.maximum(use.sum(), 1)
    counts = jnp.where(use, counts, 0).astype(values.dtype)
    ratio = jnp.where(use, values, 0.0).sum() / counts.sum()
    residuals = jnp.where(use, values - ratio * counts, 0.0)
    scale = jnp.sqrt(number / jnp.maximum(number - 1, 1))
    return ratio, scale * jnp.sqrt((residuals**2).sum()) / counts.sum()
