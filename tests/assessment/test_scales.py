"""Errors of any size that single precision can hold are judged alike."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest

import mvue

AT = np.array([1.2, 1.5])


def judged(estimators, unit=1.0):
    problem = mvue.Problem(
        dist.Uniform(unit, 2.0 * unit), lambda key, t: t + unit * jr.normal(key, (4,))
    )
    return mvue.assess(estimators, problem, at=AT * unit, repeats=500, key=jr.key(0))


def test_units_do_not_matter():
    """Squares of the errors leave the range of single precision on both sides."""
    small, usual, large = (
        judged({"mean": lambda x: x.mean(), "off": lambda x, u=unit: x.mean() + u}, unit)
        for unit in (1e-27, 1.0, 1e25)
    )
    for name in ("mean", "off"):
        for other, unit in ((small, 1e-27), (large, 1e25)):
            np.testing.assert_allclose(other[name].sd / unit, usual[name].sd, rtol=1e-3)
            for key, power in (("max_bias_over_sd", 0), ("bmse", 2), ("squared_bias", 2)):
                found = other.summary(name)[key] / unit**power
                assert found == pytest.approx(usual.summary(name)[key], rel=1e-2, abs=1e-3)
    assert large.certify(0.1, name="off").decision == "fail"
    np.testing.assert_allclose(
        large.mse_ratio("off", "mean")[0], usual.mse_ratio("off", "mean")[0], rtol=1e-3
    )


@pytest.mark.parametrize("at", [1e-30, 1e-12])
def test_averages_over_the_prior_do_not_depend_on_where_it_is_assessed(at):
    problem = mvue.Problem(dist.Uniform(0.0, 5.0), lambda key, t: t * jr.exponential(key, (10,)))
    report, usual = (
        mvue.assess(
            lambda x: x.mean(), problem, at=np.array([value]), repeats=2000, key=jr.key(0)
        ).summary("estimator")
        for value in (at, 1.0)
    )
    assert report["prior_failures"] == 0
    for name in ("bmse", "bmse_se", "squared_bias_se"):
        assert report[name] == pytest.approx(usual[name], rel=1e-4)


def test_one_that_diverges_hides_no_other():
    alone = judged(lambda x: x.mean())["estimator"]
    both = judged({"mean": lambda x: x.mean(), "wild": lambda x: x.mean() * jnp.float32(1e30)})
    np.testing.assert_allclose(both["mean"].sd, alone.sd, rtol=1e-5)
    np.testing.assert_allclose(both["wild"].sd, 1e30 * alone.sd, rtol=1e-3)
    assert both.summary("wild")["max_bias_over_sd"] > 2


@pytest.mark.parametrize(
    ("at", "match"),
    [
        (np.ma.masked_array([1.0, 999.0], [False, True]), "at has 1 masked numbers"),
        (AT * 1j, "values of theta, got complex128"),
        (["1"], "values of theta, got <U1"),
    ],
)
def test_values_are_real_numbers(at, match):
    problem = mvue.Problem(dist.Uniform(1.0, 2.0), lambda key, t: t + jr.normal(key, (4,)))
    with pytest.raises(ValueError, match=match):
        mvue.assess(lambda x: x.mean(), problem, at=at, repeats=8, key=jr.key(0))
