"""The score of a simulator, learned: the combination of functions that tells most about theta.

Of all functions g of a measurement, the score is that for which the mean of g² minus twice the
slope of the mean of g is least; no likelihood occurs in that. Half of the simulations choose a
combination, the other half measure the information in it. Whatever was chosen, that information
does not exceed the true one.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.random as jr
import numpy as np

from .._core.keys import several
from .._core.types import Key
from .features import Bends
from .simulated import Around, Unit

FOLDS = 2
LEARNING_STEP = 0.5  # units of theta
RIDGES = 10.0 ** np.arange(-5, 1)  # of functions with unit noise
AS_GOOD = 0.003  # of what is explained: of ridges that differ by less, the largest
BLOCKS = 32  # of the simulations, between which standard errors are measured
STILL_SHARE = 3  # one in so many simulations is at theta itself, for the covariance
FULL_SHARE = 8  # of the others one in so many is moved by the whole step, the rest by half of it
SHARES = (1 / 4, 1 / 2)  # of a step that are tried before all of it
NOISE = 0.03  # of the information, that comes from slopes at most where the step is not whole
LEAST_GAIN = 1.01  # of what all functions explain, to that of statistics alone
ROUNDING = 1e-6  # of numbers
LEAST_NOISE = 1e-9  # of eigenvalues


class Sums(NamedTuple):
    """Sums over simulations, for functions g (m,) of a measurement."""

    pairs: np.ndarray
    """Of moved simulations, ()."""
    change: np.ndarray
    """Signs times half the differences of pairs, (p, m)."""
    at_theta: np.ndarray
    """Of simulations at theta itself, ()."""
    total: np.ndarray
    """Of these, (m,)."""
    products: np.ndarray
    """Of these, (m, m)."""

    @classmethod
    def of(cls, signs: np.ndarray, moved: np.ndarray, still: np.ndarray) -> "Sums":
        """Of signs (n, p), functions of pairs (2, n, m) and of simulations at theta (k, m)."""
        change = signs.T @ ((moved[0] - moved[1]) / 2)
        sizes = (np.asarray(float(len(part))) for part in (signs, still))
        return cls(next(sizes), change, next(sizes), still.sum(axis=0), still.T @ still)

    @property
    def slopes(self) -> np.ndarray:
        """Of the mean, (p, m), for all of a move."""
        return self.change / self.pairs

    @property
    def covariance(self) -> np.ndarray:
        """At theta itself, (m, m)."""
        mean = self.total / self.at_theta
        return self.products / self.at_theta - np.outer(mean, mean)

    def some(self, which: np.ndarray) -> "Sums":
        """Of some of the functions."""
        products = self.products[np.ix_(which, which)]
        return Sums(self.pairs, self.change[:, which], self.at_theta, self.total[which], products)


def added(sums: list[Sums]) -> Sums:
    """Of all together."""
    return Sums(*(np.sum(np.stack(part), axis=0) for part in zip(*sums, strict=True)))


class Learned(NamedTuple):
    """Scores that were learned, one for each direction in which theta was moved."""

    weights: np.ndarray
    """(m, 2 p): the best of what is linear in the statistics, then of all functions."""
    centre: np.ndarray
    """Their mean, (2 p,)."""
    step: float
    """By how many units theta was moved."""
    sharper: bool
    """Whether all functions tell more in simulations that they were not chosen by."""

    def __call__(self, found: np.ndarray) -> np.ndarray:
        """Of functions (..., m), (..., 2 p).

        Over a step of this size the difference of the densities to either side is the hyperbolic
        sine of the score, about, which has heavier tails.
        """
        return np.arcsinh(self.step * (found @ self.weights - self.centre)) / self.step


def learn(
    around: Around, bends: Bends, flat: np.ndarray, unit: Unit, pairs: int, key: Key
) -> Learned:
    """Combinations that follow the score, by so many pairs of simulations."""
    calls = max(FOLDS, -(-pairs // (2 * around.pairs)))
    step = min(LEARNING_STEP, unit.step)
    folds: list[list[Sums]] = [[] for _ in range(FOLDS)]
    for i in range(calls):
        moved_key, still_key = several(jr.fold_in(key, i), 2)
        moved = around.seen(bends, flat, unit.root, step, moved_key)
        folds[i % FOLDS].append(Sums.of(*moved, around.still(bends, flat, still_key)))
    parts = [added(fold) for fold in folds]
    every = parts[0].total.shape[0]
    found = []
    for which in around.features.families(every):
        some = [part.some(which) for part in parts]
        path = np.zeros((FOLDS, len(RIDGES)))
        for k in range(FOLDS):
            others = added([part for j, part in enumerate(some) if j != k])
            slopes, covariance = some[k].slopes / step, some[k].covariance
            for j, w in enumerate(_weights(others, step)):
                path[k, j] = 2 * np.sum(slopes.T * w) - np.sum(w * (covariance @ w))
        together = path.sum(axis=0)
        enough = together.max() - AS_GOOD * abs(together.max())
        best = int(np.flatnonzero(together >= enough).max())
        weights = np.zeros((every, around.p))
        weights[which] = _weights(added(some), step)[best]
        found.append((weights, path[:, best]))
    (statistics, explained), *others = found
    score, more = max(others, key=lambda one: one[1].sum())
    # All functions are taken where they tell more by more than chance and what more of them lose.
    sharper = bool((more > LEAST_GAIN * explained).all())
    weights, whole = np.concatenate([statistics, score], axis=1), added(parts)
    return Learned(weights, (whole.total / whole.at_theta) @ weights, step, sharper)


def _weights(sums: Sums, step: float) -> list[np.ndarray]:
    """The least squares for the score for each ridge, (m, p)."""
    slopes, covariance = sums.slopes / step, sums.covariance
    deviation = np.sqrt(np.maximum(np.diag(covariance), 0))
    size = np.sqrt(np.diag(sums.products) / sums.at_theta)
    varies = deviation > ROUNDING * size + 1e-12
    unit = np.where(varies, 1 / np.where(varies, deviation, 1.0), 0.0)
    values, vectors = np.linalg.eigh(covariance * unit[:, None] * unit)
    along = vectors.T @ (slopes * unit).T
    values = np.maximum(values, 0)[:, None]
    return [unit[:, None] * (vectors @ (along / (values + ridge))) for ridge in RIDGES]


class Measured(NamedTuple):
    """Information in chosen combinations, in units of the moves, with its jackknife."""

    value: np.ndarray
    """(p, p), without the bias of first order in the number of simulations."""
    parts: np.ndarray
    """The same without each of the blocks, (BLOCKS, p, p)."""

    def of(self, function: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """A function of the information and its standard error; nan where it is not finite."""
        each = np.stack([function(part) for part in self.parts])
        with np.errstate(invalid="ignore"):
            away = each - each.mean(axis=0)
        return function(self.value), np.sqrt((len(each) - 1) * np.mean(away**2, axis=0))


def measure(
    around: Around,
    bends: Bends,
    flat: np.ndarray,
    unit: Unit,
    learned: Learned,
    pairs: int,
    key: Key,
) -> list[Measured]:
    """The information in statistics and in all functions, by so many new pairs of simulations.

    Theta is moved by half a step and, in fewer of them, by a whole one: what the two find is
    extrapolated to a step of nothing.
    """
    p = around.p
    calls = max(3, -(-pairs // around.pairs))
    still_calls = max(1, round(calls / STILL_SHARE))
    whole_calls = max(1, round((calls - still_calls) / FULL_SHARE))
    counts = calls - still_calls - whole_calls, whole_calls
    still_key, step_key, *moved_keys = several(key, 4)
    size = _step(around, bends, flat, unit, learned, counts[0] * around.pairs, step_key)
    steps = size / 2, size
    still = [
        learned(around.still(bends, flat, jr.fold_in(still_key, i))) for i in range(still_calls)
    ]
    stills = np.array_split(np.concatenate(still), BLOCKS)
    blocks: list[list[Sums]] = []
    for step, count, step_key in zip(steps, counts, moved_keys, strict=True):
        signs, values = [], []
        for i in range(count):
            sign, found = around.seen(bends, flat, unit.root, step, jr.fold_in(step_key, i))
            signs.append(sign)
            values.append(learned(found))
        every = zip(
            np.array_split(np.concatenate(signs), BLOCKS),
            np.array_split(np.concatenate(values, axis=1), BLOCKS, axis=1),
            stills,
            strict=True,
        )
        blocks.append([Sums.of(*parts) for parts in every])

    def informations(left: int | None) -> list[np.ndarray]:
        half, whole = (added([b for i, b in enumerate(some) if i != left]) for some in blocks)
        slopes = (4 * half.slopes / steps[0] - whole.slopes / steps[1]) / 3
        covariance = half.covariance
        found = []
        for start in range(0, 2 * p, p):
            which = slice(start, start + p)
            found.append(_information(slopes[:, which], covariance[which, which]))
        return found

    whole = informations(None)
    parts = [informations(k) for k in range(BLOCKS)]
    result = []
    for j, value in enumerate(whole):
        each = np.stack([part[j] for part in parts])
        unbiased = BLOCKS * value - (BLOCKS - 1) * each.mean(axis=0)
        result.append(Measured(unbiased, each))
    return result


def _step(
    around: Around,
    bends: Bends,
    flat: np.ndarray,
    unit: Unit,
    learned: Learned,
    pairs: int,
    key: Key,
) -> float:
    """The smallest step that so many pairs can afford: kinks bias what is extrapolated from it."""
    spread = learned(around.still(bends, flat, key)).std(axis=0) + np.finfo(float).tiny
    for share in SHARES:
        step = share * unit.step
        signs, found = around.seen(bends, flat, unit.root, step / 2, jr.fold_in(key, 1))
        values = learned(found)
        each = np.tile(signs, 2) * (values[0] - values[1]) / (step * spread)
        if 2 * 4 / 3 * each.std(axis=0).max() < NOISE * np.sqrt(pairs):
            return step
    return unit.step


def _information(slopes: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Of as many functions as there are directions, where some may be the same."""
    unit = np.maximum(np.diag(covariance), 1e-300) ** -0.5
    values, vectors = np.linalg.eigh(covariance * unit[:, None] * unit)
    good = values > LEAST_NOISE * len(values)
    along = (slopes * unit) @ vectors[:, good]
    return (along / values[good]) @ along.T
