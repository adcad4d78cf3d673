"""Bias between the assessed values: a smooth curve with a band over the whole range."""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.polynomial import legendre
from scipy.special import chdtrc

from .._core.theta import theta_rows
from .simultaneous import Ratios, allow_for_sd, sup_quantile

if TYPE_CHECKING:
    from .report import Report

FEWEST_VALUES = 6
POINTS = 65
HIGHEST_DEGREE = 8  # the degree is not chosen by the data: a band would be too narrow after that
BAD_FIT = 1e-3  # p-value of the residuals below which the curve is not shown


@dataclasses.dataclass(frozen=True)
class BiasCurve:
    """Bias / sd between the smallest and the largest assessed value, with a simultaneous band.

    A polynomial in y (or in log y, if the values are more even there), by least squares weighted
    by the standard errors. The band holds as far as such a polynomial describes the bias;
    `lack_of_fit` is small where the assessed values speak against it.
    """

    y: np.ndarray
    """Points of the curve, (P,)."""
    value: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    degree: int
    lack_of_fit: float
    """P-value of the residuals (chi-squared)."""

    @property
    def largest(self) -> float:
        """The upper confidence limit of |bias|/sd over the whole range."""
        return float(np.maximum(-self.lower, self.upper).max())

    def to_dict(self) -> dict[str, Any]:
        """Everything as lists and numbers."""
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in vars(self).items()
        } | {"largest": self.largest}


def bias_curve(
    report: "Report", ratios: Ratios, covered: np.ndarray, error: float
) -> tuple[BiasCurve | None, str]:
    """The curve through the values that are covered, or why there is none.

    Args:
        report: an assessment at several values.
        ratios: bias / sd of one estimator, (K, 1).
        covered: values to go through, (K,).
        error: probability with which the band may miss the curve.
    """
    theta = theta_rows(report.theta)
    if report.y.shape[1] > 1 or (np.ptp(theta, axis=0) > 0).sum() > 1:
        return None, "no statement between the values: more than one number varies between them"
    y, seen = report.y[covered, 0], Ratios(*(part[covered, 0] for part in ratios))
    if len(np.unique(y)) < FEWEST_VALUES:
        return None, f"no statement between the values: that takes at least {FEWEST_VALUES} of them"
    if not (np.isfinite(seen.value).all() and (seen.se > 0).all()):
        return None, "no statement between the values: bias / sd is not known at all of them"
    curve = _curve(y, seen, min((len(np.unique(y)) + 1) // 2, HIGHEST_DEGREE), error)
    if curve.lack_of_fit >= BAD_FIT:
        return curve, ""
    return None, (
        "no statement between the values: they lie on no smooth curve; assess at more values"
    )


def _curve(y: np.ndarray, seen: Ratios, degree: int, error: float) -> BiasCurve:
    to_line = _to_line(y)
    coefficients, covariance, lack_of_fit = _fitted(to_line(y), seen.value, seen.se, degree)
    points = np.interp(np.linspace(0, 1, POINTS), np.linspace(0, 1, len(y)), np.sort(y))
    design = legendre.legvander(to_line(points), degree)
    middle = design @ coefficients
    width = np.sqrt(np.einsum("pi,ij,pj->p", design, covariance, design))
    quantile = sup_quantile(design, covariance, error)
    # Skewness and heavy tails as at the worst of the values.
    width = width * (quantile + np.abs(seen.shift(quantile)).max())
    factor = seen.sd_factor(quantile).min()
    low, high = allow_for_sd(middle - width, middle + width, factor)
    return BiasCurve(points, middle, low, high, degree, lack_of_fit)


def _to_line(y: np.ndarray) -> Any:
    """From y to -1 … 1, by its logarithm if that leaves smaller gaps between the values."""
    scales = [np.asarray, np.log] if (y > 0).all() else [np.asarray]
    scale = min(scales, key=lambda s: np.diff(np.sort(s(y))).max() / np.ptp(s(y)))
    low, high = scale(y.min()), scale(y.max())
    return lambda y: 2 * (scale(y) - low) / (high - low) - 1


def _fitted(
    t: np.ndarray, value: np.ndarray, se: np.ndarray, degree: int
) -> tuple[np.ndarray, np.ndarray, float]:
    """Coefficients, their covariance and the p-value of the residuals."""
    design = legendre.legvander(t, degree) / se[:, None]
    covariance = np.linalg.pinv(design.T @ design)
    coefficients = covariance @ (design.T @ (value / se))
    residual = ((value / se - design @ coefficients) ** 2).sum()
    return coefficients, covariance, float(chdtrc(len(t) - degree - 1, residual))
