"""Series: autoregressions, moving averages, mean reversion, long memory, a queue."""

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array

from ..._core.types import Key
from .problem import (
    ANY,
    POSITIVE,
    FieldProblem,
    GaussianModel,
    box,
    field_problem,
    first,
    toeplitz,
)

BEFORE_ONE = 0.999
"""How near to the end of stationarity maximum likelihood may come."""
LAG_TERMS = 8  # of a series in squared inverse lags, from lag 2 on


def autoregression(n: int = 60) -> FieldProblem:
    """An autoregression of order 1: its coefficient."""

    def simulate(key: Key, theta: Array) -> Array:
        coefficient, sd = theta
        noise = jr.normal(key, (n,))
        begin = noise[0] * sd / jnp.sqrt(1 - coefficient**2)

        def step(before: Array, new: Array) -> tuple[Array, Array]:
            now = coefficient * before + sd * new
            return now, now

        return jnp.concatenate([begin[None], jax.lax.scan(step, begin, noise[1:])[1]])

    def log_likelihood(theta: Array, x: Array) -> Array:
        coefficient, sd = theta
        left = 1 - coefficient**2
        squares = left * x[0] ** 2 + jnp.sum((x[1:] - coefficient * x[:-1]) ** 2)
        return -squares / (2 * sd**2) - n * jnp.log(sd) + jnp.log(left) / 2

    model = GaussianModel(lambda theta: theta[1] ** 2 * toeplitz(_geometric(theta[0], n)))
    return field_problem(
        "autoregression",
        f"coefficient of a first-order autoregression, {n} samples, variance unknown",
        box((-0.9, 0.9), (0.5, 2.0)),
        simulate,
        target=first(1),
        names=("coefficient",),
        at=[[-0.9, 1], [-0.5, 1], [0.05, 1], [0.5, 1], [0.9, 1]],
        log_likelihood=log_likelihood,
        information=model.information,
        limits=[(-BEFORE_ONE, BEFORE_ONE), POSITIVE],
    )


def second_autoregression(n: int = 100) -> FieldProblem:
    """An autoregression of order 2: both coefficients."""

    def start_of(first: Array, second: Array) -> tuple[Array, Array]:
        """Variance, and correlation of neighbours, in units of the noise."""
        neighbours = first / (1 - second)
        return (1 - second) / ((1 + second) * ((1 - second) ** 2 - first**2)), neighbours

    def simulate(key: Key, theta: Array) -> Array:
        first, second, sd = theta
        noise = jr.normal(key, (n,))
        variance, neighbours = start_of(first, second)
        one = jnp.sqrt(variance) * noise[0]
        two = neighbours * one + jnp.sqrt(variance * (1 - neighbours**2)) * noise[1]

        def step(before: tuple[Array, Array], new: Array) -> tuple[tuple[Array, Array], Array]:
            now = first * before[1] + second * before[0] + new
            return (before[1], now), now

        rest = jax.lax.scan(step, (one, two), noise[2:])[1]
        return sd * jnp.concatenate([one[None], two[None], rest])

    def log_likelihood(theta: Array, x: Array) -> Array:
        first, second, sd = theta
        variance, neighbours = start_of(first, second)
        left = variance * (1 - neighbours**2)
        squares = x[0] ** 2 / variance + (x[1] - neighbours * x[0]) ** 2 / left
        squares += jnp.sum((x[2:] - first * x[1:-1] - second * x[:-2]) ** 2)
        return -squares / (2 * sd**2) - n * jnp.log(sd) - jnp.log(variance * left) / 2

    def covariance(theta: Array) -> Array:
        first, second, sd = theta
        variance, neighbours = start_of(first, second)

        def step(before: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array]:
            return (before[1], first * before[1] + second * before[0]), before[0]

        begin = (jnp.ones_like(first), neighbours)
        correlations = jax.lax.scan(step, begin, None, length=n)[1]
        return sd**2 * variance * toeplitz(correlations)

    return field_problem(
        "second-autoregression",
        f"coefficients of a second-order autoregression, {n} samples, variance unknown",
        box((-0.8, 0.8), (-0.8, 0.1), (0.5, 2.0)),
        simulate,
        target=first(2),
        names=("first", "second"),
        at=[[-0.8, -0.8, 1], [-0.8, 0.1, 1], [0, -0.4, 1], [0.5, -0.6, 1], [0.8, 0.1, 1]],
        log_likelihood=log_likelihood,
        information=GaussianModel(covariance).information,
        limits=[(-2.0, 2.0), (-BEFORE_ONE, BEFORE_ONE), POSITIVE],
    )


def moving_average(n: int = 100) -> FieldProblem:
    """A moving average of order 1: its coefficient."""

    def simulate(key: Key, theta: Array) -> Array:
        noise = jr.normal(key, (n + 1,))
        return theta[1] * (noise[1:] + theta[0] * noise[:-1])

    def log_likelihood(theta: Array, x: Array) -> Array:
        # The innovations: each sample less its best prediction from those before it.
        coefficient, sd = theta

        def step(before: tuple[Array, Array], now: Array) -> tuple[tuple[Array, Array], Array]:
            variance, error = before
            weight = coefficient / variance
            error = now - weight * error
            variance = 1 + coefficient**2 - coefficient * weight
            cost = error**2 / (variance * sd**2) + jnp.log(variance * sd**2)
            return (variance, error), cost

        # Before the first sample there is nothing to predict from, whatever the coefficient.
        variance = 1 + coefficient**2
        begin = x[0] ** 2 / (variance * sd**2) + jnp.log(variance * sd**2)
        costs = jax.lax.scan(step, (variance, x[0]), x[1:])[1]
        return -0.5 * (begin + jnp.sum(costs))

    def covariance(theta: Array) -> Array:
        coefficient, sd = theta
        lags = jnp.zeros(n, theta.dtype).at[0].set(1 + coefficient**2).at[1].set(coefficient)
        return sd**2 * toeplitz(lags)

    return field_problem(
        "moving-average",
        f"coefficient of a first-order moving average, {n} samples, variance unknown",
        box((-0.8, 0.8), (0.5, 2.0)),
        simulate,
        target=first(1),
        names=("coefficient",),
        at=[[-0.8, 1], [-0.4, 1], [0, 1], [0.4, 1], [0.8, 1]],
        log_likelihood=log_likelihood,
        information=GaussianModel(covariance).information,
        limits=[(-1.0, 1.0), POSITIVE],
        notes="A coefficient and its inverse give the same data, so that none beyond 1 is sought.",
    )


def mean_reversion(n: int = 100, interval: float = 0.25) -> FieldProblem:
    """The process of Ornstein and Uhlenbeck: how fast it returns to its mean."""
    span = n * interval

    def simulate(key: Key, theta: Array) -> Array:
        speed, mean, noise = theta
        kept = jnp.exp(-speed * interval)
        normal = jr.normal(key, (n,))
        sd = noise / jnp.sqrt(2 * speed)

        def step(before: Array, new: Array) -> tuple[Array, Array]:
            now = kept * before + sd * jnp.sqrt(1 - kept**2) * new
            return now, now

        begin = sd * normal[0]
        return mean + jnp.concatenate([begin[None], jax.lax.scan(step, begin, normal[1:])[1]])

    def log_likelihood(theta: Array, x: Array) -> Array:
        speed, mean, noise = theta
        kept, away = jnp.exp(-speed * interval), x - mean
        left = -jnp.expm1(-2 * speed * interval)
        variance = noise**2 / (2 * speed)
        squares = away[0] ** 2 + jnp.sum((away[1:] - kept * away[:-1]) ** 2) / left
        return -squares / (2 * variance) - (n * jnp.log(variance) + (n - 1) * jnp.log(left)) / 2

    def covariance(theta: Array) -> Array:
        lags = jnp.exp(-theta[0] * interval * jnp.arange(n))
        return theta[2] ** 2 / (2 * theta[0]) * toeplitz(lags)

    model = GaussianModel(covariance, lambda theta: jnp.full(n, theta[1]))
    return field_problem(
        "mean-reversion",
        f"speed of mean reversion, {n} samples over a time of {span:g}, mean and noise unknown",
        box((0.5, 4.0), (-1.0, 1.0), (0.5, 2.0)),
        simulate,
        target=first(1),
        names=("speed",),
        at=[[0.5, 0, 1], [1, 0.5, 1], [2, -0.5, 1.5], [4, 0, 1]],
        log_likelihood=log_likelihood,
        information=model.information,
        limits=[(0.001, 40.0), ANY, POSITIVE],
    )


def hurst_exponent(n: int) -> FieldProblem:
    """Fractional Gaussian noise: its Hurst exponent."""

    def simulate(key: Key, theta: Array) -> Array:
        # The series is a part of a periodic one, whose covariance Fourier transforms make diagonal.
        lags = fractional_autocovariance(theta[0], n + 1)
        powers = jnp.fft.rfft(jnp.concatenate([lags, lags[1:-1][::-1]])).real
        white = jnp.fft.rfft(jr.normal(key, (2 * n,)))
        return theta[1] * jnp.fft.irfft(jnp.sqrt(jnp.maximum(powers, 0)) * white, 2 * n)[:n]

    model = GaussianModel(
        lambda theta: theta[1] ** 2 * toeplitz(fractional_autocovariance(theta[0], n))
    )
    return field_problem(
        f"hurst-exponent-{n}",
        f"Hurst exponent of fractional Gaussian noise, {n} samples, variance unknown",
        box((0.05, 0.95), (0.5, 2.0)),
        simulate,
        target=first(1),
        names=("Hurst exponent",),
        at=[[0.05, 1], [0.2, 1], [0.4, 1], [0.6, 1], [0.8, 1], [0.95, 1]],
        log_likelihood=model.log_likelihood,
        information=model.information,
        limits=[(0.001, 0.999), POSITIVE],
    )


def fractional_autocovariance(exponent: Array, count: int) -> Array:
    """Of fractional Gaussian noise, at lags from 0, without the cancellation of its formula."""
    lag = jnp.arange(2.0, count)
    power, term, total = 2 * exponent, jnp.ones_like(exponent), jnp.zeros(count - 2)
    for j in range(1, LAG_TERMS + 1):
        term = term * (power - 2 * j + 2) * (power - 2 * j + 1) / ((2 * j) * (2 * j - 1))
        total = total + term * lag ** (2.0 - 2 * j)
    near = jnp.stack([jnp.ones_like(exponent), 2 ** (power - 1) - 1])
    return jnp.concatenate([near, total * jnp.exp((power - 2) * jnp.log(lag))])


def queue(n: int = 50) -> FieldProblem:
    """A queue with one server: how long it serves, and how often someone arrives."""

    def simulate(key: Key, theta: Array) -> Array:
        least, width, rate = theta
        serving, arriving = jr.split(key)
        services = least + width * jr.uniform(serving, (n,))
        arrivals = jnp.cumsum(jr.exponential(arriving, (n,)) / rate)

        def step(left: Array, both: tuple[Array, Array]) -> tuple[Array, Array]:
            arrival, service = both
            now = jnp.maximum(arrival, left) + service
            return now, now - left

        return jax.lax.scan(step, jnp.zeros_like(rate), (arrivals, services))[1]

    return field_problem(
        "queue",
        f"service times and arrivals from {n} times between departures, queue M/G/1",
        box((0.5, 8.0), (1.0, 8.0), (0.05, 0.3)),
        simulate,
        target=lambda theta: jnp.stack([theta[0], theta[0] + theta[1], theta[2]]),
        names=("shortest service", "longest service", "arrival rate"),
        at=[[0.5, 1, 0.05], [1, 4, 0.2], [4, 4, 0.1], [4, 4, 0.2], [8, 8, 0.3]],
        notes="Services are uniform between the shortest and the longest, arrivals a Poisson "
        "process; no likelihood is at hand. In a queue that never empties, departures say nothing "
        "about arrivals.",
    )


def _geometric(ratio: Array, count: int) -> Array:
    """Autocovariance of a first-order autoregression with noise of variance 1."""
    powers = jnp.cumprod(jnp.full(count - 1, ratio))
    return jnp.concatenate([jnp.ones_like(powers[:1]), powers]) / (1 - ratio**2)


ENTRIES = {
    "autoregression": autoregression,
    "second-autoregression": second_autoregression,
    "moving-average": moving_average,
    "mean-reversion": mean_reversion,
    "hurst-exponent-100": lambda: hurst_exponent(100),
    "hurst-exponent-400": lambda: hurst_exponent(400),
    "hurst-exponent-1600": lambda: hurst_exponent(1600),
    "queue": queue,
}
