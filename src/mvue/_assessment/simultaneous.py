"""Confidence limits of bias / sd, for one value, for the largest of many, and for all at once.

The limits are those of the normal approximation with three guards against heavy tails. The
standard error of bias / sd includes that of sd (fourth moment). Quantiles are widened by the
first-order term of skewness (Hall's correction of the t-statistic; third moment). And nothing is
said where a few draws make up the variance (fourth moment), or where errors so rare that they were
not drawn could have made up a bias above the limit.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

DRAWS = 2**16  # of the largest of many correlated normals
CURVE_DRAWS = 2**12  # of a whole curve
PIECE = 2**22
FEWEST_EFFECTIVE = 10
"""Draws that must make up the variance, counted as repeats / kurtosis: with fewer, single draws
decide, and a variance may not even exist."""


class Ratios(NamedTuple):
    """Bias / sd and what its confidence limits need, all of shape (K, d)."""

    value: np.ndarray
    se: np.ndarray
    skewness: np.ndarray
    kurtosis: np.ndarray
    number: np.ndarray

    def limits(self, quantile: float) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper limits so many standard errors away, and farther on the skewed side."""
        skewed = self.shift(quantile)
        below, above = np.maximum(-skewed, 0), np.maximum(skewed, 0)
        low = self.value - self.se * (quantile + below)
        high = self.value + self.se * (quantile + above)
        return allow_for_sd(low, high, self.sd_factor(quantile))

    def shift(self, quantile: float) -> np.ndarray:
        """How far skewness moves a quantile of the t-statistic."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.skewness * (2 * quantile**2 + 1) / (6 * np.sqrt(self.number))

    def sd_factor(self, quantile: float) -> np.ndarray:
        """The sd that was seen, in units of the largest that its own error leaves possible."""
        with np.errstate(invalid="ignore", divide="ignore"):
            error = np.sqrt(np.maximum(self.kurtosis - 1, 0) / self.number)  # of the variance
        return 1 / np.sqrt(1 + quantile * error)

    def largest_below(self, level: float) -> np.ndarray:
        """Upper limits of |value|, each at this level, (K, d).

        The largest of them is above the largest true one with the same confidence, however many
        there are: wherever that is, the limit there is too small with probability 1 - level only
        (an intersection-union test).
        """
        below, above = self.limits(float(ndtri(level)))
        return np.maximum(-below, above)


def allow_for_sd(
    low: np.ndarray, high: np.ndarray, factor: np.ndarray | float
) -> tuple[np.ndarray, np.ndarray]:
    """Limits of bias / sd, those that exclude 0 made smaller by a factor.

    With heavy tails most samples show too small an sd, and so too large a ratio.
    """
    return np.where(low > 0, low * factor, low), np.where(high < 0, high * factor, high)


def fewest_repeats(largest: float, error: float) -> int:
    """Repeats in which errors that make up a bias / sd of `largest` are seen with probability.

    Errors that occur with probability p alone cannot make bias / sd larger than sqrt(p / (1 - p)).
    None of them is drawn with probability (1 - p)ⁿ, which must not exceed `error`.
    """
    return max(2, math.ceil(-math.log(error) / math.log1p(largest**2)))


def max_t_quantile(correlations: Sequence[np.ndarray], error: float) -> float:
    """What the largest |t| of all exceeds with this probability.

    Args:
        correlations: of the components at each value, (d, d); values are independent of each
            other, because each has random numbers of its own.
        error: the probability.
    """
    count = sum(len(one) for one in correlations)
    independent = float(-ndtri(-math.expm1(math.log1p(-error) / max(count, 1)) / 2))
    if all(len(one) == 1 for one in correlations):
        return independent
    rng = np.random.default_rng(0)
    roots = [_root(one) for one in correlations]
    largest = np.zeros(DRAWS)
    for root in roots:
        for start in range(0, DRAWS, max(1, PIECE // len(root))):
            part = largest[start : start + max(1, PIECE // len(root))]
            drawn = np.abs(rng.standard_normal((len(part), len(root))) @ root.T).max(axis=1)
            np.maximum(part, drawn, out=part)
    # Components that depend on each other never need more than independent ones (Šidák).
    return min(float(np.quantile(largest, 1 - error)), independent)


def usual_largest(count: int) -> float:
    """The median of the largest |t| of so many independent ones."""
    return float(-ndtri((1 - 0.5 ** (1 / max(count, 1))) / 2))


def repeats_until(distance: np.ndarray, unit_se: np.ndarray, quantile: float) -> np.ndarray:
    """Repeats after which limits are closer than a distance, where one repeat has this error."""
    with np.errstate(divide="ignore"):
        return (quantile * unit_se / np.maximum(distance, 0)) ** 2


def sup_quantile(design: np.ndarray, covariance: np.ndarray, error: float) -> float:
    """What the largest |t| of a fitted curve, design (points, terms), exceeds with probability."""
    rng = np.random.default_rng(0)
    paths = design @ _root(covariance)
    paths = paths / np.linalg.norm(paths, axis=1, keepdims=True)
    draws = rng.standard_normal((CURVE_DRAWS, design.shape[1]))
    largest = np.concatenate([np.abs(part @ paths.T).max(axis=1) for part in np.split(draws, 8)])
    return float(np.quantile(largest, 1 - error))


def _root(matrix: np.ndarray) -> np.ndarray:
    """R with R Rᵀ the matrix, of any rank."""
    values, vectors = np.linalg.eigh(matrix)
    return vectors * np.sqrt(np.maximum(values, 0))


def look_plan(most: int, first: int) -> list[int]:
    """Numbers of repeats at which to look: each twice the one before, the last the most."""
    looks = 1 + max(0, math.floor(math.log2(most / max(first, 1))))
    return [-(-most // 2 ** (looks - 1 - i)) for i in range(looks)]


def first_look(largest: float, error: float, count: int) -> int:
    """Repeats with which an unbiased estimator can pass, in every second case or so."""
    needed = (float(-ndtri(error)) + usual_largest(count)) / largest
    return max(fewest_repeats(largest, error), math.ceil(needed**2))
