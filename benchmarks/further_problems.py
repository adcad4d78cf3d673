"""More problems outside of the catalogue: several parameters at once, vectors, wide ranges, edges.

As in `plain_problems`, nothing is said but a prior, a simulator and a target. Of several parameters
errors are judged at the corners of their ranges and at some values within.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist

from plain_problems import N, along, one, plain

CORNERS, WITHIN = 8, 4


def box(name, ends, simulate, best, target):
    corners = np.array(list(itertools.product(*ends.values())))
    spread = corners[np.linspace(0, len(corners) - 1, min(CORNERS, len(corners))).astype(int)]
    low, high = np.array(list(ends.values())).T
    within = low + (high - low) * np.random.default_rng(0).random((WITHIN, len(ends)))
    at = np.concatenate([spread, within]).astype(np.float32)
    prior = {key: dist.Uniform(*pair) for key, pair in ends.items()}
    return plain(
        name, prior, simulate, best, dict(zip(ends, jnp.asarray(at.T), strict=True)), target
    )


def gamma_ratio(a, b):
    return math.exp(math.lgamma(a) - math.lgamma(b))


def effect_size(x):
    freedom = x.shape[0] - 1
    factor = gamma_ratio(freedom / 2, (freedom - 1) / 2) / math.sqrt(freedom / 2)
    return factor * x.mean() / x.std(ddof=1)


def lognormal_median(x):
    freedom, logs = x.shape[0] - 1, jnp.log(x)
    argument = -freedom * logs.var(ddof=1) / (4 * x.shape[0])
    term = total = jnp.ones(())
    for k in range(40):
        term = term * argument / ((freedom / 2 + k) * (k + 1))
        total = total + term
    return jnp.exp(logs.mean()) * total


def negative_binomial(key, p):
    rate, count = jr.split(key)
    return jr.poisson(count, jr.gamma(rate, 3.0, (N,)) * (1 - p) / p)


def shifted(key, theta):
    return theta["start"] + theta["scale"] * jr.exponential(key, (N,))


def start_and_scale(x):
    scale = (x - x.min()).sum() / (N - 1)
    return jnp.stack([x.min() - scale / N, scale])


def power_law(key, theta):
    return theta["least"] * jnp.exp(jr.exponential(key, (10,)) / theta["shape"])


def two_lifetimes(key, theta):
    a, b = jr.split(key)
    return theta["a"] * jr.exponential(a, (8,)), theta["b"] * jr.exponential(b, (10,))


EXPOSURES = np.linspace(0.5, 2.0, 10, dtype=np.float32)
ANGLES = 2 * np.pi * 3 * np.arange(16) / 16
WAVES = np.stack([np.cos(ANGLES), np.sin(ANGLES)]).astype(np.float32)


def tone(key, theta):
    return theta["a"] * WAVES[0] + theta["b"] * WAVES[1] + jr.normal(key, (16,))


PAIRS = {
    "m1": (-3.0, 3.0),
    "m2": (-3.0, 3.0),
    "s1": (0.5, 2.0),
    "s2": (0.5, 2.0),
    "r": (-0.7, 0.7),
}


def pairs(key, theta):
    a, b = jr.normal(key, (2, 10))
    b = theta["r"] * a + jnp.sqrt(1 - theta["r"] ** 2) * b
    return jnp.stack([theta["m1"] + theta["s1"] * a, theta["m2"] + theta["s2"] * b], axis=1)


def scatter(x):
    centred = x - x.mean(axis=0)
    return centred.T @ centred


def correlation(x):
    a = scatter(x)
    found = a[0, 1] / jnp.sqrt(a[0, 0] * a[1, 1])
    term = total = jnp.ones(())
    for k in range(200):
        term = term * (1 - found**2) * (0.5 + k) ** 2 / ((x.shape[0] / 2 - 1 + k) * (k + 1))
        total = total + term
    return found * total


FACTOR = np.array([[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [-0.3, 0.4, 1.0]], np.float32)
WHITEN = np.linalg.inv(FACTOR)


SNAPSHOTS, ANTENNAS = 6, 4
STEERING = np.exp(1j * np.pi * np.arange(ANTENNAS) * math.sin(math.radians(20))).astype("c8")


def snapshots(key, theta):
    signal, noise = jr.split(key)
    source = jnp.sqrt(theta["snr"]) * jr.normal(signal, (SNAPSHOTS, 1), complex)
    both = source * STEERING[None, :] + jr.normal(noise, (SNAPSHOTS, ANTENNAS), complex)
    return jnp.sqrt(theta["noise"]) * both


def snapshot_snr(x):
    along = (jnp.abs(x @ STEERING.conj()) ** 2).sum() / ANTENNAS
    rest = (jnp.abs(x) ** 2).sum() - along
    freedom = (ANTENNAS - 1) * SNAPSHOTS
    return ((freedom - 1) / SNAPSHOTS * along / rest - 1) / ANTENNAS


def counts_of_kinds(key, shares):
    drawn = jr.categorical(key, jnp.log(shares), shape=(20,))
    return jnp.bincount(drawn, length=4)


def two_samples(key, theta):
    a, b = jr.split(key)
    first = theta["m1"] + theta["s1"] * jr.normal(a, (10,))
    return first, theta["m2"] + theta.get("s2", theta["s1"]) * jr.normal(b, (12,))


def effect_of_two(x):
    a, b = x
    freedom = a.size + b.size - 2
    pooled = (((a - a.mean()) ** 2).sum() + ((b - b.mean()) ** 2).sum()) / freedom
    factor = gamma_ratio(freedom / 2, (freedom - 1) / 2) / math.sqrt(freedom / 2)
    return factor * (a.mean() - b.mean()) / jnp.sqrt(pooled)


def two_causes(key, theta):
    when, which = jr.split(key)
    total = theta["first"] + theta["second"]
    cause = jr.bernoulli(which, theta["first"] / total, (12,))
    return {"time": jr.exponential(when, (12,)) / total, "cause": cause.astype(int)}


GROUPS, MEMBERS = 6, 4


def groups(key, theta):
    of_group, of_member = jr.split(key)
    effect = jnp.sqrt(theta["between"]) * jr.normal(of_group, (GROUPS, 1))
    member = jnp.sqrt(theta["within"]) * jr.normal(of_member, (GROUPS, MEMBERS))
    return theta["mean"] + effect + member


def between_groups(x):
    means = x.mean(axis=1)
    within = ((x - means[:, None]) ** 2).sum() / (GROUPS * (MEMBERS - 1))
    return means.var(ddof=1) - within / MEMBERS


TIMES = np.linspace(-1.0, 1.0, 10, dtype=np.float32)
DESIGN = np.stack([np.ones(10), TIMES], axis=1)
AHEAD = np.array([1.0, 1.5]) @ np.linalg.pinv(DESIGN)  # of the log, at time 1.5
LOG_NOISE = 0.7


def growth(key, theta):
    return theta["level"] + theta["slope"] * TIMES + LOG_NOISE * jr.normal(key, (10,))


def size_ahead(x):
    return jnp.exp(AHEAD.astype(np.float32) @ x - LOG_NOISE**2 * float(AHEAD @ AHEAD) / 2)


SHARES = jnp.array(
    [
        [0.25, 0.25, 0.25, 0.25],
        [0.4, 0.3, 0.2, 0.1],
        [0.55, 0.15, 0.15, 0.15],
        [0.45, 0.45, 0.05, 0.05],
        [0.85, 0.05, 0.05, 0.05],
        [0.05, 0.05, 0.1, 0.8],
        [0.02, 0.32, 0.02, 0.64],
    ]
)

FURTHER = [
    box(
        "uniform-width",
        {"low": (-5.0, 5.0), "width": (1.0, 5.0)},
        lambda k, t: t["low"] + t["width"] * jr.uniform(k, (N,)),
        lambda x: (N + 1) / (N - 1) * (x.max() - x.min()),
        lambda t: t["width"],
    ),
    one(
        "weibull-scale",
        (0.5, 4.0),
        lambda k, t: t * jnp.sqrt(jr.exponential(k, (N,))),
        lambda x: gamma_ratio(N, N + 0.5) * jnp.sqrt((x**2).sum()),
    ),
    one(
        "exponential-of-location",
        (-1.0, 2.0),
        lambda k, t: t - jnp.log(jr.exponential(k, (N,))),
        lambda x: (N - 1) / jnp.exp(-x).sum(),
        jnp.exp,
    ),
    box(
        "effect-size",
        {"mean": (-2.0, 2.0), "sd": (0.5, 2.0)},
        lambda k, t: t["mean"] + t["sd"] * jr.normal(k, (10,)),
        effect_size,
        lambda t: t["mean"] / t["sd"],
    ),
    one(
        "negative-binomial",
        (0.2, 0.8),
        negative_binomial,
        lambda x: (3 * N - 1) / (3 * N + x.sum() - 1.0),
    ),
    one(
        "exactly-one-event",
        (0.3, 4.0),
        lambda k, t: jr.poisson(k, t, (N,)),
        lambda x: x.sum() / N * (1 - 1 / N) ** (x.sum() - 1.0),
        lambda t: t * jnp.exp(-t),
    ),
    one(
        "normal-precision",
        (0.5, 2.0),
        lambda k, t: t * jr.normal(k, (N,)),
        lambda x: (N - 2) / (x**2).sum(),
        lambda t: t**-2,
    ),
    box(
        "lognormal-median",
        {"mu": (0.0, 2.0), "sd": (0.3, 1.0)},
        lambda k, t: jnp.exp(t["mu"] + t["sd"] * jr.normal(k, (N,))),
        lognormal_median,
        lambda t: jnp.exp(t["mu"]),
    ),
    box(
        "log-variance",
        {"mean": (-3.0, 3.0), "sd": (0.5, 2.0)},
        lambda k, t: t["mean"] + t["sd"] * jr.normal(k, (N,)),
        lambda x: jnp.log(x.var() * N / 2) - jax.scipy.special.digamma((N - 1) / 2),
        lambda t: 2 * jnp.log(t["sd"]),
    ),
    box(
        "start-and-scale",
        {"start": (0.0, 3.0), "scale": (0.5, 3.0)},
        shifted,
        start_and_scale,
        lambda t: jnp.stack([t["start"], t["scale"]]),
    ),
    box(
        "power-law",
        {"least": (1.0, 3.0), "shape": (2.0, 5.0)},
        power_law,
        lambda x: 8 / jnp.log(x / x.min()).sum(),
        lambda t: t["shape"],
    ),
    box(
        "ratio-of-lifetimes",
        {"a": (1.0, 4.0), "b": (1.0, 4.0)},
        two_lifetimes,
        lambda x: x[0].mean() * 9 / x[1].sum(),
        lambda t: t["a"] / t["b"],
    ),
    one(
        "rate-with-exposures",
        (0.5, 5.0),
        lambda k, t: jr.exponential(k, (10,)) / (t * EXPOSURES),
        lambda x: 9 / (EXPOSURES @ x),
    ),
    one(
        "counts-with-exposures",
        (0.5, 5.0),
        lambda k, t: jr.poisson(k, t * EXPOSURES),
        lambda x: x.sum() * (x.sum() - 1.0) / EXPOSURES.sum() ** 2,
        lambda t: t**2,
    ),
    box(
        "power-of-a-tone",
        {"a": (-2.0, 2.0), "b": (-2.0, 2.0)},
        tone,
        lambda x: ((WAVES @ x / 8) ** 2).sum() - 2 / 8,
        lambda t: t["a"] ** 2 + t["b"] ** 2,
    ),
    plain(
        "rate-over-four-decades",
        dist.Uniform(0.01, 100.0),
        lambda k, t: jr.exponential(k, (10,)) / t,
        lambda x: 9 / x.sum(),
        jnp.geomspace(0.01, 100.0, 9),
    ),
    plain(
        "rate-without-end",
        dist.Gamma(3.0, 1.0),
        lambda k, t: jr.exponential(k, (10,)) / t,
        lambda x: 9 / x.sum(),
        jnp.geomspace(0.4, 9.0, 9),
    ),
    plain(
        "squared-mean-without-end",
        dist.Normal(0.0, 2.0),
        lambda k, t: t + jr.normal(k, (N,)),
        lambda x: x.mean() ** 2 - 1 / N,
        along(-5.0, 5.0),
        lambda t: t**2,
    ),
    one(
        "long-record",
        (0.5, 5.0),
        lambda k, t: jr.exponential(k, (200,)) / t,
        lambda x: 199 / x.sum(),
    ),
    one(
        "scale-of-three",
        (0.5, 2.0),
        lambda k, t: t * jr.normal(k, (12, 3)) @ FACTOR.T,
        lambda x: jnp.linalg.norm(x @ WHITEN.T) * gamma_ratio(18, 18.5) / math.sqrt(2),
    ),
    box(
        "covariance-of-pairs",
        PAIRS,
        pairs,
        lambda x: scatter(x)[0, 1] / 9,
        lambda t: t["s1"] * t["s2"] * t["r"],
    ),
    box("correlation-of-pairs", PAIRS, pairs, correlation, lambda t: t["r"]),
    box(
        "slope-of-pairs",
        PAIRS,
        pairs,
        lambda x: scatter(x)[0, 1] / scatter(x)[0, 0],
        lambda t: t["s2"] * t["r"] / t["s1"],
    ),
    box(
        "determinant-of-pairs",
        PAIRS,
        pairs,
        lambda x: jnp.linalg.det(scatter(x)) / (9 * 8),
        lambda t: (t["s1"] * t["s2"]) ** 2 * (1 - t["r"] ** 2),
    ),
    plain(
        "snr-of-a-direction",
        {"snr": dist.LogUniform(0.1, 10.0), "noise": dist.LogUniform(0.5, 2.0)},
        snapshots,
        snapshot_snr,
        {"snr": jnp.geomspace(0.1, 10.0, 9), "noise": jnp.geomspace(2.0, 0.5, 9)},
        lambda t: t["snr"],
    ),
    plain(
        "chance-of-the-same-kind",
        dist.Dirichlet(jnp.ones(4)),
        counts_of_kinds,
        lambda x: (x * (x - 1.0)).sum() / (20 * 19),
        SHARES,
        lambda shares: jnp.sum(shares**2),
    ),
    plain(
        "rate-of-records",
        dist.LogUniform(0.1, 10.0),
        lambda k, t: jnp.cumsum(jr.exponential(k, (8,))) / t,
        lambda x: 7 / x[-1],
        jnp.geomspace(0.1, 10.0, 9),
    ),
    box(
        "effect-of-two-samples",
        {"m1": (-2.0, 2.0), "m2": (-2.0, 2.0), "s1": (0.5, 2.0)},
        two_samples,
        effect_of_two,
        lambda t: (t["m1"] - t["m2"]) / t["s1"],
    ),
    box(
        "ratio-of-variances-about-means",
        {"m1": (-2.0, 2.0), "m2": (-2.0, 2.0), "s1": (0.5, 2.0), "s2": (0.5, 2.0)},
        two_samples,
        lambda x: x[0].var(ddof=1) / x[1].var(ddof=1) * 9 / 11,
        lambda t: (t["s1"] / t["s2"]) ** 2,
    ),
    plain(
        "rate-of-one-cause",
        {"first": dist.Gamma(3.0, 1.0), "second": dist.Gamma(3.0, 1.0)},
        two_causes,
        lambda x: x["cause"].sum() / 12 * 11 / x["time"].sum(),
        {"first": jnp.geomspace(0.44, 8.4, 9), "second": jnp.geomspace(8.4, 0.44, 9)},
        lambda t: t["first"],
    ),
    box(
        "variance-between-groups",
        {"mean": (-10.0, 10.0), "between": (0.0, 4.0), "within": (0.5, 2.0)},
        groups,
        between_groups,
        lambda t: t["between"],
    ),
    box(
        "size-ahead-over-six-decades",
        {"level": (-3.0, 3.0), "slope": (-3.0, 3.0)},
        growth,
        size_ahead,
        lambda t: jnp.exp(t["level"] + 1.5 * t["slope"]),
    ),
]
