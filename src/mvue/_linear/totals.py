"""Sums over rows and units about a fixed shift, computed on all cores."""

import functools
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from .._data.units import UnitRows
from .._runtime.threads import in_threads, worker_count
from .._serialise.registry import check_shapes, register

BLOCK_ROWS = 5120


def _check(loaded: "RowSums") -> None:
    p, d = np.size(loaded.shift_x), np.size(loaded.shift_y)
    check_shapes(loaded, shift_x=(p,), sum_x=(p,), shift_y=(d,), sum_y=(d,))
    check_shapes(loaded, xx=(p, p), between=(p, p), xy=(p, d), yy=(d, d))


@register(
    name="mvue.Totals",
    fields=("shift_x", "shift_y", "weight", "sum_x", "sum_y", "xx", "between", "xy", "yy"),
    check=_check,
)
class RowSums:
    """Sums over rows about a shift, and the part between units of those that are folded."""

    def __init__(self, **fields: Any) -> None:
        self.shift_x: np.ndarray = fields["shift_x"]
        self.shift_y: np.ndarray = fields["shift_y"]
        self.weight: float = fields["weight"]
        self.sum_x: np.ndarray = fields["sum_x"]
        self.sum_y: np.ndarray = fields["sum_y"]
        self.xx: np.ndarray = fields["xx"]
        self.between: np.ndarray = fields["between"]
        self.xy: np.ndarray = fields["xy"]
        self.yy: np.ndarray = fields["yy"]

    @classmethod
    def about(cls, shift_x: np.ndarray, shift_y: np.ndarray) -> "RowSums":
        p, d = shift_x.size, shift_y.size
        return cls(
            shift_x=shift_x,
            shift_y=shift_y,
            weight=0.0,
            sum_x=np.zeros(p),
            sum_y=np.zeros(d),
            xx=np.zeros((p, p)),
            between=np.zeros((p, p)),
            xy=np.zeros((p, d)),
            yy=np.zeros((d, d)),
        )

    def copy(self) -> "RowSums":
        return RowSums(
            **{
                name: value.copy() if isinstance(value, np.ndarray) else value
                for name, value in vars(self).items()
            }
        )

    def plus(self, other: "RowSums") -> "RowSums":
        """The sum of two totals about the same shift."""
        shifts = {"shift_x": self.shift_x, "shift_y": self.shift_y}
        sums = {
            name: value + getattr(other, name)
            for name, value in vars(self).items()
            if name not in shifts
        }
        return RowSums(**shifts, **sums)

    def add_units(
        self, gram: np.ndarray, scaled_sums: np.ndarray, weight: np.ndarray, y: np.ndarray
    ) -> None:
        """Take up units with the products of their rows.

        Args:
            gram: the sum over rows of x xᵀ about the shift, shape (p, p).
            scaled_sums: the sum over the rows of each unit, divided by the root of its weight.
            weight: of each unit.
            y: of each unit, about the shift.
        """
        root = np.sqrt(weight)[:, None]
        weighted_y = weight[:, None] * y
        sums = scaled_sums.T @ np.hstack([root, root * y])
        self.weight += float(weight.sum())
        self.xx += gram
        self.sum_x += sums[:, 0]
        self.xy += sums[:, 1:]
        self.sum_y += weighted_y.sum(axis=0)
        self.yy += weighted_y.T @ y

    def fold(self, scaled_sums: np.ndarray) -> None:
        """Take up the part between units of units that will not grow any more."""
        self.between += scaled_sums.T @ scaled_sums

    def moved(self, target: "RowSums", open_weight: float, open_sum: Any) -> "RowSums":
        """The same totals about the shift of another accumulator."""
        step_x, step_y = self.shift_x - target.shift_x, self.shift_y - target.shift_y
        folded_sum, folded_weight = self.sum_x - open_sum, self.weight - open_weight
        n = self.weight

        def move(product: Any, sum_a: Any, sum_b: Any, step_a: Any, step_b: Any, n: float) -> Any:
            return (
                product
                + np.outer(sum_a, step_b)
                + np.outer(step_a, sum_b)
                + n * np.outer(step_a, step_b)
            )

        return RowSums(
            shift_x=target.shift_x,
            shift_y=target.shift_y,
            weight=n,
            sum_x=self.sum_x + n * step_x,
            sum_y=self.sum_y + n * step_y,
            xx=move(self.xx, self.sum_x, self.sum_x, step_x, step_x, n),
            between=move(self.between, folded_sum, folded_sum, step_x, step_x, folded_weight),
            xy=move(self.xy, self.sum_x, self.sum_y, step_x, step_y, n),
            yy=move(self.yy, self.sum_y, self.sum_y, step_y, step_y, n),
        )


def add_up(
    blank: RowSums, x: np.ndarray, rows: UnitRows, weights: np.ndarray | None, keep: np.ndarray
) -> tuple[RowSums, np.ndarray, np.ndarray]:
    """Totals of rows; returns also weights and scaled sums of units to keep; others are folded.

    Blocks of rows are shared out among threads, each of which multiplies matrices by itself:
    adding up rows and multiplying them then both use all cores.
    """
    weight = _unit_weights(rows, weights)
    place = np.concatenate([[0], np.cumsum(keep)])
    kept = np.empty((place[-1], x.shape[1]))

    def work(share: list[tuple[int, int]]) -> RowSums:
        totals = blank.copy()
        for first, last in share:
            scaled_sums = _add_block(totals, x, rows, weights, first, last)
            inside = keep[first:last]
            if not inside.all():
                totals.fold(scaled_sums[~inside] if inside.any() else scaled_sums)
            kept[place[first] : place[last]] = scaled_sums[inside]
        return totals

    parts = in_threads(work, _blocks(rows.starts))
    return functools.reduce(RowSums.plus, parts), weight[keep], kept


def _add_block(
    totals: RowSums,
    x: np.ndarray,
    rows: UnitRows,
    weights: np.ndarray | None,
    first: int,
    last: int,
) -> np.ndarray:
    """Add the rows of some units to totals; returns the scaled sums of the units."""
    start, stop = rows.starts[first], rows.starts[last]
    picked = slice(start, stop) if rows.order is None else rows.order[start:stop]
    z = np.ascontiguousarray(x[picked], np.float64)
    if totals.shift_x.any():
        z = z - totals.shift_x
    borders = rows.starts[first : last + 1] - start
    row_weights = np.ones(stop - start) if weights is None else weights[picked]
    weight = np.add.reduceat(row_weights, borders[:-1])
    weighted = z if weights is None else z * np.sqrt(row_weights)[:, None]
    with np.errstate(invalid="ignore", over="ignore"):
        gram = weighted.T @ weighted
    _check_finite(np.diagonal(gram))
    # One sparse product adds up all units of the block, whatever their sizes.
    scaled = row_weights / np.repeat(np.sqrt(weight), np.diff(borders))
    unit = csr_matrix((scaled, np.arange(stop - start), borders), (last - first, stop - start))
    scaled_sums = unit @ z
    totals.add_units(gram, scaled_sums, weight, rows.y[first:last] - totals.shift_y)
    return scaled_sums


def gram_of(rows: np.ndarray) -> np.ndarray:
    """rowsᵀ rows, in pieces that threads can share."""
    pieces = np.array_split(rows, worker_count() if len(rows) > BLOCK_ROWS // 8 else 1)
    return functools.reduce(np.add, in_threads(_sum_of_grams, pieces))


def _sum_of_grams(pieces: list[np.ndarray]) -> np.ndarray:
    return functools.reduce(np.add, (piece.T @ piece for piece in pieces))


def _unit_weights(rows: UnitRows, weights: np.ndarray | None) -> np.ndarray:
    if weights is None:
        return np.diff(rows.starts).astype(np.float64)
    ordered = weights if rows.order is None else weights[rows.order]
    return np.add.reduceat(ordered, rows.starts[:-1])


def _check_finite(squares: np.ndarray) -> None:
    """Refuse rows whose squares are not finite; cheaper than a look at each number."""
    finite = np.isfinite(squares)
    if not finite.all():
        raise ValueError(
            "x must be finite, got NaN, infinity or a value too large to be squared in column "
            f"{int(np.argmin(finite))}: remove or impute such rows"
        )


def _blocks(starts: np.ndarray) -> list[tuple[int, int]]:
    """Ranges of whole units of at most about BLOCK_ROWS rows, as many for each thread."""
    rows, workers = starts[-1], worker_count()
    number = workers * -(-rows // (workers * BLOCK_ROWS)) if rows > BLOCK_ROWS else 1
    borders = np.searchsorted(starts, np.linspace(0, rows, number + 1))
    return list(pairwise(np.unique(borders).tolist()))
