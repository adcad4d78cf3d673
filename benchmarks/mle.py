"""Time per estimate of a learned estimator, batched maximum likelihood, and SciPy.

All see the same measurements. Every round times all candidates one after the other; ratios are
medians over the rounds, so that other work on the machine hits all of them alike. SciPy gets one
good start, float64 and exact gradients, by NumPy or by compiled JAX, whichever is faster.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from scipy.optimize import minimize

import mvue
from mvue.problems import snr

PAIRS = ((0, 3), (1, 3), (2, 4), (3, 4))  # which entries beside the diagonal are not zero
POSITIVE = (0.0, np.inf)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer measurements and rounds")
    parser.add_argument("--measurements", type=int, help="in a batch; default 2000")
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args()
    measurements = options.measurements or (500 if options.quick else 2000)
    rounds = options.rounds or (3 if options.quick else 7)
    compare(
        "SNR, n = 50",
        snr(),
        {"h": POSITIVE, "snr": POSITIVE},
        snr_by_scipy(),
        None,
        measurements,
        rounds,
    )
    compare(
        "structured covariance, 5 x 5, 9 parameters, n = 200",
        covariance(),
        "none",
        covariance_by_scipy(),
        OfScatter(jr.key(2)),
        measurements,
        rounds,
    )


def compare(
    title: str,
    problem: mvue.Problem,
    bounds: Any,
    by_scipy: dict[str, Callable[[np.ndarray], np.ndarray]],
    network: Any,
    measurements: int,
    rounds: int,
) -> None:
    x = problem.draw(jr.key(1), measurements, 1).x[:, 0]
    few = np.asarray(x[: max(20, measurements // 20)], np.float64)
    learned = mvue.fit(problem, network, key=jr.key(0), steps=200, progress=False).estimator
    mle = mvue.maximum_likelihood(problem, bounds=bounds)
    mle_of_one = mvue.maximum_likelihood(problem, bounds=bounds, starts=1)
    solutions = jax.vmap(mle.solve)(x)
    candidates: dict[str, tuple[Callable[[], Any], int]] = {}
    for name, estimator in (
        ("learned", learned),
        ("maximum_likelihood, 4 starts", mle),
        ("maximum_likelihood, 1 start", mle_of_one),
    ):
        run = jax.jit(jax.vmap(estimator)).lower(x).compile()
        candidates[name] = (lambda run=run: jax.block_until_ready(run(x)), len(x))
    for name, function in by_scipy.items():
        candidates[name] = (lambda f=function: np.array([f(one) for one in few]), len(few))
    scipy_estimates = {name: candidates[name][0]() for name in by_scipy}

    micros = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, (run, count) in candidates.items():
            start = time.perf_counter()
            run()
            micros[name].append((time.perf_counter() - start) / count * 1e6)
    print(f"{title}: {measurements:,} measurements, {rounds} rounds")
    for name, values in micros.items():
        print(f"  {name:<44}{np.median(values):10.1f} µs   (fastest {min(values):.1f} µs)")
    fastest = min(by_scipy, key=lambda name: np.median(micros[name]))
    base, batched, single, scipy = (
        np.array(micros[name]) for name in ("learned", *list(candidates)[1:3], fastest)
    )
    for name, ratio, aim in (
        ("SciPy / learned", scipy / base, "aim: at least 100"),
        ("maximum_likelihood, 4 starts / learned", batched / base, "aim: at least 5"),
        ("maximum_likelihood, 1 start / learned", single / base, ""),
        ("SciPy / maximum_likelihood, 4 starts", scipy / batched, ""),
    ):
        print(f"  {name:<44}{np.median(ratio):10.1f}      {aim}")
    spread = np.asarray(solutions.y).std(axis=0)
    print(f"  converged                                   {np.mean(solutions.converged):10.4f}")
    for name, estimates in scipy_estimates.items():
        error = np.abs(estimates - np.asarray(solutions.y[: len(few)])) / spread
        print(f"  {name + ' differs by':<44}{np.median(error):10.1e} (worst {error.max():.1e}) sd")


def snr_by_scipy() -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """From the moments, in log h and log σ."""

    def loss(u: np.ndarray, x: np.ndarray) -> tuple[float, np.ndarray]:
        h, precision = np.exp(u[0]), np.exp(-2 * u[1])
        hx = h * precision * x
        size = np.abs(hx)
        rest = x @ x + len(x) * h * h
        log_cosh = size + np.log1p(np.exp(-2 * size))
        value = len(x) * u[1] + 0.5 * precision * rest - log_cosh.sum()
        inner = hx @ np.tanh(hx)
        slope = len(x) * h * h * precision - inner
        return value, np.array([slope, len(x) - precision * rest + 2 * inner])

    def start(x: np.ndarray) -> np.ndarray:
        second, fourth = np.mean(x**2), np.mean(x**4)
        h2 = np.sqrt(max((3 * second**2 - fourth) / 2, 0.04 * second**2))
        return 0.5 * np.log([h2, max(second - h2, 0.01 * second)])

    return by_bfgs(loss, start, lambda u: np.exp(2 * (u[:1] - u[1:])), _snr_in_jax)


def _snr_in_jax(u: jax.Array, x: jax.Array) -> jax.Array:
    h, precision = jnp.exp(u[0]), jnp.exp(-2 * u[1])
    size = jnp.abs(h * precision * x)
    quadratic = 0.5 * precision * (x @ x + len(x) * h * h)
    return len(x) * u[1] + quadratic - jnp.sum(size + jnp.log1p(jnp.exp(-2 * size)))


class OfScatter(eqx.Module):
    """A network of the sample covariance, which is sufficient."""

    network: eqx.nn.MLP

    def __init__(self, key: jax.Array) -> None:
        self.network = eqx.nn.MLP(15, 9, 64, 2, key=key)

    def __call__(self, x: jax.Array) -> jax.Array:
        sample = x.T @ x / len(x)
        return self.network(sample[np.tril_indices(5)])


def covariance(n: int = 200) -> mvue.Problem:
    """Σ = I + diag(y1..y5) + y6..y9 / 2 at four entries beside the diagonal, zero mean."""
    return mvue.Problem(
        prior=dist.Uniform(jnp.zeros(9), jnp.ones(9)),
        simulate=lambda key, y: jr.normal(key, (n, 5)) @ _factor(y).T,
        log_likelihood=lambda y, x: -_covariance_loss(y, x.T @ x, n),
        exchangeable=True,
    )


def _factor(y: jax.Array) -> jax.Array:
    """Cholesky factor, written out: a batch of small matrices is faster by elements."""
    entries = {(i, i): 1 + y[i] for i in range(5)}
    entries |= {(j, i): 0.5 * y[5 + k] for k, (i, j) in enumerate(PAIRS)}
    rows = [[jnp.zeros_like(y[0])] * 5 for _ in range(5)]
    for j in range(5):
        for i in range(j, 5):
            rest = entries.get((i, j), 0.0) - sum(rows[i][k] * rows[j][k] for k in range(j))
            rows[i][j] = jnp.sqrt(rest) if i == j else rest / rows[j][j]
    return jnp.stack([jnp.stack(row) for row in rows])


def _covariance_loss(y: jax.Array, scatter: jax.Array, n: int) -> jax.Array:
    factor = _factor(y)
    inverse: list[jax.Array] = []  # rows of the inverse factor
    for i in range(5):
        row = jnp.eye(5)[i] - sum(factor[i, k] * inverse[k] for k in range(i))
        inverse.append(row / factor[i, i])
    whitening = jnp.stack(inverse)
    log_determinant = 2 * jnp.sum(jnp.log(jnp.diag(factor)))
    return 0.5 * n * log_determinant + 0.5 * jnp.sum((whitening @ scatter) * whitening)


def covariance_by_scipy(n: int = 200) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """From the masked sample covariance."""
    rows = np.array([*range(5), *(i for i, _ in PAIRS)])
    columns = np.array([*range(5), *(j for _, j in PAIRS)])

    def sigma(y: np.ndarray) -> np.ndarray:
        matrix = np.zeros((5, 5))
        matrix[rows[5:], columns[5:]] = 0.5 * y[5:]
        return matrix + matrix.T + np.diag(1 + y[:5])

    def loss(y: np.ndarray, scatter: np.ndarray) -> tuple[float, np.ndarray]:
        try:
            factor = np.linalg.cholesky(sigma(y))
        except np.linalg.LinAlgError:
            return np.inf, np.zeros(9)
        root = np.linalg.inv(factor)
        precision = root.T @ root
        whitened = precision @ scatter
        value = n * np.log(np.diag(factor)).sum() + 0.5 * np.trace(whitened)
        slope = 0.5 * (n * precision - whitened @ precision)
        return value, slope[rows, columns]

    def start(scatter: np.ndarray) -> np.ndarray:
        sample = scatter / n
        masked = np.concatenate([np.diag(sample) - 1, 2 * sample[rows[5:], columns[5:]]])
        while np.linalg.eigvalsh(sigma(masked))[0] <= 0.01:
            masked[5:] *= 0.8
        return masked

    solvers = by_bfgs(loss, start, lambda y: y, lambda y, s: _covariance_loss(y, s, n))
    return {name: lambda x, f=function: f(x.T @ x) for name, function in solvers.items()}


def by_bfgs(
    loss: Callable[[np.ndarray, np.ndarray], tuple[float, np.ndarray]],
    start: Callable[[np.ndarray], np.ndarray],
    estimate: Callable[[np.ndarray], np.ndarray],
    in_jax: Callable[[jax.Array, jax.Array], jax.Array],
) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    compiled = jax.jit(jax.value_and_grad(in_jax))

    def jax_loss(u: np.ndarray, data: np.ndarray) -> tuple[float, np.ndarray]:
        with jax.enable_x64(True):
            value, gradient = compiled(u, data)
            finite = np.isfinite(value)  # no factor, no likelihood
            return (float(value), np.asarray(gradient)) if finite else (np.inf, np.zeros_like(u))

    def solver(function: Any) -> Callable[[np.ndarray], np.ndarray]:
        def solve(data: np.ndarray) -> np.ndarray:
            found = minimize(function, start(data), (data,), method="BFGS", jac=True)
            return estimate(found.x)

        return solve

    return {"SciPy BFGS, NumPy": solver(loss), "SciPy BFGS, compiled JAX": solver(jax_loss)}


if __name__ == "__main__":
    main()
