"""Maximum likelihood for covariance matrices with a linear structure.

Newton's method where the likelihood is concave, Fisher scoring where it is not. With more samples
than about 14 per variable, it is concave around the truth in a region that holds the maximum and
the sample covariance, almost surely (Zwiernik, Uhler and Richards, 2017).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..._numerics.line_search import STALLED, moved, succeeds
from ..._numerics.small_matrices import invert, multiply, solve

INWARD = 0.7  # towards a positive definite matrix, until the start is one


class CovariancePoint(NamedTuple):
    """What is known at one y."""

    value: Float[Array, ""]
    """Minus the log-likelihood; NaN where Σ is not positive definite."""
    step: Float[Array, " d"]
    """Newton's, or that of Fisher scoring."""
    distance: Float[Array, ""]
    """The length of the step in standard errors; along it, the slope is minus its square."""
    concave: Bool[Array, ""]
    """Whether the likelihood is: the step is Newton's."""


def maximise(
    sample: Float[Array, "p p"],
    start: Float[Array, " d"],
    basis: Float[Array, "d p p"],
    offset: Float[Array, "p p"],
    n: int,
    *,
    tolerance: float,
    max_steps: int,
) -> tuple[Float[Array, " d"], Bool[Array, ""]]:
    """Where the likelihood is largest, and whether it was found.

    Args:
        sample: the sample covariance of n samples of mean zero.
        start: where Σ is positive definite.
        basis: Σ = offset + Σ y_k basis_k.
        offset: see there.
        n: how many samples.
        tolerance: how near to come, in units of the standard error.
        max_steps: stop at the latest after so many steps.
    """

    def look(y: Array) -> CovariancePoint:
        return _look(y, sample, basis, offset, n)

    def found(point: CovariancePoint) -> Array:
        return point.concave & (point.distance <= tolerance)

    def more(state: tuple[Array, Array, Array, CovariancePoint]) -> Array:
        count, length, _, point = state
        return (count < max_steps) & (length > STALLED) & ~found(point) & jnp.isfinite(point.value)

    def improve(
        state: tuple[Array, Array, Array, CovariancePoint],
    ) -> tuple[Array, Array, Array, CovariancePoint]:
        count, length, y, here = state
        trial = y + length * here.step
        there = look(trial)
        promised = -length * here.distance**2
        # A step of Fisher scoring does not tell the distance.
        left = jnp.where(there.concave, there.distance, jnp.inf)
        accept = succeeds(here.value, there.value, promised, here.distance, left)
        (y, point), length = moved(accept, (trial, there), (y, here), length)
        return count + 1, length, y, point

    first = (jnp.asarray(0), jnp.ones((), start.dtype), start, look(start))
    _, _, y, point = jax.lax.while_loop(more, improve, first)
    return y, found(point)


def newton_step(
    y: Float[Array, " d"],
    sample: Float[Array, "p p"],
    basis: Float[Array, "d p p"],
    offset: Float[Array, "p p"],
) -> Float[Array, " d"]:
    """One step from y, at the maximum: derivatives with respect to the sample come from here.

    With the curvature a constant, the derivative of this step is that of the maximum, by the
    implicit function theorem.
    """
    precision, _ = invert(covariance(y, basis, offset))
    still = jax.lax.stop_gradient(sample)
    _, curvature = _curvatures(precision, _between(precision, still), basis)
    gradient = _gradient(precision, _between(precision, sample), basis)
    return y - solve(curvature, gradient)[0]


def inward(
    y: Float[Array, " d"],
    centre: Float[Array, " d"],
    basis: Float[Array, "d p p"],
    offset: Float[Array, "p p"],
) -> Float[Array, " d"]:
    """The point nearest to y, on steps of a line to the centre, where Σ is positive definite."""

    def at(share: Array) -> Array:
        return centre + share * (y - centre)

    def outside(share: Array) -> Array:
        _, pivots = invert(covariance(at(share), basis, offset))
        return ~(pivots > 0).all() & (share > 0.01)

    share = jax.lax.while_loop(outside, lambda share: INWARD * share, jnp.ones((), y.dtype))
    # Not right behind the border, where the likelihood is steep.
    return at(jnp.where(share < 1, INWARD * share, share))


def covariance(
    y: Float[Array, " d"], basis: Float[Array, "d p p"], offset: Float[Array, "p p"]
) -> Float[Array, "p p"]:
    """Σ(y)."""
    return offset + jnp.sum(y[:, None, None] * basis, axis=0)


def traces(
    a: Float[Array, "p p"], b: Float[Array, "p p"], basis: Float[Array, "d p p"]
) -> Float[Array, "d d"]:
    """tr(B_k a B_l b) for all k and l, of symmetric matrices."""
    d = basis.shape[0]
    left, right = basis @ a, basis @ b
    products = left.reshape(d, -1) @ right.swapaxes(1, 2).reshape(d, -1).T
    return 0.5 * (products + products.T)


def _look(y: Array, sample: Array, basis: Array, offset: Array, n: int) -> CovariancePoint:
    precision, pivots = invert(covariance(y, basis, offset))
    whitened = _between(precision, sample)
    gradient = _gradient(precision, whitened, basis)
    expected, observed = _curvatures(precision, whitened, basis)
    newton, newton_pivots = solve(observed, -gradient)
    scoring, _ = solve(expected, -gradient)
    concave = (newton_pivots > 0).all()
    step = jnp.where(concave, newton, scoring)
    distance = jnp.sqrt(jnp.maximum(-n / 2 * jnp.sum(gradient * step), 0.0))
    value = n / 2 * (jnp.sum(jnp.log(pivots)) + jnp.sum(precision * sample))
    usable = (pivots > 0).all() & jnp.isfinite(distance)
    return CovariancePoint(jnp.where(usable, value, jnp.nan), step, distance, concave)


def _between(precision: Array, sample: Array) -> Array:
    return multiply(multiply(precision, sample), precision)


def _gradient(precision: Array, whitened: Array, basis: Array) -> Array:
    return jnp.sum((precision - whitened)[None] * basis, axis=(1, 2))


def _curvatures(precision: Array, whitened: Array, basis: Array) -> tuple[Array, Array]:
    """Expected and observed, of 2/n times minus the log-likelihood, as is the gradient."""
    expected = traces(precision, precision, basis)
    return expected, 2 * traces(precision, whitened, basis) - expected
