"""The verdict sees what is wrong with an estimator, and says so."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest

import mvue
from helpers.hasty import HASTY, HASTY_SURVEY
from mvue._core.sampling import Simulations
from mvue._finish.verdict import Judgement, judge
from mvue.nn._staged import prepare
from mvue.problems import textbook

N = 8
SETTINGS = mvue.Recipe.Verdict(values=7, repeats=4096)


@pytest.fixture(scope="module")
def problem():
    return mvue.Problem(
        dist.Uniform(1.0, 3.0), lambda k, t: t + jr.normal(k, (N,)), names=("level",)
    )


@pytest.fixture(scope="module")
def seen(problem):
    return mvue.survey(problem, key=jr.key(0), recipe=HASTY_SURVEY)


def verdict(estimator, problem, seen, key, settings=SETTINGS):
    simulations = Simulations(problem, 128, 8, lambda _, x: prepare(estimator, x))
    return judge(estimator, problem, seen, settings, simulations, key=key)


def test_the_mean_is_good(problem, seen, swept_key):
    found = verdict(jnp.mean, problem, seen, swept_key)
    assert found.judgement is Judgement.GOOD
    assert found.max_bias_over_sd < 5 / np.sqrt(4096)
    assert found.y.min() == pytest.approx(1.0, abs=1e-3)
    assert found.y.max() == pytest.approx(3.0, abs=1e-3)
    np.testing.assert_allclose(np.median(found.mse_over_expected), 1.0, atol=0.35)
    assert not found.reasons


def test_shrinkage_is_bias(problem, seen, swept_key):
    found = verdict(lambda x: 0.7 * jnp.mean(x) + 0.6, problem, seen, swept_key)
    assert found.judgement is Judgement.POOR
    assert "level is biased" in str(found)
    assert "try: more steps" in str(found)


def test_noise_is_error(problem, seen, swept_key):
    found = verdict(lambda x: x[0], problem, seen, swept_key)
    assert found.judgement is Judgement.POOR
    assert "the error of level is far from the estimated bound" in str(found)
    assert "summaries= of your own" in str(found)


def test_an_error_that_is_large_at_one_end_alone_is_not_good(problem, seen, swept_key):
    """Three times the bound at an end, as that of a network that did not learn it."""

    def estimator(x):
        mean = jnp.mean(x)
        # Digits that tell nothing make noise of no bias.
        noise = jnp.sign(jnp.sin(1e4 * jnp.sum(x)))
        return mean + 1.5 / np.sqrt(N) * noise * (mean > 2.9)

    found = verdict(estimator, problem, seen, swept_key)
    assert found.judgement is Judgement.FAIR
    assert np.median(found.mse_over_expected) < 1.35


@pytest.mark.parametrize("value", [2.0, np.nan])
def test_a_constant_or_no_number_is_poor(value, problem, seen, key):
    found = verdict(lambda x: jnp.full(1, value), problem, seen, key)
    assert found.judgement is Judgement.POOR
    assert str(found)


def test_failures_are_counted(problem, seen, swept_key):
    found = verdict(lambda x: jnp.log(x[0]), problem, seen, swept_key)
    assert found.failures > 0
    assert "not finite" in str(found)


def test_what_the_data_do_not_tell_is_named(key):
    """Only the product of two parameters is seen."""
    problem = mvue.Problem(
        dist.Uniform(1.0, 2.0).expand((2,)).to_event(1),
        lambda k, t: t[0] * t[1] + 0.01 * jr.normal(k, (N,)),
        names=("a", "b"),
    )
    seen = mvue.survey(problem, key=key, recipe=HASTY_SURVEY)
    found = verdict(lambda x: jnp.full(2, jnp.sqrt(jnp.mean(x))), problem, seen, key)
    assert found.judgement is Judgement.POOR
    assert "estimates do not follow a, b" in str(found)
    assert "a target that the data identify" in str(found)


def test_a_poor_fit_warns_and_prints_its_verdict(problem, key):
    recipe = mvue.Recipe(
        survey=HASTY.survey,
        baseline=mvue.Recipe.Baseline(pieces=4),
        calibration=HASTY.calibration,
        verdict=mvue.Recipe.Verdict(values=5, repeats=1024),
        minimum_distance=mvue.Recipe.MinimumDistance(used=False),
        network=mvue.Recipe.Network(good_start=0.0),
    )
    with pytest.warns(mvue.exceptions.PoorFitWarning, match="the trained estimator is poor"):
        fit = mvue.fit(problem, key=key, steps=2, recipe=recipe)
    assert fit.verdict.judgement is Judgement.POOR
    assert "verdict" in str(fit)
    assert "try:" in str(fit)


def test_no_verdict_without_a_survey(line, key):
    from helpers.plain import plain_fit

    assert plain_fit(line, key=key, steps=1).verdict is None


def test_angles_are_named(key):
    """Over a full circle the data at both ends are the same."""
    problem = mvue.Problem(
        dist.Uniform(-np.pi, np.pi),
        lambda k, t: jnp.stack([jnp.cos(t), jnp.sin(t)]) + 0.2 * jr.normal(k, (2,)),
        names=("angle",),
    )
    seen = mvue.survey(problem, key=key, recipe=HASTY_SURVEY)
    found = verdict(lambda x: jnp.arctan2(x[1], x[0]), problem, seen, key)
    assert found.judgement is Judgement.POOR
    assert "alike at both ends of angle" in str(found)
    assert "sine and cosine" in str(found)


def test_corners_are_judged(line, key):
    """An estimator that is biased only where both parameters are at an end is found out."""

    def biased_in_a_corner(x):
        return x + 0.5 * jax.nn.relu(x.sum() - 1.8)

    seen = mvue.survey(line, key=key, recipe=HASTY_SURVEY)
    found = verdict(biased_in_a_corner, line, seen, key, mvue.Recipe.Verdict(repeats=4096))
    corners = np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]])
    distance = np.abs(found.y[None] - corners[:, None]).max(axis=2).min(axis=1)
    np.testing.assert_allclose(distance, 0, atol=1e-5)
    assert found.judgement is Judgement.POOR


def squared_mean():
    """Where the mean is zero, its error is that of the curvature alone."""
    problem = mvue.Problem.from_likelihood(
        prior=dist.Uniform(-0.5, 2.0),
        likelihood=lambda t: dist.Normal(t, 1.0).expand((N,)),
        target=lambda t: t**2,
        names=("power",),
    )
    return problem, lambda x: jnp.mean(x) ** 2 - 1 / N


def noise_variance():
    """Three coefficients take three of eight degrees of freedom."""
    entry = textbook("linear-noise-variance")
    return entry.problem, entry.mvue


@pytest.mark.parametrize("case", [squared_mean, noise_variance])
def test_the_best_unbiased_estimator_is_good_where_the_crb_cannot_be_reached(case, key):
    problem, best = case()
    seen = mvue.survey(problem, key=key, recipe=HASTY_SURVEY)
    found = verdict(best, problem, seen, key)
    assert found.expected == "Bhattacharyya's bound"
    assert found.judgement is Judgement.GOOD
    np.testing.assert_allclose(found.mse_over_expected, 1.0, atol=0.15)

    def noisy(x):
        """Noise from digits of the data that tell nothing."""
        return best(x) * (1 + 0.9 * jnp.sign(jnp.sin(1e4 * jnp.sum(x) + 1.0)))

    poor = verdict(noisy, problem, seen, key)
    assert poor.judgement is Judgement.POOR
    assert "far from Bhattacharyya's bound" in str(poor)


def test_a_target_without_second_derivatives_keeps_the_crb(key):
    """What fails while a bound is computed must not cost a trained fit."""

    @jax.custom_jvp
    def square(t):
        return t**2

    @square.defjvp
    def _(primals, tangents):
        (t,), (step,) = primals, tangents
        if isinstance(t, jax.core.Tracer) and "JVP" in type(t).__name__:
            raise NotImplementedError("no second derivative")
        return t**2, 2 * t * step

    problem, best = squared_mean()
    problem = dataclasses.replace(problem, target=square)
    found = verdict(best, problem, mvue.survey(problem, key=key, recipe=HASTY_SURVEY), key)
    assert found.expected.startswith("CRB")
