"""Functions that draw random numbers while they are traced: one frozen draw is not noise."""

import random

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest

import mvue

PROBLEM = mvue.Problem(dist.Uniform(1.0, 5.0), lambda key, t: t + jr.normal(key, (3,)))
OWN = np.random.default_rng(0)
MATRIX = np.arange(9.0).reshape(3, 3)

RANDOM = {
    "numpy": lambda x: x.mean() * np.random.normal(),  # noqa: NPY002
    "python": lambda x: x.mean() + random.random(),
    "own": lambda x: x.mean() + OWN.normal(),
    "shuffled": lambda x: x[OWN.permutation(np.arange(3))] @ jnp.arange(3.0),
    "compiled": jax.jit(lambda x: x.mean() + np.random.normal()),  # noqa: NPY002
}


def seeded(x):
    np.random.seed(3)  # noqa: NPY002
    return x.mean() + np.random.normal()  # noqa: NPY002


FIXED = {
    "seeded": seeded,
    "own": lambda x: x.mean() + np.random.default_rng(0).normal(),
    "of JAX": lambda x: x.mean() + 0 * jr.normal(jr.key(0)),
    "constants": lambda x: (MATRIX @ x).sum() + jax.nn.softplus(x).sum() + jnp.nan * 0,
    "numpy": lambda x: np.asarray(x).mean() + np.random.normal(),  # noqa: NPY002 - in each call
}


def assess(estimator):
    return mvue.assess(estimator, PROBLEM, at=np.array([2.0]), repeats=8, key=jr.key(0))


@pytest.mark.parametrize("name", RANDOM)
def test_frozen_draws_are_refused(name):
    with pytest.raises(ValueError, match=r"'estimator' must return the same for the same x"):
        assess(RANDOM[name])


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.filterwarnings("ignore::mvue.exceptions.NonFiniteWarning")
def test_fixed_numbers_and_functions_of_numpy_are_not(name):
    assess(FIXED[name])


def test_wherever_functions_are_traced():
    random_one = RANDOM["own"]
    known = mvue.Problem(
        {"y": dist.Uniform(1.0, 5.0), "sd": dist.Uniform(0.5, 2.0)},
        lambda key, t: jnp.stack([t["y"] + t["sd"] * jr.normal(key), t["sd"]]),
        target=lambda t: t["y"],
    )
    for call in (
        lambda: mvue.average(random_one, np.ones((4, 3))),
        lambda: mvue.average(jnp.mean, np.ones((4, 3)), weights=random_one),
        lambda: mvue.Average.learned(random_one, known, lambda x: x[1], key=jr.key(0)),
        lambda: mvue.fit(PROBLEM, random_one, key=jr.key(0), steps=10),
    ):
        with pytest.raises(ValueError, match="must return the same for the same x"):
            call()


@pytest.mark.parametrize(("output", "got"), [(None, "None"), ("a", "'a'")])
def test_what_is_no_number_is_refused(output, got):
    with pytest.raises(ValueError, match=f"it returned {got}"):
        assess(lambda x: output)
