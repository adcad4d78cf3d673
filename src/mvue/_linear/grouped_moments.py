"""First and second moments of rows that are grouped into units, added up in pieces.

A unit is one value of the parameter; its rows are repeated measurements of it. Linear estimators
need the scatter of all rows and the part of it that lies between units. The part between units
is made of one sum per unit, so a unit whose rows arrive in several pieces must keep its sum until
the last of them is there. Units that may still grow are *open*. Their number is limited: the
units that were touched longest ago are folded into the totals, and only a 64-bit fingerprint of
each remains, so that a row that comes too late is an error and never a silently split unit. Rows
of one unit that follow one another, across the borders of pieces too, are never too late. The
first unit of every accumulator stays open for good, because it may be continued by the last unit
of another one with which it is merged.

All sums are float64. They are taken about a fixed shift near the mean, so that a large offset in
x or y costs no precision.
"""

from typing import Any, NamedTuple

import numpy as np

from .._data.units import UnitRows, group_rows, kind_of_ids
from .._serialise.registry import check_shapes, register
from .open_units import Block, OpenUnits, is_in
from .totals import RowSums, add_up, gram_of

SHIFT_SAMPLE = 1024
SHIFT_FROM = 3.0
"""An offset of fewer standard deviations than this costs no digits worth a copy of the data."""
OPEN_BYTES = 2**22
"""Memory for the sums of open units where their number is not given."""


@register(name="mvue.MomentSummary")
class MomentSummary(NamedTuple):
    """Moments of grouped rows about their means: all that a linear fit needs."""

    weight: float
    """Number of rows, or the sum of their weights."""
    units: int
    mean_x: np.ndarray  # (p,)
    mean_y: np.ndarray  # (d,)
    scatter_xx: np.ndarray  # (p, p), sums of products of deviations from the mean
    between_xx: np.ndarray  # (p, p), the same with every row replaced by the mean of its unit
    scatter_xy: np.ndarray  # (p, d)
    scatter_yy: np.ndarray  # (d, d)
    functions: int = 0
    """Of theta, where x is regressed on them, in place of one mean for each unit."""
    note: str = ""
    """What a fit that uses the noise is to warn about."""

    @property
    def means(self) -> int:
        """How many means the noise is the scatter about."""
        return self.functions or self.units

    @property
    def repeats(self) -> float:
        """Rows beyond the first of each unit: the degrees of freedom of the noise."""
        return max(self.weight - self.means, 0.0)

    @property
    def noise_covariance(self) -> np.ndarray:
        """W, the pooled covariance of x about its means, without bias; zero without repeats."""
        if self.repeats == 0:
            return np.zeros_like(self.scatter_xx)
        return (self.scatter_xx - self.between_xx) / self.repeats

    def second_moments(self, *, centre: bool) -> tuple[np.ndarray, np.ndarray]:
        """S = E[x xᵀ] and C = E[y xᵀ], about the means or about zero."""
        second, cross = self.scatter_xx / self.weight, self.scatter_xy.T / self.weight
        if centre:
            return second, cross
        return (
            second + np.outer(self.mean_x, self.mean_x),
            cross + np.outer(self.mean_y, self.mean_x),
        )

    def merge(self, other: "MomentSummary") -> "MomentSummary":
        """Moments of both sets of rows together; they must have no unit in common."""
        assert self.functions == other.functions == 0, "regressions do not add up"
        weight = self.weight + other.weight
        share, product = other.weight / weight, self.weight * other.weight / weight
        step_x, step_y = other.mean_x - self.mean_x, other.mean_y - self.mean_y
        between_means = product * np.outer(step_x, step_x)
        return MomentSummary(
            weight,
            self.units + other.units,
            self.mean_x + share * step_x,
            self.mean_y + share * step_y,
            self.scatter_xx + other.scatter_xx + between_means,
            self.between_xx + other.between_xx + between_means,
            self.scatter_xy + other.scatter_xy + product * np.outer(step_x, step_y),
            self.scatter_yy + other.scatter_yy + product * np.outer(step_y, step_y),
        )


def _check(loaded: "GroupedMoments") -> None:
    if not isinstance(loaded.totals, RowSums) or not isinstance(loaded.open, OpenUnits):
        raise ValueError("the totals are missing")
    p, d = loaded.totals.shift_x.size, loaded.totals.shift_y.size
    for block in loaded.open.blocks:
        units, rows = np.size(block.keys), len(block.scaled_sums)
        check_shapes(block, keys=(units,), weight=(units,), place=(units,), y=(units, d))
        check_shapes(block, scaled_sums=(rows, p))


@register(
    name="mvue.GroupedMoments",
    fields=("max_open_units", "keyed_by", "totals", "open", "folded_keys", "folded_units"),
    check=_check,
)
class GroupedMoments:
    """An accumulator of grouped rows: add pieces, merge accumulators, read a `MomentSummary`.

    Args:
        max_open_units: how many units may be open at a time at least; by default as many as
            fit into 4 MiB.
    """

    def __init__(self, max_open_units: int | None = None) -> None:
        self.max_open_units = max_open_units
        self.keyed_by: str | None = None
        self.totals: RowSums | None = None
        self.open = OpenUnits()
        self.folded_keys = np.empty(0, np.uint64)
        self.folded_units = 0

    def add(
        self, x: Any, y: Any, *, unit_ids: Any = None, weights: np.ndarray | None = None
    ) -> None:
        """Add rows in any order; rows of one unit may be spread over several calls.

        Args:
            x: shape (n, p), float32 or float64.
            y: shape (n, d), the same for all rows of a unit.
            unit_ids: one integer or string for each row; by default rows with exactly equal y
                are one unit.
            weights: positive weight of each row; a weight of 2 is the same as the row twice.
        """
        x, y = np.asarray(x), np.asarray(y, np.float64)
        keyed_by = kind_of_ids(unit_ids)
        if self.keyed_by not in (None, keyed_by):
            raise ValueError(
                f"unit_ids must be given with every piece of the data or with none, got a piece "
                f"grouped by {keyed_by} after one grouped by {self.keyed_by}"
            )
        rows = group_rows(y, unit_ids)
        blank = self._blank_totals(x, y)
        self._refuse_folded(rows.keys)
        self.open.check_same_y(rows.keys, rows.y)
        capacity = self._capacity(x.shape[1])
        keep = _newest(~self.open.knows(rows.keys), capacity)
        if not self.open.blocks:
            self.open.pin(rows.keys[:1])
            keep[0] = True
        totals, weight, scaled_sums = add_up(blank, x, rows, weights, keep)

        self.keyed_by = keyed_by
        self._commit(totals)
        self._mark_folded(rows.keys[~keep])
        place = np.arange(weight.size)
        self.open.push(Block(rows.keys[keep], weight, rows.y[keep], place, scaled_sums))
        self._fold_oldest(capacity)

    def add_units(self, x: Any, y: Any) -> None:
        """Add units that are complete and never come back; nothing is kept of each.

        Args:
            x: shape (N, M, p), M measurements of each of N units.
            y: shape (N, d).
        """
        x, y = np.asarray(x), np.asarray(y, np.float64)
        n, repeats, p = x.shape
        starts = np.arange(0, n * repeats + 1, repeats)
        rows = UnitRows(None, starts, np.empty(0, np.uint64), y)
        self.add_grouped(x.reshape(n * repeats, p), rows)

    def add_grouped(self, x: np.ndarray, rows: UnitRows, weights: np.ndarray | None = None) -> None:
        """Add rows of complete units that were grouped before; nothing is kept of each unit."""
        keep = np.zeros(len(rows.y), bool)
        totals, _, _ = add_up(self._blank_totals(x, rows.y), x, rows, weights, keep)
        self._commit(totals)
        self.folded_units += len(rows.y)

    def merge(self, other: "GroupedMoments") -> "GroupedMoments":
        """A new accumulator of the rows of both; units that both have seen become one."""
        merged = self.copy()
        if other.totals is None:
            return merged
        if merged.totals is None:
            return other.copy()
        _check_same_shape(merged.totals, other.totals)
        if None not in (self.keyed_by, other.keyed_by) and self.keyed_by != other.keyed_by:
            raise ValueError(
                f"accumulators must group rows alike to be merged, got {self.keyed_by} and "
                f"{other.keyed_by}"
            )
        other_keys = np.concatenate([other.folded_keys, other.open.keys])
        merged._refuse_folded(other_keys)
        other._refuse_folded(merged.open.keys)
        for block in other.open.blocks:
            merged.open.check_same_y(block.keys, block.y)
        merged.keyed_by = self.keyed_by or other.keyed_by
        merged.open.pin(np.concatenate([self.open.last(), other.open.last(), other.open.pinned]))
        merged._commit(other.totals.moved(merged.totals, *other.open.total()))
        merged._mark_folded(other.folded_keys)
        merged.folded_units += other.folded_units - other.folded_keys.size
        for block in other.open.moved(other.totals.shift_x - merged.totals.shift_x).blocks:
            merged.open.push(block)
        merged._fold_oldest(merged._capacity(merged.totals.shift_x.size))
        return merged

    def copy(self) -> "GroupedMoments":
        """An accumulator that can grow without changing this one."""
        twin = GroupedMoments(self.max_open_units)
        twin.keyed_by = self.keyed_by
        twin.totals = self.totals and self.totals.copy()
        twin.open = self.open.copy()
        twin.folded_keys, twin.folded_units = self.folded_keys, self.folded_units
        return twin

    def summary(self) -> MomentSummary:
        """The moments of all rows so far."""
        if self.totals is None:
            raise ValueError("moments need at least one row, got none: add rows first")
        totals = self.totals.copy()
        for block in self.open.blocks:
            totals.between += gram_of(block.scaled_sums)
        n = totals.weight
        mean_product = np.outer(totals.sum_x, totals.sum_x) / n
        return MomentSummary(
            n,
            self.folded_units + self.open.size,
            totals.shift_x + totals.sum_x / n,
            totals.shift_y + totals.sum_y / n,
            totals.xx - mean_product,
            totals.between - mean_product,
            totals.xy - np.outer(totals.sum_x, totals.sum_y) / n,
            totals.yy - np.outer(totals.sum_y, totals.sum_y) / n,
        )

    def _blank_totals(self, x: np.ndarray, y: np.ndarray) -> RowSums:
        if self.totals is None:
            return RowSums.about(_shift(x), _shift(y))
        blank = RowSums.about(self.totals.shift_x, self.totals.shift_y)
        for name, array, shift in (("x", x, blank.shift_x), ("y", y, blank.shift_y)):
            if array.shape[1] != shift.size:
                raise ValueError(
                    f"{name} must have {shift.size} columns as in the pieces before, got "
                    f"{array.shape[1]}"
                )
        return blank

    def _commit(self, totals: RowSums) -> None:
        # A piece is added up apart and joined here, so that a refused piece leaves no trace.
        self.totals = totals if self.totals is None else self.totals.plus(totals)

    def _capacity(self, p: int) -> int:
        if self.max_open_units is not None:
            return self.max_open_units
        return max(OPEN_BYTES // (8 * p), 1)

    def _refuse_folded(self, keys: np.ndarray) -> None:
        # Sorted keys are looked up in the order of memory, which is several times as fast.
        late = int(is_in(np.sort(keys), self.folded_keys).sum())
        if late:
            raise ValueError(
                f"rows of one unit must arrive while the unit is open, got rows of {late} units "
                "that were folded away because many others came in between: sort the rows by "
                "unit, or raise max_open_units"
            )

    def _mark_folded(self, keys: np.ndarray) -> None:
        if keys.size:
            self.folded_units += keys.size
            # A stable sort of two runs, one of them sorted, is nearly a merge.
            self.folded_keys = np.sort(
                np.concatenate([self.folded_keys, np.sort(keys)]), kind="stable"
            )

    def _fold_oldest(self, capacity: int) -> None:
        assert self.totals is not None
        for block in self.open.pop_oldest(capacity):
            self.totals.between += gram_of(block.scaled_sums)
            self._mark_folded(block.keys)


def _newest(new: np.ndarray, capacity: int) -> np.ndarray:
    """Keep all units that are open already and the last of the new ones."""
    keep = ~new
    keep[np.flatnonzero(new)[-capacity:]] = True
    return keep


def _shift(values: np.ndarray) -> np.ndarray:
    """A point near the mean where the mean is far from zero; zero elsewhere."""
    sample = values[:: max(len(values) // SHIFT_SAMPLE, 1)].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):  # non-finite values are refused later
        mean, deviation = sample.mean(axis=0), sample.std(axis=0)
        far = np.abs(mean) > SHIFT_FROM * deviation
    return np.where(far & np.isfinite(mean), mean, 0.0)


def _check_same_shape(a: RowSums, b: RowSums) -> None:
    shape_a, shape_b = ((t.shift_x.size, t.shift_y.size) for t in (a, b))
    if shape_a != shape_b:
        raise ValueError(
            f"accumulators must have the same numbers of columns of x and y to be merged, got "
            f"{shape_a} and {shape_b}"
        )
