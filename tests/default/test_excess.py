"""Where errors are larger than expected is found, and weights are lowered there only."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from mvue._default.excess import excess_model

UNITS = (0.1, 0.2)
REPEATS = 2


def fitted(model, sd, key, units=60_000):
    """The coefficients from normal errors whose deviation is a function of the place."""
    at_key, noise_key = jr.split(key)
    at = jr.uniform(at_key, (units, 2), minval=-1.0, maxval=1.0)
    errors = sd(at)[:, None, None] * jr.normal(noise_key, (units, REPEATS, 1))
    return model.solve(model.sums(at, errors))


def test_excess_of_normal_errors(swept_key):
    """The logarithm of the squared errors grows towards one end of the first coordinate."""
    model = excess_model(UNITS, degree=6, most_layers=8)
    found = fitted(model, lambda at: jnp.exp(at[:, 0]), swept_key)
    places = jnp.stack([jnp.linspace(-0.95, 0.95, 21), jnp.zeros(21)], axis=1)
    seen = np.asarray(jax.vmap(lambda at: model.of(found, at))(places))[:, 0]
    # The floor under squares compresses logarithms, by up to a third.
    expected = 2 * np.maximum(np.asarray(places[:, 0]), 0.0)
    assert (seen >= 0.65 * expected - 0.05).all()
    assert (seen <= expected + 0.05).all()


def test_no_excess_of_what_is_as_expected(swept_key):
    model = excess_model(UNITS, degree=6, most_layers=8)
    found = fitted(model, lambda at: jnp.ones(len(at)), swept_key)
    places = jr.uniform(swept_key, (100, 2), minval=-1.0, maxval=1.0)
    seen = np.asarray(jax.vmap(lambda at: model.of(found, at))(places))
    assert (seen >= 0).all()
    assert seen.max() < 0.15


def test_smaller_errors_do_not_raise_weights(key):
    model = excess_model(UNITS, degree=6, most_layers=8)
    found = fitted(model, lambda at: jnp.full(len(at), 0.2), key)
    assert float(jnp.max(model.of(found, jnp.array([0.3, -0.3])))) == 0.0
