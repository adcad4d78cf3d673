"""Counts and proportions: Poisson, Bernoulli, and draws from a finite population."""

import math

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from jaxtyping import Array
from scipy import stats

from ..._core.checks import check_count
from ..._core.types import Key
from .problem import Span, Textbook, make

RATE = Span(0.5, 5.0)
PROBABILITY = Span(0.1, 0.9)


def poisson_mean(n: int = 8) -> Textbook:
    """Poisson: the mean."""
    check_count("n", n)
    return make(
        "poisson-mean",
        "mean of Poisson counts",
        RATE,
        parameter="mean",
        simulate=lambda key, rate: poisson(key, jnp.broadcast_to(rate, (n,))),
        log_likelihood=poisson_log_likelihood,
        mvue=jnp.mean,
        variance=lambda rate: rate / n,
        crb=lambda rate: rate / n,
        attained=True,
        notes="The sample mean attains the bound.",
    )


def poisson_zero_probability(n: int = 8) -> Textbook:
    """Poisson: the probability of a zero."""
    check_count("n", n)
    return make(
        "poisson-zero-probability",
        "probability of a zero count, Poisson counts",
        RATE,
        parameter="probability",
        target=lambda rate: jnp.exp(-rate),
        simulate=lambda key, rate: poisson(key, jnp.broadcast_to(rate, (n,))),
        log_likelihood=poisson_log_likelihood,
        mvue=lambda x: jnp.power(1 - 1 / n, jnp.sum(x)),
        variance=lambda rate: np.exp(-2 * rate) * np.expm1(rate / n),
        crb=lambda rate: rate * jnp.exp(-2 * rate) / n,
        attained=False,
        notes="A power of 1-1/n, where maximum likelihood has the exponential.",
        core=True,
    )


def poisson_squared_mean(n: int = 8) -> Textbook:
    """Poisson: the squared mean."""
    check_count("n", n)

    def estimate(x: Array) -> Array:
        total = jnp.sum(x)
        return total * (total - 1) / n**2

    return make(
        "poisson-squared-mean",
        "squared mean of Poisson counts",
        RATE,
        parameter="squared mean",
        target=lambda rate: rate**2,
        simulate=lambda key, rate: poisson(key, jnp.broadcast_to(rate, (n,))),
        log_likelihood=poisson_log_likelihood,
        mvue=estimate,
        variance=lambda rate: 4 * rate**3 / n + 2 * rate**2 / n**2,
        crb=lambda rate: 4 * rate**3 / n,
        attained=False,
        notes="The second factorial moment of the total.",
    )


def poisson_absurd(n: int = 1) -> Textbook:
    """Poisson, one count: the probability of two zeros in a row."""
    check_count("n", n)
    return make(
        "poisson-absurd",
        "probability that the next two Poisson counts are zero",
        Span(0.25, 2.0),
        parameter="probability",
        target=lambda rate: jnp.exp(-2 * rate),
        simulate=lambda key, rate: poisson(key, jnp.broadcast_to(rate, (n,))),
        log_likelihood=poisson_log_likelihood,
        mvue=lambda x: _power(1 - 2 / n, jnp.sum(x)),
        variance=lambda rate: np.exp(-4 * rate) * np.expm1(4 * rate / n),
        crb=lambda rate: 4 * rate * jnp.exp(-4 * rate) / n,
        attained=False,
        notes="From one count the only unbiased estimator is 1 for an even and -1 for an odd one: "
        "unique and absurd. Unbiasedness is not always worth having.",
        core=True,
    )


def zero_truncated_poisson(n: int = 8) -> Textbook:
    """Zero-truncated Poisson: the rate."""
    check_count("n", n)
    table = _truncated_table(n)

    def simulate(key: Key, rate: Array) -> Array:
        # The first event, known to happen before `rate`, and the number of those that follow.
        first, rest = jr.split(key)
        time = -jnp.log1p(jr.uniform(first, (n,)) * jnp.expm1(-rate))
        return 1 + poisson(rest, jnp.maximum(rate - time, 0.0))

    def log_likelihood(rate: Array, x: Array) -> Array:
        return jnp.sum(x * jnp.log(rate) - jnp.log(jnp.expm1(rate)) - gammaln(x + 1.0))

    def estimate(x: Array) -> Array:
        total = jnp.sum(x).astype(int)
        inside = jnp.asarray(table)[jnp.minimum(total, len(table) - 1)]
        return jnp.where(total < len(table), inside, total / n)

    def variance(rate: np.ndarray) -> np.ndarray:
        totals, log_ways = np.arange(n, len(table)), _log_stirling(n, len(table))
        log_mass = log_ways + math.lgamma(n + 1) + np.log(rate)[:, None] * totals
        log_mass -= [math.lgamma(t + 1) for t in totals] + n * np.log(np.expm1(rate))[:, None]
        return np.exp(log_mass) @ table[n:] ** 2 - rate**2

    def crb(rate: Array) -> Array:
        zero = jnp.exp(-rate)
        slope = (1 - zero - rate * zero) / (1 - zero) ** 2  # of the mean, by the rate
        return rate / (n * slope)

    return make(
        "zero-truncated-poisson",
        "rate of Poisson counts of which the zeros went unseen",
        RATE,
        parameter="rate",
        simulate=simulate,
        log_likelihood=log_likelihood,
        mvue=estimate,
        variance=variance,
        crb=crb,
        attained=False,
        notes="A ratio of Stirling numbers; 0 when every count is 1.",
    )


def bernoulli_probability(n: int = 8) -> Textbook:
    """Bernoulli: the probability."""
    check_count("n", n)
    return make(
        "bernoulli-probability",
        "probability of success",
        PROBABILITY,
        parameter="probability",
        likelihood=lambda p: dist.Bernoulli(probs=p).expand((n,)),
        mvue=jnp.mean,
        variance=lambda p: p * (1 - p) / n,
        crb=lambda p: p * (1 - p) / n,
        attained=True,
        notes="The fraction of successes attains the bound.",
    )


def bernoulli_variance(n: int = 8) -> Textbook:
    """Bernoulli: the variance p(1-p)."""
    check_count("n", n, least=2)

    def variance(p: np.ndarray) -> np.ndarray:
        pq = p * (1 - p)
        return pq * ((n - 2) * (1 - 2 * p) ** 2 + 1 - 2 * pq) / (n * (n - 1))

    return make(
        "bernoulli-variance",
        "variance p(1-p) of a success",
        PROBABILITY,
        parameter="variance",
        target=lambda p: p * (1 - p),
        likelihood=lambda p: dist.Bernoulli(probs=p).expand((n,)),
        mvue=lambda x: n / (n - 1) * jnp.mean(x) * (1 - jnp.mean(x)),
        variance=variance,
        crb=lambda p: (1 - 2 * p) ** 2 * p * (1 - p) / n,
        attained=False,
        notes="The sample variance; at p = 1/2 the bound is 0 and out of reach.",
        core=True,
    )


def inverse_sampling(n: int = 8) -> Textbook:
    """Trials until the n-th success: the probability of success."""
    check_count("n", n, least=2)

    def variance(p: np.ndarray) -> list[float]:
        failures = np.arange(int(stats.nbinom.isf(1e-18, n, p.min())) + 100)
        squares = ((n - 1) / (failures + n - 1)) ** 2
        return [float(stats.nbinom.pmf(failures, n, q) @ squares) - q**2 for q in p]

    return make(
        "inverse-sampling",
        "probability of success, sampling until a fixed number of successes",
        PROBABILITY,
        parameter="probability",
        likelihood=lambda p: dist.Geometric(probs=p).expand((n,)),
        mvue=lambda x: (n - 1) / (jnp.sum(x) + n - 1),
        variance=variance,
        crb=lambda p: p**2 * (1 - p) / n,
        attained=False,
        notes="One success and one trial do not count. x holds the failures before each success.",
    )


def german_tank(n: int = 8) -> Textbook:
    """Serial numbers seen without replacement: how many there are."""
    check_count("n", n)
    least = max(20, 2 * n)

    def simulate(key: Key, size: Array) -> Array:
        # Each draw is uniform among the numbers that are left, counted in order.
        ranks = jr.uniform(key, (n,)) * (size - jnp.arange(n))
        ranks = jnp.minimum(ranks.astype(int), size - 1 - jnp.arange(n))
        drawn: list[Array] = []
        in_order: list[Array] = []
        for i in range(n):
            value = ranks[i]
            for earlier in in_order:
                value = value + (value >= earlier)
            drawn.append(value)
            for j, earlier in enumerate(in_order):
                in_order[j], value = jnp.minimum(earlier, value), jnp.maximum(earlier, value)
            in_order.append(value)
        return jnp.stack(drawn) + 1

    def log_likelihood(size: Array, x: Array) -> Array:
        ways = gammaln(size + 1.0) - gammaln(size - n + 1.0)
        return jnp.where(jnp.max(x) <= size, -ways, -jnp.inf)

    return make(
        "german-tank",
        "number of tanks from the serial numbers of some of them",
        Span(least, 10 * least, whole=True),
        parameter="tanks",
        simulate=simulate,
        log_likelihood=log_likelihood,
        mvue=lambda x: jnp.max(x) * (1 + 1 / n) - 1,
        variance=lambda size: (size - n) * (size + 1) / (n * (n + 2)),
        kind="discrete",
        notes="The largest number plus the mean gap. The parameter is a whole number: no bound.",
    )


POPULATION = 50


def hypergeometric(n: int = 10) -> Textbook:
    """Draws without replacement from a population of 50: how many are marked."""
    check_count("n", n)
    if n >= POPULATION:
        raise ValueError(f"n must be below the size of the population, {POPULATION}, got {n}")

    def simulate(key: Key, marked: Array) -> Array:
        uniform = jr.uniform(key, (n,))
        left, drawn = marked, []
        for i in range(n):
            hit = (uniform[i] * (POPULATION - i) < left).astype(int)
            left = left - hit
            drawn.append(hit)
        return jnp.stack(drawn)

    def log_likelihood(marked: Array, x: Array) -> Array:
        hits, other = jnp.sum(x), POPULATION - marked
        possible = (hits <= marked) & (n - hits <= other)
        ways = gammaln(marked + 1.0) - gammaln(marked - hits + 1.0)
        ways += gammaln(other + 1.0) - gammaln(other - n + hits + 1.0)
        all_ways = math.lgamma(POPULATION + 1) - math.lgamma(POPULATION - n + 1)
        return jnp.where(possible, ways - all_ways, -jnp.inf)

    def variance(marked: np.ndarray) -> np.ndarray:
        p = marked / POPULATION
        return POPULATION**2 / n * p * (1 - p) * (POPULATION - n) / (POPULATION - 1)

    return make(
        "hypergeometric",
        f"number of marked items among {POPULATION}, drawing without replacement",
        Span(1, POPULATION - 1, whole=True),
        parameter="marked",
        simulate=simulate,
        log_likelihood=log_likelihood,
        mvue=lambda x: POPULATION * jnp.mean(x),
        variance=variance,
        kind="discrete",
        notes="The fraction of marked draws, scaled up. The parameter is a whole number: no bound.",
    )


LARGEST_RATE = 60.0


def poisson(key: Key, rate: Array) -> Array:
    """Poisson counts as floating-point numbers, by inversion; NaN for rates above 60.

    For the small rates of textbooks ten times quicker than rejection.
    """
    uniform = jr.uniform(key, rate.shape)
    largest = jnp.max(rate)
    last = largest + 12 * jnp.sqrt(largest) + 20  # rounding may leave the total below 1

    def more(carry: tuple[Array, ...]) -> Array:
        k, _, below, _ = carry
        return jnp.any(uniform >= below) & (k < last)

    def count(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        k, mass, below, counts = carry
        mass = mass * rate / (k + 1)
        return k + 1, mass, below + mass, counts + (uniform >= below)

    zero = jnp.exp(-rate)
    start = (jnp.zeros(()), zero, zero, jnp.zeros_like(rate))
    counts = jax.lax.while_loop(more, count, start)[3]
    return jnp.where(rate <= LARGEST_RATE, counts, jnp.nan)


def poisson_log_likelihood(rate: Array, x: Array) -> Array:
    """Of independent counts."""
    return jnp.sum(x * jnp.log(rate) - rate - gammaln(x + 1.0))


def _power(base: float, exponent: Array) -> Array:
    """A power with a whole exponent of a base of any sign."""
    size = jnp.where(exponent == 0, 1.0, jnp.power(abs(base), exponent))
    return jnp.where((base < 0) & (exponent % 2 == 1), -size, size)


def _stirling(n: int, length: int) -> list[int]:
    """Ways to part t objects into n groups, exactly, for t below length."""
    row = [1] + [0] * n
    ways = [row[n]]
    for _ in range(length - 1):
        row = [0] + [k * row[k] + row[k - 1] for k in range(1, n + 1)]
        ways.append(row[n])
    return ways


def _log_stirling(n: int, length: int) -> np.ndarray:
    return np.array([math.log(ways) for ways in _stirling(n, length)[n:]])


def _truncated_table(n: int) -> np.ndarray:
    """The estimate for each total up to where it is the mean to machine precision."""
    length = 40 * n + 40  # the correction falls as (1 - 1/n) to the power of the total
    ways = _stirling(n, length)
    table = np.zeros(length)
    for t in range(n, length):
        table[t] = t * ways[t - 1] / ways[t]
    return table


ENTRIES = (
    poisson_mean,
    poisson_zero_probability,
    poisson_squared_mean,
    poisson_absurd,
    zero_truncated_poisson,
    bernoulli_probability,
    bernoulli_variance,
    inverse_sampling,
    german_tank,
    hypergeometric,
)
