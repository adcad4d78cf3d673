"""What the default, `mvue.fit(problem, key=key)`, costs against the size of the problem.

A row a size: seconds of the survey and of all that comes before the first step, milliseconds a
step, and the most memory of the process, each measured in a process of its own.

    python benchmarks/default_sizes.py parameters image
"""

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings

SIZES = {
    "parameters": (1, 5, 20, 50),
    "series": (100, 1_000, 10_000),
    "set": (100, 1_000, 10_000),
    "image": (16, 32, 64),
}
WORDS = {
    "parameters": "d means, 4 draws of each",
    "series": "moving average of n samples",
    "set": "gamma shape from n draws",
    "image": "blob on n x n pixels",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=list(SIZES), metavar="kind")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(cost(asked.one[0], int(asked.one[1]), asked.steps)))
        return
    print("problem | size | survey s | before the first step s | ms a step | GB")
    for kind in asked.kinds:
        for size in SIZES[kind]:
            command = [sys.executable, __file__, "--one", kind, str(size)]
            command += ["--steps", str(asked.steps)]
            ended = subprocess.run(command, capture_output=True, text=True, check=True)
            found = json.loads(ended.stdout.splitlines()[-1])
            print(
                f"{WORDS[kind]} | {size:,} | {found['survey']:.0f} | {found['before']:.0f} | "
                f"{1e3 * found['step']:.1f} | {found['bytes'] / 1e9:.2f}",
                flush=True,
            )


def cost(kind: str, size: int, steps: int) -> dict[str, float]:
    """Seconds and bytes of a short default fit."""
    import jax.random as jr

    import mvue

    problem = {"parameters": means, "series": average, "set": gamma, "image": blob}[kind](size)
    begun = time.perf_counter()
    mvue.survey(problem, key=jr.key(1))
    survey = time.perf_counter() - begun
    recipe = mvue.Recipe(
        calibration=mvue.Recipe.Calibration(draws=0), verdict=mvue.Recipe.Verdict(values=0)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mvue.exceptions.PoorFitWarning)
        fit = mvue.fit(
            problem, key=jr.key(0), steps=steps, recipe=recipe, anchors=0, progress=False
        )
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    step = (fit.seconds - fit.compile_seconds) / steps
    return {"survey": survey, "before": fit.compile_seconds, "step": step, "bytes": most}


def box(low, high):
    import jax.numpy as jnp
    import numpyro.distributions as dist

    return dist.Uniform(jnp.asarray(low), jnp.asarray(high)).to_event(1)


def means(d):
    import jax.random as jr

    import mvue

    prior = box([0.0] * d, [3.0] * d)
    return mvue.Problem(prior, lambda key, t: t[None] + jr.normal(key, (4, d)))


def average(n):
    import jax.random as jr

    import mvue

    def simulate(key, theta):
        noise = theta[1] * jr.normal(key, (n + 1,))
        return noise[1:] + theta[0] * noise[:-1]

    return mvue.Problem(box([-0.8, 0.5], [0.8, 2.0]), simulate, target=lambda t: t[:1])


def gamma(n):
    import jax.random as jr

    import mvue

    def simulate(key, theta):
        return theta[1] * jr.gamma(key, theta[0], (n,))

    return mvue.Problem(box([0.5, 0.5], [4.0, 2.0]), simulate, target=lambda t: t[:1])


def blob(side):
    import jax.numpy as jnp
    import jax.random as jr

    import mvue

    grid = jnp.linspace(-1.0, 1.0, side)

    def simulate(key, theta):
        across, along = (jnp.exp(-0.5 * ((grid - c) / theta[2]) ** 2) for c in theta[:2])
        return jnp.outer(across, along) + 0.3 * jr.normal(key, (side, side))

    return mvue.Problem(
        box([-0.5, -0.5, 0.1], [0.5, 0.5, 0.3]), simulate, target=lambda theta: theta[:1]
    )


if __name__ == "__main__":
    main()
