"""Streaming moments: mean to fourth power, merged from pieces.

A piece is reduced on the device about its own mean. Pieces are merged on the host in float64 by
the exact pairwise update formulas of Chan and Pébay.
"""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float


class ErrorMoments(NamedTuple):
    """Number, mean and sums of powers of deviations of vectors; leading axes are free."""

    number: Any  # (...)
    mean: Any  # (..., d)
    second: Any  # (..., d, d), sums of products of deviations
    third: Any  # (..., d)
    fourth: Any  # (..., d)

    def on_host(self) -> "ErrorMoments":
        """The same as float64 NumPy arrays."""
        return ErrorMoments(*(np.asarray(leaf, np.float64) for leaf in self))

    @property
    def covariance(self) -> np.ndarray:
        """Sample covariance with divisor n - 1, shape (..., d, d)."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.second / (self.number[..., None, None] - 1)


def moments_of(values: Float[Array, "*lead b d"], keep: Bool[Array, "*lead b"]) -> ErrorMoments:
    """Moments over the axis b of those values that are to be kept, on the device."""
    mask = keep[..., None]
    count = keep.sum(axis=-1)
    total = jnp.where(mask, values, 0.0).sum(axis=-2)
    mean = total / jnp.maximum(count, 1)[..., None]
    deviation = jnp.where(mask, values - mean[..., None, :], 0.0)
    squares = deviation**2
    return ErrorMoments(
        count,
        mean,
        jnp.einsum("...bi,...bj->...ij", deviation, deviation),
        (squares * deviation).sum(axis=-2),
        (squares**2).sum(axis=-2),
    )


def merge(a: ErrorMoments, b: ErrorMoments) -> ErrorMoments:
    """Moments of both sets of values together, in float64 on the host."""
    a, b = a.on_host(), b.on_host()
    n_a, n_b = a.number[..., None], b.number[..., None]
    n = np.maximum(n_a + n_b, 1)
    delta = b.mean - a.mean
    step = delta / n
    second_a, second_b = (np.einsum("...ii->...i", m.second) for m in (a, b))
    outer = delta[..., :, None] * delta[..., None, :]
    return ErrorMoments(
        a.number + b.number,
        a.mean + n_b * step,
        a.second + b.second + outer * (n_a * n_b / n)[..., None],
        a.third
        + b.third
        + delta * step**2 * n_a * n_b * (n_a - n_b)
        + 3 * step * (n_a * second_b - n_b * second_a),
        a.fourth
        + b.fourth
        + delta * step**3 * n_a * n_b * (n_a**2 - n_a * n_b + n_b**2)
        + 6 * step**2 * (n_a**2 * second_b + n_b**2 * second_a)
        + 4 * step * (n_a * b.third - n_b * a.third),
    )


def rescale(moments: ErrorMoments, unit: np.ndarray) -> ErrorMoments:
    """Moments of values that were divided by a unit, shape (..., d), in their own units."""
    return ErrorMoments(
        moments.number,
        moments.mean * unit,
        moments.second * unit[..., :, None] * unit[..., None, :],
        moments.third * unit**3,
        moments.fourth * unit**4,
    )


@dataclasses.dataclass(frozen=True)
class ErrorSummary:
    """Bias, spread and MSE with standard errors, from the moments of errors."""

    bias: np.ndarray
    bias_se: np.ndarray
    sd: np.ndarray
    sd_se: np.ndarray
    mse: np.ndarray
    mse_se: np.ndarray
    bias_over_sd_se: np.ndarray
    skewness: np.ndarray
    kurtosis: np.ndarray


def summarize(moments: ErrorMoments) -> ErrorSummary:
    """What moments of errors say of each component; nan where there are none."""
    n = np.where(moments.number > 0, moments.number, np.nan)[..., None]
    with np.errstate(invalid="ignore", divide="ignore"):
        bias = np.where(n > 0, moments.mean, np.nan)
        variance = np.einsum("...ii->...i", moments.second) / (n - 1)
        # A spread that single precision cannot tell from zero beside the mean is zero.
        variance = np.where(variance <= (1e-6 * bias) ** 2, 0.0, variance)
        var0 = np.einsum("...ii->...i", moments.second) / n
        sd = np.sqrt(variance)
        # Moments in units of sd, so that no power of a small or large number is taken.
        delta, spread = bias / sd, var0 / variance
        skew, kurtosis = moments.third / n / sd**3, moments.fourth / n / sd**4
        raw_fourth = kurtosis + 4 * delta * skew + 6 * delta**2 * spread + delta**4
        raw_second = delta**2 + spread
        exact = sd == 0
        mse_se = np.sqrt(np.maximum(raw_fourth - raw_second**2, 0) / n) * variance
        ratio_se = np.sqrt(np.maximum(1 - skew * delta + (kurtosis - 1) * delta**2 / 4, 0) / n)
        return ErrorSummary(
            bias=bias,
            bias_se=sd / np.sqrt(n),
            sd=sd,
            sd_se=np.where(exact, 0.0, sd * np.sqrt(np.maximum(kurtosis - spread**2, 0) / n) / 2),
            mse=bias**2 + var0,
            mse_se=np.where(exact, 0.0, mse_se),
            bias_over_sd_se=np.where(exact, np.nan, ratio_se),
            skewness=np.where(exact, np.nan, skew),
            kurtosis=np.where(exact, np.nan, kurtosis),
        )
