"""Inputs that a second look found to be taken without a word, or refused without a reason."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest

import mvue
from helpers.plain import plain_fit


def masked(shape):
    values = np.ones(shape)
    values[0] = -999.0  # what is below a mask is nothing that anybody means
    return np.ma.masked_equal(values, -999.0)


@pytest.mark.parametrize(
    "use",
    [
        lambda: mvue.average(lambda x: x[:1], masked((4, 3))),
        lambda: mvue.Repeats.from_rows(masked((4, 3)), np.arange(4.0)),
        lambda: mvue.Repeats.from_rows(np.ones((4, 3)), masked(4)),
        lambda: mvue.sklearn.LinearBCE().fit(masked((4, 3)), np.arange(4.0)),
        lambda: mvue.sklearn.BCERegressor().fit(masked((4, 3)), np.arange(4.0)),
        lambda: mvue.lmmse(np.ones((3, 1)), np.eye(3), np.eye(1)).predict(masked((4, 3))),
    ],
)
def test_masked_numbers_are_refused(use):
    with pytest.raises(ValueError, match="masked numbers, and a mask is not used"):
        use()


def test_a_simulator_may_not_return_masked_numbers():
    with pytest.raises(mvue.exceptions.SimulatorError, match="an array with masked numbers"):
        mvue.simulate(lambda t, rng: masked(3) * rng.normal(), lambda rng: rng.uniform(), units=64)


def noisy(key, theta):
    return theta + jr.normal(key, (3,))


def test_names_that_are_the_same_are_refused():
    prior = dist.Uniform(jnp.zeros(2), jnp.ones(2)).to_event(1)
    with pytest.raises(ValueError, match="names must differ, got 'a' twice"):
        mvue.Problem(prior, lambda key, t: t + jr.normal(key, (2,)), names=("a", "a"))


def test_a_simulator_without_numbers_is_refused():
    with pytest.raises(mvue.exceptions.SimulatorError, match="at least one number, got shape"):
        mvue.Problem(dist.Uniform(0.0, 1.0), lambda key, t: jnp.zeros(0) + t)


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"key": jr.split(jr.key(0), 2)}, TypeError, "key must be one random key"),
        ({"key": jnp.zeros(3, jnp.uint32)}, TypeError, "key must be a random key"),
        ({"optimizer": float("inf")}, ValueError, "must be positive and finite, got inf"),
        ({"checkpoint": ""}, TypeError, "checkpoint must be the name of a folder"),
    ],
)
def test_odd_arguments_of_fit_are_refused_by_name(changes, error, match):
    problem = mvue.Problem(dist.Uniform(0.0, 1.0), noisy)
    with pytest.raises(error, match=match):
        plain_fit(problem, eqx.nn.MLP(3, 1, 4, 1, key=jr.key(0)), **({"key": jr.key(0)} | changes))


def test_keys_of_either_kind_train_the_same():
    problem = mvue.Problem(dist.Uniform(0.0, 1.0), noisy)
    network = eqx.nn.MLP(3, 1, 4, 1, key=jr.key(0))
    new, old = (
        plain_fit(problem, network, key=key, steps=3, validations=1)
        for key in (jr.key(3), jr.PRNGKey(3))
    )
    assert new.held_out == old.held_out


def test_texts_are_not_averaged():
    with pytest.raises(TypeError, match="x must be numbers, got <U1"):
        mvue.average(lambda x: x[:1], np.full((4, 3), "1"))
