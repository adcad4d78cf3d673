"""Problems outside of the catalogue, written as a user would who says no more than necessary.

A prior, a simulator and a target; no likelihood, and nothing about the order of the data. The best
unbiased estimator of each is known.
"""

import math

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist

import mvue
from mvue.problems import Textbook

N = 8


def along(*ends):
    return jnp.linspace(*ends, 9)


def plain(name, prior, simulate, best, at, target=None):
    problem = mvue.Problem(prior, simulate, target=target)
    return Textbook(name, name, problem, prior, at, "regular", "", mvue=best)


def one(name, ends, simulate, best, target=None):
    return plain(name, dist.Uniform(*ends), simulate, best, along(*ends), target)


def several(name, ends, simulate, best, target):
    prior = {key: dist.Uniform(min(pair), max(pair)) for key, pair in ends.items()}
    at = {key: along(*pair) for key, pair in ends.items()}
    return plain(name, prior, simulate, best, at, target)


def unbiased_sd(x):
    n = x.shape[0]
    factor = math.exp(math.lgamma((n - 1) / 2) - math.lgamma(n / 2)) * math.sqrt((n - 1) / 2)
    return factor * x.std(ddof=1)


def normal(key, theta):
    return theta["mean"] + theta["sd"] * jr.normal(key, (N,))


def two_normals(key, theta):
    a, b = jr.split(key)
    return {
        "a": theta["a"] + theta["sd"] * jr.normal(a, (6,)),
        "b": theta["b"] + theta["sd"] * jr.normal(b, (6,)),
    }


def two_scales(key, theta):
    a, b = jr.split(key)
    return {"a": theta["a"] * jr.normal(a, (10,)), "b": theta["b"] * jr.normal(b, (12,))}


def normal_and_lifetimes(key, theta):
    a, b = jr.split(key)
    return {"a": theta["a"] + jr.normal(a, (6,)), "b": theta["b"] * jr.exponential(b, (9,))}


def interval(key, theta):
    return theta["low"] + (theta["high"] - theta["low"]) * jr.uniform(key, (10,))


def three_outcomes(key, theta):
    draw = jr.uniform(key, (15,))
    first = draw < theta["first"]
    second = ~first & (draw < theta["first"] + theta["second"])
    return jnp.stack([first.sum(), second.sum()]).astype(float)


def phasor(key, theta):
    return theta["re"] + 1j * theta["im"] + jr.normal(key, (N,), complex)


def failures_before_fifth_success(key, p):
    rate, count = jr.split(key)
    return jr.poisson(count, jr.gamma(rate, 5.0) * (1 - p) / p).astype(float)


TIMES = np.linspace(-1, 1, 10, dtype=np.float32)
DESIGN = np.stack([np.linspace(-1, 1, 30) ** k for k in range(3)], axis=1).astype(np.float32)
SOLVED = np.linalg.pinv(DESIGN)


def straight_line(key, theta):
    return theta["level"] + theta["slope"] * TIMES + theta["sd"] * jr.normal(key, (10,))


def parabola(key, theta):
    curve = DESIGN @ jnp.stack([theta["c0"], theta["c1"], theta["c2"]])
    return curve + theta["sd"] * jr.normal(key, (30,))


PLAIN = [
    one(
        "rayleigh-power",
        (0.5, 4.0),
        lambda k, t: jnp.sqrt(2 * t * jr.exponential(k, (N,))),
        lambda x: jnp.mean(x**2) / 2,
    ),
    one(
        "pareto-shape",
        (1.0, 5.0),
        lambda k, t: jnp.exp(jr.exponential(k, (N,)) / t),
        lambda x: (N - 1) / jnp.log(x).sum(),
    ),
    one(
        "beta-power",
        (0.5, 3.0),
        lambda k, t: jnp.exp(-jr.exponential(k, (N,)) / t),
        lambda x: -(N - 1) / jnp.log(x).sum(),
    ),
    one(
        "symmetric-uniform",
        (1.0, 5.0),
        lambda k, t: t * jr.uniform(k, (N,), minval=-1.0),
        lambda x: (N + 1) / N * jnp.abs(x).max(),
    ),
    one(
        "cubed-mean",
        (-2.0, 2.0),
        lambda k, t: t + jr.normal(k, (N,)),
        lambda x: x.mean() ** 3 - 3 * x.mean() / N,
        lambda t: t**3,
    ),
    one(
        "squared-lifetime",
        (1.0, 5.0),
        lambda k, t: t * jr.exponential(k, (N,)),
        lambda x: x.sum() ** 2 / (N * (N + 1)),
        lambda t: t**2,
    ),
    one(
        "squared-rate",
        (0.5, 4.0),
        lambda k, t: jr.exponential(k, (10,)) / t,
        lambda x: 72 / x.sum() ** 2,
        lambda t: t**2,
    ),
    one(
        "fourth-power-of-sd",
        (0.5, 2.0),
        lambda k, t: t * jr.normal(k, (10,)),
        lambda x: jnp.sum(x**2) ** 2 / 120,
        lambda t: t**4,
    ),
    one(
        "at-most-one-event",
        (0.3, 4.0),
        lambda k, t: jr.poisson(k, t, (N,)),
        lambda x: (1 - 1 / N) ** x.sum() * (1 + x.sum() / (N - 1)),
        lambda t: jnp.exp(-t) * (1 + t),
    ),
    one(
        "geometric",
        (0.2, 0.8),
        lambda k, p: jnp.ceil(jr.exponential(k, (N,)) / -jnp.log1p(-p)),
        lambda x: (N - 1) / (x.sum() - 1),
    ),
    one("fifth-success", (0.2, 0.8), failures_before_fifth_success, lambda x: 4 / (4 + x)),
    one(
        "cubed-probability",
        (0.1, 0.9),
        lambda k, p: jr.bernoulli(k, p, (20,)),
        lambda x: x.sum() * (x.sum() - 1.0) * (x.sum() - 2.0) / (20 * 19 * 18),
        lambda p: p**3,
    ),
    one(
        "two-and-one",
        (0.1, 0.9),
        lambda k, p: jr.bernoulli(k, p, (12,)).sum().astype(float),
        lambda x: x * (x - 1) * (12 - x) / (12 * 11 * 10),
        lambda p: p**2 * (1 - p),
    ),
    several(
        "mean-and-variance",
        {"mean": (-3.0, 3.0), "sd": (0.5, 2.0)},
        normal,
        lambda x: jnp.stack([x.mean(), x.var(ddof=1)]),
        lambda t: jnp.stack([t["mean"], t["sd"] ** 2]),
    ),
    several(
        "sd-in-micrometres",
        {"mean": (-2e-6, 2e-6), "sd": (0.5e-6, 2e-6)},
        normal,
        unbiased_sd,
        lambda t: t["sd"],
    ),
    several(
        "sd-on-a-million",
        {"mean": (0.9e6, 1.1e6), "sd": (3e3, 2e4)},
        normal,
        unbiased_sd,
        lambda t: t["sd"],
    ),
    several(
        "difference-of-means",
        {"a": (-2.0, 2.0), "b": (2.0, -2.0), "sd": (0.5, 2.0)},
        two_normals,
        lambda x: x["a"].mean() - x["b"].mean(),
        lambda t: t["a"] - t["b"],
    ),
    several(
        "ratio-of-variances",
        {"a": (0.5, 2.0), "b": (2.0, 0.5)},
        two_scales,
        lambda x: 10 * jnp.mean(x["a"] ** 2) / jnp.sum(x["b"] ** 2),
        lambda t: (t["a"] / t["b"]) ** 2,
    ),
    several(
        "product-of-means",
        {"a": (-2.0, 2.0), "b": (3.0, 1.0)},
        normal_and_lifetimes,
        lambda x: x["a"].mean() * x["b"].mean(),
        lambda t: t["a"] * t["b"],
    ),
    several(
        "middle-and-width",
        {"low": (-2.0, 0.0), "high": (1.0, 4.0)},
        interval,
        lambda x: jnp.stack([(x.min() + x.max()) / 2, 11 / 9 * (x.max() - x.min())]),
        lambda t: jnp.stack([(t["low"] + t["high"]) / 2, t["high"] - t["low"]]),
    ),
    several(
        "two-outcomes-of-three",
        {"first": (0.1, 0.3), "second": (0.3, 0.1)},
        three_outcomes,
        lambda x: x[0] * x[1] / (15 * 14),
        lambda t: t["first"] * t["second"],
    ),
    several(
        "power-of-a-phasor",
        {"re": (-2.0, 2.0), "im": (-1.0, 2.0)},
        phasor,
        lambda x: jnp.abs(x.mean()) ** 2 - 1 / N,
        lambda t: t["re"] ** 2 + t["im"] ** 2,
    ),
    several(
        "slope",
        {"level": (1.0, -1.0), "slope": (-2.0, 2.0), "sd": (0.3, 1.5)},
        straight_line,
        lambda x: TIMES @ x / (TIMES @ TIMES),
        lambda t: t["slope"],
    ),
    several(
        "curvature",
        {"c0": (-2.0, 2.0), "c1": (2.0, -2.0), "c2": (-2.0, 2.0), "sd": (0.3, 1.0)},
        parabola,
        lambda x: SOLVED[2] @ x,
        lambda t: t["c2"],
    ),
]
