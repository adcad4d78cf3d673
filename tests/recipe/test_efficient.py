"""A likelihood tells the training the error of an efficient estimator."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest

import mvue
from helpers.hasty import HASTY_SURVEY

N = 6


def normal_log_likelihood(theta, x):
    return jnp.sum(dist.Normal(theta, 1.0).log_prob(x))


def location(log_likelihood=normal_log_likelihood):
    return mvue.Problem(
        dist.Uniform(0.0, 4.0),
        lambda k, t: t + jr.normal(k, (N,)),
        log_likelihood,
        names=("level",),
    )


def errors_of(problem, seen, key, units=64, repeats=32):
    training = dataclasses.replace(problem, prior=seen.training_prior)
    draw = training.draw(key, units, repeats)
    found = jax.jit(jax.vmap(jax.vmap(seen.efficient_error, in_axes=(None, 0))))(draw.theta, draw.x)
    return draw, np.asarray(found)


def test_the_error_of_the_mean(swept_key):
    """The mean is efficient: its error is known to the few percent of the information's error."""
    problem = location()
    seen = mvue.survey(problem, key=swept_key, recipe=HASTY_SURVEY)
    draw, found = errors_of(problem, seen, swept_key)
    exact = np.asarray(draw.x.mean(axis=2) - draw.y)
    np.testing.assert_allclose(found[..., 0], exact, atol=0.15 * np.abs(exact).max())
    assert np.mean((found[..., 0] - exact) ** 2) < 0.01 * np.mean(exact**2)


# One object for all seeds, so that it is traced once.
RATIO = mvue.Problem.from_likelihood(
    {"level": dist.Uniform(1.0, 3.0), "scale": dist.Uniform(0.5, 2.0)},
    lambda t: dist.Normal(t["level"], t["scale"]).expand((20,)),
    target=lambda t: t["level"] / t["scale"],
)


def test_a_function_of_several_parameters(swept_key):
    """The mean over the standard deviation: its efficient error has the variance of the bound."""
    seen = mvue.survey(RATIO, key=swept_key)
    draw, found = errors_of(RATIO, seen, swept_key, units=16, repeats=2000)
    variance = (1 + np.asarray(draw.y[:, 0]) ** 2 / 2) / 20
    np.testing.assert_allclose(found[..., 0].var(axis=1) / variance, 1.0, atol=0.2)
    assert np.abs(found[..., 0].mean(axis=1) / np.sqrt(variance / 2000)).max() < 5


@pytest.mark.parametrize("factor", [0.9, 1.3])
def test_a_likelihood_of_other_data_is_refused(factor, key):
    problem = location(lambda t, x: normal_log_likelihood(factor * t, x))
    with pytest.raises(ValueError, match=r"log_likelihood and simulate disagree.*level"):
        mvue.survey(problem, key=key, recipe=HASTY_SURVEY)


def test_ends_that_move_with_theta_are_no_mistake(key):
    problem = mvue.Problem.from_likelihood(
        dist.Uniform(1.0, 3.0), lambda t: dist.Uniform(0.0, t).expand((N,))
    )
    seen = mvue.survey(problem, key=key, recipe=HASTY_SURVEY)
    assert seen.efficient_error is None
    assert "the likelihood is not used: the support" in str(seen)


def test_what_cannot_be_differentiated_is_not_used(key):
    def search(theta, x):
        value = jax.lax.while_loop(lambda v: v < 0, lambda v: v + 1.0, theta)
        return normal_log_likelihood(value, x)

    seen = mvue.survey(location(search), key=key, recipe=HASTY_SURVEY)
    assert seen.efficient_error is None
    assert "it cannot be differentiated" in str(seen)


def test_a_recipe_can_leave_it_out(key):
    recipe = dataclasses.replace(HASTY_SURVEY, likelihood=mvue.Recipe.Likelihood(used=False))
    assert mvue.survey(location(), key=key, recipe=recipe).efficient_error is None
