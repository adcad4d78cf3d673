"""The hand-written linear algebra and sorting of small things against JAX's own.

Both sides of a row get the same batch, compiled, and take turns; a ratio is the median over the
rounds of JAX's time by ours, in processor time of this process, so that other work on the machine
does not decide. Above 1, ours is faster.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import Array

from mvue._numerics.small_matrices import cholesky, invert, multiply, solve
from mvue._numerics.sorting import sort

MATRICES = (2, 3, 5, 8, 10, 16)
VECTORS = (10, 20, 50, 100, 256, 512)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    print(f"JAX {jax.__version__}, {jax.default_backend()}, batches of {options.batch:,}, float32")
    print("time of JAX / time of ours\n")
    algebra = {
        "cholesky": (jnp.linalg.cholesky, cholesky),
        "inverse, log-determinant": (by_cholesky, inverse_and_log_determinant),
        "inverse by LU": (jnp.linalg.inv, lambda a: invert(a)[0]),
        "solve": (solve_by_cholesky, lambda a, b: solve(a, b)[0]),
        "solve by LU": (jnp.linalg.solve, lambda a, b: solve(a, b)[0]),
        "product": (jnp.matmul, multiply),
    }
    table(algebra, MATRICES, matrices, options.batch, options.rounds)
    sorts = {
        "sort": (jnp.sort, sort),
        "top_k of all": (lambda v: -jax.lax.top_k(-v, v.shape[0])[0], sort),
    }
    table(sorts, VECTORS, vectors, options.batch, options.rounds)


def table(
    rows: dict[str, tuple[Callable[..., Any], Callable[..., Any]]],
    sizes: tuple[int, ...],
    inputs: Callable[[str, int, int], tuple[Array, ...]],
    batch: int,
    rounds: int,
) -> None:
    print(f"{'size':26}" + "".join(f"{size:8}" for size in sizes))
    for name, (theirs, ours) in rows.items():
        ratios = [ratio(theirs, ours, inputs(name, size, batch), rounds) for size in sizes]
        print(f"{name:26}" + "".join(f"{r:8.2f}" for r in ratios), flush=True)
    print()


def ratio(
    theirs: Callable[..., Any], ours: Callable[..., Any], inputs: tuple[Array, ...], rounds: int
) -> float:
    """Processor time of the one by that of the other, after a check that both agree."""
    runs = [jax.jit(jax.vmap(function)).lower(*inputs).compile() for function in (theirs, ours)]
    for a, b in zip(*(jax.tree.leaves(run(*inputs)) for run in runs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-3)
    repeats = max(1, int(0.02 / max(timed(runs[1], inputs, 3), 1e-6)))
    times = [[timed(run, inputs, repeats) for run in runs] for _ in range(rounds)]
    return float(np.median([a / b for a, b in times]))


def timed(run: Callable[..., Any], inputs: tuple[Array, ...], repeats: int) -> float:
    start = time.process_time()
    for _ in range(repeats):
        jax.block_until_ready(run(*inputs))
    return (time.process_time() - start) / repeats


def matrices(name: str, p: int, batch: int) -> tuple[Array, ...]:
    half = jr.normal(jr.key(p), (batch, p, 4 * p))
    a = half @ half.swapaxes(1, 2) / (4 * p)
    if "prod" in name:
        return a, a
    return (a, half[:, :, 0]) if name.startswith("solve") else (a,)


def vectors(name: str, n: int, batch: int) -> tuple[Array, ...]:
    del name
    return (jr.normal(jr.key(n), (batch, n)),)


def inverse_and_log_determinant(a: Array) -> tuple[Array, Array]:
    inverse, pivots = invert(a)
    return inverse, jnp.log(pivots).sum()


def by_cholesky(a: Array) -> tuple[Array, Array]:
    factor = jnp.linalg.cholesky(a)
    inverse = jax.scipy.linalg.cho_solve((factor, True), jnp.eye(a.shape[0]))
    return inverse, 2 * jnp.log(jnp.diag(factor)).sum()


def solve_by_cholesky(a: Array, b: Array) -> Array:
    return jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(a), True), b)


if __name__ == "__main__":
    main()
