"""Do intervals of level 0.9 cover at every value, and how wide are they?

Exact estimators with intervals from learned quantiles (`mvue.interval`), with the estimate plus and
minus 1.64 standard deviations (plug-in), and with a parametric bootstrap (basic: 2 T minus the
quantiles of estimates that are simulated at T). For each, the lowest and highest coverage over
values from one end of the range of interest to the other, and the mean width in units of that of
the exact interval, where there is one. The prior reaches beyond that range.

    python benchmarks/intervals.py
    python benchmarks/intervals.py --fits   # default fits, too, some minutes
"""

import argparse
import time

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from scipy import stats

import mvue
from mvue._intervals.coverage import coverage_of

LEVEL = 0.9
TAIL = (1 - LEVEL) / 2
RESAMPLED = 400


def rate():
    """Of an exponential distribution, from 10 draws."""
    problem = mvue.Problem(
        dist.LogUniform(0.05, 50.0), lambda key, r: jr.exponential(key, (10,)) / r, names=("rate",)
    )
    low, high = stats.chi2.ppf([TAIL, 1 - TAIL], 20) / 20
    at = np.geomspace(0.3, 8.0, 9)
    return problem, lambda x: 9 / x.sum(), at, at * 10 / 9 * (high - low)


def variance():
    """Of a normal distribution with mean zero, from 10 draws."""
    problem = mvue.Problem(
        dist.LogUniform(0.02, 100.0),
        lambda key, v: jnp.sqrt(v) * jr.normal(key, (10,)),
        names=("variance",),
    )
    low, high = stats.chi2.ppf([TAIL, 1 - TAIL], 10) / 10
    at = np.geomspace(0.3, 8.0, 9)
    return problem, lambda x: jnp.mean(x**2), at, at * (1 / low - 1 / high)


def uniform_end():
    """The end of a uniform distribution, from 5 draws: not normal, however many there are."""
    problem = mvue.Problem(
        dist.LogUniform(0.05, 50.0), lambda key, b: b * jr.uniform(key, (5,)), names=("end",)
    )
    at = np.geomspace(0.3, 8.0, 9)
    low, high = np.array([1 - TAIL, TAIL]) ** (1 / 5)
    return problem, lambda x: 6 / 5 * x.max(), at, at * 5 / 6 * (1 / high - 1 / low)


def binomial():
    """The probability of success, from 20 trials; exact is Clopper and Pearson's."""
    problem = mvue.Problem.from_likelihood(
        dist.Uniform(0.01, 0.99), lambda p: dist.Binomial(20, p), names=("p",)
    )
    at, k = np.linspace(0.1, 0.9, 33), np.arange(21)
    low = np.where(k > 0, stats.beta.ppf(TAIL, k, 21 - k), 0.0)
    high = np.where(k < 20, stats.beta.ppf(1 - TAIL, k + 1, 20 - k), 1.0)
    width = (stats.binom.pmf(k[:, None], 20, at) * (high - low)[:, None]).sum(axis=0)
    return problem, lambda x: x / 20, at, width


def poisson():
    """A mean from 5 counts; exact is Garwood's."""
    problem = mvue.Problem.from_likelihood(
        dist.Uniform(0.1, 14.0), lambda m: dist.Poisson(5 * m), names=("mean",)
    )
    at, k = np.linspace(1.0, 8.0, 33), np.arange(120)
    low, high = stats.chi2.ppf(TAIL, 2 * k), stats.chi2.isf(TAIL, 2 * k + 2)
    width = (np.nan_to_num(high) - np.nan_to_num(low)) / 10
    return problem, lambda x: x / 5, at, stats.poisson.pmf(k[:, None], 5 * at).T @ width


def tone():
    """The frequency of a tone in noise, maximum likelihood on a grid with a parabola."""
    time_of = jnp.arange(32.0)
    problem = mvue.Problem(
        dist.Uniform(0.05, 0.45),
        lambda key, f: jnp.cos(2 * jnp.pi * f * time_of) + 0.5 * jr.normal(key, (32,)),
        names=("frequency",),
    )
    grid = jnp.linspace(0.03, 0.47, 1761)
    table = jnp.cos(2 * jnp.pi * grid[:, None] * time_of[None, :])

    def estimate(x):
        score = table @ x - 0.5 * jnp.sum(table**2, axis=1)
        i = jnp.clip(jnp.argmax(score), 1, grid.shape[0] - 2)
        a, b, c = score[i - 1], score[i], score[i + 1]
        return grid[i] + 0.5 * (a - c) / (a - 2 * b + c) * (grid[1] - grid[0])

    return problem, estimate, np.linspace(0.1, 0.4, 9), None


PROBLEMS = {
    "exponential rate": rate,
    "normal variance": variance,
    "end of a uniform": uniform_end,
    "tone, by likelihood": tone,
    "binomial (discrete)": binomial,
    "Poisson (discrete)": poisson,
}


def bootstrap(problem, function, at, repeats, key):
    """Coverage and mean width of a basic parametric bootstrap."""

    def one(key, theta):
        first, rest = jr.split(key)
        found = jnp.reshape(function(problem.simulate(first, theta)), ())
        keys = jr.split(rest, RESAMPLED)
        again = jax.vmap(lambda k: jnp.reshape(function(problem.simulate(k, found)), ()))(keys)
        low, high = jnp.quantile(again, jnp.array([TAIL, 1 - TAIL]))
        return 2 * found - high, 2 * found - low

    run = jax.jit(lambda key, theta: jax.lax.map(lambda k: one(k, theta), jr.split(key, repeats)))
    rates, widths = [], []
    for k, value in enumerate(at):
        low, high = (np.asarray(end) for end in run(jr.fold_in(key, k), jnp.asarray(value)))
        rates.append(((low <= value) & (value <= high)).mean())
        widths.append((high - low).mean())
    return np.array(rates), np.array(widths)


def shown(name, method, rates, widths, exact):
    """One row."""
    ratio = "" if exact is None else f"{np.mean(widths / exact):.3f}"
    print(f"{name:22}{method:14}{rates.min():8.1%}{rates.max():8.1%}  {ratio}", flush=True)


def cost(intervals, problem):
    """The time of 10⁵ intervals in units of that of 10⁵ estimates."""
    x = np.concatenate([np.asarray(problem.draw(jr.key(9), 1000, 1).x)[:, 0]] * 100)
    seconds = []
    for call in (intervals.predictor.predict, intervals):
        call(x)
        start = time.perf_counter()
        call(x)
        seconds.append(time.perf_counter() - start)
    return seconds[1] / seconds[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20_000)
    parser.add_argument("--fits", action="store_true")
    args = parser.parse_args()
    print(f"{'':22}{'method':14}{'lowest':>8}{'highest':>8}  width / exact")
    for name, make in PROBLEMS.items():
        problem, function, at, exact = make()
        for method, label in (("inverted", "quantiles"), ("plug_in", "plug-in")):
            made = mvue.interval(function, problem, method=method, key=jr.key(0))
            found = coverage_of(made, problem, jnp.asarray(at), repeats=args.repeats, key=jr.key(1))
            shown(name, label, found.rate, found.width[:, 0], exact)
            if label == "quantiles":
                ratio = cost(made, problem)
        rates, widths = bootstrap(problem, function, at, args.repeats // 10, jr.key(2))
        shown(name, "bootstrap", rates, widths, exact)
        print(f"{'':22}10⁵ intervals cost {ratio:.1f} times as much as 10⁵ estimates")
    for name in ("exponential-rate", "normal-variance") if args.fits else ():
        entry = mvue.problems.textbook(name)
        fit = mvue.fit(entry.problem, key=jr.key(0))
        report = mvue.assess(fit, entry.problem, repeats=args.repeats, level=LEVEL, key=jr.key(1))
        (found,) = report.coverage.values()
        shown(f"fit: {name}", "quantiles", found.rate, found.width[:, 0], None)


if __name__ == "__main__":
    main()
