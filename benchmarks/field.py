"""The default recipe, `mvue.fit(problem, key=key)`, on signals, arrays, series and images.

A row a problem and seed: the worst |bias| in standard deviations of the estimator, the smallest …
largest MSE over the Cramér-Rao bound, the verdict of the fit itself, and seconds.

    python benchmarks/field.py tone delay --seeds 0 1 2
"""

import argparse
import time
import warnings

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import mvue
from field_problems import FIELD


def judged(entry, fit, repeats):
    """Bias over sd and MSE over the bound at each value."""
    rows = []
    for theta in entry.at:
        at = jnp.asarray(theta, jnp.result_type(float))
        keys = jr.split(jr.key(7), repeats)
        x = jax.jit(jax.vmap(lambda key, at=at: entry.problem.simulate(key, at)))(keys)
        errors = np.asarray(fit.predict(x), np.float64)[:, 0] - float(entry.problem.y_of(at)[0])
        bias, sd = errors.mean(), errors.std(ddof=1)
        rows.append([bias / sd, (errors**2).mean() / entry.crb(theta)])
    return np.array(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problems", nargs="*", default=list(FIELD), metavar="problem")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int)
    parser.add_argument("--repeats", type=int, default=20_000)
    asked = parser.parse_args()
    print(
        "problem | seed | worst abs(bias)/sd | MSE/CRB | verdict | seconds (before the first step)"
    )
    for name in asked.problems:
        entry = FIELD[name]()
        for seed in asked.seeds:
            begun = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", mvue.exceptions.PoorFitWarning)
                fit = mvue.fit(entry.problem, key=jr.key(seed), steps=asked.steps, progress=False)
            seconds = time.perf_counter() - begun
            bias, mse = judged(entry, fit, asked.repeats).T
            ratios = " … ".join(f"{value:.3f}" for value in (mse.min(), np.median(mse), mse.max()))
            print(
                f"{name} | {seed} | {np.abs(bias).max():.3f} | {ratios} | "
                f"{fit.verdict.judgement} | {seconds:.0f} ({fit.compile_seconds:.0f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
