"""Calibration takes a smooth bias out, and leaves alone what has none."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest

import mvue
from mvue._core.sampling import Simulations
from mvue._finish.calibration import Calibrated, calibrate
from mvue.nn._staged import prepare

N = 8
SD = 1 / np.sqrt(N)
SETTINGS = mvue.Recipe.Calibration(draws=2**15)


def location(d=1):
    prior = dist.Uniform(-3.0, 3.0).expand((d,)).to_event(1)
    return mvue.Problem(prior, lambda k, t: t[None, :] + jr.normal(k, (N, d)))


def tables(d):
    table = jnp.linspace(-3.0, 3.0, 33)
    return tuple(jnp.stack([part] * d) for part in (table / SD, table))


def calibrated(estimator, key, d=1, settings=SETTINGS):
    log_sd = lambda theta: jnp.full(d, np.log(SD))  # noqa: E731
    simulations = Simulations(location(d), 128, 8, lambda _, x: prepare(estimator, x))
    return calibrate(estimator, simulations, log_sd, tables(d), 0.0, settings, key=key)


def bias(estimator, theta, key, repeats=40_000):
    x = jnp.asarray(theta)[None, None, :] + jr.normal(key, (repeats, N, len(theta)))
    errors = jax.jit(jax.vmap(estimator))(x) - jnp.asarray(theta)[None, :]
    return np.asarray(errors.mean(axis=0)) / SD


def test_a_smooth_bias_is_taken_out(swept_key):
    """0.5 sd of bias, a cubic: at most 0.05 is left, where four standard errors are 0.02."""
    wrong = lambda x: jnp.mean(x, axis=0) + 0.5 * SD * (jnp.mean(x, axis=0) / 3) ** 3  # noqa: E731
    found = calibrated(wrong, swept_key)
    assert isinstance(found.estimator, Calibrated)
    for theta in (-2.5, -1.0, 0.0, 2.0):
        assert np.abs(bias(found.estimator, [theta], swept_key)) < 0.05
    assert np.abs(bias(wrong, [-2.5], swept_key)) > 0.25
    assert "→" in found.note


def test_what_is_unbiased_is_left_alone(swept_key):
    found = calibrated(lambda x: jnp.mean(x, axis=0), swept_key)
    if isinstance(found.estimator, Calibrated):  # by chance, and then it changes next to nothing
        assert np.abs(bias(found.estimator, [1.0], swept_key)) < 0.05
    else:
        assert found.note.startswith("none")


def test_components_are_calibrated_by_each_other(swept_key):
    """The bias of the first depends on the second."""

    def wrong(x):
        mean = jnp.mean(x, axis=0)
        return mean + jnp.stack([0.15 * SD * mean[1], jnp.zeros(())])

    found = calibrated(wrong, swept_key, d=2)
    for theta in ([1.0, 2.0], [-1.0, -2.0]):
        assert np.abs(bias(found.estimator, theta, swept_key)).max() < 0.06


def test_a_calibrated_model_is_saved_and_loaded(key, tmp_path):
    wrong = lambda x: 1.1 * jnp.mean(x, axis=0)  # noqa: E731
    calibration = calibrated(wrong, key).estimator.calibration
    problem = location()
    network = mvue.standardize(eqx.nn.MLP(N, 1, 4, 1, key=key), problem, key=key)
    model = Calibrated(network, calibration)
    mvue.save(model, tmp_path / "model.mvue", problem=problem)
    x = jr.normal(key, (5, N, 1))
    again = mvue.load(tmp_path / "model.mvue")
    np.testing.assert_allclose(again.predict(x), jax.vmap(model)(x), rtol=1e-5)


@pytest.mark.parametrize("settings", [{"draws": -1}, {"degree": 0}])
def test_settings_are_checked(settings):
    with pytest.raises(ValueError, match="must be"):
        mvue.Recipe.Calibration(**settings)
