"""Losses as pure functions of arrays, for NumPy, JAX and PyTorch.

Every function takes ``estimates`` of shape (N, M, d), the estimator applied to M repeats of each of
N units, and ``y`` of shape (N, d), the truth. Shapes are checked; nothing is broadcast silently.
"""

import math
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from array_api_compat import array_namespace

AnyArray: TypeAlias = Any
Penalty: TypeAlias = Literal["unbiased", "plug-in"]


def emmse_loss(estimates: AnyArray, y: AnyArray, *, weights: AnyArray | None = None) -> AnyArray:
    """Mean squared error: the mean over units and measurements of ‖estimate − y‖².

    Args:
        estimates: shape (N, M, d).
        y: shape (N, d).
        weights: optional positive weight of each unit, shape (N,), or of each of its
            components, shape (N, d).
    """
    return mean_over_units(unit_mse(_errors(estimates, y)), weights)


def squared_bias(
    estimates: AnyArray,
    y: AnyArray,
    *,
    penalty: Penalty = "unbiased",
    weights: AnyArray | None = None,
) -> AnyArray:
    """Squared bias: the mean over units of ‖E[estimate | y] − y‖², from M measurements each.

    ``"plug-in"`` squares the mean error of each unit; its expectation is bias² + variance/M.
    ``"unbiased"`` is the U-statistic: the mean product of the errors of two *different*
    measurements, whose expectation is bias² for every M; on one batch it may be negative.

    Args:
        estimates: shape (N, M, d), M at least 2.
        y: shape (N, d).
        penalty: which of the two estimates of the squared bias.
        weights: as in `emmse_loss`.
    """
    return mean_over_units(unit_squared_bias(_errors(estimates, y), penalty), weights)


def bce_loss(
    estimates: AnyArray,
    y: AnyArray,
    *,
    bias_weight: Any,
    penalty: Penalty = "unbiased",
    weights: AnyArray | None = None,
    control_variate: AnyArray | None = None,
) -> AnyArray:
    """Bias constrained loss: mean squared error + λ · squared bias.

    Args:
        estimates: shape (N, M, d), M at least 2 unless `bias_weight` is 0.
        y: shape (N, d).
        bias_weight: λ ≥ 0, finite.
        penalty: ``"unbiased"``, the U-statistic, for freshly simulated batches; ``"plug-in"`` as
            in the paper, and for fixed data, where the U-statistic has no lower bound once
            λ > M − 1.
        weights: as in `emmse_loss`; multiplies both terms.
        control_variate: a part of the estimates that is known to have mean zero for each unit,
            shape (N, M, d). It is left out of the penalty, which keeps its expectation and loses
            variance.
    """
    check_bias_weight(bias_weight)
    errors = _errors(estimates, y)
    if isinstance(bias_weight, (int, float)) and bias_weight == 0:
        return mean_over_units(unit_mse(errors), weights)
    rows = units = unit_errors(errors, weights=weights)
    if control_variate is not None:
        _check_shape("control_variate", control_variate, tuple(estimates.shape))
        units = unit_errors(errors - control_variate, weights=weights)
    return bias_constrained(rows, units, bias_weight, penalty)


def effective_bias_weight(bias_weight: float, repeats: int) -> float:
    """The λ at which the exact loss has the minimiser of the plug-in loss: λ(M−1)/(M+λ) < M.

    The plug-in penalty counts variance/M as bias, so a large λ acts as no more than M − 1.
    """
    check_bias_weight(bias_weight, finite=False)
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    if math.isinf(bias_weight):
        return float(repeats - 1)
    return bias_weight * (repeats - 1) / (repeats + bias_weight)


def fisher_mse_loss(estimates: AnyArray, y: AnyArray, fisher: AnyArray) -> AnyArray:
    """Mean of eᵀ F e, the error measured in the metric of the Fisher information ("NORM").

    Args:
        estimates: shape (N, M, d).
        y: shape (N, d).
        fisher: Fisher information at each unit, shape (N, d, d).
    """
    errors = _errors(estimates, y)
    n, _, d = errors.shape
    _check_shape("fisher", fisher, (n, d, d))
    xp = array_namespace(errors)
    return xp.mean(xp.sum((errors @ fisher) * errors, axis=-1))


def relative_mse_loss(estimates: AnyArray, y: AnyArray, crb: AnyArray) -> AnyArray:
    """Mean of squared error / Cramér-Rao bound: 1 for an efficient unbiased estimator.

    Args:
        estimates: shape (N, M, d).
        y: shape (N, d).
        crb: the bound on the variance of each component, shape (N, d), positive.
    """
    errors = _errors(estimates, y)
    _check_shape("crb", crb, tuple(y.shape))
    xp = array_namespace(errors)
    return xp.mean(unit_mse(errors) / crb)


def bias_reduced_loss(
    estimates: AnyArray,
    y: AnyArray,
    crb: AnyArray,
    *,
    hinge_weight: float = 1.0,
    threshold: float = 1.0,
) -> AnyArray:
    """Mean of bias²/CRB plus a hinge on variance/CRB above a threshold.

    The bias-reduced loss of Mao, Flassbeck and Assländer (2023); bias² is the plug-in one and
    the variance has the divisor M, as they define them.

    Args:
        estimates: shape (N, M, d).
        y: shape (N, d).
        crb: the bound on the variance of each component, shape (N, d), positive.
        hinge_weight: weight of the hinge.
        threshold: variance/CRB below this costs nothing.
    """
    errors = _errors(estimates, y)
    _check_shape("crb", crb, tuple(y.shape))
    xp = array_namespace(errors)
    bias2 = unit_squared_bias(errors, "plug-in")
    excess = (unit_mse(errors) - bias2) / crb - threshold
    hinge = xp.where(excess > 0, excess, xp.zeros_like(excess))
    return xp.mean(bias2 / crb) + hinge_weight * xp.mean(hinge)


class UnitErrors(NamedTuple):
    """The errors of the estimates of each unit, by their first two moments, (N, d)."""

    mean: AnyArray
    mse: AnyArray
    count: AnyArray
    """Measurements of each unit: M, or shape (N, 1) where they differ."""
    weights: AnyArray | None = None
    """In the loss, as in `emmse_loss`."""
    shares: AnyArray | None = None
    """How much each unit counts in means over units, shape (N,); None for all the same."""


def unit_errors(
    errors: AnyArray, present: AnyArray | None = None, *, weights: AnyArray | None = None
) -> UnitErrors:
    """The moments of errors of shape (N, M, d).

    Args:
        errors: of all measurements.
        present: which of them exist, shape (N, M), 0 or 1, at least one of each unit; by default
            all.
        weights: of units.
    """
    xp = array_namespace(errors)
    if present is None:
        return UnitErrors(xp.mean(errors, axis=1), unit_mse(errors), errors.shape[1], weights)
    there = xp.astype(present, errors.dtype)[:, :, None]
    count = xp.sum(there, axis=1)
    mean = xp.sum(errors * there, axis=1) / count
    return UnitErrors(mean, xp.sum(errors * errors * there, axis=1) / count, count, weights)


def bias_constrained(
    rows: UnitErrors, units: UnitErrors, bias_weight: Any, penalty: Penalty
) -> AnyArray:
    """Mean squared error of some measurements + λ · squared bias of some units."""
    mse = mean_over_units(rows.mse, rows.weights, rows.shares)
    bias2 = mean_over_units(squared_bias_of(units, penalty), units.weights, units.shares)
    return mse + bias_weight * bias2


def unit_mse(errors: AnyArray) -> AnyArray:
    """Mean squared error of each unit and component, (N, M, d) -> (N, d)."""
    return array_namespace(errors).mean(errors * errors, axis=1)


def unit_squared_bias(errors: AnyArray, penalty: Penalty) -> AnyArray:
    """Squared bias of each unit and component, (N, M, d) -> (N, d)."""
    return squared_bias_of(unit_errors(errors), penalty)


def squared_bias_of(units: UnitErrors, penalty: Penalty) -> AnyArray:
    """Squared bias of each unit and component, (N, d)."""
    mean, mse, count, *_ = units
    if isinstance(count, int) and count < 2:
        raise ValueError(
            f"the squared bias needs repeats (axis 1 of estimates) of at least 2, got "
            f"{count}: draw at least two measurements of each unit, or set bias_weight=0"
        )
    if penalty == "plug-in":
        return mean * mean
    if penalty == "unbiased":
        # The U-statistic: all products of two measurements' errors less the squares.
        return (count * mean * mean - mse) / (count - 1)
    raise ValueError(f"penalty must be 'unbiased' or 'plug-in', got {penalty!r}")


def squared_bias_of_pairs(
    errors: AnyArray, functions: AnyArray, penalty: Penalty, count: AnyArray | None = None
) -> AnyArray:
    """Squared bias by component, (d,), of errors (n, d) that were each made at another theta.

    It is what functions of theta see of the errors, Σₖ E[e bₖ]². Its U-statistic takes products
    of two *different* errors, in which noise has mean zero; ``"plug-in"`` takes all of them, and
    counts variance · q/n as bias.

    Args:
        errors: of n pairs.
        functions: the values of q functions at their theta, uncorrelated and of mean square one
            over all data, shape (n, q).
        penalty: which of the two.
        count: how many pairs there are, where the last rows are padding: of zeros.
    """
    xp = array_namespace(errors, functions)
    n = errors.shape[0] if count is None else count
    seen = xp.sum((functions.T @ errors / n) ** 2, axis=0)
    if penalty == "plug-in":
        return seen
    own = xp.sum(xp.sum(functions**2, axis=1)[:, None] * errors**2, axis=0)
    return (n * seen - own / n) / (n - 1)


def check_bias_weight(bias_weight: Any, *, finite: bool = True) -> None:
    """Refuse a λ that is not a usable number; traced values pass."""
    if isinstance(bias_weight, str):
        raise TypeError(f"bias_weight must be a number, got the string {bias_weight!r}")
    if bias_weight is None or tuple(getattr(bias_weight, "shape", ())) != ():
        raise TypeError(f"bias_weight must be one number, got {bias_weight!r:.80}")
    try:
        value = float(bias_weight)
    except (TypeError, ValueError):  # traced: its value is not known yet
        return
    if math.isnan(value) or value < 0:
        raise ValueError(f"bias_weight must be at least 0, got {value}")
    if finite and math.isinf(value):
        raise ValueError(
            "bias_weight must be finite in a loss, got inf: use a large number; the limit exists "
            "only where the estimator has a closed form"
        )


def _errors(estimates: AnyArray, y: AnyArray) -> AnyArray:
    try:
        array_namespace(estimates, y)
    except TypeError as error:
        raise TypeError(
            f"estimates and y must be arrays of one library, got {type(estimates).__name__} and "
            f"{type(y).__name__}"
        ) from error
    if any("complex" in str(part.dtype) for part in (estimates, y)):
        raise TypeError(
            "estimates and y must be real numbers, got complex ones: give their real and imaginary "
            "parts as components"
        )
    if estimates.ndim != 3:
        raise ValueError(
            f"estimates must have shape (N, M, d): units, repeats, components; got shape "
            f"{tuple(estimates.shape)}"
        )
    n, _, d = estimates.shape
    _check_shape("y", y, (n, d))
    return estimates - y[:, None, :]


def _check_shape(name: str, array: AnyArray, expected: tuple[int, ...]) -> None:
    if tuple(array.shape) != expected:
        raise ValueError(
            f"{name} must have shape {expected} to match estimates, got {tuple(array.shape)}"
        )


def _check_weights(weights: AnyArray) -> None:
    """Refuse weights that cannot be meant; those of compiled functions and of PyTorch pass."""
    if not isinstance(weights, np.ndarray):
        return
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any() or not weights.any():
        got = f"got {weights[wrong][0]}" if wrong.any() else "all are 0"
        raise ValueError(f"weights must be finite and positive, {got}")


def mean_over_units(
    per_unit: AnyArray, weights: AnyArray | None, shares: AnyArray | None = None
) -> AnyArray:
    """Sum over components, mean over units."""
    xp = array_namespace(per_unit)
    if weights is not None:
        n, d = per_unit.shape
        if not hasattr(weights, "shape"):
            raise TypeError(
                f"weights must be an array of the library of estimates, got {weights!r:.80}"
            )
        if tuple(weights.shape) == (n,):
            weights = weights[:, None]
        elif tuple(weights.shape) != (n, d):
            raise ValueError(
                f"weights must have shape ({n},), one per unit, or ({n}, {d}), one per "
                f"component, got {tuple(weights.shape)}"
            )
        _check_weights(weights)
        per_unit = per_unit * weights
    values = xp.sum(per_unit, axis=-1)
    return xp.mean(values) if shares is None else xp.sum(values * shares) / xp.sum(shares)
