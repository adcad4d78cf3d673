"""`Repeats`: fixed data, in which each parameter value was measured several times, or once."""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._core.checks import refuse_masked
from .theta_basis import ThetaBasis
from .units import group_rows

PIECE_NUMBERS = 2**22  # that are looked at together


@dataclasses.dataclass(frozen=True, eq=False)
class Repeats:
    """Measurements of units, several of each or one; rows are in the order of units.

    Make one with `Repeats.from_rows`.
    """

    x: np.ndarray
    """The measurements, shape (rows, ...); mapped from a file where they were given so."""
    y: np.ndarray
    """The parameters, shape (units, d)."""
    starts: np.ndarray
    """Where the rows of each unit begin, and where the last one ends, shape (units + 1,)."""
    theta: np.ndarray | None = None
    """All that measurements of each unit depend on, (units, k); None where that is y alone."""

    @classmethod
    def from_rows(cls, x: Any, y: Any, *, theta: Any = None, unit_ids: Any = None) -> "Repeats":
        """Data from rows in any order.

        Args:
            x: one measurement in each row, shape (rows, ...). Memory-mapped arrays stay in their
                file, unless rows of one unit lie apart.
            y: the truth of each, shape (rows,) or (rows, d), the same for all rows of a unit;
                whole numbers are taken as they are.
            theta: all that the measurement in each row depends on, nuisance parameters included,
                shape (rows,) or (rows, k), in any coordinates; by default y. Where no unit was
                measured twice, the bias is looked for as a smooth function of it.
            unit_ids: the unit of each row, integers or strings; by default rows with exactly equal
                y (and theta) are one unit.
        """
        given = {"x": x, "y": y} | ({} if theta is None else {"theta": theta})
        for name, array in given.items():
            refuse_masked(name, array)
            array = given[name] = np.asarray(array)
            if array.dtype.kind not in "biuf":
                raise TypeError(f"{name} must hold real numbers, got an array of {array.dtype}")
            wrong = sum(int(np.sum(~np.isfinite(piece))) for piece in _pieces(array))
            if wrong:
                raise ValueError(
                    f"{name} must be finite, got {wrong} entries that are NaN or infinite: leave "
                    "such rows out or replace what is missing"
                )
        x, *known = given.values()
        y, *rest = (part[:, None] if part.ndim == 1 else part for part in known)
        if y.ndim != 2 or x.ndim < 1 or 0 in (*x.shape, *y.shape) or len(x) != len(y):
            raise ValueError(
                "x and y must have one entry per row, at least one number, and y the shape (rows,) "
                f"or (rows, d); got shapes {x.shape} and {y.shape}"
            )
        if rest and (rest[0].ndim != 2 or len(rest[0]) != len(y) or 0 in rest[0].shape):
            raise ValueError(
                f"theta must have the shape ({len(y)},) or ({len(y)}, k), one entry per row, got "
                f"{rest[0].shape}"
            )
        rows = group_rows(np.concatenate([y, *rest], axis=1).astype(np.float64), unit_ids)
        x = x if rows.order is None else x[rows.order]
        y, theta = rows.y[:, : y.shape[1]], rows.y[:, y.shape[1] :] if rest else None
        return cls(_single("x", x), _single("y", y), rows.starts, theta)

    @property
    def sizes(self) -> np.ndarray:
        """How many rows each unit has, shape (units,)."""
        return np.diff(self.starts)

    def shuffled(self, rng: np.random.Generator) -> "Repeats":
        """The same rows, in random order within each unit."""
        if len(self.x) == len(self.y):
            return self
        unit = np.repeat(np.arange(len(self.y)), self.sizes)
        order = np.lexsort((rng.random(len(unit)), unit))
        return dataclasses.replace(self, x=self.x[order])

    def take_units(self, units: np.ndarray) -> "Repeats":
        """Some of the units."""
        units = np.arange(len(self.y))[units]
        keep = self.starts[:-1][units]
        if len(self.x) > len(self.y):
            keep = np.concatenate([np.arange(*self.starts[u : u + 2]) for u in units])
        starts = np.concatenate([[0], np.cumsum(self.sizes[units])])
        x = _as_single(self.x[keep])
        return Repeats(x, self.y[units], starts, None if self.theta is None else self.theta[units])

    def take_rows(self, rows: np.ndarray) -> "Repeats":
        """Some of the rows, in any order; units without any are left out."""
        rows = np.sort(np.arange(len(self.x))[rows])
        unit = np.repeat(np.arange(len(self.y)), self.sizes)[rows]
        units, counts = np.unique(unit, return_counts=True)
        starts = np.concatenate([[0], np.cumsum(counts)])
        x = _as_single(self.x[rows])
        return Repeats(x, self.y[units], starts, None if self.theta is None else self.theta[units])

    def without_copies(self) -> "Repeats":
        """Each row once, where all rows of every unit are equal: they are copies, no repeats.

        Of whole numbers nobody can tell, as repeats are often equal.
        """
        pairs = np.flatnonzero(self.sizes > 1)
        units = (self.x[slice(*self.starts[unit : unit + 2])] for unit in pairs)
        if not len(pairs) or any((rows != rows[:1]).any() or _whole(rows) for rows in units):
            return self
        return self.take_rows(self.starts[:-1])

    def __repr__(self) -> str:
        sizes = self.sizes
        shape = "scalars" if self.x.ndim == 1 else f"shape {self.x.shape[1:]}"
        return (
            f"Repeats({len(self.x):,} measurements of {shape}, {len(self.y):,} units of "
            f"{sizes.min()} to {sizes.max()} rows, y of {self.y.shape[1]} components"
            + (")" if self.theta is None else f", theta of {self.theta.shape[1]})")
        )


def _single(name: str, values: np.ndarray) -> np.ndarray:
    """In single precision, if that tells the values apart and their squares are finite.

    What is mapped from a file stays there, and is made single as it is used.
    """
    mapped = _is_mapped(values)
    lost, size, spread = np.zeros(1, bool), 0.0, np.zeros(1)
    # One number for the precision of all rows; each piece of a mapped array by its own spread.
    for piece in _pieces(values) if mapped else [values]:
        with np.errstate(over="ignore"):
            single = piece.astype(np.float32)
        exact = piece.astype(np.float64)
        spread = exact.std(axis=0)
        lost = lost | ((np.abs(single - exact).max(axis=0) > 1e-2 * spread) & (spread > 0))
        size = max(size, np.abs(exact).max())
    if lost.any() or not (size == 0 or 1e-15 < size < 1e15):
        raise ValueError(
            f"{name} must be fit for single precision, got values up to {size:.3g} that vary by "
            f"{spread.min():.2g} to {spread.max():.2g}: subtract an offset and give it in other "
            "units"
        )
    return values if mapped else values.astype(np.float32)


def _whole(values: np.ndarray) -> bool:
    return bool((values == np.rint(values)).all())


def _as_single(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32, copy=False)


def _is_mapped(values: np.ndarray) -> bool:
    """Whether an array, or the one that it is a view of, lies in a file."""
    return isinstance(values, np.memmap) or isinstance(values.base, np.memmap)


def _pieces(values: np.ndarray) -> Iterator[np.ndarray]:
    """Rows of about a few MiB at a time."""
    if values.ndim == 0:
        return iter([values])
    numbers = max(1, int(np.prod(values.shape[1:], dtype=int)))
    count = max(1, PIECE_NUMBERS // numbers)
    return (values[first : first + count] for first in range(0, len(values), count))


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
    functions: Float[Array, "units q"] | None = None
    """Smooth functions of theta, which show the bias where nothing was measured twice."""


def pool_of(
    data: Repeats,
    *,
    rows: int | None = None,
    units: int | None = None,
    basis: ThetaBasis | None = None,
) -> Pool:
    """Data as compiled functions take it, padded to a number of rows and units."""
    sizes = data.sizes
    shows = penalised_units(sizes)
    order = np.concatenate([np.flatnonzero(shows), np.flatnonzero(~shows)])
    unit = np.repeat(np.arange(len(sizes)), sizes)
    more_rows, more_units = (rows or len(unit)) - len(unit), (units or len(sizes)) - len(sizes)

    def padded(array: np.ndarray, count: int) -> Array:
        return jnp.asarray(np.pad(array, [(0, count)] + [(0, 0)] * (array.ndim - 1)))

    functions = None
    if basis is not None:
        functions = padded(basis(data.y, data.theta).astype(np.float32), more_units)
    return Pool(
        padded(_as_single(data.x), more_rows),
        padded(unit, more_rows),
        padded(data.y, more_units),
        padded(data.starts[:-1], more_units),
        padded(sizes, more_units),
        padded(order, more_units),
        jnp.asarray(len(unit)),
        jnp.asarray(shows.sum()),
        functions,
    )


def penalised_units(sizes: np.ndarray) -> np.ndarray:
    """Which units enter the penalty: those measured more than once, or all if there are none."""
    shows = sizes > 1
    return shows if shows.any() else np.ones_like(shows)
