"""Linear bias constrained estimators of every bias weight from one eigendecomposition.

With S = E[x xᵀ], W the covariance of x around its mean for a fixed parameter, C = E[y xᵀ] and
ρ = λ / (λ + 1) the estimator is A = C (S − ρ W)⁻¹. In the basis v_k in which S is the identity
and W is diagonal, W v_k = g_k S v_k, it is a sum over directions of x that have nothing to do with
each other,

    A = Σ_k gain_k (C v_k) v_kᵀ,    gain_k = 1 / (1 − ρ g_k).

g_k is the noise share of direction k and 1 − g_k its signal share, in theory between 0 and 1. A
direction without signal has C v_k = 0, so that its gain does not matter. In a sample neither is
exactly zero, and as λ grows the gain of such a direction grows to λ + 1, or S − ρ W becomes
indefinite, and the estimate is ruined by noise. Hence the rule:

- A signal share is *resolved* if it exceeds what pure noise produces in a sample of that size. Its
  gain is the one above, whatever λ.
- In all other directions a bias weight up to 10 is taken as asked; a larger λ counts as 100/λ
  there, so that these directions fade back into the use that the LMMSE estimator makes of them,
  which they reach at λ = ∞; and the gain is at most 2(λ + 1), twice the largest in theory.

The basis does not depend on the units of x, nor does the rule. Where data are simulated at will,
`clipped_coefficients` does with less: negative signal shares are noise and count as zero.
"""

import warnings
from typing import NamedTuple

import numpy as np

from .._serialise.registry import register
from ..exceptions import NoRepeatsWarning, UnresolvedSignalWarning
from .grouped_moments import MomentSummary

UNRESOLVED_BIAS_WEIGHT = 10.0
EXACT_RESOLUTION = 1e-10
"""What rounding alone can make of a signal share that is zero."""


@register(name="mvue.NoiseSpectrum")
class NoiseSpectrum(NamedTuple):
    """Uncorrelated directions of x with the noise share of each."""

    directions: np.ndarray  # (p, r)
    noise_share: np.ndarray  # (r,), ascending
    loadings: np.ndarray  # (d, r), covariance of y with each direction
    resolution: float
    """Signal shares below this cannot be told from zero."""

    def coefficients(self, bias_weight: float) -> np.ndarray:
        """A, shape (d, p)."""
        return (self.loadings * self.gains(bias_weight)) @ self.directions.T

    def gains(self, bias_weight: float) -> np.ndarray:
        """What each direction is multiplied with, shape (r,)."""
        denominator = _denominator(bias_weight, self.noise_share)
        lowered = min(bias_weight, _reflected(bias_weight))
        bounded = np.maximum(_denominator(lowered, self.noise_share), 0.5 / (1 + lowered))
        return 1 / np.where(self.resolved, denominator, bounded)

    @property
    def resolved(self) -> np.ndarray:
        """Whether each direction has a signal that can be told from zero."""
        return 1 - self.noise_share > self.resolution

    def count_altered(self, bias_weight: float) -> int:
        """The number of directions in which the gain is not that of the formula."""
        with np.errstate(divide="ignore"):
            formula = 1 / _denominator(bias_weight, self.noise_share)
        return int((self.gains(bias_weight) != formula).sum())


@register(name="mvue.LinearFit")
class LinearFit(NamedTuple):
    """The estimator ``coefficients @ x + intercept`` and the spectrum behind it."""

    coefficients: np.ndarray  # (d, p)
    intercept: np.ndarray  # (d,)
    spectrum: NoiseSpectrum


def fit_moments(
    moments: MomentSummary,
    bias_weight: float,
    *,
    fit_intercept: bool = True,
    ridge: float = 0.0,
    resolution: float | None = None,
    spectrum: NoiseSpectrum | None = None,
    stacklevel: int = 2,
) -> LinearFit:
    """The linear bias constrained estimator of a sample, with warnings where it is not as asked.

    Args:
        moments: of the sample.
        bias_weight: λ from 0 to infinity.
        fit_intercept: estimate an intercept; otherwise it is zero.
        ridge: as in `noise_spectrum`.
        resolution: as in `spectrum_of`.
        spectrum: of these moments with these settings, if it is known: it serves every λ.
        stacklevel: of the warnings, 2 for the caller.
    """
    check_units(moments)
    if spectrum is None:
        spectrum = spectrum_of(moments, centre=fit_intercept, ridge=ridge, resolution=resolution)
    if bias_weight > 0:
        warn_no_repeats(moments, stacklevel)
    warn_unresolved(moments, spectrum.count_altered(bias_weight), bias_weight, stacklevel)
    coefficients = spectrum.coefficients(bias_weight)
    return LinearFit(coefficients, intercept(moments, coefficients, fit_intercept), spectrum)


def intercept(moments: MomentSummary, coefficients: np.ndarray, fit: bool) -> np.ndarray:
    """What makes the mean error over the sample zero, or zero where none is fitted."""
    if not fit:
        return np.zeros(moments.mean_y.size)
    return moments.mean_y - coefficients @ moments.mean_x


def check_units(moments: MomentSummary) -> None:
    """Refuse samples from which nothing can be learned, and weights that are no counts."""
    if moments.units < 2:
        raise ValueError(
            "a fit needs at least 2 units, rows with different parameters, got 1: every row has "
            "the same y or the same unit id"
        )
    within = np.trace(moments.scatter_xx - moments.between_xx)
    if moments.repeats == 0 and within > 1e-10 * np.trace(moments.scatter_xx):
        raise ValueError(
            f"sample_weight must count rows, so that its sum exceeds the number of units, "
            f"{moments.units}; got a sum of {moments.weight:.6g}: rescale it to a mean of 1"
        )


def warn_no_repeats(moments: MomentSummary, stacklevel: int) -> None:
    """Say what a fit without repeats amounts to; a stacklevel of 1 is the caller."""
    if moments.repeats == 0:
        warnings.warn(
            f"no unit was measured twice: all {moments.units:,} units have one row, so the "
            "noise cannot be seen and counts as zero, and the estimator is ordinary least squares "
            "whatever the bias weight; give rows of the same unit equal y or equal unit_ids, or "
            "all rows together to fit, which regresses x on y or theta",
            NoRepeatsWarning,
            stacklevel=stacklevel + 1,
        )
    if moments.note:
        warnings.warn(moments.note, NoRepeatsWarning, stacklevel=stacklevel + 1)


def warn_unresolved(
    moments: MomentSummary, altered: int, bias_weight: float, stacklevel: int
) -> None:
    """Say in how many directions a bias weight is not as asked; a stacklevel of 1 is the caller."""
    if altered:
        warnings.warn(
            f"{altered} of {moments.mean_x.size} directions of x carry no signal that "
            f"{moments.units:,} units can tell from zero: bias is corrected there less than "
            f"bias_weight={bias_weight:g} asks; measure more units, or use fewer features or a "
            "smaller bias_weight",
            UnresolvedSignalWarning,
            stacklevel=stacklevel + 1,
        )


def noise_spectrum(
    second: np.ndarray,
    noise: np.ndarray,
    cross: np.ndarray,
    *,
    ridge: float = 0.0,
    resolution: float = EXACT_RESOLUTION,
) -> NoiseSpectrum:
    """The spectrum of given moments.

    Args:
        second: S, shape (p, p). Directions of x in which it is singular are left out.
        noise: W, shape (p, p).
        cross: C, shape (d, p).
        ridge: this multiple of its own second moment is added to that of each feature.
        resolution: signal shares below this are not told from zero.
    """
    scale = np.sqrt(np.maximum(np.diagonal(second), 0))
    inverse_scale = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
    products = np.outer(inverse_scale, inverse_scale)
    correlation = second * products + ridge * np.diag(np.sign(scale))
    variance, axes = np.linalg.eigh(correlation)
    usable = variance > 8 * scale.size * np.finfo(float).eps * max(variance[-1], 0)
    whiten = axes[:, usable] / np.sqrt(variance[usable])
    noise_share, rotation = np.linalg.eigh(whiten.T @ (noise * products) @ whiten)
    directions = inverse_scale[:, None] * (whiten @ rotation)
    return NoiseSpectrum(
        directions,
        np.maximum(noise_share, 0.0),
        cross @ directions,
        max(resolution, EXACT_RESOLUTION),
    )


def spectrum_of(
    moments: MomentSummary,
    *,
    centre: bool,
    ridge: float = 0.0,
    resolution: float | None = None,
) -> NoiseSpectrum:
    """The spectrum of a sample.

    Args:
        moments: of the sample.
        centre: about the means, for an estimator with an intercept.
        ridge: as in `noise_spectrum`.
        resolution: as in `noise_spectrum`; by default what the size of the sample allows.
    """
    second, cross = moments.second_moments(centre=centre)
    second = _without_constants(second, moments.mean_x)
    if resolution is None:
        resolution = sample_resolution(moments)
    return noise_spectrum(
        second, moments.noise_covariance, cross, ridge=ridge, resolution=resolution
    )


def sample_resolution(moments: MomentSummary) -> float:
    """The signal share that pure Gaussian noise in p features may show.

    With n rows in U units the estimated share of one given direction without signal has a
    standard error of √(2U / (n (n − U))), and the largest among p uncorrelated directions lies
    √(2p) standard errors above zero; three more are added for its own spread.
    """
    n, units, p = moments.weight, moments.means, moments.mean_x.size
    if moments.repeats == 0:
        return 0.0
    return float((np.sqrt(2 * p) + 3) * np.sqrt(2 * units / (n * moments.repeats)))


def _without_constants(second: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Replace second moments that are rounding errors of a constant feature by zero."""
    constant = np.diagonal(second) <= (8 * np.finfo(float).eps * mean) ** 2
    return np.where(constant[:, None] | constant, 0.0, second)


def _denominator(bias_weight: float, noise_share: np.ndarray) -> np.ndarray:
    return 1 - noise_share * (1 - 1 / (1 + bias_weight))


def _reflected(bias_weight: float) -> float:
    return UNRESOLVED_BIAS_WEIGHT**2 / bias_weight if bias_weight > 0 else np.inf


def clipped_coefficients(
    total: np.ndarray, within: np.ndarray, cross: np.ndarray, bias_weight: float, ridge: float
) -> np.ndarray:
    """Coefficients of one output from moments of simulations, (p,).

    In directions that hold no signal, what is left of the moments between units is noise, negative
    as often as positive, and would let errors grow for a bias that only seems small.

    Args:
        total: S, the second moments of rows, (p, p).
        within: W, those around the mean of their unit, (p, p).
        cross: C, those of rows with the output, (p,).
        bias_weight: λ.
        ridge: added to W, as a share of the diagonal of S.
    """
    unit = np.sqrt(np.diag(total))
    unit = np.where(unit > 0, unit, 1.0)
    scale = np.outer(unit, unit)
    factor = np.linalg.cholesky(within / scale + ridge * np.eye(len(unit)))
    half = np.linalg.solve(factor, (total - within) / scale)
    values, vectors = np.linalg.eigh(np.linalg.solve(factor, half.T))
    directions = np.linalg.solve(factor.T, vectors)
    share = np.maximum(values, 0.0) + 1 / (bias_weight + 1)
    return directions @ (directions.T @ (cross / unit) / share) / unit
