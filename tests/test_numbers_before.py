"""Fits, assessments and bounds are those of the version before the library got its rooms.

The numbers were made once; they may change where a method is improved on purpose, and then are made
anew with the reason: those of the default fit, when the survey came to move all coordinates at once
and to draw evenly up to the ends. Tolerances are those of rounding, which differs between
processors.
"""

import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest

import mvue
from helpers.hasty import HASTY

BEFORE = json.loads(Path(__file__).with_name("numbers_before.json").read_text())


def close(name, found, rounding):
    expected = np.asarray(BEFORE[name])
    np.testing.assert_allclose(found, expected, rtol=0, atol=rounding * np.abs(expected).max())


@pytest.fixture(scope="module")
def variance():
    return mvue.Problem.from_likelihood(
        prior=dist.Uniform(jnp.array([0.5]), jnp.array([4.0])),
        likelihood=lambda y: dist.Normal(0.0, jnp.sqrt(y[0])).expand((6,)),
        names=("variance",),
        exchangeable=True,
    )


def test_default_fit(variance):
    fit = mvue.fit(variance, key=jr.key(0), steps=30, validations=3, recipe=HASTY)
    x = variance.draw(jr.key(9), 5, 1).x[:, 0]
    (found,) = fit.survey.ranges
    close("range", [*found.interest, *found.training, found.width], 1e-4)
    close("fit", fit.predict(x), 1e-3)


def test_fit_of_data():
    rng = np.random.default_rng(0)
    y = np.repeat(rng.normal(size=(60, 2)), 4, axis=0)
    x = 3 + y @ rng.normal(size=(2, 3)) + 0.3 * rng.normal(size=(240, 3))
    data = mvue.Repeats.from_rows(x, y, unit_ids=np.repeat(np.arange(60), 4))
    settings = {"hidden": (6, 5), "steps": 30, "validations": 3}
    fit = mvue.fit_data(data, None, mvue.bce(3.0), key=jr.key(0), **settings)
    close("fit_data", fit.predict(x[:5]), 1e-3)


def test_last_layer(line):
    network = eqx.nn.MLP(2, 2, 4, 1, jnp.sin, key=jr.key(1))
    found = mvue.refit_last_layer(network, line, 10.0, key=jr.key(2), units=500)
    close("readout", found.weight, 1e-4)


def test_assessment(variance):
    design = {"key": jr.key(5), "at": jnp.array([[0.6], [1.0], [3.0]]), "repeats": 400}
    estimators = {"square": lambda x: jnp.mean(x**2)[None], "var": lambda x: jnp.var(x)[None]}
    report = mvue.assess(estimators, variance, **design)
    for name in ("bias", "sd", "mse"):
        close(name, getattr(report["var"], name), 1e-4)
    close("bound", report.bound, 1e-5)


def test_bounds(variance):
    rate = mvue.Problem.from_likelihood(
        prior=dist.LogUniform(0.5, 4.0),
        likelihood=lambda y: dist.Exponential(y).expand((5,)),
        exchangeable=True,
    )

    def log_likelihood(theta, x):
        parts = -0.5 * jnp.sum((x[None, :] - jnp.stack([theta, -theta])) ** 2, axis=1)
        return jax.nn.logsumexp(parts)

    def simulate(key, theta):
        keys = jr.split(key)
        return jr.rademacher(keys[0], (), float) * theta + jr.normal(keys[1], (2,))

    prior = dist.Uniform(0.5, 2.0).expand((2,))
    mixture = mvue.Problem(prior, simulate, log_likelihood, exchangeable=False)
    for problem, theta, method in (
        (variance, jnp.array([1.5]), "gaussian"),
        (rate, jnp.array(1.5), "quadrature"),
        (mixture, jnp.array([1.0, 1.5]), "monte carlo"),
    ):
        found = mvue.crb(problem, theta, method=method, key=jr.key(6))
        close(method, found.matrix, 1e-4)
