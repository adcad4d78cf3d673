"""Counts: photons in time, mutations among genes, animals caught twice."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from jaxtyping import Array

from ..._core.types import Key
from .problem import POSITIVE, FieldProblem, PoissonCounts, box, field_problem, first

PERIOD = 12.5  # nanoseconds between two pulses of the laser


def fluorescence_lifetime(bins: int = 32) -> FieldProblem:
    """A histogram of photons after a pulse, with background: the lifetime."""
    edges = np.linspace(0, PERIOD, bins + 1)

    def mean(theta: Array) -> Array:
        lifetime, photons, background = theta
        reached = -jnp.expm1(-jnp.asarray(edges) / lifetime)
        signal = jnp.diff(reached) / reached[-1]
        return 10**photons * ((1 - background) * signal + background / bins)

    model = PoissonCounts(mean)
    return field_problem(
        "fluorescence-lifetime",
        f"lifetime from a histogram of 200 to 6000 photons in {bins} bins, background unknown",
        box((0.5, 4.0), (np.log10(200), np.log10(6000)), (0.02, 0.2)),
        model.simulate,
        target=first(1),
        names=("lifetime",),
        at=[[0.5, 2.31, 0.1], [0.5, 3.77, 0.1], [2, 3, 0.05], [4, 2.31, 0.2], [4, 3.77, 0.05]],
        log_likelihood=model.log_likelihood,
        information=model.information,
        limits=[(0.02, 100.0), (0.0, 6.0), (0.0, 1.0)],
        notes="Theta has the decimal logarithm of the expected number of photons.",
    )


def mutation_rate(samples: int = 40) -> FieldProblem:
    """A site-frequency spectrum: the scaled mutation rate."""
    carriers = np.arange(1, samples)
    model = PoissonCounts(lambda theta: theta[0] / jnp.arange(1.0, samples))

    def watterson(x: Array) -> Array:
        return jnp.sum(x)[None] / np.sum(1 / carriers)

    return field_problem(
        "mutation-rate",
        f"scaled mutation rate from the site-frequency spectrum of {samples} samples",
        box((2.0, 40.0)),
        model.simulate,
        names=("mutation rate",),
        at=[[2.0], [5.0], [10.0], [20.0], [40.0]],
        log_likelihood=model.log_likelihood,
        information=model.information,
        limits=[POSITIVE],
        classical={"watterson": watterson},
        notes="The counts are independent and Poisson, the usual approximation for many unlinked "
        "sites. Watterson's estimator is then best, and Fu's, the best linear one, is the same.",
    )


def linked_mutation_rate(samples: int = 40) -> FieldProblem:
    """A site-frequency spectrum without recombination: the scaled mutation rate."""
    carriers = np.arange(1, samples)
    lineages = np.arange(samples, 1, -1)

    def simulate(key: Key, theta: Array) -> Array:
        waiting, joining, mutating = jr.split(key, 3)
        times = jr.exponential(waiting, lineages.shape) * 2 / (lineages * (lineages - 1))

        def join(sizes: Array, given: tuple[Array, Array, Array]) -> tuple[Array, Array]:
            time, count, one = given
            # How much time branches of each size add until the next two of them become one.
            present = jnp.arange(samples) < count
            lengths = time * jnp.zeros(samples).at[sizes].add(present.astype(time.dtype))
            first, second = jr.split(one)
            kept = jr.randint(first, (), 0, count)
            gone = (kept + jr.randint(second, (), 1, count)) % count
            # The last lineage takes the place of the one that is gone.
            total = sizes[kept] + sizes[gone]
            sizes = sizes.at[kept].set(total)
            return sizes.at[gone].set(sizes[count - 1]), lengths

        begin = jnp.ones(samples, int)
        given = (times, jnp.asarray(lineages), jr.split(joining, samples - 1))
        lengths = jnp.sum(jax.lax.scan(join, begin, given)[1], axis=0)[1:]
        return jr.poisson(mutating, theta[0] / 2 * lengths).astype(times.dtype)

    def watterson(x: Array) -> Array:
        return jnp.sum(x)[None] / np.sum(1 / carriers)

    within = _linked_covariance(samples)

    def fu(x: Array) -> Array:
        # The best weights depend on the rate itself: from Watterson's, a few rounds.
        rate = watterson(x)[0]
        for _ in range(5):
            covariance = jnp.diag(rate / carriers) + rate**2 * within
            weights = jnp.linalg.solve(covariance, 1 / carriers)
            rate = jnp.where(rate > 0, weights @ x / (weights @ (1 / carriers)), 0.0)
        return rate[None]

    return field_problem(
        "linked-mutation-rate",
        f"scaled mutation rate from the spectrum of {samples} samples, no recombination",
        box((2.0, 40.0)),
        simulate,
        names=("mutation rate",),
        at=[[2.0], [5.0], [10.0], [20.0], [40.0]],
        classical={"watterson": watterson, "fu": fu},
        notes="All sites share one genealogy, Kingman's coalescent, which makes their counts "
        "dependent; no likelihood is at hand. Fu's estimator is linear, with the best weights at "
        "its own value.",
    )


def _linked_covariance(samples: int) -> np.ndarray:
    """Covariances of the spectrum without recombination over the squared rate: Fu (1995)."""
    n = samples

    def a(i: int) -> float:
        return sum(1 / k for k in range(1, i))

    def beta(i: int) -> float:
        return 2 * n / ((n - i + 1) * (n - i)) * (a(n + 1) - a(i)) - 2 / (n - i)

    result = np.zeros((n - 1, n - 1))
    for i in range(1, n):
        if 2 * i < n:
            result[i - 1, i - 1] = beta(i + 1)
        elif 2 * i == n:
            result[i - 1, i - 1] = 2 * (a(n) - a(i)) / (n - i) - 1 / i**2
        else:
            result[i - 1, i - 1] = beta(i) - 1 / i**2
        for j in range(1, i):
            if i + j < n:
                value = (beta(i + 1) - beta(i)) / 2
            elif i + j == n:
                value = (a(n) - a(i)) / (n - i) + (a(n) - a(j)) / (n - j)
                value -= (beta(i) + beta(j + 1)) / 2 + 1 / (i * j)
            else:
                value = (beta(j) - beta(j + 1)) / 2 - 1 / (i * j)
            result[i - 1, j - 1] = result[j - 1, i - 1] = value
    return result


def capture_recapture(marked: int = 60, caught: int = 60) -> FieldProblem:
    """Animals marked in a first catch and met again in a second one: how many there are."""
    met = np.arange(caught + 1)

    def log_mass(total: Array) -> Array:
        def choices(n: Array, k: np.ndarray) -> Array:
            left = jnp.maximum(n - k, 0)
            logarithm = gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(left + 1.0)
            return jnp.where(n >= k, logarithm, -jnp.inf)

        ways = choices(jnp.full(caught + 1, marked), met)
        ways += choices(jnp.full(caught + 1, total - marked), caught - met)
        return jax.nn.log_softmax(ways)

    def simulate(key: Key, total: Array) -> Array:
        below = jnp.cumsum(jnp.exp(log_mass(total)))
        return jnp.sum(jr.uniform(key) > below).astype(float)[None]

    def chapman(x: Array) -> Array:
        return (marked + 1) * (caught + 1) / (x + 1) - 1

    return field_problem(
        "capture-recapture",
        f"size of a population, {marked} marked and {caught} caught again",
        dist.DiscreteUniform(100, 300),
        simulate,
        names=("population",),
        at=[100, 140, 180, 220, 260, 300],
        classical={"chapman": chapman},
        notes="The number is whole, so that there is no Cramér-Rao bound. Chapman's estimator is "
        "unbiased up to 120 animals, and nearly so beyond.",
    )


ENTRIES = {
    "fluorescence-lifetime": fluorescence_lifetime,
    "mutation-rate": mutation_rate,
    "linked-mutation-rate": linked_mutation_rate,
    "capture-recapture": capture_recapture,
}
