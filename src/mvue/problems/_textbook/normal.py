"""Normal and lognormal samples."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.stats import norm
from jaxtyping import Array
from scipy import integrate, special, stats

from ..._core.checks import check_count
from ..._core.types import Theta
from .problem import Span, Textbook, make

MEAN = Span(-2.0, 2.0)
SD = Span(0.5, 2.0)
VARIANCE = Span(0.5, 4.0)


def normal_mean(n: int = 8) -> Textbook:
    """N(μ, 1): the mean."""
    check_count("n", n)
    return make(
        "normal-mean",
        "mean of a normal sample, variance 1",
        MEAN,
        parameter="mean",
        likelihood=lambda mean: dist.Normal(mean, 1.0).expand((n,)),
        mvue=jnp.mean,
        variance=lambda _: 1 / n,
        crb=lambda _: jnp.asarray(1 / n),
        attained=True,
        notes="The sample mean attains the bound.",
        core=True,
    )


def normal_variance_known_mean(n: int = 8) -> Textbook:
    """N(0, σ²): the variance."""
    check_count("n", n)
    return make(
        "normal-variance-known-mean",
        "variance of a normal sample, mean 0",
        VARIANCE,
        parameter="variance",
        likelihood=lambda v: dist.Normal(0.0, jnp.sqrt(v)).expand((n,)),
        mvue=lambda x: jnp.mean(x**2),
        variance=lambda v: 2 * v**2 / n,
        crb=lambda v: 2 * v**2 / n,
        attained=True,
        notes="The mean square attains the bound.",
    )


def normal_variance(n: int = 8) -> Textbook:
    """N(μ, σ²): the variance."""
    check_count("n", n, least=2)
    return make(
        "normal-variance",
        "variance of a normal sample, mean unknown",
        {"mean": MEAN, "variance": VARIANCE},
        parameter="variance",
        target=lambda theta: theta["variance"],
        likelihood=lambda t: dist.Normal(t["mean"], jnp.sqrt(t["variance"])).expand((n,)),
        mvue=lambda x: jnp.var(x, ddof=1),
        variance=lambda t: 2 * t["variance"] ** 2 / (n - 1),
        crb=lambda t: 2 * t["variance"] ** 2 / n,
        attained=False,
        notes="The sample variance with divisor n-1; the bound is missed by the factor n/(n-1).",
        core=True,
    )


def normal_sd(n: int = 8) -> Textbook:
    """N(μ, σ²): the standard deviation."""
    check_count("n", n, least=2)
    c = sd_factor(n)
    return make(
        "normal-sd",
        "standard deviation of a normal sample, mean unknown",
        {"mean": MEAN, "sd": SD},
        parameter="sd",
        target=lambda theta: theta["sd"],
        likelihood=lambda t: dist.Normal(t["mean"], t["sd"]).expand((n,)),
        mvue=lambda x: c * jnp.std(x, ddof=1),
        variance=lambda t: t["sd"] ** 2 * (c**2 - 1),
        crb=lambda t: t["sd"] ** 2 / (2 * n),
        attained=False,
        notes="The sample standard deviation times a constant of n.",
        core=True,
    )


def normal_squared_mean_known_variance(n: int = 8) -> Textbook:
    """N(μ, 1): the squared mean."""
    check_count("n", n)
    return make(
        "normal-squared-mean-known-variance",
        "squared mean of a normal sample, variance 1",
        MEAN,
        parameter="squared mean",
        target=lambda mean: mean**2,
        likelihood=lambda mean: dist.Normal(mean, 1.0).expand((n,)),
        mvue=lambda x: jnp.mean(x) ** 2 - 1 / n,
        variance=lambda mean: 4 * mean**2 / n + 2 / n**2,
        crb=lambda mean: 4 * mean**2 / n,
        attained=False,
        notes="Negative for some samples; the bound is 0 at mean 0 and out of reach.",
    )


def normal_squared_mean(n: int = 8) -> Textbook:
    """N(μ, σ²): the squared mean."""
    check_count("n", n, least=2)

    def variance(t: Theta) -> np.ndarray:
        v = t["variance"]
        return 4 * t["mean"] ** 2 * v / n + 2 * v**2 / n**2 + 2 * v**2 / (n**2 * (n - 1))

    return make(
        "normal-squared-mean",
        "squared mean of a normal sample, variance unknown",
        {"variance": VARIANCE, "mean": MEAN},
        parameter="squared mean",
        target=lambda theta: theta["mean"] ** 2,
        likelihood=lambda t: dist.Normal(t["mean"], jnp.sqrt(t["variance"])).expand((n,)),
        mvue=lambda x: jnp.mean(x) ** 2 - jnp.var(x, ddof=1) / n,
        variance=variance,
        crb=lambda t: 4 * t["mean"] ** 2 * t["variance"] / n,
        attained=False,
        notes="Negative for some samples; the bound is 0 at mean 0 and out of reach.",
    )


def normal_probability(n: int = 8) -> Textbook:
    """N(μ, 1): the probability of a draw below 1."""
    check_count("n", n, least=2)
    threshold = 1.0

    def variance(mean: np.ndarray) -> list[float]:
        # Two normals of correlation r: the probability that both are below d grows with r at the
        # rate of their joint density at (d, d).
        def density(r: float, d: float) -> float:
            return np.exp(-(d**2) / (1 + r)) / (2 * np.pi * np.sqrt(1 - r**2))

        return [integrate.quad(density, 0, 1 / n, (threshold - m,))[0] for m in mean]

    return make(
        "normal-probability",
        "probability of a value below 1 in a normal population, variance 1",
        MEAN,
        parameter="probability",
        target=lambda mean: norm.cdf(threshold - mean),
        likelihood=lambda mean: dist.Normal(mean, 1.0).expand((n,)),
        mvue=lambda x: norm.cdf((threshold - jnp.mean(x)) * np.sqrt(n / (n - 1))),
        variance=variance,
        crb=lambda mean: norm.pdf(threshold - mean) ** 2 / n,
        attained=False,
        notes="A normal distribution function that is slightly too steep; within a few per cent of "
        "the bound in the middle.",
    )


def normal_quantile(n: int = 8) -> Textbook:
    """N(μ, σ²): the 95 % quantile."""
    check_count("n", n, least=2)
    c, z = sd_factor(n), float(stats.norm.ppf(0.95))
    return make(
        "normal-quantile",
        "95 % quantile of a normal population",
        {"mean": MEAN, "sd": SD},
        parameter="quantile",
        target=lambda theta: theta["mean"] + z * theta["sd"],
        likelihood=lambda t: dist.Normal(t["mean"], t["sd"]).expand((n,)),
        mvue=lambda x: jnp.mean(x) + z * c * jnp.std(x, ddof=1),
        variance=lambda t: t["sd"] ** 2 * (1 / n + z**2 * (c**2 - 1)),
        crb=lambda t: t["sd"] ** 2 * (1 / n + z**2 / (2 * n)),
        attained=False,
        notes="The mean plus a multiple of the unbiased standard deviation.",
    )


def normal_snr(n: int = 10) -> Textbook:
    """N(μ, σ²): the signal-to-noise ratio μ²/σ²."""
    check_count("n", n, least=6)

    def variance(t: Theta) -> np.ndarray:
        rho = (t["mean"] / t["sd"]) ** 2
        spread = (1 + n * rho) ** 2 + (1 + 2 * n * rho) * (n - 3)
        return 2 * spread / (n**2 * (n - 5))

    def crb(t: Theta) -> Array:
        rho = (t["mean"] / t["sd"]) ** 2
        return (4 * rho + 2 * rho**2) / n

    return make(
        "normal-snr",
        "signal-to-noise ratio, squared mean over variance, of a normal sample",
        {"sd": SD, "mean": MEAN},
        parameter="snr",
        target=lambda theta: (theta["mean"] / theta["sd"]) ** 2,
        likelihood=lambda t: dist.Normal(t["mean"], t["sd"]).expand((n,)),
        mvue=lambda x: (n - 3) / (n - 1) * jnp.mean(x) ** 2 / jnp.var(x, ddof=1) - 1 / n,
        variance=variance,
        crb=crb,
        attained=False,
        notes="About twice the bound: heavy tails in short records. Needs n > 5.",
        core=True,
    )


def normal_log_variance(n: int = 8) -> Textbook:
    """N(0, σ²): the logarithm of the variance."""
    check_count("n", n)
    shift = np.log(2.0) + float(special.digamma(n / 2))
    return make(
        "normal-log-variance",
        "log-variance of a normal sample, mean 0",
        VARIANCE,
        parameter="log-variance",
        target=jnp.log,
        likelihood=lambda v: dist.Normal(0.0, jnp.sqrt(v)).expand((n,)),
        mvue=lambda x: jnp.log(jnp.sum(x**2)) - shift,
        variance=lambda _: special.polygamma(1, n / 2),
        crb=lambda _: jnp.asarray(2 / n),
        attained=False,
        notes="The logarithm of the sum of squares, shifted by a digamma function of n.",
    )


def lognormal_mean(n: int = 8) -> Textbook:
    """Lognormal: the mean (Finney's estimator)."""
    check_count("n", n, least=2)

    def estimate(x: Array) -> Array:
        logs = jnp.log(x)
        series = hyp0f1((n - 1) / 2, (n - 1) ** 2 / (4 * n) * jnp.var(logs, ddof=1))
        return jnp.exp(jnp.mean(logs)) * series

    def variance(t: Theta) -> np.ndarray:
        v = t["log_sd"] ** 2
        series = special.hyp0f1((n - 1) / 2, ((n - 1) * v / (2 * n)) ** 2)
        return np.exp(2 * t["log_mean"] + v) * (np.exp(v / n) * series - 1)

    def crb(t: Theta) -> Array:
        v = t["log_sd"] ** 2
        return jnp.exp(2 * t["log_mean"] + v) * (v + v**2 / 2) / n

    return make(
        "lognormal-mean",
        "mean of a lognormal population",
        {"log_mean": Span(-1.0, 1.0), "log_sd": Span(0.25, 1.0)},
        parameter="mean",
        target=lambda t: jnp.exp(t["log_mean"] + t["log_sd"] ** 2 / 2),
        likelihood=lambda t: dist.LogNormal(t["log_mean"], t["log_sd"]).expand((n,)),
        mvue=estimate,
        variance=variance,
        crb=crb,
        attained=False,
        notes="Finney's estimator: a hypergeometric series in the variance of the logarithms.",
        core=True,
    )


def sd_factor(n: int) -> float:
    """What makes the standard deviation of n normal draws unbiased."""
    half = (n - 1) / 2
    return float(np.exp(0.5 * np.log(half) + special.gammaln(half) - special.gammaln(n / 2)))


def hyp0f1(b: float, z: Array, terms: int = 80) -> Array:
    """The confluent hypergeometric limit function of z ≥ 0, by its series of positive terms."""
    k = jnp.arange(1, terms + 1, dtype=jnp.result_type(float))
    return 1 + jnp.sum(jnp.cumprod(z / (k * (b + k - 1))))


ENTRIES = (
    normal_mean,
    normal_variance_known_mean,
    normal_variance,
    normal_sd,
    normal_squared_mean_known_variance,
    normal_squared_mean,
    normal_probability,
    normal_quantile,
    normal_snr,
    normal_log_variance,
    lognormal_mean,
)
