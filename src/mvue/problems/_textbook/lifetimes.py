"""Waiting times and other positive quantities: exponential, gamma, uniform, inverse Gaussian."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array
from scipy import integrate, special

from ..._core.checks import check_count
from ..._core.types import Key, Theta
from .problem import Span, Textbook, make

MEAN = Span(0.5, 5.0)
RATE = Span(0.5, 5.0)


def exponential_mean(n: int = 8) -> Textbook:
    """Exponential: the mean."""
    check_count("n", n)
    return make(
        "exponential-mean",
        "mean of exponential waiting times",
        MEAN,
        parameter="mean",
        simulate=lambda key, mean: mean * jr.exponential(key, (n,)),
        log_likelihood=lambda mean, x: -n * jnp.log(mean) - jnp.sum(x) / mean,
        mvue=jnp.mean,
        variance=lambda mean: mean**2 / n,
        crb=lambda mean: mean**2 / n,
        attained=True,
        notes="The sample mean attains the bound.",
    )


def exponential_rate(n: int = 8) -> Textbook:
    """Exponential: the rate."""
    check_count("n", n, least=3)
    return make(
        "exponential-rate",
        "rate of exponential waiting times",
        RATE,
        parameter="rate",
        simulate=lambda key, rate: jr.exponential(key, (n,)) / rate,
        log_likelihood=lambda rate, x: n * jnp.log(rate) - rate * jnp.sum(x),
        mvue=lambda x: (n - 1) / jnp.sum(x),
        variance=lambda rate: rate**2 / (n - 2),
        crb=lambda rate: rate**2 / n,
        attained=False,
        notes="Maximum likelihood times (n-1)/n; the bound is missed by the factor n/(n-2).",
        core=True,
    )


def exponential_survival(n: int = 8) -> Textbook:
    """Exponential: the probability to wait longer than 1/2."""
    check_count("n", n, least=2)
    time = 0.5

    def variance(rate: np.ndarray) -> list[float]:
        def second_moment(excess: float, rate: float) -> float:
            # The total is time + excess, a gamma variate; no estimate is positive below `time`.
            total = time + excess
            log_density = n * np.log(rate) + (n - 1) * np.log(total) - rate * total
            return (excess / total) ** (2 * n - 2) * np.exp(log_density - special.gammaln(n))

        def integral(rate: float) -> float:
            reach = (n + 12 * np.sqrt(n) + 40) / rate
            return integrate.quad(second_moment, 0, reach, (rate,), epsabs=0, limit=200)[0]

        return [integral(r) - np.exp(-2 * r * time) for r in rate]

    return make(
        "exponential-survival",
        "probability that an exponential waiting time exceeds 1/2",
        RATE,
        parameter="survival",
        target=lambda rate: jnp.exp(-rate * time),
        simulate=lambda key, rate: jr.exponential(key, (n,)) / rate,
        log_likelihood=lambda rate, x: n * jnp.log(rate) - rate * jnp.sum(x),
        mvue=lambda x: jnp.maximum(1 - time / jnp.sum(x), 0.0) ** (n - 1),
        variance=variance,
        crb=lambda rate: (rate * time) ** 2 * jnp.exp(-2 * rate * time) / n,
        attained=False,
        notes="Exactly 0 when all waiting times together are below 1/2.",
        core=True,
    )


def shifted_exponential_scale(n: int = 8) -> Textbook:
    """Shifted exponential, both parameters unknown: the scale."""
    check_count("n", n, least=2)
    return _shifted_exponential(
        n,
        "shifted-exponential-scale",
        "scale of a shifted exponential sample, location unknown",
        ("location", "scale"),
        mvue=lambda x: jnp.sum(x - jnp.min(x)) / (n - 1),
        variance=lambda t: t["scale"] ** 2 / (n - 1),
        notes="The mean excess over the smallest value. Irregular: the support starts at the "
        "location.",
    )


def shifted_exponential_location(n: int = 8) -> Textbook:
    """Shifted exponential, both parameters unknown: the location."""
    check_count("n", n, least=2)
    return _shifted_exponential(
        n,
        "shifted-exponential-location",
        "location of a shifted exponential sample, scale unknown",
        ("scale", "location"),
        mvue=lambda x: jnp.min(x) - jnp.sum(x - jnp.min(x)) / (n * (n - 1)),
        variance=lambda t: t["scale"] ** 2 / (n * (n - 1)),
        notes="The smallest value, less the mean excess over n. Irregular: the error falls as 1/n.",
    )


def _shifted_exponential(
    n: int, name: str, title: str, parameters: tuple[str, str], **details: object
) -> Textbook:
    spans = {"location": Span(-1.0, 1.0), "scale": Span(0.5, 2.0)}
    parameter = parameters[-1]

    def log_likelihood(t: Theta, x: Array) -> Array:
        inside = jnp.min(x) >= t["location"]
        density = -n * jnp.log(t["scale"]) - jnp.sum(x - t["location"]) / t["scale"]
        return jnp.where(inside, density, -jnp.inf)

    return make(
        name,
        title,
        {parameter: spans[parameter] for parameter in parameters},
        parameter=parameter,
        target=lambda theta: theta[parameter],
        simulate=lambda key, t: t["location"] + t["scale"] * jr.exponential(key, (n,)),
        log_likelihood=log_likelihood,
        kind="irregular",
        **details,  # pyright: ignore[reportArgumentType]
    )


def exponential_censored(n: int = 8) -> Textbook:
    """Exponential life test, stopped at a failure fixed in advance (5 of 8): the mean."""
    check_count("n", n, least=2)
    r = max(1, 5 * n // 8)

    def simulate(key: Key, mean: Array) -> Array:
        # Between failures the survivors wait together: independent exponentials.
        waits = jr.exponential(key, (r,)) / (n - jnp.arange(r))
        return mean * jnp.cumsum(waits)

    def total(x: Array) -> Array:
        return jnp.sum(x) + (n - r) * x[-1]

    log_orders = float(special.gammaln(n + 1) - special.gammaln(n - r + 1))
    return make(
        "exponential-censored",
        f"mean life from the first {r} failures of {n}, exponential lives",
        MEAN,
        parameter="mean",
        simulate=simulate,
        log_likelihood=lambda mean, x: log_orders - r * jnp.log(mean) - total(x) / mean,
        exchangeable=False,
        mvue=lambda x: total(x) / r,
        variance=lambda mean: mean**2 / r,
        crb=lambda mean: mean**2 / r,
        attained=True,
        notes="Total time on test over the number of failures; x holds the failure times in order.",
    )


def laplace_scale(n: int = 8) -> Textbook:
    """Laplace with location 0: the scale."""
    check_count("n", n)
    return make(
        "laplace-scale",
        "scale of a Laplace sample, location 0",
        Span(0.5, 4.0),
        parameter="scale",
        likelihood=lambda scale: dist.Laplace(0.0, scale).expand((n,)),
        mvue=lambda x: jnp.mean(jnp.abs(x)),
        variance=lambda scale: scale**2 / n,
        crb=lambda scale: scale**2 / n,
        attained=True,
        notes="The mean absolute value attains the bound.",
    )


GAMMA_SHAPE = 3  # a whole number: a draw is a sum of exponentials, far quicker than rejection


def gamma_scale(n: int = 8) -> Textbook:
    """Gamma of shape 3: the scale."""
    check_count("n", n)
    k = GAMMA_SHAPE
    return make(
        "gamma-scale",
        "scale of a gamma sample of shape 3",
        Span(0.5, 4.0),
        parameter="scale",
        simulate=lambda key, scale: scale * _gamma(key, n),
        log_likelihood=lambda scale, x: jnp.sum(dist.Gamma(k, 1 / scale).log_prob(x)),
        mvue=lambda x: jnp.mean(x) / k,
        variance=lambda scale: scale**2 / (n * k),
        crb=lambda scale: scale**2 / (n * k),
        attained=True,
        notes="The sample mean over the shape attains the bound.",
    )


def gamma_rate(n: int = 8) -> Textbook:
    """Gamma of shape 3: the rate."""
    check_count("n", n)
    k = GAMMA_SHAPE
    return make(
        "gamma-rate",
        "rate of a gamma sample of shape 3",
        RATE,
        parameter="rate",
        simulate=lambda key, rate: _gamma(key, n) / rate,
        log_likelihood=lambda rate, x: jnp.sum(dist.Gamma(k, rate).log_prob(x)),
        mvue=lambda x: (n * k - 1) / jnp.sum(x),
        variance=lambda rate: rate**2 / (n * k - 2),
        crb=lambda rate: rate**2 / (n * k),
        attained=False,
        notes="As for the exponential rate, with n times the shape in place of n.",
    )


def _gamma(key: Key, n: int) -> Array:
    return jnp.sum(jr.exponential(key, (GAMMA_SHAPE, n)), axis=0)


def uniform_maximum(n: int = 8) -> Textbook:
    """U(0, θ): the upper end."""
    check_count("n", n)

    def log_likelihood(high: Array, x: Array) -> Array:
        return jnp.where(jnp.max(x) <= high, -n * jnp.log(high), -jnp.inf)

    return make(
        "uniform-maximum",
        "upper end of a uniform sample that starts at 0",
        Span(0.5, 5.0),
        parameter="maximum",
        simulate=lambda key, high: high * jr.uniform(key, (n,)),
        log_likelihood=log_likelihood,
        mvue=lambda x: (n + 1) / n * jnp.max(x),
        variance=lambda high: high**2 / (n * (n + 2)),
        kind="irregular",
        notes="The largest value, stretched. Irregular: the error falls as 1/n, below any bound of "
        "Cramér-Rao type.",
        core=True,
    )


def inverse_gaussian_mean(n: int = 8) -> Textbook:
    """Inverse Gaussian, both parameters unknown: the mean."""
    check_count("n", n)
    return _inverse_gaussian(
        n,
        "inverse-gaussian-mean",
        "mean of an inverse Gaussian sample",
        ("dispersion", "mean"),
        mvue=jnp.mean,
        variance=lambda t: t["mean"] ** 3 * t["dispersion"] / n,
        crb=lambda t: t["mean"] ** 3 * t["dispersion"] / n,
        attained=True,
        notes="The sample mean attains the bound.",
    )


def inverse_gaussian_dispersion(n: int = 8) -> Textbook:
    """Inverse Gaussian, both parameters unknown: the reciprocal of the shape."""
    check_count("n", n, least=2)
    return _inverse_gaussian(
        n,
        "inverse-gaussian-dispersion",
        "dispersion, the reciprocal of the shape, of an inverse Gaussian sample",
        ("mean", "dispersion"),
        mvue=lambda x: jnp.sum(1 / x - 1 / jnp.mean(x)) / (n - 1),
        variance=lambda t: 2 * t["dispersion"] ** 2 / (n - 1),
        crb=lambda t: 2 * t["dispersion"] ** 2 / n,
        attained=False,
        notes="Behaves as the variance of a normal sample: a chi-squared variate.",
    )


def _inverse_gaussian(
    n: int, name: str, title: str, parameters: tuple[str, str], **details: object
) -> Textbook:
    spans = {"mean": Span(0.5, 3.0), "dispersion": Span(0.1, 1.0)}
    parameter = parameters[-1]

    def simulate(key: Key, t: Theta) -> Array:
        # Michael, Schucany and Haas: the smaller of two roots, or the larger with the rest of the
        # probability; written without the difference of nearly equal numbers.
        normal, chooser = jr.split(key)
        a = 0.5 * t["mean"] * t["dispersion"] * jr.normal(normal, (n,)) ** 2
        ratio = 1 / (1 + a + jnp.sqrt(a * (a + 2)))
        smaller = jr.uniform(chooser, (n,)) * (1 + ratio) < 1
        return t["mean"] * jnp.where(smaller, ratio, 1 / ratio)

    def log_likelihood(t: Theta, x: Array) -> Array:
        quadratic = (x - t["mean"]) ** 2 / (t["mean"] ** 2 * t["dispersion"] * x)
        return -0.5 * jnp.sum(quadratic + jnp.log(2 * jnp.pi * t["dispersion"] * x**3))

    return make(
        name,
        title,
        {parameter: spans[parameter] for parameter in parameters},
        parameter=parameter,
        target=lambda theta: theta[parameter],
        simulate=simulate,
        log_likelihood=log_likelihood,
        **details,  # pyright: ignore[reportArgumentType]
    )


ENTRIES = (
    exponential_mean,
    exponential_rate,
    exponential_survival,
    shifted_exponential_scale,
    shifted_exponential_location,
    exponential_censored,
    laplace_scale,
    gamma_scale,
    gamma_rate,
    uniform_maximum,
    inverse_gaussian_mean,
    inverse_gaussian_dispersion,
)
