"""Grouping: which rows of a table are repeats of the same unit."""

import hashlib
from typing import Any, NamedTuple

import numpy as np

from .._core.checks import refuse_masked


class UnitRows(NamedTuple):
    """Which rows belong to which unit; rows are in the order of units once `order` is applied."""

    order: np.ndarray | None  # (n,), or None where the rows of each unit are consecutive
    starts: np.ndarray  # (units + 1,)
    keys: np.ndarray  # (units,), fingerprints
    y: np.ndarray  # (units, d)

    def unit_of_row(self) -> np.ndarray:
        """The number of the unit of each row, in the order of the data, shape (n,)."""
        units = np.repeat(np.arange(len(self.y)), np.diff(self.starts))
        if self.order is None:
            return units
        numbers = np.empty_like(units)
        numbers[self.order] = units
        return numbers

    def take(self, units: np.ndarray) -> "UnitRows":
        """The rows of some of the units."""
        sizes = np.diff(self.starts)[units]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        places = np.arange(starts[-1]) + np.repeat(self.starts[units] - starts[:-1], sizes)
        order = places if self.order is None else self.order[places]
        return UnitRows(order, starts, self.keys[units], self.y[units])


def group_rows(y: np.ndarray, unit_ids: Any = None) -> UnitRows:
    """Which rows are repeats of one unit.

    Args:
        y: shape (n, d), float64.
        unit_ids: one integer or string for each row; by default rows with exactly equal y are
            one unit.
    """
    n = y.shape[0]
    if unit_ids is None:
        changes = (y[1:] != y[:-1]).any(axis=1)
    else:
        unit_ids = _canonical_ids(unit_ids, n)
        changes = unit_ids[1:] != unit_ids[:-1]
    runs = np.concatenate([[0], np.flatnonzero(changes) + 1])
    keys = _fingerprints(y[runs] if unit_ids is None else unit_ids[runs])
    lengths = np.diff(runs, append=n)
    in_order = np.sort(keys)
    if (in_order[1:] != in_order[:-1]).all():
        order, starts, heads = None, np.append(runs, n), runs
    else:
        unique, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        appearance = np.argsort(first)
        rank = np.empty_like(appearance)
        rank[appearance] = np.arange(rank.size)
        unit_of_row = np.repeat(rank[inverse], lengths)
        order = np.argsort(unit_of_row, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(unit_of_row))])
        heads = runs[first[appearance]]
        keys = unique[appearance]
    sizes = np.diff(starts)
    if unit_ids is not None or order is not None:
        ordered = y if order is None else y[order]
        differing = (ordered != np.repeat(y[heads], sizes, axis=0)).any(axis=1).sum()
        if differing:
            raise ValueError(
                f"y must be the same in all rows of a unit, got {differing} rows whose y differs "
                "from that of the first row of their unit: give them unit_ids of their own"
            )
    return UnitRows(order, starts, keys, y[heads])


def kind_of_ids(unit_ids: Any) -> str:
    """What units are known by; it must be the same for all pieces of the data."""
    if unit_ids is None:
        return "equal rows of y"
    ids = np.asarray(unit_ids)
    kind = (np.asarray(ids.tolist()) if ids.dtype.kind == "O" else ids).dtype.kind
    named = {"U": "strings", "S": "strings", "M": "times", "m": "times"}
    return f"unit_ids that are {named.get(kind, 'numbers')}"


def _canonical_ids(unit_ids: Any, n: int) -> np.ndarray:
    refuse_masked("unit_ids", unit_ids)
    ids = np.asarray(unit_ids)
    if ids.shape != (n,):
        raise ValueError(f"unit_ids must have one entry per row, shape ({n},), got {ids.shape}")
    if ids.dtype.kind == "O":
        values = ids.tolist()
        missing = sum(map(_is_missing, values))
        if missing:
            raise ValueError(
                f"unit_ids must name the unit of every row, got {missing} of {n} that are missing "
                "(None, NaN or NA): name them, or leave these rows out"
            )
        ids = np.asarray(values)
        if ids.dtype.kind in "US" and len(set(values)) > len(set(ids.tolist())):
            raise ValueError(
                "unit_ids must differ as texts, got numbers and strings such as 1 and '1': give "
                "all of them as one kind"
            )
    if ids.dtype.kind == "f":
        if not np.isfinite(ids).all():
            raise ValueError("unit_ids must be finite, got NaN or infinity: give every row a unit")
        # 3 and 3.0 are one unit, whichever way a piece of the data was read, and whatever else
        # is in it; other floats are known by their bits.
        ids = ids.astype(np.float64)
        whole = (ids == np.rint(ids)) & (np.abs(ids) < 2**62)
        return np.where(whole, np.where(whole, ids, 0).astype(np.int64), (ids + 0.0).view(np.int64))
    if ids.dtype.kind in "bui":
        return ids.astype(np.int64)
    if ids.dtype.kind in "mM":
        if np.isnat(ids).any():
            raise ValueError(
                f"unit_ids must name the unit of every row, got {np.isnat(ids).sum()} of {n} that "
                "are missing (NaT): name them, or leave these rows out"
            )
        unit = "datetime64[ns]" if ids.dtype.kind == "M" else "timedelta64[ns]"
        return ids.astype(unit).view(np.int64)
    if ids.dtype.kind in "US":
        return ids
    raise ValueError(f"unit_ids must be integers or strings, got an array of {ids.dtype}")


def _is_missing(value: Any) -> bool:
    """Whether it is how Python, NumPy or pandas write that there is nothing."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or value != value


def _fingerprints(values: np.ndarray) -> np.ndarray:
    """64 bits for each row; equal rows have equal ones in every process.

    One number is mixed one-to-one, so only rows of several numbers and strings can collide, for
    a million units with a chance of about 3e-8, and a collision is an error: y would differ.
    """
    if values.dtype.kind in "US":
        digests = [hashlib.blake2b(str(value).encode(), digest_size=8).digest() for value in values]
        return np.frombuffer(b"".join(digests), np.uint64).copy()
    words = np.ascontiguousarray(values.reshape(len(values), -1) + 0).view(np.uint64)
    mixed = np.zeros(len(values), np.uint64)
    for word in words.T:
        mixed = _mix(mixed ^ word)
    return mixed


def _mix(words: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64, a permutation of the 64-bit words."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
