"""`Repeats`: fixed data in memory, in which each parameter value was measured several times."""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._core.checks import refuse_masked
from .units import group_rows


@dataclasses.dataclass(frozen=True, eq=False)
class Repeats:
    """Measurements of units, several of each; rows are in the order of units.

    Make one with `Repeats.from_rows`.
    """

    x: np.ndarray
    """The measurements, shape (rows, ...)."""
    y: np.ndarray
    """The parameters, shape (units, d)."""
    starts: np.ndarray
    """Where the rows of each unit begin, and where the last one ends, shape (units + 1,)."""

    @classmethod
    def from_rows(cls, x: Any, y: Any, *, unit_ids: Any = None) -> "Repeats":
        """Data from rows in any order.

        Args:
            x: one measurement in each row, shape (rows, ...).
            y: the truth of each, shape (rows,) or (rows, d), the same for all rows of a unit;
                whole numbers are taken as they are.
            unit_ids: the unit of each row, integers or strings; by default rows with exactly equal
                y are one unit.
        """
        refuse_masked("x", x)
        refuse_masked("y", y)
        x, y = np.asarray(x), np.asarray(y)
        for name, array in (("x", x), ("y", y)):
            if array.dtype.kind not in "biuf":
                raise TypeError(f"{name} must hold real numbers, got an array of {array.dtype}")
            if not np.isfinite(array).all():
                raise ValueError(
                    f"{name} must be finite, got {np.sum(~np.isfinite(array))} entries that are "
                    "NaN or infinite: leave such rows out or replace what is missing"
                )
        if y.ndim == 1:
            y = y[:, None]
        if y.ndim != 2 or x.ndim < 1 or 0 in (*x.shape, *y.shape) or len(x) != len(y):
            raise ValueError(
                "x and y must have one entry per row, at least one number, and y the shape (rows,) "
                f"or (rows, d); got shapes {x.shape} and {y.shape}"
            )
        rows = group_rows(y.astype(np.float64), unit_ids)
        x = x if rows.order is None else x[rows.order]
        return cls(_single("x", x), _single("y", rows.y), rows.starts)

    @property
    def sizes(self) -> np.ndarray:
        """How many rows each unit has, shape (units,)."""
        return np.diff(self.starts)

    def shuffled(self, rng: np.random.Generator) -> "Repeats":
        """The same rows, in random order within each unit."""
        unit = np.repeat(np.arange(len(self.y)), self.sizes)
        order = np.lexsort((rng.random(len(unit)), unit))
        return dataclasses.replace(self, x=self.x[order])

    def take_units(self, units: np.ndarray) -> "Repeats":
        """Some of the units."""
        units = np.arange(len(self.y))[units]
        keep = np.concatenate([np.arange(*self.starts[u : u + 2]) for u in units])
        starts = np.concatenate([[0], np.cumsum(self.sizes[units])])
        return Repeats(self.x[keep], self.y[units], starts)

    def take_rows(self, rows: np.ndarray) -> "Repeats":
        """Some of the rows, in any order; units without any are left out."""
        rows = np.sort(np.arange(len(self.x))[rows])
        unit = np.repeat(np.arange(len(self.y)), self.sizes)[rows]
        units, counts = np.unique(unit, return_counts=True)
        return Repeats(self.x[rows], self.y[units], np.concatenate([[0], np.cumsum(counts)]))

    def __repr__(self) -> str:
        sizes = self.sizes
        shape = "scalars" if self.x.ndim == 1 else f"shape {self.x.shape[1:]}"
        return (
            f"Repeats({len(self.x):,} measurements of {shape}, {len(self.y):,} units of "
            f"{sizes.min()} to {sizes.max()} rows, y of {self.y.shape[1]} components)"
        )


def _single(name: str, values: np.ndarray) -> np.ndarray:
    """In single precision, if that tells the values apart and their squares are finite."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    exact = values.astype(np.float64)
    lost = np.abs(single - exact).max(axis=0) > 1e-2 * exact.std(axis=0)
    size = np.abs(exact).max()
    if (lost & (exact.std(axis=0) > 0)).any() or not (size == 0 or 1e-15 < size < 1e15):
        raise ValueError(
            f"{name} must be fit for single precision, got values up to {size:.3g} that vary by "
            f"{exact.std(axis=0).min():.2g} to {exact.std(axis=0).max():.2g}: subtract an offset "
            "and give it in other units"
        )
    return single


class Pool(NamedTuple):
    """Data on the device; rows and units beyond the counts are padding."""

    x: Float[Array, "rows ..."]
    unit: Int[Array, " rows"]
    y: Float[Array, "units d"]
    start: Int[Array, " units"]
    size: Int[Array, " units"]
    penalised: Int[Array, " units"]
    """Units that show a bias come first."""
    rows: Int[Array, ""]
    penalised_units: Int[Array, ""]


def pool_of(data: Repeats, *, rows: int | None = None, units: int | None = None) -> Pool:
    """Data as compiled functions take it, padded to a number of rows and units."""
    sizes = data.sizes
    shows = penalised_units(sizes)
    order = np.concatenate([np.flatnonzero(shows), np.flatnonzero(~shows)])
    unit = np.repeat(np.arange(len(sizes)), sizes)
    more_rows, more_units = (rows or len(unit)) - len(unit), (units or len(sizes)) - len(sizes)

    def padded(array: np.ndarray, count: int) -> Array:
        return jnp.asarray(np.pad(array, [(0, count)] + [(0, 0)] * (array.ndim - 1)))

    return Pool(
        padded(data.x, more_rows),
        padded(unit, more_rows),
        padded(data.y, more_units),
        padded(data.starts[:-1], more_units),
        padded(sizes, more_units),
        padded(order, more_units),
        jnp.asarray(len(unit)),
        jnp.asarray(shows.sum()),
    )


def penalised_units(sizes: np.ndarray) -> np.ndarray:
    """Which units enter the penalty: those measured more than once, or all if there are none."""
    shows = sizes > 1
    return shows if shows.any() else np.ones_like(shows)
