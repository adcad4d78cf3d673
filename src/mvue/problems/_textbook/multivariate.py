"""Linear models and covariance matrices."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array

from ..._core.checks import check_count
from ..._core.types import Key, Theta
from .problem import Span, Textbook, make

COEFFICIENTS = Span(-2.0, 2.0, (3,))


def linear_coefficients(n: int = 8) -> Textbook:
    """Linear model with noise of known covariance: the coefficients."""
    h, noise, covariance = _trend(n)
    gain = covariance @ h.T @ np.linalg.inv(noise)
    return make(
        "linear-coefficients",
        "coefficients of a quadratic trend in correlated noise",
        COEFFICIENTS,
        parameter="coefficients",
        names=("level", "slope", "curvature"),
        likelihood=_trend_likelihood(h, noise),
        exchangeable=False,
        mvue=lambda x: jnp.asarray(gain, x.dtype) @ x,
        variance=lambda y: np.broadcast_to(np.diag(covariance), (len(y), 3)),
        crb=lambda y: jnp.asarray(covariance, y.dtype),
        attained=True,
        notes="Weighted least squares attains the bound.",
        core=True,
    )


def linear_energy(n: int = 8) -> Textbook:
    """Linear model with noise of known covariance: the squared length of the coefficients."""
    h, noise, covariance = _trend(n)
    gain = covariance @ h.T @ np.linalg.inv(noise)
    shift = float(np.trace(covariance))

    def variance(y: np.ndarray) -> np.ndarray:
        return 4 * np.einsum("ki,ij,kj->k", y, covariance, y) + 2 * np.sum(covariance**2)

    return make(
        "linear-energy",
        "energy, the squared length of the coefficients, of a quadratic trend in correlated noise",
        COEFFICIENTS,
        parameter="energy",
        target=lambda y: jnp.sum(y**2),
        likelihood=_trend_likelihood(h, noise),
        exchangeable=False,
        mvue=lambda x: jnp.sum((jnp.asarray(gain, x.dtype) @ x) ** 2) - shift,
        variance=variance,
        crb=lambda y: 4 * y @ jnp.asarray(covariance, y.dtype) @ y,
        attained=False,
        notes="The energy of weighted least squares, less the energy of its noise.",
        core=True,
    )


def linear_noise_variance(n: int = 8) -> Textbook:
    """Linear model with white noise: the variance of the noise."""
    check_count("n", n, least=4)
    h = _quadratic(n)
    residual = np.eye(n) - h @ np.linalg.pinv(h)

    def likelihood(t: Theta) -> dist.Distribution:
        mean = jnp.asarray(h, jnp.result_type(float)) @ t["coefficients"]
        return dist.Normal(mean, jnp.sqrt(t["variance"]))

    return make(
        "linear-noise-variance",
        "variance of white noise about a quadratic trend, coefficients unknown",
        {"coefficients": COEFFICIENTS, "variance": Span(0.5, 4.0)},
        parameter="variance",
        target=lambda theta: theta["variance"],
        likelihood=likelihood,
        exchangeable=False,
        mvue=lambda x: jnp.sum((jnp.asarray(residual, x.dtype) @ x) ** 2) / (n - 3),
        variance=lambda t: 2 * t["variance"] ** 2 / (n - 3),
        crb=lambda t: 2 * t["variance"] ** 2 / n,
        attained=False,
        notes="The residual sum of squares over n-3; the bound is missed by the factor n/(n-3).",
        core=True,
    )


def _quadratic(n: int) -> np.ndarray:
    """Level, slope and curvature at n equal steps from -1 to 1."""
    t = np.linspace(-1.0, 1.0, n)
    return np.stack([np.ones(n), t, 1.5 * t**2 - 0.5], axis=1)


def _trend(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The matrix H, the covariance of the noise, and that of weighted least squares."""
    check_count("n", n, least=3)
    h = _quadratic(n)
    steps = np.arange(n)
    noise = 0.5 ** np.abs(steps[:, None] - steps[None, :])
    return h, noise, np.linalg.inv(h.T @ np.linalg.solve(noise, h))


def _trend_likelihood(h: np.ndarray, noise: np.ndarray) -> Callable[[Array], dist.Distribution]:
    root = np.linalg.cholesky(noise)

    def likelihood(y: Array) -> dist.Distribution:
        mean = jnp.asarray(h, y.dtype) @ y
        return dist.MultivariateNormal(mean, scale_tril=jnp.asarray(root, y.dtype))

    return likelihood


SPANS = {
    "sd1": Span(0.5, 2.0),
    "sd2": Span(0.5, 2.0),
    "correlation": Span(-0.8, 0.8),
}


def bivariate_covariance(n: int = 8) -> Textbook:
    """Bivariate normal, mean 0: the covariance."""
    check_count("n", n, least=2)

    def bound(t: Theta) -> Any:
        return (t["sd1"] * t["sd2"]) ** 2 * (1 + t["correlation"] ** 2) / n

    return make(
        "bivariate-covariance",
        "covariance of two normal variables, means 0",
        SPANS,
        parameter="covariance",
        target=lambda t: t["correlation"] * t["sd1"] * t["sd2"],
        simulate=lambda key, t: _simulate(key, t, n),
        log_likelihood=_log_likelihood,
        mvue=lambda x: jnp.mean(x[:, 0] * x[:, 1]),
        variance=bound,
        crb=bound,
        attained=True,
        notes="The mean product attains the bound.",
        core=True,
    )


def bivariate_determinant(n: int = 8) -> Textbook:
    """Bivariate normal, mean 0: the determinant of the covariance matrix."""
    check_count("n", n, least=2)

    def estimate(x: Array) -> Array:
        a11, a12, a22 = _scatter(x)
        return (a11 * a22 - a12**2) / (n * (n - 1))

    return make(
        "bivariate-determinant",
        "generalised variance, the determinant of the covariance, of two normal variables",
        SPANS,
        parameter="determinant",
        target=_determinant,
        simulate=lambda key, t: _simulate(key, t, n),
        log_likelihood=_log_likelihood,
        mvue=estimate,
        variance=lambda t: _determinant(t) ** 2 * ((n + 2) * (n + 1) / (n * (n - 1)) - 1),
        crb=lambda t: 4 * _determinant(t) ** 2 / n,
        attained=False,
        notes="The determinant of the scatter matrix over n(n-1).",
        core=True,
    )


def bivariate_precision(n: int = 9) -> Textbook:
    """Bivariate normal, mean 0: the first diagonal element of the inverse covariance matrix."""
    check_count("n", n, least=6)

    def estimate(x: Array) -> Array:
        a11, a12, a22 = _scatter(x)
        return (n - 3) / (a11 - a12**2 / a22)

    def precision(t: Theta) -> Any:
        return 1 / (t["sd1"] ** 2 * (1 - t["correlation"] ** 2))

    return make(
        "bivariate-precision",
        "precision, the first diagonal element of the inverse covariance, of two normal variables",
        SPANS,
        parameter="precision",
        target=precision,
        simulate=lambda key, t: _simulate(key, t, n),
        log_likelihood=_log_likelihood,
        mvue=estimate,
        variance=lambda t: 2 * precision(t) ** 2 / (n - 5),
        crb=lambda t: 2 * precision(t) ** 2 / n,
        attained=False,
        notes="The inverse of the scatter matrix, scaled; more than twice the bound at n = 9, with "
        "heavy tails. Needs n > 5.",
        core=True,
    )


def _simulate(key: Key, t: Theta, n: int) -> Array:
    first, second = jr.normal(key, (2, n))
    r = t["correlation"]
    second = r * first + jnp.sqrt(1 - r**2) * second
    return jnp.stack([t["sd1"] * first, t["sd2"] * second], axis=1)


def _log_likelihood(t: Theta, x: Array) -> Array:
    r = t["correlation"]
    first, second = x[:, 0] / t["sd1"], x[:, 1] / t["sd2"]
    quadratic = (first**2 - 2 * r * first * second + second**2) / (1 - r**2)
    return -0.5 * jnp.sum(quadratic + jnp.log(4 * jnp.pi**2 * _determinant(t)))


def _determinant(t: Theta) -> Any:
    return (t["sd1"] * t["sd2"]) ** 2 * (1 - t["correlation"] ** 2)


def _scatter(x: Array) -> tuple[Array, Array, Array]:
    return jnp.sum(x[:, 0] ** 2), jnp.sum(x[:, 0] * x[:, 1]), jnp.sum(x[:, 1] ** 2)


ENTRIES = (
    linear_coefficients,
    linear_energy,
    linear_noise_variance,
    bivariate_covariance,
    bivariate_determinant,
    bivariate_precision,
)
