"""Splits of data with repeats: new rows of known units."""

from abc import abstractmethod
from collections.abc import Generator, Iterator
from numbers import Real
from typing import Any, ClassVar, TypeAlias

import numpy as np
from sklearn.model_selection import BaseCrossValidator
from sklearn.utils import assert_all_finite, check_random_state, column_or_1d, indexable

from .._core.checks import check_count
from .._data.units import UnitRows, group_rows
from ._tables import as_table

Masks: TypeAlias = tuple[np.ndarray, np.ndarray]
"""Which rows, in the order of units, are for training and which for the test."""


def unit_ids_of(y: Any) -> np.ndarray:
    """The unit of each row where rows with exactly equal y are one unit: integers, shape (n,).

    Units are numbered from 0 in the order in which they first appear. As `groups` they make
    scikit-learn's splitters hold out whole units: ``GroupKFold().split(X, y, unit_ids_of(y))``.

    Args:
        y: shape (n,) or (n, d).
    """
    return _rows_of_units(y, None).unit_of_row()


class _WithinUnits(BaseCrossValidator):
    """Holds out some rows of each unit; its other rows are for training."""

    # Groups are passed on wherever metadata are routed, as by scikit-learn's own group splitters.
    __metadata_request__split: ClassVar[dict[str, bool]] = {"groups": True}

    n_splits: int

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> Any:  # noqa: ARG002
        """The number of splits; no data are needed to know it."""
        return self.n_splits

    def split(
        self, X: Any, y: Any = None, groups: Any = None
    ) -> Generator[tuple[np.ndarray, np.ndarray], Any, None]:
        """Rows for training and rows for the test, in the order of the data, for each split.

        Args:
            X: shape (n, p); only its length is looked at.
            y: shape (n,) or (n, d); rows with exactly equal y are one unit.
            groups: the unit of each row, shape (n,), instead of y.
        """
        X, y, groups = indexable(X, y, groups)
        rows = _rows_of_units(y, groups)
        for train, test in self._masks(rows):
            yield _in_order_of_data(rows, train), _in_order_of_data(rows, test)

    @abstractmethod
    def _masks(self, rows: UnitRows) -> Iterator[Masks]:
        """One pair for each split; a unit that has test rows has rows for training."""


class WithinUnitsShuffleSplit(_WithinUnits):
    """Hold out random rows of each unit: what will predictions be for new rows of known units?

    Every unit keeps at least one row for training; a unit of one row is never held out. Where the
    share asked for is not a whole number of rows, units take turns at random to hold out one more,
    so that together they meet it, with one row at least. Rows that follow each other and are
    near-copies make this split too easy: see `WithinUnitsBlockSplit`.

    Args:
        n_splits: number of splits, each drawn anew.
        test_size: the share of the rows of each unit that is held out, between 0 and 1.
        random_state: an integer for the same splits with every call.
    """

    def __init__(
        self, n_splits: int = 10, *, test_size: float = 1 / 3, random_state: Any = None
    ) -> None:
        check_count("n_splits", n_splits, least=1)
        if not isinstance(test_size, Real) or not 0 < test_size < 1:
            raise ValueError(
                f"test_size must be a share of the rows between 0 and 1, both excluded, got "
                f"{test_size!r}"
            )
        self.n_splits = n_splits
        self.test_size = test_size
        self.random_state = random_state

    def _masks(self, rows: UnitRows) -> Iterator[Masks]:
        sizes = np.diff(rows.starts)
        if sizes.max() < 2:
            raise ValueError(
                f"a unit must have at least 2 rows to hold one of them out, got {sizes.size} units "
                "of which the largest has 1: measure units more often, or hold out whole units"
            )
        wanted = np.minimum(self.test_size * sizes, sizes - 1)
        rng = check_random_state(self.random_state)
        unit = np.repeat(np.arange(sizes.size), sizes)
        place = np.arange(unit.size) - np.repeat(rows.starts[:-1], sizes)
        for _ in range(self.n_splits):
            count = _round_at_random(wanted, rng)
            shuffled = np.lexsort((rng.random_sample(unit.size), unit))
            test = np.empty(unit.size, bool)
            test[shuffled] = place < count[unit]
            yield ~test, test


class WithinUnitsBlockSplit(_WithinUnits):
    """Hold out one stretch of each unit's rows after the other: rows close in time stay together.

    The rows of a unit, in the order of the data, are taken to follow each other in time. They are
    cut into `n_splits` stretches of equal length, or nearly so, and every stretch is held out
    once; the last split holds out the latest rows of each unit. A unit of fewer rows is held
    out in as many splits as it has rows. A unit that would have no row left to train on
    stays in training as a whole, so a unit of one row is never held out.

    Args:
        n_splits: number of stretches, at least 2 and at most the rows of the largest unit.
        gap: how many rows on either side of a stretch held out are left out of training, because
            they are too much like it.
    """

    def __init__(self, n_splits: int = 3, *, gap: int = 0) -> None:
        check_count("n_splits", n_splits, least=2)
        check_count("gap", gap, least=0)
        self.n_splits = n_splits
        self.gap = gap

    def _masks(self, rows: UnitRows) -> Iterator[Masks]:
        sizes = np.diff(rows.starts)
        place = np.arange(rows.starts[-1]) - np.repeat(rows.starts[:-1], sizes)
        for split in range(self.n_splits):
            start, stop = (sizes * step // self.n_splits for step in (split, split + 1))
            before, after = start - self.gap, stop + self.gap
            held = (start < stop) & ((before > 0) | (after < sizes))
            if not held.any():
                raise ValueError(
                    f"n_splits={self.n_splits} with gap={self.gap} needs a unit with rows to hold "
                    f"out and rows to train on in every split, got none in split {split} of units "
                    f"of which the largest has {sizes.max()}: lower n_splits or gap, or measure "
                    "units more often"
                )
            start, stop, before, after, held = (
                np.repeat(bound, sizes) for bound in (start, stop, before, after, held)
            )
            test = held & (place >= start) & (place < stop)
            yield ~held | (place < before) | (place >= after), test


def _rows_of_units(y: Any, groups: Any) -> UnitRows:
    if groups is not None:
        groups = column_or_1d(groups)
        assert_all_finite(groups, input_name="groups")
        _, ids = np.unique(groups, return_inverse=True)
        return group_rows(np.zeros((ids.size, 1)), ids)
    if y is None:
        raise ValueError("y must be given where groups is not, got neither: units are equal rows")
    return group_rows(as_table(y, "y"))


def _in_order_of_data(rows: UnitRows, mask: np.ndarray) -> np.ndarray:
    if rows.order is None:
        return np.flatnonzero(mask)
    return np.sort(rows.order[mask])


def _round_at_random(wanted: np.ndarray, rng: Any) -> np.ndarray:
    """Whole numbers next to the wanted ones, with their mean, and with their sum up to rounding."""
    whole = np.floor(wanted)
    part = wanted - whole
    turn = rng.permutation(np.flatnonzero(part))
    steps = np.floor(np.cumsum(part[turn]) + rng.random_sample())
    if not whole.any():
        steps[-1] = max(steps[-1], 1)  # never an empty test
    # Rounding of the sum must not take more from a unit than there is.
    whole[turn] += np.minimum(np.diff(steps, prepend=0), 1)
    return whole.astype(int)
