"""The start in closed form: a linear estimate that stays near the plug-in estimate."""

import dataclasses

import jax.numpy as jnp
import numpy as np

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
