"""Weights that are learned: as good as one over the true variance, and no bias."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest

import mvue


def counts(key, theta):
    """A count in a known time: its estimate of the rate has the variance rate / time."""
    return {"count": jr.poisson(key, theta["rate"] * theta["time"]), "time": theta["time"]}


def rate_of(x):
    return x["count"] / x["time"]


COUNTERS = mvue.Problem(
    {"rate": dist.Uniform(1.0, 5.0), "time": dist.LogUniform(0.5, 20.0)},
    counts,
    target=lambda theta: theta["rate"],
)


def test_weights_are_one_over_the_variance(seed):
    fused = mvue.Average.learned(rate_of, COUNTERS, lambda x: x["time"], key=jr.key(seed))
    time = jnp.geomspace(0.6, 18.0, 40)
    weights = np.asarray(jax.vmap(fused.weights)({"count": jnp.zeros(40), "time": time}))[:, 0]
    time = np.asarray(time)

    def variance(weights):
        return np.sum(weights**2 / time) / np.sum(weights) ** 2

    assert variance(weights) < 1.01 * variance(time)
    assert variance(np.ones(40)) > 2 * variance(time)
    assert "by a known number" in repr(fused.weights)


def test_the_average_is_unbiased_where_weights_of_the_data_are_not(seed):
    fused = mvue.Average.learned(rate_of, COUNTERS, lambda x: x["time"], key=jr.key(seed))
    rng = np.random.default_rng(seed)
    time = rng.uniform(1.0, 10.0, 12)
    sets = {"count": rng.poisson(2.0 * time, (4000, 12)), "time": np.tile(time, (4000, 1))}
    found = mvue.average(fused.estimator, sets, axis=1, weights=fused.weights).estimate[:, 0]
    exact = 2.0 / time.sum()  # of the best weights
    assert abs(found.mean() - 2.0) < 4 * (exact / 4000) ** 0.5
    assert found.var() < 1.1 * exact
    of_data = mvue.average(
        rate_of, sets, axis=1, weights=lambda x: x["time"] ** 2 / (x["count"] + 1)
    ).estimate[:, 0]
    assert of_data.mean() - 2.0 < -20 * (exact / 4000) ** 0.5


def test_each_component_has_weights_of_its_own(key):
    """One of them is worse with the first known number, the other with the second."""
    problem = mvue.Problem(
        {"y": dist.Normal(jnp.zeros(2), 1.0), "sd": dist.Uniform(jnp.full(2, 0.2), 2.0)},
        lambda key, t: {"at": t["y"] + t["sd"] * jr.normal(key, (2,)), "sd": t["sd"]},
        target=lambda theta: theta["y"],
    )
    fused = mvue.Average.learned(lambda x: x["at"], problem, lambda x: x["sd"], key=key)
    sd = jr.uniform(key, (50, 2), minval=0.25, maxval=1.9)
    weights = jax.vmap(fused.weights)({"at": jnp.zeros((50, 2)), "sd": sd})
    ratio = np.asarray(jnp.log(weights * sd**2))
    assert (ratio.std(axis=0) < 0.12).all()


def weigh(known, problem=COUNTERS, **settings):
    return mvue.Average.learned(rate_of, problem, known, key=jr.key(0), **settings)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: weigh(lambda x: x["count"]), "known must not depend on the noise"),
        (lambda: weigh(lambda x: 1.0), "known must vary"),
        (lambda: weigh(3.0), "known"),
        (lambda: weigh(lambda x: x["time"], units=3), "units must be"),
        (lambda: weigh(lambda x: jnp.log(-x["time"])), "must be finite on all simulations"),
        (lambda: weigh(lambda x: "a"), "known must return one or more real numbers"),
        (lambda: weigh(lambda x: {"a": x["time"]}), "known must return one or more real numbers"),
        (lambda: weigh(lambda x: None), "known must return one or more real numbers"),
        (lambda: weigh(lambda x: 1j * x["time"]), "known must return real numbers, got complex"),
        (
            lambda: mvue.Average.learned(
                lambda x: np.asarray(x["count"]), COUNTERS, lambda x: x["time"], key=jr.key(0)
            ),
            r"estimator must return .*jax.numpy instead of NumPy",
        ),
        (
            lambda: mvue.Average.learned(
                rate_of, COUNTERS, lambda x: x["time"], key=jnp.zeros(3, jnp.uint32)
            ),
            r"key must be a random key such as jax.random.key\(0\)",
        ),
    ],
)
def test_what_is_no_knowledge_is_refused(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_an_estimator_without_noise_is_refused(key):
    with pytest.raises(ValueError, match="estimator must have a variance"):
        mvue.Average.learned(lambda x: x["time"], COUNTERS, lambda x: x["time"], key=key)


@pytest.mark.parametrize("unit", [1e-30, 1e33])
def test_weights_do_not_depend_on_the_units_of_what_is_known(unit, key):
    usual, other = (
        mvue.Average.learned(rate_of, COUNTERS, lambda x, u=u: u * x["time"], key=key).weights
        for u in (1.0, unit)
    )
    x = {"count": jnp.zeros(9), "time": jnp.geomspace(0.6, 18.0, 9)}
    np.testing.assert_allclose(jax.vmap(other)(x), jax.vmap(usual)(x), rtol=5e-2)
