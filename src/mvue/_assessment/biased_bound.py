"""The Cramér-Rao bound for a biased estimator, from an assessment of its bias."""

import numpy as np

from .._core.theta import theta_rows
from ..exceptions import BoundError
from .report import Report


def biased_crb(report: Report, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The bound on the MSE of an estimator with the bias that was assessed, at each value.

    (I + ∂b/∂y) CRB (I + ∂b/∂y)ᵀ + b bᵀ: no estimator with the bias b(y) has a mean squared error
    below it. The gradient of the bias comes from the assessed values: for one component from
    parabolas through three neighbours, for several from local linear regressions. The bias is
    taken to depend on y alone; values that differ in nuisances too are refused.

    Args:
        report: an assessment with a bound, at values close enough to show how the bias varies.
        name: which estimator.

    Returns:
        The bound and its standard error, both (K, d, d).
    """
    one = report[name]
    if report.bound is None:
        raise BoundError(f"the report has no bound to start from; {report.bound_note}")
    if report.is_estimated:
        raise BoundError(
            "the report has an estimated bound, which may be above the Cramér-Rao bound, so that "
            "estimators with this bias may be below what would come of it: give the problem crb or "
            "log_likelihood"
        )
    _check_nuisances(report)
    count, d = report.y.shape
    weights = _parabolas(report.y[:, 0]) if d == 1 else _local_lines(report.y)
    repeats = np.maximum(report.repeats - one.failures, 1)
    noise = one.covariance / repeats[:, None, None]  # of the bias at each value
    gradient = np.einsum("kjc,ji->kic", weights, one.bias)
    change = np.eye(d) + gradient
    with np.errstate(invalid="ignore"):
        matrix = change @ report.bound @ change.swapaxes(1, 2)
        matrix = matrix + one.bias[:, :, None] * one.bias[:, None, :]
        # Derivatives of the bound at k with respect to the bias at j.
        slope = np.einsum("kjc,kce,kae->kja", weights, report.bound, change)
    slope[np.arange(count), np.arange(count)] += one.bias
    variance = (
        np.einsum("jaa,kje->kae", noise, slope**2)
        + 2 * np.einsum("jae,kja,kje->kae", noise, slope, slope)
        + np.einsum("jee,kja->kae", noise, slope**2)
    )
    if report.bound_se is not None:
        own = np.nan_to_num(report.bound_se) ** 2
        variance += change**2 @ own @ (change**2).swapaxes(1, 2)
    return matrix, np.sqrt(variance)


def _check_nuisances(report: Report) -> None:
    """Refuse values between which more varies than y: the bias may vary with all of it."""
    varying = int((np.ptp(theta_rows(report.theta), axis=0) > 0).sum())
    if varying > report.y.shape[1]:
        raise BoundError(
            f"{varying} numbers in theta vary between the assessed values, but y has "
            f"{report.y.shape[1]} components: fix the nuisances, for example "
            "at={'y': values, 'nuisance': jnp.full(len(values), 1.0)}"
        )


def _parabolas(y: np.ndarray) -> np.ndarray:
    """Weights (K, K, 1) of the bias at all values in its derivative at each."""
    order = np.argsort(y)
    s = y[order]
    if len(y) < 3 or (np.diff(s) <= 0).any():
        raise BoundError(
            f"the gradient of the bias needs at least 3 different values of y, got {y.tolist()}: "
            "assess at more values"
        )
    weights = np.zeros((len(y), len(y), 1))
    for i, k in enumerate(order):
        first = min(max(i - 1, 0), len(y) - 3)
        near = s[first : first + 3]
        for a in range(3):
            b, c = (near[j] for j in range(3) if j != a)
            slope = (s[i] - b + s[i] - c) / ((near[a] - b) * (near[a] - c))
            weights[k, order[first + a], 0] = slope
    return weights


def _local_lines(y: np.ndarray) -> np.ndarray:
    """The same for d components, (K, K, d): slopes of planes fitted to the nearest values."""
    count, d = y.shape
    near = min(count, 4 * (d + 1))
    if count < 2 * (d + 1):
        raise BoundError(
            f"the gradient of the bias in {d} components of y needs at least {2 * (d + 1)} values, "
            f"got {count}: assess at more values"
        )
    spread = y.std(axis=0)
    weights = np.zeros((count, count, d))
    for k in range(count):
        offset = (y - y[k]) / np.where(spread > 0, spread, 1.0)
        distance = np.linalg.norm(offset, axis=1)
        reach = 1.5 * np.sort(distance)[near - 1]
        kernel = np.clip(1 - (distance / reach) ** 2, 0, None)
        design = np.concatenate([np.ones((count, 1)), offset], axis=1) * np.sqrt(kernel)[:, None]
        if np.linalg.matrix_rank(design, tol=1e-6 * np.sqrt(count)) < d + 1:
            raise BoundError(
                "the assessed values of y lie on a line or plane, so that the bias is not known "
                "off it: assess at values spread over all components"
            )
        fit = np.linalg.pinv(design) * np.sqrt(kernel)
        weights[k] = (fit[1:] / spread[:, None]).T
    return weights
