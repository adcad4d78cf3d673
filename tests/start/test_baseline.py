"""The start in closed form: a linear estimate that stays near the plug-in estimate."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist

import mvue
from helpers.hasty import HASTY
from helpers.models import plug_in_for
from mvue._start.baseline import Baseline
from mvue.nn._frozen import Affine

FREE = Baseline(Affine(jnp.zeros(1), jnp.ones(1)), jnp.array([[1.0, 0.0, 0.0, 2.0, 0.0]]))
BOUNDED = dataclasses.replace(FREE, reach=jnp.array([10.0]))


def estimate(baseline, natural):
    """The plug-in estimate is 3, with a standard deviation of 0.5."""
    plug_in, log_sd = jnp.array([3.0]), jnp.log(jnp.array([0.5]))
    return float(baseline(plug_in, log_sd, jnp.zeros(1), jnp.array([natural]))[0])


def test_within_reach_it_is_left_as_it_is():
    for natural in (-2.4, -1.0, 0.0, 0.3, 2.4):
        assert estimate(BOUNDED, natural) == estimate(FREE, natural)


def test_statistics_that_explode_do_not_take_the_estimate_along():
    far = [estimate(BOUNDED, natural) for natural in (2.6, 1e2, 1e6, 1e30)]
    assert far == sorted(far)
    assert 8.0 < far[0] < far[-1] < 3 + 0.5 * (10 + np.log(1e13))
    assert abs(estimate(FREE, 1e6)) > 1e6
    assert estimate(BOUNDED, -1e30) > 3 - 0.5 * (10 + np.log(1e13))


def test_natural_statistics_are_held_at_what_was_seen():
    held = dataclasses.replace(FREE, seen=jnp.array([[-5.0], [6.0]]))
    assert estimate(held, 5.9) == estimate(FREE, 5.9)
    assert estimate(held, 1e30) == estimate(held, np.inf) == estimate(FREE, 6.0)
    assert estimate(held, -np.inf) == estimate(FREE, -5.0)
    assert np.isnan(estimate(held, np.nan))


def test_estimates_far_beyond_the_table_are_brought_closer():
    plug_in = dataclasses.replace(
        plug_in_for(1, (10.0,)),
        scale=jnp.linspace(0.0, 10.0, 5)[None],
        table=jnp.array([[0.0, 1.0, 3.0, 6.0, 16.0]]),  # deviations of 0.4 and of 4 at the ends
        beyond=jnp.array([10.0]),
    )
    at = jnp.array([-1e20, -4.5, -3.9, 0.0, 7.0, 55.9, 57.0, 1e6, 1e20])
    held = np.asarray(jax.vmap(plug_in.held)(at[:, None]))[:, 0]
    np.testing.assert_array_equal(held[2:6], at[2:6])
    assert (np.diff(held) >= 0).all()
    assert -4.0 - 0.4 * 28 < held[0] < held[1] < -4.0
    assert 56.0 < held[6] < held[7] < held[8] < 56.0 + 4 * 28
    distance = np.asarray(jax.vmap(plug_in.distance)(at[:, None]))[:, 0]
    np.testing.assert_allclose(distance[[2, 3, 6]], [3.9 / 0.4, 0.0, 41 / 4], rtol=1e-6)
    assert np.isnan(plug_in.held(jnp.array([np.nan]))[0])
    free = dataclasses.replace(plug_in, beyond=None)  # as in files of earlier versions
    assert free.held(jnp.array([1e20]))[0] == jnp.float32(1e20)


def test_equal_and_nearly_equal_readings_are_outside_and_do_not_explode(key):
    """Ratios to a spread that is rounding are infinite, and logarithms of it far from all seen."""
    prior = dist.Uniform(jnp.full(2, 0.5), jnp.full(2, 3.0)).to_event(1)
    problem = mvue.Problem(
        prior, lambda key, t: jr.normal(key, (12, 2)) / jnp.sqrt(t)[None], exchangeable=True
    )
    fit = mvue.fit(problem, key=key, steps=20, validations=1, recipe=HASTY)
    some = jax.tree.map(lambda leaf: np.asarray(leaf)[:, 0], problem.draw(key, 50, 1).x)
    low, high = fit.y_range
    rng = np.random.default_rng(0)
    for spread in (0.0, 1e-6, 0.01, 0.05):
        equal = jax.tree.map(
            lambda leaf, s=spread: np.float32(leaf[:, :1] * (1 + s * rng.normal(size=leaf.shape))),
            some,
        )
        assert fit.outside(equal).all()
        estimates = fit.predict(equal, warn=False)
        assert (np.abs(estimates - high) < 6 * (high - low)).all()
    nothing = jax.tree.map(np.zeros_like, some)
    assert (np.abs(fit.predict(nothing, warn=False) - high) < 6 * (high - low)).all()
