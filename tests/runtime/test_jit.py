"""Compiled programs do not keep every problem alive that was ever used."""

import gc
import weakref

import jax.numpy as jnp
import jax.random as jr
import numpyro.distributions as dist

import mvue
from mvue._core.sampling import compiled_draw
from mvue._runtime.jit import KEPT, forgetful_jit


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
