"""Banks of simulations with one, two and eight measurements of each theta, of the same size.

For each problem, size and number of repeats M, a network (`mvue.fit_data`) and a linear estimator
in closed form (`mvue.sklearn.LinearBCE`) of a few statistics, with λ = 10 and all else by default.
Judged on new simulations at 60 theta of the prior: the root mean square of bias / sd, and the MSE
over that of a network with the usual regression loss on the same number of pairs (EMMSE); means
over seeds, and the half range of seeds behind ±.

    python benchmarks/banks.py --sizes 1000 10000 --seeds 0 1 2

With `--theta y` estimators are told y alone, and no nuisance parameters.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

import mvue
from mvue._core.theta import theta_rows
from mvue.problems import field, snr, textbook
from mvue.sklearn import LinearBCE

VALUES, DRAWS = 60, 2_000


def _snr(x):
    size = jnp.abs(x)
    naive = size.mean() ** 2 / size.var()
    return jnp.stack([naive, jnp.log(naive), jnp.mean(x**4) / jnp.mean(x**2) ** 2])


def _positive(x):
    mean, logs = x.mean(), jnp.log(x).mean()
    return jnp.stack([1 / mean, jnp.log(mean), logs])


def _normal(x):
    return jnp.stack([x.mean(), x.var(ddof=1), jnp.log(x.var(ddof=1))])


def _rician(x):
    return jnp.stack([x.mean(), jnp.sqrt(jnp.mean(x**2)), x.std()])


PROBLEMS = {
    "SNR": (snr(), _snr),
    "exponential rate": (textbook("exponential-rate").problem, _positive),
    "normal variance": (textbook("normal-variance").problem, _normal),
    "Rician amplitude": (field("rician-amplitude").problem, _rician),
    "decay": (field("decay").problem, lambda x: x),
}


class Case:
    """A problem, statistics of its measurements, and new simulations to judge by."""

    def __init__(self, name, told):
        self.told = told
        self.problem, self.statistics = PROBLEMS[name]
        self.test = self.draw(jr.key(1_000), VALUES, DRAWS)

    def draw(self, key, units, repeats):
        draw = self.problem.draw(key, units, repeats)
        x = jax.jit(jax.vmap(jax.vmap(self.statistics)))(draw.x)
        y = np.asarray(draw.y)
        return np.asarray(x, np.float64), y, y if self.told == "y" else theta_rows(draw.theta)

    def bank(self, seed, size, repeats):
        """Rows x, y and theta."""
        x, y, theta = self.draw(jr.key(seed), size // repeats, repeats)
        rows = (np.repeat(part, repeats, axis=0) for part in (y, theta))
        return x.reshape(-1, x.shape[2]), *rows

    def judge(self, predict):
        """Root mean square of bias / sd over theta, and the MSE."""
        x, y, _ = self.test
        errors = predict(x.reshape(-1, x.shape[2])).reshape(VALUES, DRAWS, -1) - y[:, None]
        variance = errors.var(axis=1, ddof=1)
        bias2 = errors.mean(axis=1) ** 2 - variance / DRAWS
        return np.sqrt(max(np.mean(bias2 / variance), 0.0)), np.mean(errors**2)


def network(rows, seed, loss, steps):
    x, y, theta = rows
    data = mvue.Repeats.from_rows(x, y, theta=theta)
    key = jr.key(seed)
    fit = mvue.fit_data(data, loss=loss, key=key, hidden=(32, 32), steps=steps, progress=False)
    return lambda x: fit.predict(x.astype(np.float32), warn=False)


def linear(rows):
    x, y, theta = rows
    features = make_pipeline(StandardScaler(), PolynomialFeatures(2, include_bias=False))
    X = features.fit_transform(x)
    model = LinearBCE(10.0).fit(X, y, theta=theta)
    return lambda x: model.predict(features.transform(x))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--repeats", type=int, nargs="+", default=[1, 2, 8])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS))
    parser.add_argument("--steps", type=int, default=1_500)
    parser.add_argument("--theta", choices=["all", "y"], default="all")
    given = parser.parse_args()
    heads = [f"network, M = {m}" for m in given.repeats] + [
        f"linear, M = {m}" for m in given.repeats
    ]
    print("| problem | simulations | EMMSE | " + " | ".join(heads) + " |")
    print("|---|---|---" + "|---" * len(heads) + "|")
    for name in given.problems:
        case = Case(name, given.theta)
        for size in given.sizes:
            found = {head: [] for head in ["EMMSE", *heads]}
            for seed in given.seeds:
                pairs = case.bank(seed, size, 1)
                plain = case.judge(network(pairs, seed, mvue.emmse(), given.steps))
                found["EMMSE"].append((plain[0], 1.0))
                for m in given.repeats:
                    rows = case.bank(seed, size, m)
                    predictors = {
                        f"network, M = {m}": network(rows, seed, mvue.bce(), given.steps),
                        f"linear, M = {m}": linear(rows),
                    }
                    for head, predict in predictors.items():
                        bias, mse = case.judge(predict)
                        found[head].append((bias, mse / plain[1]))
            cells = []
            for values in found.values():
                mean, half = np.mean(values, axis=0), np.ptp(values, axis=0) / 2
                cells.append(f"{mean[0]:.2f} ± {half[0]:.2f}, {mean[1]:.2f}")
            print(f"| {name} | {size:,} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    started = time.perf_counter()
    main()
    print(f"\n{time.perf_counter() - started:.0f} seconds")
