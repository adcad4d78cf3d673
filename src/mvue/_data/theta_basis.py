"""Smooth functions of theta: where nothing was measured twice, a bias is what they see of errors.

A bias is a smooth function of all of theta; the noise of a measurement is none of it. With
functions b(theta) that are uncorrelated and of mean square one over the data, the squared bias of
errors e is the sum over functions of E[e b]², as far as the functions follow the bias.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np

MOST = 36  # functions
ROWS_FOR_ONE = 25
"""Rows for each function: the penalty takes their noise for that many repeats."""
ROWS_FOR_FIRST = 5  # for the first function of each coordinate
HIGHEST_TOTAL = 6  # degree of products of different coordinates
HIGHEST_OWN = 10  # degree in a component of y alone
DEPTHS = (0.2, 0.05)  # of layers at the ends of y, in half ranges of its ranks
LIKE_RANKS = 0.999  # correlation of a coordinate with its ranks that makes them one
FAR, SKEW = 6.0, 0.5  # of a coordinate that is used as it is: farthest deviation, third moment
TABLE = 257  # quantiles of a coordinate
FLOOR = 1e-6  # of a direction among the functions, against the largest
PIECE = 2**16  # rows at a time

Term = tuple[int, ...]
"""Coordinates, each as often as its degree."""


class ThetaBasis(NamedTuple):
    """Functions of y and of the rest of theta, uncorrelated over the data they were made for.

    Make one with `ThetaBasis.of`.
    """

    tables: tuple[np.ndarray, ...]
    """Quantiles of each coordinate, ascending."""
    plain: tuple[tuple[int, float, float], ...]
    """Coordinates that are functions as they are, with their means and standard deviations."""
    terms: tuple[Term, ...]
    """Products of Legendre polynomials of the ranks; the first is the constant."""
    layers: tuple[tuple[int, int, float], ...]
    """At the ends of components of y: coordinate, end, and depth."""
    whiten: np.ndarray
    """From these functions to uncorrelated ones, (functions, q)."""
    coordinates: np.ndarray
    """Which columns of y and theta side by side are coordinates."""
    left_out: int
    """Coordinates that no function depends on: there are too many."""

    @classmethod
    def of(cls, y: np.ndarray, theta: np.ndarray | None, *, most: int = MOST) -> "ThetaBasis":
        """Functions for data, as many as their number allows.

        Args:
            y: the parameter of each row, shape (n, d).
            theta: all that measurements depend on, shape (n, k); None where that is y.
            most: functions at most.
        """
        values = _side_by_side(y, theta)
        own = y.shape[1]
        coordinates = _coordinates(values)
        if not coordinates.size:
            raise ValueError(
                "theta must vary from row to row where no unit was measured twice, got the same in "
                f"all of them (n_samples = {len(values)}): the bias at one value is seen in "
                "repeats alone"
            )
        own = int((coordinates < own).sum())
        values_at = [values[:, k] for k in coordinates]
        tables = tuple(np.quantile(column, np.linspace(0, 1, TABLE)) for column in values_at)
        distinct = [min(len(np.unique(v[:PIECE])), HIGHEST_OWN + 1) for v in values_at]
        first = min(1 + len(coordinates), len(values) // ROWS_FOR_FIRST)
        count = int(np.clip(max(len(values) // ROWS_FOR_ONE, first), 2, most))
        known = [_plain(*pair) for pair in zip(values_at, tables, strict=True)]
        plain = tuple((k, *one) for k, one in enumerate(known) if one is not None)[: count - 1]
        terms, layers = _chosen(distinct, own, count - len(plain), {k for k, *_ in plain})
        size = len(plain) + len(terms) + len(layers)
        basis = cls(tables, plain, terms, layers, np.eye(size), coordinates, 0)
        pieces = _pieces(values)
        gram = sum((raw := basis._raw(piece)).T @ raw for piece in pieces) / len(values)
        power, axes = np.linalg.eigh(gram)
        good = power > FLOOR * power[-1]
        used = {k for term in terms for k in term} | {k for k, *_ in plain}
        left_out = coordinates.size - len(used)
        return basis._replace(whiten=axes[:, good] / np.sqrt(power[good]), left_out=left_out)

    @property
    def size(self) -> int:
        """The number of functions."""
        return self.whiten.shape[1]

    def __call__(self, y: np.ndarray, theta: np.ndarray | None) -> np.ndarray:
        """The functions at each row, (n, q)."""
        values = _side_by_side(y, theta)
        return np.concatenate([self._raw(piece) @ self.whiten for piece in _pieces(values)])

    def describe(self) -> str:
        """The functions in words."""
        highest = max(len(term) for term in self.terms)
        count = len(self.coordinates)
        kinds = [
            (self.plain, "values as they are"),
            (highest, f"polynomials of ranks up to degree {highest}"),
            (self.layers, "layers at the ends of y"),
        ]
        where = "the parameter" if count == 1 else f"the {count} coordinates of y and theta"
        text = f"{self.size} smooth functions of {where}"
        text += f" ({', '.join(words for there, words in kinds if there)})"
        if self.left_out:
            text += f"; {self.left_out} coordinates are too many to be looked at"
        return text

    def _raw(self, values: np.ndarray) -> np.ndarray:
        grid = np.linspace(-1.0, 1.0, TABLE)
        columns = zip(self.coordinates, self.tables, strict=True)
        place = np.stack([np.interp(values[:, k], table, grid) for k, table in columns], axis=1)
        highest = max(len(term) for term in self.terms)
        unit = np.sqrt(2 * np.arange(highest + 1) + 1.0)
        powers = np.polynomial.legendre.legvander(place, highest) * unit  # (n, k, degrees)
        found = np.ones((len(values), len(self.terms) + len(self.layers)))
        for i, term in enumerate(self.terms):
            for k in set(term):
                found[:, i] *= powers[:, k, term.count(k)]
        for i, (k, end, depth) in enumerate(self.layers, len(self.terms)):
            found[:, i] = np.exp(-(1 - end * place[:, k]) / depth)
        if not self.plain:
            return found
        raw = [(values[:, self.coordinates[k]] - mean) / sd for k, mean, sd in self.plain]
        return np.column_stack([found, *raw])


def is_bank(sizes: np.ndarray) -> bool:
    """Whether rows are pairs of a parameter and a measurement, repeated by chance at most.

    A tenth of the rows may share their parameter with another: of a million draws of one number in
    single precision so many do.
    """
    return bool(sizes[sizes > 1].sum() < 0.1 * sizes.sum())


def _side_by_side(y: np.ndarray, theta: np.ndarray | None) -> np.ndarray:
    parts = [y] if theta is None else [y, theta]
    return np.concatenate([np.asarray(part, np.float64) for part in parts], axis=1)


def _coordinates(values: np.ndarray) -> np.ndarray:
    """Columns that vary, and not as one before them, upwards or downwards."""
    some = values[:PIECE]
    found: list[int] = []
    ranks: list[np.ndarray] = []
    for k, column in enumerate(some.T):
        unique, rank = np.unique(column, return_inverse=True)
        if len(unique) < 2:
            continue
        same = any(
            np.array_equal(rank, other) or np.array_equal(rank, other.max() - other)
            for other in ranks
        )
        if not same:
            found.append(k)
            ranks.append(rank)
    return np.array(found, int)


def _plain(column: np.ndarray, table: np.ndarray) -> tuple[float, float] | None:
    """Mean and deviation of a coordinate that is no linear function of its ranks, nor far-flung.

    Measurements are often about linear in theta; polynomials of ranks only come near.
    """
    low, width = table[0], table[-1] - table[0]  # squares of other units may overflow
    share = (column - low) / width
    mean, sd = share.mean(), share.std()
    z = (share - mean) / sd
    ranks = np.interp(column, table, np.linspace(-1.0, 1.0, TABLE))
    if np.abs(z).max() > FAR or abs((z**3).mean()) > SKEW:
        return None
    if abs(np.corrcoef(z, ranks)[0, 1]) > LIKE_RANKS:
        return None
    return float(low + mean * width), float(sd * width)


def _chosen(
    distinct: Sequence[int], own: int, count: int, plain: set[int]
) -> tuple[tuple[Term, ...], tuple[tuple[int, int, float], ...]]:
    """At most so many functions; the components of y come first and have most of them."""
    coordinates = range(len(distinct))
    allowed = lambda term: all(term.count(k) < distinct[k] for k in set(term))  # noqa: E731
    terms: list[Term] = [()]
    terms += [(k,) for k in coordinates if k not in plain][: count - 1]
    terms += [(k,) for k in sorted(plain)][: count - len(terms)]
    for total in range(2, HIGHEST_TOTAL + 1):
        more = [t for t in _products(len(distinct), total, count) if allowed(t)]
        if len(terms) + len(more) > count:
            break
        terms += more
    for degree in range(2, HIGHEST_OWN + 1):
        for k in range(own):
            term = (k,) * degree
            if len(terms) < count and allowed(term) and term not in terms:
                terms.append(term)
    ends = [(k, end, depth) for depth in DEPTHS for k in range(own) for end in (-1, 1)]
    smooth = [layer for layer in ends if distinct[layer[0]] > HIGHEST_OWN]
    return tuple(terms), tuple(smooth[: max(count - len(terms), 0)])


def _products(coordinates: int, total: int, most: int) -> list[Term]:
    """All terms of a total degree, or a few more than can be used."""
    found: list[Term] = []
    for term in combinations_with_replacement(range(coordinates), total):
        found.append(term)
        if len(found) > most:
            break
    return found


def _pieces(values: np.ndarray) -> Iterator[np.ndarray]:
    return (values[first : first + PIECE] for first in range(0, max(len(values), 1), PIECE))
