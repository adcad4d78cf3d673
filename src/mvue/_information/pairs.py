"""Pairs of simulations around theta with the same random numbers, and their linear information.

The linear information J' S⁻¹ J of statistics, J the derivative of their mean and S the covariance
of their noise, never exceeds the Fisher information, whatever the statistics are.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.sampling import NONFINITE_LIMIT

LEAST_NOISE = 1e-6  # share of the variance that is no rounding
RIDGE = 1e-5  # of statistics with unit noise: those that others imply tell nothing new
LEAST_FREEDOM = 0.05  # of an inverse covariance, where there are few simulations


class Slopes(NamedTuple):
    """What was seen of the statistics around one value of theta, each in units of its noise."""

    slopes: Any
    """How much they change over half a step of each coordinate, (p, s)."""
    covariance: Any
    """Of their noise, (s, s)."""
    scatter: Any
    """Mean products of half the differences of pairs, (s, s)."""
    pairs: Any
    """How many pairs of simulations were finite."""
    good: Any
    """Whether nearly all were, and there is noise."""


def slopes_of(found: Float[Array, "2 r s"], signs: Float[Array, "r p"]) -> Slopes:
    """Slopes at one value of theta, from statistics of opposite pairs.

    All coordinates are moved at once, each up or down at random, and slopes are correlations with
    these signs: as many simulations serve one coordinate or fifty. The two of a pair have opposite
    signs and the same random numbers, so that their difference has little noise where x is a smooth
    function of theta.
    """
    pairs = signs.shape[0]
    finite = jnp.isfinite(found).all(axis=2).all(axis=0)
    share = jnp.mean(finite)
    found = jnp.where(finite[None, :, None], found, 0.0)
    mean = found.mean(axis=(0, 1)) / share
    steps = jnp.where(finite[:, None], found[0] - found[1], 0.0) / 2
    slopes = signs.T @ steps / (pairs * share)
    # What is left of the statistics once theta is known is their noise.
    shifts = signs @ slopes
    residuals = found - mean[None, None, :] + jnp.stack([-shifts, shifts])
    residuals = jnp.where(finite[None, :, None], residuals, 0.0).reshape(2 * pairs, -1)
    deviation = jnp.sqrt(jnp.mean(residuals**2, axis=0) / share)
    rounding = 1e-7 * jnp.abs(mean)
    varies = deviation > rounding + jnp.finfo(found.dtype).tiny
    unit = jnp.where(varies, 1 / jnp.where(varies, deviation, 1.0), 0.0)
    residuals, steps = residuals * unit[None, :], steps * unit[None, :]
    # At either end of each step there must be noise: a simulator that has come to where all is
    # the same always is no longer defined.
    ups = (jnp.concatenate([signs, -signs]).T + 1) / 2
    ends = jnp.stack([ups @ residuals**2, (1 - ups) @ residuals**2]) / (pairs * share)
    noisy = (ends.max(axis=2) > LEAST_NOISE).all()
    return Slopes(
        slopes * unit[None, :],
        residuals.T @ residuals / (2 * pairs * share),
        steps.T @ steps / (pairs * share),
        pairs * share,
        (share > 1 - 2 * NONFINITE_LIMIT) & (deviation > rounding).any() & noisy,
    )


def linear_information(seen: Slopes, least_shown: float) -> tuple[np.ndarray, float]:
    """Information about theta in units of half a step, (p, p), and what chance adds to it.

    In double precision. The inverse of a covariance that is estimated from n draws of s statistics
    is too large by n / (n - s - 2), where a pair with the same noise is one draw. And slopes differ
    from zero by chance: many statistics would seem to tell more than they do. What chance adds to
    the information is seen in the differences that the slopes are means of.

    Args:
        seen: at one value of theta.
        least_shown: the share of the information that is left at least, once chance is taken off.
    """
    slopes, covariance, scatter = (np.asarray(part, np.float64) for part in seen[:3])
    pairs = float(seen.pairs)
    inverse = np.linalg.inv(covariance + RIDGE * np.eye(len(covariance)))
    freedom = np.sum(inverse * covariance)
    inverse *= max(1 - (freedom + 2) / pairs, LEAST_FREEDOM)
    information = slopes @ inverse @ slopes.T
    chance = np.sum(inverse * scatter) / pairs
    shown = np.maximum(np.diagonal(information), np.finfo(float).tiny)
    kept = np.sqrt(np.clip(1 - chance / shown, least_shown, 1.0))
    return information * np.outer(kept, kept), float(chance)
