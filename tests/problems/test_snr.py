"""The SNR problem against its exact properties."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import mvue
from mvue.problems import snr, snr_corrected_mle, snr_mle


def test_simulator_has_the_moments_of_the_model(swept_key):
    """E x² = h² + σ², E x⁴ = h⁴ + 6 h²σ² + 3σ⁴; symbols are fair and samples independent."""
    problem = snr(n=20)
    theta = {"h": jnp.asarray(2.0), "snr": jnp.asarray(4.0)}
    keys = jr.split(swept_key, 20_000)
    x = np.asarray(jax.vmap(lambda k: problem.simulate(k, theta))(keys), np.float64)
    for power, expected in ((1, 0.0), (2, 5.0), (3, 0.0), (4, 16 + 6 * 4 + 3)):
        values = x**power
        assert abs(values.mean() - expected) < 4.5 * values.std() / np.sqrt(values.size)
    for statistic in (x, np.abs(x), np.sign(x)):
        a, b = statistic[:, :-1], statistic[:, 1:]
        products = (a - a.mean()) * (b - b.mean())
        assert abs(products.mean()) < 4.5 * products.std() / np.sqrt(products.size)
    assert np.isfinite(x).all()


@pytest.mark.parametrize(
    ("y", "bound"), [(2, 0.6325), (5, 1.573), (10, 4.841), (20, 17.60), (50, 104.0)]
)
def test_bound(y, bound):
    problem = snr()
    with jax.enable_x64(True):
        crb = problem.crb({"h": jnp.asarray(1.0), "snr": jnp.asarray(float(y))})
    assert float(crb[0, 0]) == pytest.approx(bound, rel=1e-3)
    # At high SNR the symbols are known: (4y + 2y²)/n.
    if y == 50:
        assert float(crb[0, 0]) == pytest.approx((4 * y + 2 * y**2) / 50, rel=1e-6)


def test_bound_is_the_variance_of_the_score(swept_key):
    """The quadrature agrees with a Monte Carlo average of the score's outer product."""
    problem, y = snr(), 3.0
    theta = {"h": jnp.asarray(1.0), "snr": jnp.asarray(y)}
    keys = jr.split(swept_key, 40_000)

    def score(key):
        gradient = jax.grad(problem.log_likelihood)(theta, problem.simulate(key, theta))
        return jnp.stack([gradient["snr"], gradient["h"]])

    scores = np.asarray(jax.vmap(score)(keys), np.float64)
    parts = [np.linalg.inv(part.T @ part / len(part))[0, 0] for part in np.split(scores, 40)]
    error = np.std(parts) / np.sqrt(40)
    assert abs(np.mean(parts) - float(problem.crb(theta)[0, 0])) < 4.5 * error + 0.01 * error


@pytest.mark.parametrize("y", [0.5, 2.0, 10.0, 50.0])
def test_em_finds_the_maximum_of_the_likelihood(key, y):
    problem = snr()
    theta = {"h": jnp.asarray(3.0), "snr": jnp.asarray(y)}
    x = jax.vmap(lambda k: problem.simulate(k, theta))(jr.split(key, 500))
    found = jax.vmap(snr_mle)(x)[:, 0]

    def profile(one, ratio):
        h = jnp.sqrt(jnp.mean(one**2) * ratio / (1 + ratio))
        return problem.log_likelihood({"h": h, "snr": ratio}, one)

    grid = jnp.geomspace(0.01, 400.0, 400)
    best = jax.vmap(lambda one: jax.vmap(lambda r: profile(one, r))(grid).max())(x)
    reached = jax.vmap(profile)(x, found)
    assert float((best - reached).max()) < 0.03


def test_corrected_mle_is_nearly_unbiased_and_plain_is_not(swept_key):
    at = {"snr": jnp.array([2.0, 10.0, 50.0]), "h": jnp.ones(3)}
    estimators = {"mle": snr_mle, "corrected": snr_corrected_mle}
    report = mvue.assess(estimators, snr(), at=at, repeats=10_000, key=swept_key)
    assert report.summary("corrected")["max_relative_bias"] < 0.02
    assert report.summary("mle")["max_relative_bias"] > 0.05
    assert report.summary("corrected")["mse_over_crb"]["max"] < 1.2


def test_estimators_do_not_depend_on_the_scale(key):
    x = jr.normal(key, (50,)) + 3.0
    np.testing.assert_allclose(snr_mle(x), snr_mle(100 * x), rtol=1e-3)
