"""The path of linear estimators from λ = 0 (LMMSE) to ∞ (WLS) with cross-validated errors."""

import dataclasses
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .._data.units import UnitRows, group_rows
from .._serialise.registry import register
from .grouped_moments import GroupedMoments, MomentSummary
from .spectrum import check_units, intercept, spectrum_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@register(name="mvue.LinearBCEPath")
@dataclasses.dataclass(frozen=True, eq=False)
class LinearBCEPath:
    """Linear estimators for a list of bias weights, each with its error on held-out units.

    Squared bias and variance add up to the MSE. All are sums over the components of y. The squared
    bias is estimated without bias and may be negative where it is near zero. Standard errors
    come from the spread over the splits.
    """

    bias_weights: np.ndarray  # (L,)
    coef: np.ndarray  # (L, d, p)
    intercept: np.ndarray  # (L, d)
    mse: np.ndarray  # (L,)
    mse_se: np.ndarray
    squared_bias: np.ndarray
    squared_bias_se: np.ndarray
    variance: np.ndarray
    variance_se: np.ndarray
    altered: np.ndarray
    """Number of directions of x in which each bias weight was lowered for want of signal."""

    def lowest_mse(self) -> int:
        """The place of the bias weight with the lowest MSE."""
        return int(np.argmin(self.mse))

    def lowest_mse_within(self, bias_tolerance: float) -> int | None:
        """The place of the lowest MSE among those with a small enough bias, if there is one.

        Args:
            bias_tolerance: the largest root mean squared bias, in standard deviations of the
                estimate.
        """
        small = self.squared_bias <= bias_tolerance**2 * self.variance
        return int(np.argmin(np.where(small, self.mse, np.inf))) if small.any() else None

    def plot(self) -> "Figure":
        """MSE, squared bias and variance against the bias weight, from LMMSE to WLS."""
        from .path_plot import plot_linear_path

        return plot_linear_path(self)


def default_bias_weights() -> np.ndarray:
    """Fifty values from 0 to infinity."""
    return np.concatenate([[0.0], np.geomspace(1e-2, 1e4, 48), [np.inf]])


Split: TypeAlias = tuple[MomentSummary, MomentSummary]
"""Moments of the rows to fit to and of those held out."""


def deal_units(
    x: np.ndarray, rows: UnitRows, weights: np.ndarray | None, folds: int
) -> tuple[list[Split], MomentSummary]:
    """Hold out every unit once; units are dealt out in the order of y, so that all folds cover it.

    Every row is read once: the moments of the others are those of the other folds together.

    Returns:
        The splits, and the moments of all rows.
    """
    ranked = np.lexsort((rows.keys, *rows.y.T[::-1]))
    parts = [
        _moments_of(x, rows.take(np.sort(ranked[fold::folds])), weights) for fold in range(folds)
    ]
    splits = [
        (reduce(MomentSummary.merge, parts[:i] + parts[i + 1 :]), part)
        for i, part in enumerate(parts)
    ]
    return splits, reduce(MomentSummary.merge, parts)


def split_rows(
    x: np.ndarray,
    y: np.ndarray,
    unit_ids: np.ndarray | None,
    weights: np.ndarray | None,
    indices: list[tuple[np.ndarray, np.ndarray]],
) -> tuple[list[Split], MomentSummary]:
    """Hold out given rows.

    Returns:
        The splits, and the moments of all rows.
    """

    def of(picked: Any) -> MomentSummary:
        ids = None if unit_ids is None else unit_ids[picked]
        return _moments_of(
            x[picked], group_rows(y[picked], ids), None if weights is None else weights[picked]
        )

    return [(of(train), of(test)) for train, test in indices], of(slice(None))


def path_of_splits(
    splits: list[Split],
    everything: MomentSummary,
    bias_weights: np.ndarray,
    *,
    fit_intercept: bool,
    ridge: float,
    resolution: float | None,
) -> LinearBCEPath:
    """The path fitted to all rows, with the errors on held-out rows of the path on the others."""
    settings: dict[str, Any] = {"centre": fit_intercept, "ridge": ridge, "resolution": resolution}
    check_units(everything)
    errors = np.empty((len(splits), len(bias_weights), 2))
    for i, (train, held_out) in enumerate(splits):
        spectrum = spectrum_of(train, **settings)
        for j, bias_weight in enumerate(bias_weights):
            coef = spectrum.coefficients(bias_weight)
            errors[i, j] = _mse_and_variance(held_out, coef, intercept(train, coef, fit_intercept))
    rows, repeats = (
        np.array([getattr(held_out, name) for _, held_out in splits])
        for name in ("weight", "repeats")
    )
    mse, mse_se = _over_splits(errors[..., 0], rows)
    # Splits without repeats say nothing of the variance.
    variance, variance_se = _over_splits(errors[..., 1], repeats)
    _, bias_se = _over_splits(errors[..., 0] - errors[..., 1], np.where(repeats > 0, rows, 0.0))
    bias = mse - variance
    spectrum = spectrum_of(everything, **settings)
    coef = np.stack([spectrum.coefficients(bias_weight) for bias_weight in bias_weights])
    return LinearBCEPath(
        bias_weights=bias_weights,
        coef=coef,
        intercept=np.stack([intercept(everything, a, fit_intercept) for a in coef]),
        mse=mse,
        mse_se=mse_se,
        squared_bias=bias,
        squared_bias_se=bias_se,
        variance=variance,
        variance_se=variance_se,
        altered=np.array([spectrum.count_altered(bias_weight) for bias_weight in bias_weights]),
    )


def _moments_of(x: np.ndarray, rows: UnitRows, weights: np.ndarray | None) -> MomentSummary:
    moments = GroupedMoments()
    moments.add_grouped(x, rows, weights)
    return moments.summary()


def _mse_and_variance(
    held_out: MomentSummary, coef: np.ndarray, offset: np.ndarray
) -> tuple[float, float]:
    """MSE on held-out units, and what their repeats disagree by."""
    second, cross = held_out.second_moments(centre=True)
    mean_error = coef @ held_out.mean_x + offset - held_out.mean_y
    spread = np.trace(held_out.scatter_yy) / held_out.weight
    mse = mean_error @ mean_error + spread + np.sum((coef @ second - 2 * cross) * coef)
    variance = np.sum((coef @ held_out.noise_covariance) * coef)
    return mse, variance


def _over_splits(values: np.ndarray, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over splits and its standard error, which takes two splits to know."""
    shares = shares / shares.sum() if shares.any() else np.full(len(shares), 1 / len(shares))
    mean = shares @ values
    spread = shares @ (values - mean) ** 2
    known = np.count_nonzero(shares) - 1
    return mean, np.sqrt(spread / known) if known else np.full_like(mean, np.nan)
