"""Fisher information of Gaussian models in closed form (Slepian and Bangs)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array

from .._core.checks import check_count
from .._core.problem import Problem
from .._core.theta import ThetaLayout, theta_rows
from .._core.types import Theta
from .._runtime.jit import forgetful_jit, in_double_precision
from ..exceptions import BoundError
from .result import Information, Informations

METHOD = "Gaussian closed form"


def gaussian_fisher_information(
    mean: Any, covariance: Any, theta: Theta, samples: int = 1
) -> Information:
    """Fisher information about theta in draws from N(mean(theta), covariance(theta)).

    Args:
        mean: ``mean(theta)`` of shape (n,), or an array if it does not depend on theta.
        covariance: ``covariance(theta)`` of shape (n, n), or of shape (n,) or () for
            independent components with these variances; or an array.
        theta: where to evaluate; one array or a pytree.
        samples: independent draws in one measurement.
    """
    check_count("samples", samples)
    theta = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), theta)
    if not jax.tree.leaves(theta):
        raise ValueError("theta must hold at least one number, got an empty pytree")
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(theta)):
        raise ValueError(f"theta must be finite, got {theta}")
    layout = ThetaLayout.of(theta)
    if not callable(mean) and not callable(covariance):
        raise TypeError("mean or covariance must be a function of theta, got two constants")

    def value(name: str, part: Any, at: Theta) -> Array:
        try:
            found = jnp.asarray(part(at) if callable(part) else part)
        except Exception as error:
            raise ValueError(f"{name}(theta) failed: {type(error).__name__}: {error}") from error
        if jnp.issubdtype(found.dtype, jnp.complexfloating):
            raise ValueError(
                f"{name}(theta) must be real, got {found.dtype}: write a circular complex vector "
                "as its real and imaginary parts, one after the other"
            )
        return found.astype(float)

    def moments(flat: Array) -> tuple[Array, Array]:
        at = layout.to_theta(flat)
        centre, spread = value("mean", mean, at), value("covariance", covariance, at)
        n = centre.size if centre.ndim else (spread.shape or (1,))[0]
        if centre.shape not in ((), (n,)) or spread.shape not in ((), (n,), (n, n)):
            raise ValueError(
                "mean(theta) must have shape (n,) and covariance(theta) shape (n, n), (n,) or (); "
                f"got {centre.shape} and {spread.shape}"
            )
        centre = jnp.broadcast_to(centre, (n,))
        spread = jnp.broadcast_to(spread, (n, n) if spread.ndim == 2 else (n,))
        if spread.ndim == 1:
            return centre[:, None], spread[:, None, None]
        return centre[None], spread[None]

    with jax.enable_x64(True):
        flat = jnp.asarray(theta_rows(jax.tree.map(lambda leaf: leaf[None], theta))[0])
        spread = np.asarray(moments(flat)[1])
        if not np.allclose(
            spread, spread.swapaxes(1, 2), rtol=1e-6, atol=1e-9 * np.abs(spread).max()
        ):
            raise ValueError("covariance(theta) must be symmetric, got a matrix that is not")
        matrix = samples * np.asarray(_slepian_bangs(moments, flat))
    if not np.isfinite(matrix).all():
        raise ValueError(
            "the information is not finite: covariance(theta) must be positive definite, and both "
            "functions differentiable at theta"
        )
    return Information(matrix, layout.names, METHOD)


def gaussian_informations(problem: Problem, layout: ThetaLayout, flat: np.ndarray) -> Informations:
    """Information at K values of theta, flat (K, p), where the likelihood is Gaussian."""
    if problem.likelihood is None:
        raise BoundError(
            "the closed form needs a problem made by Problem.from_likelihood; where mean and "
            "covariance are known, use gaussian_fisher_information"
        )
    try:
        matrix = in_double_precision(
            lambda: np.asarray(_informations(problem, layout, jnp.asarray(flat)), np.float64)
        )
    except BoundError:
        raise
    except Exception as error:
        raise BoundError(f"likelihood(theta) failed: {type(error).__name__}: {error}") from error
    found = Informations.empty(*flat.shape)
    for k, one in enumerate(matrix):
        if np.isfinite(one).all():
            found.put(k, one, METHOD)
        else:
            found.fail([k], BoundError("the derivatives of mean and covariance are not finite"))
    return found


@forgetful_jit
def _informations(problem: Problem, layout: ThetaLayout, flat: Array) -> Array:
    def one(flat: Array) -> Array:
        assert problem.likelihood is not None
        whole = problem.likelihood(layout.to_theta(flat))
        repeats = whole.shape()
        base = base_of(whole)
        # Draws that expand() adds to those of the distribution itself are repeats of them.
        factor = np.prod(repeats) / np.prod(base.batch_shape + base.event_shape)

        def moments(flat: Array) -> tuple[Array, Array]:
            assert problem.likelihood is not None
            return moments_of_gaussian(base_of(problem.likelihood(layout.to_theta(flat))))

        return factor * _slepian_bangs(moments, flat)

    return jax.vmap(one)(flat)


def base_of(distribution: Any) -> Any:
    """The Gaussian inside of expand() and to_event()."""
    while type(distribution) in (dist.ExpandedDistribution, dist.Independent):
        distribution = distribution.base_dist
    kinds = (dist.Normal, dist.MultivariateNormal, dist.LowRankMultivariateNormal)
    if type(distribution) not in kinds:
        raise BoundError(f"likelihood(theta) is {type(distribution).__name__}, not Gaussian")
    return distribution


def moments_of_gaussian(base: Any) -> tuple[Array, Array]:
    """Means (b, n) and covariances (b, n, n) of b independent Gaussian vectors."""
    if type(base) is dist.Normal:
        pair: list[Any] = [base.loc, base.scale]
        loc, scale = (jnp.broadcast_to(part, base.batch_shape).ravel() for part in pair)
        return loc[:, None], (scale**2)[:, None, None]
    n = base.event_shape[0]
    cov = base.covariance_matrix
    mean = jnp.broadcast_to(base.loc, (*base.batch_shape, n)).reshape(-1, n)
    return mean, jnp.broadcast_to(cov, (*base.batch_shape, n, n)).reshape(-1, n, n)


def _slepian_bangs(moments: Callable[[Array], tuple[Array, Array]], flat: Array) -> Array:
    """∂μᵀ Σ⁻¹ ∂μ + ½ tr(Σ⁻¹ ∂Σ Σ⁻¹ ∂Σ), summed over b independent vectors."""
    _, covariance = moments(flat)
    d_mean, d_covariance = jax.jacfwd(moments)(flat)  # (b, n, p) and (b, n, n, p)
    factor = jnp.linalg.cholesky(covariance)

    def whiten(factor: Array, value: Array) -> Array:
        return jax.scipy.linalg.solve_triangular(factor, value, lower=True)

    def one(factor: Array, d_mean: Array, d_covariance: Array) -> Array:
        by_parameter = jnp.moveaxis(d_covariance, -1, 0)
        half = jax.vmap(lambda m: whiten(factor, whiten(factor, m).T))(by_parameter)
        mean = whiten(factor, d_mean)
        return mean.T @ mean + 0.5 * jnp.einsum("iab,jab->ij", half, half)

    return jax.vmap(one)(factor, d_mean, d_covariance).sum(axis=0)
