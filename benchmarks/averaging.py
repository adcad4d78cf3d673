"""Weights of averages: equal, learned, one over the true variance, and taken from the same data.

Forty sensors of unequal quality measure one parameter. For each problem, value of the parameter and
kind of weights: the bias of the average in its standard deviations, and its variance over that of
the best weights, which are one over the true variance at that value.

    python benchmarks/averaging.py
"""

import argparse

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist

import mvue

SENSORS, DRAWS = 40, 20_000


def _sizes(key, theta):
    """Eight to forty numbers of a variance: the size of the set is known."""
    there = jnp.arange(40) < theta["size"]
    x = jnp.sqrt(theta["variance"]) * jr.normal(key, (40,))
    return {"x": jnp.where(there, x, 0.0), "size": theta["size"]}


def _variance_of(s):
    mean = s["x"].sum() / s["size"]
    there = jnp.arange(40) < s["size"]
    return jnp.where(there, (s["x"] - mean) ** 2, 0.0).sum() / (s["size"] - 1)


def _rate(key, theta):
    count = jr.poisson(key, theta["rate"] * theta["time"])
    return {"count": count, "time": theta["time"]}


def _camera(key, theta):
    """Light with shot noise, whose variance is gain · light, and read noise of known size."""
    sd = jnp.sqrt(theta["read"] ** 2 + theta["gain"] * theta["light"])
    quality = {name: theta[name] for name in ("read", "gain")}
    return {"signal": theta["light"] + sd * jr.normal(key), **quality}


# Prior of the parameter, of the quality, simulator, estimator, what is known, true variance,
# variance as the measurement itself tells it, values.
CASES = {
    "variance from sets of 3 … 40": (
        {"variance": dist.Uniform(0.5, 4.0)},
        {"size": dist.DiscreteUniform(3, 40)},
        _sizes,
        _variance_of,
        lambda s: s["size"],
        lambda y, q: 2 * y**2 / (q["size"] - 1),
        lambda s, e: 2 * e**2 / (s["size"] - 1),
        (1.0, 3.0),
    ),
    "rate from counts in 0.5 … 20 s": (
        {"rate": dist.Uniform(1.0, 5.0)},
        {"time": dist.LogUniform(0.5, 20.0)},
        _rate,
        lambda s: s["count"] / s["time"],
        lambda s: s["time"],
        lambda y, q: y / q["time"],
        lambda s, e: (e + 0.5 / s["time"]) / s["time"],
        (1.5, 4.0),
    ),
    "light with shot and read noise": (
        {"light": dist.Uniform(1.0, 10.0)},
        {"read": dist.LogUniform(0.3, 5.0), "gain": dist.LogUniform(0.1, 3.0)},
        _camera,
        lambda s: s["signal"],
        lambda s: jnp.stack([s["read"], s["gain"]]),
        lambda y, q: q["read"] ** 2 + q["gain"] * y,
        lambda s, e: s["read"] ** 2 + s["gain"] * jnp.maximum(e, 0.1),
        (1.5, 9.0),
    ),
}


def judge(case, seed):
    """Bias / sd and variance over the least, for each value and kind of weights."""
    parameter, quality, simulate, estimator, known, variance, of_data, values = case
    (name,) = parameter
    problem = mvue.Problem(parameter | quality, simulate, target=lambda theta: theta[name])
    fused = mvue.Average.learned(estimator, problem, known, key=jr.key(seed))
    keys = dict(zip(quality, jr.split(jr.key(100 + seed), len(quality)), strict=True))
    sensors = {q: quality[q].sample(keys[q], (SENSORS,)) for q in quality}

    def sets(key, y):
        theta = sensors | {name: jnp.full(SENSORS, y)}
        return jax.vmap(simulate)(jr.split(key, SENSORS), theta)

    def averages(key, y):
        x = sets(key, y)
        estimates = jax.vmap(estimator)(x)
        true = variance(y, sensors)
        weights = {
            "equal": jnp.ones(SENSORS),
            "learned": jax.vmap(fused.weights)(x)[:, 0],
            "oracle": 1 / true,
            "from the data": 1 / jax.vmap(of_data)(x, estimates),
        }
        return {kind: jnp.sum(w * estimates) / jnp.sum(w) for kind, w in weights.items()}

    found = {}
    for y in values:
        keys = jr.split(jr.key(200 + seed), DRAWS)
        drawn = jax.jit(jax.vmap(averages, (0, None)))(keys, y)
        least = 1 / np.sum(1 / np.asarray(variance(y, sensors), np.float64))
        for kind, values_of in drawn.items():
            errors = np.asarray(values_of, np.float64) - y
            found[y, kind] = errors.mean() / errors.std(), errors.var() / least
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    given = parser.parse_args()
    kinds = ["equal", "learned", "oracle", "from the data"]
    print("| measurements | value | " + " | ".join(kinds) + " |")
    print("|---|---" + "|---" * len(kinds) + "|")
    for name, case in CASES.items():
        found = [judge(case, seed) for seed in given.seeds]
        for y in case[-1]:
            cells = []
            for kind in kinds:
                bias, ratio = np.mean([one[y, kind] for one in found], axis=0)
                cells.append(f"{bias:+.2f}, {ratio:.2f}")
            print(f"| {name} | {y:g} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
