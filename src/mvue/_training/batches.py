"""Batches for training: N units and M repeats, from fresh simulations or from fixed data."""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._core.problem import Draw, Problem
from .._core.sampling import finite_units
from .._core.types import Key, Measurement
from .._data.repeats import Pool
from .._recipe.settings import ScheduleSettings
from .._runtime.devices import divided
from .._runtime.jit import jit
from ..losses._functions import (
    UnitErrors,
    squared_bias_of,
    squared_bias_of_pairs,
    unit_errors,
    unit_mse,
    unit_squared_bias,
)
from ..losses._loss import Loss
from ..losses._objectives import BiasConstrained
from ..nn._staged import OnBaseline

T = TypeVar("T")
BASELINE_UNITS = 4096  # on which a baseline is checked
BIAS_SHOWN = 5.0  # standard errors above which a baseline is called biased


@runtime_checkable
class BatchSource(Protocol):
    """Where batches come from. `pool` is what it keeps on the device, if anything."""

    d: int
    batch_size: int
    mesh: Mesh | None
    """The devices that share the work of a batch."""
    sizes: dict[str, int]
    """What the user chose the size of a batch by."""

    def draw(self, key: Key, pool: PyTree) -> tuple[Draw, Int[Array, ""]]:
        """A batch, and how many of its units failed."""
        ...

    def evaluate(
        self, loss: Loss, estimates: Array, draw: Draw, progress: Any, **control: Any
    ) -> Array:
        """The loss of a batch."""
        ...

    def moments(self, estimates: Float[Array, "n m d"], draw: Draw) -> tuple[Array, Array]:
        """Mean squared error and mean squared bias of a batch."""
        ...


class Batch(NamedTuple):
    """What a step sees of a batch."""

    draw: Draw
    prepared: PyTree
    """What the network makes of it before anything that is trained, (N, M, ...)."""
    efficient: Float[Array, "n m d"] | None
    """The errors that an efficient estimator would make of it, if they are known."""
    bad: Int[Array, ""]
    """Units that were replaced because their simulation failed."""

    @classmethod
    def of_units(
        cls, draw: Draw, prepared: PyTree, efficient: Array | None, finite: Bool[Array, " n"]
    ) -> "Batch":
        """Of simulated units, of which some may have failed."""
        units, bad = replace_nonfinite((draw, prepared, efficient), finite)
        return cls(*units, bad)


class SimulatedBatches:
    """N units and M measurements of each, simulated anew for every step.

    Args:
        problem: what to simulate.
        batch_size: N.
        repeats: M.
        mesh: the devices that simulate.
        validation_batches: of held-out units.
    """

    def __init__(
        self,
        problem: Problem,
        batch_size: int,
        repeats: int,
        mesh: Mesh | None = None,
        validation_batches: int = ScheduleSettings.validation_batches,
    ) -> None:
        self.problem, self.batch_size, self.repeats = problem, batch_size, repeats
        self.mesh, self.validation_batches = mesh, validation_batches
        self.sizes = {"batch_size": batch_size}
        self.d = problem.shapes()[1].shape[0]

    def draw(self, key: Key, pool: Any) -> tuple[Draw, Int[Array, ""]]:
        """A batch, and how many units were replaced because their simulation failed."""
        del pool  # nothing is kept
        return self.draw_units(key, self.batch_size)

    def draw_units(self, key: Key, units: int) -> tuple[Draw, Int[Array, ""]]:
        """A batch of another size."""
        mesh = self.mesh if self.mesh is not None and units % self.mesh.size == 0 else None

        def unit(i: Array, key: Key) -> Draw:
            return self.problem.draw_unit(key, i, self.repeats)

        draw = divided(unit, mesh, units, key)
        return replace_nonfinite(draw, finite_units(draw))

    def check_baseline(self, prepare: Callable[[Measurement], PyTree], key: Key) -> None:
        """Warn if the estimator that is said to be unbiased is not.

        `prepare` is the first stage of the network that is built on it, for a batch.
        """

        def shown_bias(key: Key) -> tuple[Array, Array]:
            draw, _ = self.draw_units(key, BASELINE_UNITS)
            baseline = baseline_of(prepare(draw.x))
            assert baseline is not None
            errors = baseline - draw.y[:, None, :]
            variance = jnp.var(errors, axis=1, ddof=1).mean(axis=0)
            shown = unit_squared_bias(errors, "unbiased") / variance[None, :]
            return shown.mean(axis=0), shown.std(axis=0) / jnp.sqrt(BASELINE_UNITS)

        shown, se = map(np.asarray, jit(shown_bias)(key))
        worst = int(np.argmax(shown / se))
        if shown[worst] > BIAS_SHOWN * se[worst]:
            warnings.warn(
                f"baseline is biased: its squared bias, component {worst}, is {shown[worst]:.3g} ± "
                f"{se[worst]:.1g} of its variance on average. The trained estimator keeps this "
                "bias. Give a baseline that is unbiased, or none",
                stacklevel=3,
            )

    def evaluate(
        self, loss: Loss, estimates: Array, draw: Draw, progress: Any, **control: Any
    ) -> Array:
        """The loss of a batch, perhaps with a control variate."""
        return loss(estimates, draw, progress, **control)

    def moments(self, estimates: Float[Array, "n m d"], draw: Draw) -> tuple[Array, Array]:
        """Mean squared error and mean squared bias of a batch."""
        mse, bias2 = _moments(estimates, draw.y)
        return mse.mean(), bias2.mean()

    def judge(
        self, estimated: Callable[[Array], tuple[Draw, Array]], loss: Loss
    ) -> dict[str, Array]:
        """Loss, MSE and squared bias, with standard errors, on units that training never sees.

        `estimated` gives batch number i and its estimates.
        """

        def batch(i: Array) -> tuple[Array, Array, Array]:
            draw, estimates = estimated(i)
            mse, bias2 = _moments(estimates, draw.y)
            return self.evaluate(loss, estimates, draw, jnp.asarray(1.0)), mse, bias2

        losses, mse, bias2 = jax.lax.map(batch, jnp.arange(self.validation_batches))
        root = jnp.sqrt(mse.size)
        return {
            "loss": losses.mean(),
            "mse": mse.mean(),
            "mse_se": mse.std() / root,
            "squared_bias": bias2.mean(),
            "squared_bias_se": bias2.std() / root,
        }


def baseline_of(prepared: PyTree) -> Float[Array, "n m d"] | None:
    """Estimates that are known to be unbiased, if the network is built on such."""
    return prepared.baseline if isinstance(prepared, OnBaseline) else None


def _moments(estimates: Array, y: Array) -> tuple[Array, Array]:
    """Squared error and squared bias of each unit, summed over components, (N,)."""
    errors = estimates - y[:, None, :]
    if errors.shape[1] < 2:
        mse = unit_mse(errors).sum(axis=-1)
        return mse, jnp.full_like(mse, jnp.nan)
    units = unit_errors(errors)
    return units.mse.sum(axis=-1), squared_bias_of(units, "unbiased").sum(axis=-1)


def replace_nonfinite(units: T, finite: Bool[Array, " n"]) -> tuple[T, Int[Array, ""]]:
    """Put another unit of the batch in the place of each whose simulation failed.

    Whole units are replaced: leaving out single measurements would change the distribution
    that the estimator is judged by.
    """
    n = finite.shape[0]
    # The j-th failed unit is replaced by the j-th good one.
    good_first = jnp.argsort(~finite, stable=True)
    source = jnp.where(finite, jnp.arange(n), good_first[(jnp.cumsum(~finite) - 1) % n])
    bad = n - finite.sum()
    units = jax.lax.cond(
        bad > 0, lambda u: jax.tree.map(lambda leaf: leaf[source], u), lambda u: u, units
    )
    return units, bad


class DataBatches:
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

    def parts(self, estimates: Float[Array, "t 1 d"], draw: Draw) -> "BatchErrors":
        """Errors of a batch, of its rows and of its units."""
        errors = estimates[:, 0] - draw.y
        shape = (self.units, self.repeats)
        return BatchErrors(
            errors[: self.rows],
            draw.y[: self.rows],
            errors[self.rows :].reshape(*shape, self.d),
            draw.y[self.rows :].reshape(*shape, self.d)[:, 0],
            draw.theta["present"][self.rows :].reshape(shape),
        )

    def evaluate(
        self, loss: Loss, estimates: Array, draw: Draw, progress: Any, **control: Any
    ) -> Array:
        """The loss of a batch."""
        assert isinstance(loss, BiasConstrained)
        assert not control
        parts = self.parts(estimates, draw)
        rows = unit_errors(parts.rows[:, None, :], weights=loss.weights_at(parts.row_y))
        units = None
        if self.units:
            weights = loss.weights_at(parts.unit_y)
            units = unit_errors(parts.units, parts.present, weights=weights)
        return loss.of_rows_and_units(rows, units, progress)

    def moments(self, estimates: Float[Array, "t 1 d"], draw: Draw) -> tuple[Array, Array]:
        """Mean squared error of the rows, and unbiased squared bias of the units."""
        parts = self.parts(estimates, draw)
        mse = (parts.rows**2).sum(axis=-1).mean()
        if not self.units:
            return mse, jnp.full_like(mse, jnp.nan)
        units = unit_errors(parts.units, parts.present)
        return mse, squared_bias_of(units, "unbiased").sum(axis=-1).mean()  # NaN for single rows

    def judge(
        self,
        estimate: Callable[[Measurement], Array],
        loss: Loss,
        pool: Pool,
    ) -> dict[str, Array]:
        """Loss, MSE and unbiased squared bias on all of a pool, with standard errors over units."""
        assert isinstance(loss, BiasConstrained)
        y = pool.y[pool.unit]
        there = (jnp.arange(len(pool.unit)) < pool.rows)[:, None]
        errors = jnp.where(there, estimate(pool.x[:, None])[:, 0] - y, 0.0)

        def per_unit(values: Array) -> Array:
            return jax.ops.segment_sum(values, pool.unit, len(pool.size))

        size = pool.size.astype(errors.dtype)
        squares = per_unit(errors**2)
        some, twice = pool.size > 0, pool.size > 1
        count = jnp.maximum(size, 1.0)[:, None]
        rows = UnitErrors(
            per_unit(errors) / count, squares / count, count, loss.weights_at(pool.y), shares=size
        )
        # Without repeats there is no telling bias from noise: the U-statistic of one row, as if it
        # had been seen twice, is its squared error, and counts where there is nothing else.
        shares = jnp.where(twice.any(), twice, some).astype(errors.dtype)
        units = rows._replace(count=jnp.maximum(count, 2.0), shares=shares)
        bias2 = squared_bias_of(units, "unbiased")
        mse, mse_se = _ratio(squares.sum(axis=-1), pool.size, some)
        bias, bias_se = _ratio(bias2.sum(axis=-1), jnp.ones_like(pool.size), twice)
        judged = dataclasses.replace(loss, penalty="unbiased")
        return {
            "loss": judged.of_rows_and_units(rows, units, jnp.asarray(1.0)),
            "mse": mse,
            "mse_se": mse_se,
            "squared_bias": bias,
            "squared_bias_se": bias_se,
        }


class PairBatches(DataBatches):
    """Batches of pairs of a theta and its one measurement, which show the error and the bias.

    The bias is what smooth functions of theta see of the errors. Pairs are drawn with replacement:
    the mean of the U-statistic over batches is the plug-in over all of the data, which is never
    negative and counts no more noise than their number has.

    Args:
        d: components of y.
        rows: pairs in a batch.
        mesh: the devices that estimate.
    """

    def __init__(self, d: int, rows: int, mesh: Mesh | None = None) -> None:
        super().__init__(d, rows, 0, 1, mesh)
        self.sizes = {"batch_units": rows}

    def draw(self, key: Key, pool: Pool) -> tuple[Draw, Int[Array, ""]]:
        """A batch of pairs, with the functions of theta in the place of theta."""
        row = jr.randint(key, (self.rows,), 0, pool.rows)
        unit = pool.unit[row]
        assert pool.functions is not None
        x = jax.tree.map(lambda leaf: leaf[row][:, None], pool.x)
        return Draw({"functions": pool.functions[unit]}, pool.y[unit], x), jnp.asarray(0)

    def evaluate(
        self, loss: Loss, estimates: Array, draw: Draw, progress: Any, **control: Any
    ) -> Array:
        """The loss of a batch."""
        assert isinstance(loss, BiasConstrained)
        assert not control
        errors = estimates[:, 0] - draw.y
        return loss.of_pairs(errors, draw.theta["functions"], draw.y, progress)

    def moments(self, estimates: Float[Array, "t 1 d"], draw: Draw) -> tuple[Array, Array]:
        """Mean squared error of the pairs, and the unbiased squared bias that they show."""
        errors = estimates[:, 0] - draw.y
        bias2 = squared_bias_of_pairs(errors, draw.theta["functions"], "unbiased")
        return (errors**2).sum(axis=-1).mean(), bias2.sum()

    def judge(
        self,
        estimate: Callable[[Measurement], Array],
        loss: Loss,
        pool: Pool,
    ) -> dict[str, Array]:
        """Loss, MSE and unbiased squared bias on all of a pool, with standard errors over pairs."""
        assert isinstance(loss, BiasConstrained)
        assert pool.functions is not None
        there = (jnp.arange(len(pool.unit)) < pool.rows)[:, None]
        y = pool.y[pool.unit]
        errors = jnp.where(there, estimate(pool.x[:, None])[:, 0] - y, 0.0)
        # Sums over padding are zero: means are those over the rows that are there.
        share = len(pool.unit) / pool.rows
        functions = jnp.where(there, pool.functions[pool.unit], 0.0)
        squares = (errors**2).sum(axis=-1)
        mse = share * squares.mean()
        spread = share * (jnp.where(there[:, 0], squares - mse, 0.0) ** 2).mean()
        judged = dataclasses.replace(loss, penalty="unbiased")
        bias2, bias_se = _bias_of_pairs(errors, functions, pool.rows)
        return {
            "loss": judged.of_pairs(errors, functions, y, jnp.asarray(1.0), pool.rows),
            "mse": mse,
            "mse_se": jnp.sqrt(spread / pool.rows),
            "squared_bias": bias2,
            "squared_bias_se": bias_se,
        }


def _bias_of_pairs(errors: Array, functions: Array, count: Array) -> tuple[Array, Array]:
    """The U-statistic of the squared bias, summed over components, and its standard error."""
    bias2 = squared_bias_of_pairs(errors, functions, "unbiased", count).sum()
    seen = functions.T @ errors / count  # (q, d)
    # Its projection on single pairs, and what two pairs show together where there is no bias.
    first = ((functions @ seen) * errors).sum(axis=1)
    first_variance = jnp.maximum((first**2).sum() / count - (seen**2).sum() ** 2, 0.0)
    both = (functions[:, :, None] * errors[:, None, :]).reshape(len(errors), -1)
    moment = both.T @ both / count
    return bias2, jnp.sqrt(4 * first_variance / count + 2 * (moment**2).sum() / count**2)


class BatchErrors(NamedTuple):
    """Errors in a batch of fixed data."""

    rows: Float[Array, "b d"]
    row_y: Float[Array, "b d"]
    units: Float[Array, "k m d"]
    unit_y: Float[Array, "k d"]
    present: Array


def _ratio(values: Array, counts: Array, use: Array) -> tuple[Array, Array]:
    """Sum of values over sum of counts, with its standard error over units."""
    number = jnp.maximum(use.sum(), 1)
    counts = jnp.where(use, counts, 0).astype(values.dtype)
    ratio = jnp.where(use, values, 0.0).sum() / counts.sum()
    residuals = jnp.where(use, values - ratio * counts, 0.0)
    scale = jnp.sqrt(number / jnp.maximum(number - 1, 1))
    return ratio, scale * jnp.sqrt((residuals**2).sum()) / counts.sum()
