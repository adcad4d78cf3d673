"""Novelty detection: is a measurement unlike all those of training?

A measurement has up to seven scores: its most extreme number, its mean, its size and its spread
about the mean, each in units of what is usual; where its numbers have one unit, as columns of sets
and what a simulator returns do, that spread as a share of the size, and how far the farthest number
lies from the others in units of their spread; and for sets the share of elements that occur twice.
A score is far outside if it exceeds the largest one of all training draws, widened. Of n draws, a
further one exceeds the largest with probability 1/(n + 1), whatever their distribution and their
number of dimensions.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np

from .._core.checks import checked_names
from .._core.keys import key_for
from .._core.problem import Problem
from .._core.sampling import compiled_draw, finite_units, pilot_draw
from .._core.types import Measurement
from .._recipe.settings import Recipe
from .._serialise.registry import register
from .._summaries.layout import layout_of

DRAWS = 2**14
FEWEST = 2**6
PIECE_NUMBERS = 2**22
LARGEST_TOTAL = 2**28  # numbers simulated; of larger measurements there are fewer draws
FALSE_ALARMS = 1e-3
"""The share of measurements like those of training that may count as outside."""
WIDENED = 1.25
SETTLING = 2**31 - 1  # number of the key that shows whether rows are exchangeable
SUMMARIES = 3  # mean, size, spread
SUMMARIES_IN_ONE_UNIT = SUMMARIES + 2  # and the relative spread, and the farthest number
FEWEST_OTHERS = 2  # of whose spread one can speak
HARMLESS_TIES = 0.15  # share of elements: data are recorded with so many digits
TINY = np.finfo(np.float64).tiny


@register(name="mvue.Scale")
class Scale(eqx.Module):
    """The centre and the spread of columns."""

    centre: np.ndarray
    spread: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> "Scale":
        """Medians and half the distance between the quantiles of one standard deviation."""
        low, centre, high = np.quantile(values, [0.1587, 0.5, 0.8413], axis=0)
        spread = (high - low) / 2
        spread = np.where(spread > 0, spread, values.std(axis=0))
        return cls(centre, np.maximum(spread, 1e-6 * np.abs(centre) + TINY))

    def standard(self, values: np.ndarray) -> np.ndarray:
        """In standard units."""
        return (values - self.centre) / self.spread


@register(name="mvue.InputRange")
class InputRange(eqx.Module):
    """Which measurements are like those of training."""

    is_set: bool
    """Whether the rows of a measurement are exchangeable, so that columns are judged as a whole."""
    usual: Scale
    """Of the numbers of a measurement, or of the columns of a set."""
    summaries: Scale | None
    """Of mean and logarithms of size, spread, relative spread and farthest number of a measurement,
    for each column of a set; None for measurements of one number, or where only the numbers are
    judged. Model files of earlier versions have fewer of these kinds."""
    limits: np.ndarray
    """The largest score of each kind that is not outside; the last is that of ties, if it is one
    more than the others."""
    ends: np.ndarray | None = None
    """The smallest and the largest number of each column that are not outside, (2, p): scores are
    the same on both sides, and data need not be. None in model files of earlier versions."""
    summary_ends: np.ndarray | None = None
    """The same of summaries in standard units, (2, q)."""

    @classmethod
    def of_draws(
        cls, pieces: Iterable[np.ndarray], *, is_set: bool, one_unit: bool = False
    ) -> "InputRange":
        """From training draws in pieces of shape (n, p), or (n, elements, p) for sets.

        Args:
            pieces: the draws.
            is_set: whether rows are exchangeable.
            one_unit: whether all numbers of a measurement are compared with each other as they
                are; those of one column of a set always are.
        """
        with np.errstate(all="ignore"):  # scores may be infinite
            return cls._of_draws(pieces, is_set=is_set, one_unit=one_unit or is_set)

    @classmethod
    def _of_draws(
        cls, pieces: Iterable[np.ndarray], *, is_set: bool, one_unit: bool
    ) -> "InputRange":
        usual, found, first, count = None, None, None, 0
        ends: list[np.ndarray] = []
        summary_ends: list[np.ndarray] = []
        for piece in pieces:
            values = piece.astype(np.float64)
            values = values[np.isfinite(values).reshape(len(values), -1).all(axis=1)]
            if usual is None:
                usual = Scale.of(values.reshape(-1, values.shape[-1]) if is_set else values)
                first = cls(is_set, usual, None, np.empty(0))
                if values[0].size > 1:
                    kinds = SUMMARIES_IN_ONE_UNIT if one_unit else SUMMARIES
                    summaries = Scale.of(first._summaries(values, kinds))
                    ties = is_set and values.shape[1] > 1
                    first = cls(is_set, usual, summaries, np.empty(1 + kinds + ties))
            assert first is not None
            seen = first._standard_summaries(values)
            scores = first.scores(values, seen).max(axis=0, initial=0.0)
            found = scores if found is None else np.maximum(found, scores)
            count += len(values)
            ends.append(_ends_of(values if is_set else values[:, None]))
            if seen is not None:
                summary_ends.append(_ends_of(seen[:, None]))
        assert first is not None
        assert found is not None
        limits = _widening(count) * found
        if len(limits) > 1 + SUMMARIES_IN_ONE_UNIT:
            limits[-1] += HARMLESS_TIES
        both = _widened(_farthest(ends), first.usual, count)
        of_summaries = None
        if first.summaries is not None:
            standard = Scale(np.zeros_like(first.summaries.centre), np.ones(()))
            of_summaries = _widened(_farthest(summary_ends), standard, count)
        return cls(is_set, first.usual, first.summaries, limits, both, of_summaries)

    @classmethod
    def of_moments(cls, mean: np.ndarray, variance: np.ndarray) -> "InputRange":
        """From means and variances of columns alone, by Chebyshev's inequality."""
        spread = np.maximum(np.sqrt(variance), 1e-6 * np.abs(mean) + TINY)
        limit = np.sqrt(mean.size / FALSE_ALARMS)
        return cls(False, Scale(mean, spread), None, np.array([limit]))

    @classmethod
    def of_extremes(cls, low: np.ndarray, high: np.ndarray, count: int) -> "InputRange":
        """From the smallest and the largest numbers of columns in so many draws."""
        centre = (low + high) / 2
        spread = np.maximum((high - low) / 2, 1e-6 * np.abs(centre) + TINY)
        return cls(False, Scale(centre, spread), None, np.array([_widening(count)]))

    def in_units(self, shift: np.ndarray, scale: np.ndarray) -> "InputRange":
        """The same of ``values * scale + shift``, for numbers that have a unit each."""
        moved = Scale(self.usual.centre * scale + shift, self.usual.spread * scale)
        ends = None if self.ends is None else self.ends * scale + shift
        return InputRange(self.is_set, moved, self.summaries, self.limits, ends, self.summary_ends)

    def outside(self, values: np.ndarray) -> np.ndarray:
        """Which of some measurements are far outside, (n,); those that are not finite are."""
        if not len(values):
            return np.zeros(0, bool)
        values = np.asarray(values, np.float64)
        with np.errstate(all="ignore"):
            summaries = self._standard_summaries(values)
            inside = (self.scores(values, summaries) <= self.limits).all(axis=1)
        if self.ends is not None:
            within = (values >= self.ends[0]) & (values <= self.ends[1])
            inside &= within.reshape(len(values), -1).all(axis=1)
        if summaries is not None and self.summary_ends is not None:
            low, high = self.summary_ends
            inside &= ((summaries >= low) & (summaries <= high)).all(axis=1)
        return np.asarray(~inside)

    def scores(self, values: np.ndarray, summaries: np.ndarray | None) -> np.ndarray:
        """The scores of measurements and their summaries in standard units, (n, kinds)."""
        standard = self._standard(values)
        scores = [np.abs(standard).reshape(len(values), -1).max(axis=1)]
        if summaries is not None:
            kinds = summaries.shape[1] // standard.shape[2]
            scores += [part.max(axis=1) for part in np.split(np.abs(summaries), kinds, axis=1)]
            if len(self.limits) > 1 + kinds:
                scores.append(_ties(values))
        return np.stack(scores, axis=1)

    def _standard_summaries(self, values: np.ndarray) -> np.ndarray | None:
        """Summaries in standard units, (n, q), where they are judged."""
        if self.summaries is None:
            return None
        columns = self._elements(values[:1]).shape[2]
        kinds = self.summaries.centre.size // columns
        return self.summaries.standard(self._summaries(values, kinds))

    def _standard(self, values: np.ndarray) -> np.ndarray:
        return self._elements(self.usual.standard(values))

    def _elements(self, values: np.ndarray) -> np.ndarray:
        return values if self.is_set else values.reshape(len(values), -1, 1)

    def _summaries(self, values: np.ndarray, kinds: int) -> np.ndarray:
        """Means over the elements, and logarithms of size, spread and the rest, (n, q).

        Relative spread and farthest number are those of the numbers as they are.
        """
        mean, size, spread = _moments(self._standard(values))
        values = self._elements(values)
        largest = np.maximum(np.abs(values).max(axis=1, keepdims=True), TINY)
        _, own_size, own_spread = _moments(values / largest)
        shares = own_spread / np.maximum(own_size, TINY)
        squares = [size, spread, shares, _rest_of_farthest(values / largest)]
        logs = [0.5 * np.log(square + 1e-12) for square in squares[: kinds - 1]]
        return np.concatenate([mean, *logs], axis=1)


def _ends_of(values: np.ndarray) -> np.ndarray:
    """The smallest and the largest in either half of draws (n, rows, q), (halves, 2, q)."""
    halves = (values[::2], values[1::2]) if len(values) > 1 else (values, values)
    return np.stack([[half.min(axis=(0, 1)), half.max(axis=(0, 1))] for half in halves])


def _farthest(pieces: list[np.ndarray]) -> np.ndarray:
    """The same of all pieces, (2, halves, q)."""
    return np.stack([np.min(pieces, axis=0)[:, 0], np.max(pieces, axis=0)[:, 1]])


def _widening(count: int) -> float:
    """By how much a score may exceed the largest of so many draws.

    Of few draws the largest is not large enough: where the tail of scores falls at least as that
    of a variance, this factor keeps false alarms to half of what is allowed.
    """
    return max(WIDENED, (2 / (FALSE_ALARMS * max(count, 1))) ** 0.5)


def _widened(ends: np.ndarray, usual: Scale, count: int) -> np.ndarray:
    """The ends of columns, farther from their centre; none reaches zero that has not before.

    Each column has its own ends, and of many columns some fresh one often exceeds its largest of
    all draws. By how much is seen from either half of the draws beside the other.

    Args:
        ends: the smallest and the largest numbers of columns in each half, (2, halves, p).
        usual: of the columns.
        count: how many draws there were.
    """
    by = _widening(count)
    away = np.stack([usual.centre - ends[0], ends[1] - usual.centre])
    one, other = np.maximum(away, usual.spread).swapaxes(0, 1)
    joint = by * np.maximum(one / other, other / one).max(axis=1, keepdims=True)
    farthest = away.max(axis=1)
    low, high = usual.centre + [[-1], [1]] * np.where(farthest > 0, joint * farthest, 0)
    least = [_least(sizes, usual.centre, by, count) for sizes in (ends[0], -ends[1])]
    return np.stack(
        [
            np.where((ends[0] >= 0).all(axis=0), np.maximum(low, least[0]), low),
            np.where((ends[1] <= 0).all(axis=0), np.minimum(high, -least[1]), high),
        ]
    )


def _least(sizes: np.ndarray, usual: np.ndarray, by: float, count: int) -> np.ndarray:
    """The least size that is not outside, (p,), from the least of each half of the draws.

    A zero among positive numbers is one that was rounded, or that no instrument could see: its
    logarithm is like none of training. Where the distribution near zero is a power of the size, a
    further draw is smaller than this with probability 1 / (n by²).
    """
    positive = (sizes > 0).all(axis=0)
    sizes = np.where(positive, sizes, 1.0)
    ratio = (sizes.max(axis=0) / sizes.min(axis=0)).max(initial=1.0)
    least = sizes.min(axis=0)
    power = 2 * np.log(by) / np.log(max(count, 2))
    share = np.minimum(np.abs(least / np.where(usual == 0, 1.0, usual)) ** power, by**-2)
    return np.where(positive, least * share / ratio, 0.0)


def _moments(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means over the elements of measurements, their squares about zero and about the mean."""
    mean = values.mean(axis=1, keepdims=True)
    return mean[:, 0], np.mean(values**2, axis=1), np.mean((values - mean) ** 2, axis=1)


def _rest_of_farthest(values: np.ndarray) -> np.ndarray:
    """The variance of all elements but the farthest from the mean, in units of its distance."""
    n = values.shape[1]
    if n <= FEWEST_OTHERS:
        return np.ones((len(values), values.shape[2]))
    centred = values - values.mean(axis=1, keepdims=True)
    farthest = np.abs(centred).max(axis=1)
    centred = centred / np.where(farthest > 0, farthest, 1.0)[:, None]
    others = (np.sum(centred**2, axis=1) - 1) / (n - 1) - 1 / (n - 1) ** 2
    # Where all are equal, none is far from the others.
    return np.where(farthest > 0, np.maximum(others, 0.0), 1.0)


def _ties(values: np.ndarray) -> np.ndarray:
    """The share of neighbours in order that are equal, of the column with most, (n,)."""
    ordered = np.sort(values, axis=1)
    return np.mean(np.diff(ordered, axis=1) == 0, axis=1).max(axis=1)


def numbers_of(x: Measurement, *, is_set: bool) -> np.ndarray:
    """All numbers of measurements with a leading axis, (n, p); of sets, (n, elements, p)."""
    leaves = []
    for leaf in map(np.asarray, jax.tree.leaves(x)):
        parts = [np.real(leaf), np.imag(leaf)] if np.iscomplexobj(leaf) else [leaf]
        keep = leaf.shape[:2] if is_set else leaf.shape[:1]
        leaves += [part.reshape(*keep, int(np.prod(leaf.shape[len(keep) :]))) for part in parts]
    return np.concatenate(leaves, axis=-1)


@register(name="mvue.TrainedOn")
@dataclasses.dataclass(frozen=True, eq=False)
class TrainedOn:
    """What the use of an estimator has to know about its training."""

    names: tuple[str, ...]
    """Of the components of y."""
    x: Any
    """Shapes and dtypes of one measurement."""
    inputs: InputRange | None
    """Which measurements are like those of training."""
    y_range: np.ndarray | None
    """The smallest and the largest y of training, (2, d)."""

    def outside(self, x: Measurement) -> np.ndarray:
        """Which of many measurements are far outside of those of training, (n,) booleans."""
        if self.inputs is None:
            return np.asarray(~np.isfinite(numbers_of(x, is_set=False)).all(axis=1))
        return self.inputs.outside(numbers_of(x, is_set=self.inputs.is_set))


def trained_on_problem(problem: Problem) -> TrainedOn:
    """From simulations of the problem that was trained on."""
    key = key_for("save", jr.key(0))
    is_set = problem.exchangeable
    if is_set is None:
        recipe = Recipe()
        units, repeats = recipe.survey.pilot, recipe.survey.pilot_repeats
        pilot = pilot_draw(problem, jr.fold_in(key, SETTLING), units, repeats)
        is_set = layout_of(problem, pilot, recipe.exchangeability, recipe.summaries).is_one_set
    x, _ = problem.shapes()
    size = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(x))
    draws = int(np.clip(LARGEST_TOTAL // size, FEWEST, DRAWS))
    piece = int(np.clip(PIECE_NUMBERS // size, FEWEST, draws))
    ends: list[np.ndarray] = []

    def pieces() -> Iterable[np.ndarray]:
        for i in range(-(-draws // piece)):
            drawn = compiled_draw(problem, jr.fold_in(key, i), piece, 1)
            good = np.asarray(finite_units(drawn))
            y = np.asarray(drawn.y, np.float64)[good]
            ends.append(np.stack([y.min(axis=0), y.max(axis=0)]))
            first = jax.tree.map(lambda leaf, good=good: np.asarray(leaf)[good, 0], drawn.x)
            yield numbers_of(first, is_set=is_set)

    found = InputRange.of_draws(pieces(), is_set=is_set, one_unit=True)
    y_range = np.stack([np.min(ends, axis=0)[0], np.max(ends, axis=0)[1]])
    return TrainedOn(problem.names or (), x, found, y_range)


def trained_on_rows(x: np.ndarray, y: np.ndarray) -> TrainedOn:
    """From rows of data, shapes (n, ...) and (units, d)."""
    some = x[:: -(-len(x) // DRAWS)]
    found = InputRange.of_draws([some.reshape(len(some), -1)], is_set=False)
    spec = jax.ShapeDtypeStruct(x.shape[1:], jax.dtypes.canonicalize_dtype(x.dtype))
    ends = np.stack([y.min(axis=0), y.max(axis=0)]).astype(np.float64)
    return TrainedOn(checked_names(None, y.shape[1]), spec, found, ends)
