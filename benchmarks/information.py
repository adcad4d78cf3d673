"""Estimated bounds against exact ones: what simulations alone tell of the Cramér-Rao bound.

Eight problems whose Fisher information is known, and two whose densities have a jump that moves
with theta, which must be refused. The ratio of the estimated variance to the bound is not below 1
but for its standard error.

    python benchmarks/information.py [--seeds 3]
"""

import argparse

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist

import mvue
from mvue import problems

N = 10
DOSES = np.linspace(-1.0, 1.0, 20, dtype=np.float32)
FIELD = {"tone": 2, "delay": 2, "autoregression": 2, "decay": 2}


def box(**ends):
    return {name: dist.Uniform(*pair) for name, pair in ends.items()}


def both(*names):
    return lambda theta: jnp.stack([theta[name] for name in names])


def normal(key, theta):
    return theta["mean"] + jnp.sqrt(theta["variance"]) * jr.normal(key, (N,))


def poisson(key, theta):
    return jr.poisson(key, jnp.exp(theta["a"] + theta["b"] * DOSES))


def poisson_bound(a, b):
    means = np.exp(a + b * np.asarray(DOSES, np.float64))
    design = np.stack([np.ones(len(DOSES)), np.asarray(DOSES, np.float64)], axis=1)
    return np.linalg.inv(design.T @ (means[:, None] * design))


def shifted(key, theta):
    return theta["start"] + theta["scale"] * jr.exponential(key, (N,))


def cases():
    """Name, problem, theta, and the bound: None where there is none."""
    yield (
        "normal mean, variance",
        mvue.Problem(
            box(mean=(-3.0, 3.0), variance=(0.5, 4.0)), normal, target=both("mean", "variance")
        ),
        {"mean": 1.0, "variance": 2.0},
        np.diag([2 / N, 2 * 2.0**2 / N]),
    )
    yield (
        "exponential rate",
        mvue.Problem(dist.LogUniform(0.3, 8.0), lambda k, rate: jr.exponential(k, (N,)) / rate),
        2.0,
        np.array([[2.0**2 / N]]),
    )
    yield (
        "Laplace location",
        mvue.Problem(dist.Uniform(-3.0, 3.0), lambda k, at: at + jr.laplace(k, (N,))),
        0.5,
        np.array([[1 / N]]),
    )
    yield (
        "Poisson regression",
        mvue.Problem(box(a=(0.0, 3.0), b=(-1.0, 1.0)), poisson, target=both("a", "b")),
        {"a": 1.0, "b": 0.5},
        poisson_bound(1.0, 0.5),
    )
    for name, number in FIELD.items():
        entry = problems.field(name)
        theta = np.asarray(entry.at[number], np.float64)
        yield name, entry.problem, theta, entry.crb(theta[None])[0]
    yield (
        "uniform maximum",
        mvue.Problem(dist.Uniform(1.0, 2.0), lambda k, top: top * jr.uniform(k, (N,))),
        1.5,
        None,
    )
    yield (
        "shifted exponential",
        mvue.Problem(box(start=(-1.0, 1.0), scale=(0.5, 2.0)), shifted, target=both("start")),
        {"start": 0.0, "scale": 1.0},
        None,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    print("variance over the Cramér-Rao bound, of the estimated bound and of statistics alone")
    failed = 0
    for name, problem, theta, exact in cases():
        for seed in seeds:
            try:
                found = mvue.information_bound(problem, theta, key=jr.key(seed))
            except mvue.exceptions.IrregularModelError as error:
                failed += exact is not None
                print(f"{name:22} seed {seed}: refused: {error}", flush=True)
                continue
            if exact is None:
                failed += 1
                print(f"{name:22} seed {seed}: NOT refused", flush=True)
                continue
            variance = np.diag(exact)
            ratio, se = np.diag(found.matrix) / variance, np.diag(found.se) / variance
            alone = np.diag(found.of_statistics) / variance
            alone_se = np.diag(found.of_statistics_se) / variance
            failed += int((ratio < 1 - 3 * se).sum())
            for j, part in enumerate(found.names):
                print(
                    f"{name:22} seed {seed}: {part:12} {ratio[j]:.3f} ± {se[j]:.3f}   "
                    f"statistics {alone[j]:.3f} ± {alone_se[j]:.3f}   {found.method}",
                    flush=True,
                )
    print("all as they must be" if not failed else f"{failed} wrong")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
