"""Compiled programs: what they keep alive, compute once, and do in either precision."""

import gc
import os
import subprocess
import sys
import weakref

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest

import mvue
from mvue._core.sampling import compiled_draw
from mvue._runtime.jit import (
    KEPT,
    forgetful_jit,
    held,
    in_double_precision,
    in_either_precision,
)


class Owner:
    pass


def test_only_the_last_owners_are_kept():
    count = 0

    @forgetful_jit
    def double(owner, x, n):
        nonlocal count
        count += 1
        return n * x

    owners = [Owner() for _ in range(3 * KEPT)]
    for owner in owners:
        assert double(owner, jnp.ones(2), 2).tolist() == [2.0, 2.0]
        assert double(owner, jnp.zeros(2), 2).tolist() == [0.0, 0.0]
    assert count == len(owners)
    alive = [weakref.ref(owner) for owner in owners]
    del owner, owners
    gc.collect()
    assert sum(ref() is not None for ref in alive) <= KEPT


def test_problems_that_were_drawn_from_are_freed():
    def make():
        return mvue.Problem(dist.Uniform(0.0, 1.0), lambda key, t: t + jr.normal(key, (2,)))

    alive = []
    for _ in range(KEPT + 4):
        problem = make()
        compiled_draw(problem, jr.key(0), 2, 2)
        alive.append(weakref.ref(problem.simulate))
    del problem
    gc.collect()
    assert sum(ref() is not None for ref in alive) <= KEPT


def test_held_results_are_computed_once():
    """Random numbers that many results use are in a branch of their own, and the same."""

    def many(numbers):
        return jnp.stack([jnp.sum(numbers[k:] * numbers[: 50 - k]) for k in range(8)])

    def plain(key):
        return many(jr.normal(key, (50,)))

    def once(key):
        return many(held(lambda key: jr.normal(key, (50,)), key))

    compiled = jax.jit(once).lower(jr.key(0)).compile()
    assert " conditional(" in compiled.as_text()
    keys = jr.split(jr.key(1), 3)
    assert jnp.allclose(jax.jit(once)(keys[0]), plain(keys[0]), atol=1e-5)
    assert jnp.allclose(jax.vmap(once)(keys), jax.vmap(plain)(keys), atol=1e-5)


def test_numpy_constants_in_both_precisions():
    """What closes over an array of NumPy compiles in double precision after single, and back."""
    times = np.linspace(0.0, 3.0, 16)

    def curve(rate):
        return rate * jnp.exp(-rate * times)

    exact = 2.0 * np.exp(-2.0 * times)
    for _ in range(2):
        single = in_either_precision(lambda: jax.jit(curve)(jnp.asarray(2.0)))
        double = in_double_precision(
            lambda: np.asarray(jax.jit(lambda rate: curve(rate))(jnp.asarray(2.0)))
        )
        assert single.dtype == jnp.float32
        np.testing.assert_allclose(single, exact, rtol=1e-5)
        np.testing.assert_allclose(double, exact, rtol=1e-14)


def test_other_errors_are_not_tried_again():
    calls = []

    def fails():
        calls.append(1)
        raise ValueError("of its own")

    with pytest.raises(ValueError, match="of its own"):
        in_either_precision(fails)
    assert len(calls) == 1


CACHED = """
import jax, numpy as np
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name.endswith("cache_hits")))
import mvue
from mvue._runtime.jit import jit
print(jit(lambda x: np.float32(3.0) * x + 1.0)(np.ones(7, np.float32)).sum(), sum(hits))
"""


def test_programs_are_kept_in_the_folder_that_is_named(tmp_path):
    """And nowhere else, unless it is named."""

    def run(**named):
        env = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
        command = [sys.executable, "-c", CACHED]
        done = subprocess.run(command, env=env | named, capture_output=True, text=True, check=True)
        total, hits = done.stdout.split()
        assert float(total) == 28.0
        return int(hits)

    assert run() == 0
    folder = tmp_path / "programs"
    assert run(MVUE_CACHE_DIR=str(folder)) == 0
    assert list(folder.iterdir())
    assert run(MVUE_CACHE_DIR=str(folder)) > 0
