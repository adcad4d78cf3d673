"""The covariance inequality D G⁻¹ Dᵀ, exactly or from simulated functions of mean zero."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._core.keys import fold_in_each
from .._core.problem import Problem
from .._core.theta import ThetaLayout
from .._core.types import Key
from .._runtime.jit import in_double_precision
from ..exceptions import BoundError, IrregularModelError
from .monte_carlo import GROUPS, SCORE_LIMIT, SHARE_LIMIT, group_error
from .result import NULL, lost_along, scaled_axes, with_infinite

MOST_POINTS = 8
GAIN = 1e-3  # relative, from which on a further test point is taken
KEPT = 1e-9  # eigenvalues of G with unit diagonal that are not rounding


class Halves:
    """G from two halves of the draws: one chooses weights, the other measures what they prove."""

    def __init__(self, values: np.ndarray) -> None:
        """Take values (samples, functions) of functions of mean zero."""
        self.values = values
        self.parts = values[0::2], values[1::2]
        self.moments = [part.T @ part / len(part) for part in self.parts]

    def guess(self, covariances: np.ndarray, which: np.ndarray) -> np.ndarray:
        """The bound from the first half alone, for choices."""
        weights = _weights(self.moments[0][np.ix_(which, which)], covariances[:, which])
        return covariances[:, which] @ weights

    def bound(
        self, covariances: np.ndarray, which: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """The bound and its standard error, (d, d)."""
        d = covariances[:, which]
        weights = _weights(self.moments[0][np.ix_(which, which)], d)
        seen = self.parts[1][:, which] @ weights  # (samples, d)
        groups = np.stack([part.T @ part / len(part) for part in np.array_split(seen, GROUPS)])
        share = (seen**2).max(axis=0) / np.maximum((seen**2).sum(axis=0), np.finfo(float).tiny)
        if (share > SHARE_LIMIT).any():
            raise IrregularModelError(
                f"one draw in {len(seen):,} makes up {share.max():.0%} of the average: the bound "
                "cannot be found by Monte Carlo, give more samples, a lower order or nearer points"
            )
        # No weights give more than the best: what these prove holds whatever they are.
        proven = d @ weights
        solved = np.linalg.pinv(groups.mean(axis=0), hermitian=True)
        left = proven @ solved
        lost = _lost(self.moments[0][np.ix_(which, which)], d)
        error = with_infinite(group_error(left @ groups @ left.T), lost, np.nan)
        return with_infinite(left @ proven.T, lost), error


class Exact(NamedTuple):
    """G without any error."""

    matrix: np.ndarray

    def guess(self, covariances: np.ndarray, which: np.ndarray) -> np.ndarray:
        """The bound."""
        d = covariances[:, which]
        return d @ _weights(self.matrix[np.ix_(which, which)], d)

    def bound(
        self, covariances: np.ndarray, which: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """The bound, and no error."""
        lost = _lost(self.matrix[np.ix_(which, which)], covariances[:, which])
        return with_infinite(self.guess(covariances, which), lost), None


def _weights(matrix: np.ndarray, covariances: np.ndarray) -> np.ndarray:
    """G⁻¹ Dᵀ on the directions that rounding leaves, (functions, d)."""
    values, vectors = scaled_axes(matrix)
    good = values > KEPT * values.max(initial=0.0)
    vectors = vectors[:, good]
    return (vectors / values[good]) @ (vectors.T @ covariances.T)


def _lost(matrix: np.ndarray, covariances: np.ndarray) -> np.ndarray:
    """Components that no estimator of finite variance is unbiased for, (d,).

    A combination of the functions that is zero, whatever the data, would have a covariance with it.
    """
    values, vectors = scaled_axes(matrix)
    return lost_along(covariances, vectors[:, values <= NULL * len(values)])


def greedy(
    half: Halves | Exact, covariances: np.ndarray, chosen: np.ndarray, left: np.ndarray
) -> np.ndarray:
    """Test points one by one, each the one that raises the bound most, in units of what it is."""
    scale = None
    for _ in range(MOST_POINTS):
        before = np.diag(half.guess(covariances, chosen)) if len(chosen) else 0.0
        found = np.array([np.diag(half.guess(covariances, np.append(chosen, i))) for i in left])
        if not len(found):
            break
        scale = np.maximum(found.max(axis=0), np.finfo(float).tiny)
        gain = ((found - before) / scale).sum(axis=1)
        best = int(gain.argmax())
        if gain[best] < GAIN:
            break
        chosen, left = np.append(chosen, left[best]), np.delete(left, best)
    return chosen


def log_likelihood_at(problem: Problem, layout: ThetaLayout, flat: Array, x: Any) -> Array:
    """Of one measurement, at the numbers of theta."""
    assert problem.log_likelihood is not None
    return jnp.reshape(problem.log_likelihood(layout.to_theta(flat), x), ())


def simulated_function(
    problem: Problem, layout: ThetaLayout, function: Callable[[Array, Any], Array]
) -> Callable[[np.ndarray, Key, int], np.ndarray]:
    """A function of theta and a measurement, of simulated ones at one theta, (samples, functions).

    One program serves all values of theta.
    """

    @jax.jit
    def of_keys(flat: Array, keys: Key) -> Array:
        theta = layout.to_theta(flat)
        return jax.lax.map(
            lambda k: function(flat, problem.simulate(k, theta)), keys, batch_size=1024
        )

    def values(flat: np.ndarray, key: Key, samples: int) -> np.ndarray:
        try:
            return in_double_precision(
                lambda: np.asarray(
                    of_keys(jnp.asarray(flat), fold_in_each(key, jnp.arange(samples))), np.float64
                )
            )
        except Exception as error:
            raise BoundError(
                "log_likelihood(theta, x) cannot be computed or differentiated so often: "
                f"{type(error).__name__}: {str(error).splitlines()[0]}"
            ) from error

    return values


def refuse_irregular(values: np.ndarray, names: list[str]) -> None:
    """Refuse functions that are not finite, or whose mean is not zero."""
    bad = ~np.isfinite(values).all(axis=0)
    if bad.any():
        raise IrregularModelError(f"{names[int(bad.argmax())]} of the likelihood is not finite")
    error = np.maximum(values.std(axis=0) / np.sqrt(len(values)), np.finfo(float).tiny)
    away = np.abs(values.mean(axis=0)) / error
    if (away > SCORE_LIMIT).any():
        raise IrregularModelError(
            f"{names[int(away.argmax())]} of the likelihood has a mean that is {away.max():.3g} "
            "standard errors away from 0: the support of the data depends on theta, or simulate "
            "and log_likelihood disagree"
        )
