"""Losses as pure functions of arrays: NumPy, JAX and PyTorch alike.

Every function takes ``estimates`` of shape (N, M, d), the estimator applied to M measurements
of each of N unknowns, and ``y`` of shape (N, d), the truth. Shapes are checked and nothing is
broadcast silently.
"""

import math
from typing import Any, Literal, TypeAlias

from array_api_compat import array_namespace

AnyArray: TypeAlias = Any
Penalty: TypeAlias = Literal["unbiased", "plug-in"]


def emmse_loss(estimates: AnyArray, y: AnyArray, *, weights: AnyArray | None = None) -> AnyArray:
    """Mean squared error: the mean over unknowns and measurements of ‖estimate − y‖².

    Args:
        estimates: shape (N, M, d).
        y: shape (N, d).
        weights: optional positive weight of each unknown, shape (N,), or of each of its
            components, shape (N, d).
    """
    return _weighted_mean(unit_mse(_errors(estimates, y)), weights)


def squared_bias(
    estimates: AnyArray,
    y: AnyArray,
    *,
    penalty: Penalty = "unbiased",
    weights: AnyArray | None = None,
) -> AnyArray:
    """Squared bias: the mean over unknowns of ‖E[estimate | y] − y‖², from M measurements each.

    ``"plug-in"`` squares the mean error of each unknown; its expectation is bias² + variance/M.
    ``"unbiased"`` averages the products of errors of *different* measurements, so that its
    expectation is bias² for every M; on one batch it may be negative.

    Args:
        estimates: shape (N, M, d), M at least 2.
        y: shape (N, d).
        penalty: which of the two estimates of the squared bias.
        weights: as in `emmse_loss`.
    """
    return _weighted_mean(unit_squared_bias(_errors(estimates, y), penalty), weights)


def bce_loss(
    estimates: AnyArray,
    y: AnyArray,
    *,
    bias_weight: Any,
    penalty: Penalty = "unbiased",
    weights: AnyArray | None = None,
    noise: AnyArray | None = None,
) -> AnyArray:
    """Bias constrained loss: mean squared error + λ · squared bias.

    Args:
        estimates: shape (N, M, d), M at least 2 unless `bias_weight` is 0.
        y: shape (N, d).
        bias_weight: λ ≥ 0, finite.
        penalty: ``"unbiased"`` for freshly simulated batches; ``"plug-in"`` as in the paper,
            and for fixed data, where the unbiased one has no lower bound once λ > M − 1.
        weights: as in `emmse_loss`; multiplies both terms.
        noise: a part of the estimates that is known to have mean zero for each unknown, shape
            (N, M, d): left out of the penalty, whose expectation stays and whose noise falls.
    """
    check_bias_weight(bias_weight)
    errors = _errors(estimates, y)
    loss = _weighted_mean(unit_mse(errors), weights)
    if isinstance(bias_weight, (int, float)) and bias_weight == 0:
        return loss
    if noise is not None:
        _check_shape("noise", noise, tuple(estimates.shape))
        errors = errors - noise
    return loss + bias_weight * _weighted_mean(unit_squared_bias(errors, penalty), weights)


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
        fisher: Fisher information at each unknown, shape (N, d, d).
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


def unit_mse(errors: AnyArray) -> AnyArray:
    """Mean squared error of each unknown and component, (N, M, d) -> (N, d)."""
    return array_namespace(errors).mean(errors * errors, axis=1)


def unit_squared_bias(errors: AnyArray, penalty: Penalty) -> AnyArray:
    """Squared bias of each unknown and component, (N, M, d) -> (N, d)."""
    xp = array_namespace(errors)
    repeats = errors.shape[1]
    if repeats < 2:
        raise ValueError(
            f"the squared bias needs repeats (axis 1 of estimates) of at least 2, got "
            f"{repeats}: draw at least two measurements of each unknown, or set bias_weight=0"
        )
    mean = xp.mean(errors, axis=1)
    if penalty == "plug-in":
        return mean * mean
    if penalty == "unbiased":
        # Products of two different measurements' errors: all products less the squares.
        return (repeats * mean * mean - unit_mse(errors)) / (repeats - 1)
    raise ValueError(f"penalty must be 'unbiased' or 'plug-in', got {penalty!r}")


def masked_squared_bias(errors: AnyArray, present: AnyArray, penalty: Penalty) -> AnyArray:
    """Squared bias of each unknown and component where some measurements are missing.

    Args:
        errors: shape (N, M, d).
        present: which of them exist, shape (N, M), 0 or 1; at least one of each unknown, and two
            for the unbiased penalty.
        penalty: as in `squared_bias`.
    """
    xp = array_namespace(errors)
    there = xp.astype(present, errors.dtype)[:, :, None]
    return squared_bias_of_sums(
        xp.sum(errors * there, axis=1),
        xp.sum(errors * errors * there, axis=1),
        xp.sum(there, axis=1),
        penalty,
    )


def squared_bias_of_sums(
    total: AnyArray, squares: AnyArray, count: AnyArray, penalty: Penalty
) -> AnyArray:
    """Squared bias of each unknown and component from sums of errors and of their squares."""
    if penalty == "plug-in":
        return (total / count) ** 2
    return (total**2 - squares) / (count * (count - 1))


def check_bias_weight(bias_weight: Any, *, finite: bool = True) -> None:
    """Refuse a λ that is not a usable number; traced values pass."""
    if isinstance(bias_weight, str):
        raise TypeError(f"bias_weight must be a number, got the string {bias_weight!r}")
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
    if estimates.ndim != 3:
        raise ValueError(
            f"estimates must have shape (N, M, d): unknowns, repeats, components; got shape "
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


def _weighted_mean(per_unit: AnyArray, weights: AnyArray | None) -> AnyArray:
    """Sum over components, mean over unknowns."""
    xp = array_namespace(per_unit)
    if weights is not None:
        n, d = per_unit.shape
        if tuple(weights.shape) == (n,):
            weights = weights[:, None]
        elif tuple(weights.shape) != (n, d):
            raise ValueError(
                f"weights must have shape ({n},), one per unknown, or ({n}, {d}), one per "
                f"component, got {tuple(weights.shape)}"
            )
        per_unit = per_unit * weights
    return xp.mean(xp.sum(per_unit, axis=-1))
