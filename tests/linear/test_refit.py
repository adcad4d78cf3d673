"""The last layer in closed form."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest

import mvue
from mvue._linear.refit import last_layer_features

SIGNAL, NOISE = 1 / 3, 0.25  # variances of y and of the noise in the problem `line`


@pytest.mark.parametrize("bias_weight", [0.0, 3.0, 100.0, np.inf])
def test_linear_network_gets_the_closed_form(line, swept_key, bias_weight):
    """With y itself as the feature: A = Σy (Σy + Σn/(1+λ))⁻¹."""
    readout = mvue.refit_last_layer(
        eqx.nn.Linear(2, 2, key=swept_key), line, bias_weight, key=swept_key, units=50_000
    )
    slope = (readout.weight @ jax.jacobian(readout.features)(jnp.zeros(2))).astype(float)
    expected = SIGNAL / (SIGNAL + NOISE / (1 + bias_weight))
    error = 4.5 * np.sqrt((NOISE + SIGNAL) / SIGNAL / (8 * 50_000)) + 4.5 * np.sqrt(1 / 50_000)
    np.testing.assert_allclose(slope, expected * np.eye(2), atol=error)


def networks(problem):
    plain = eqx.nn.MLP(2, 2, 16, 1, jax.nn.gelu, key=jr.key(1))
    scaled = mvue.standardize(plain, problem, key=jr.key(2))
    headed = mvue.standardize(
        plain, problem, head=lambda x, z: x * (1 + z) + 0.3 * x[::-1] ** 2, key=jr.key(2)
    )
    sequential = eqx.nn.Sequential(
        [
            eqx.nn.Linear(2, 8, key=jr.key(3)),
            eqx.nn.Lambda(jnp.tanh),
            eqx.nn.Linear(8, 2, key=jr.key(4)),
        ]
    )
    return {"plain": plain, "scaled": scaled, "headed": headed, "sequential": sequential}


@pytest.mark.parametrize("name", ["plain", "scaled", "headed", "sequential"])
def test_features_span_what_the_network_can_say(line, name):
    """Some readout of the features is the network itself, for any weights of its last layer."""
    network = networks(line)[name]
    x = line.draw(jr.key(5), 200, 1).x[:, 0]
    features = last_layer_features(network, list(x[:3]))
    values = np.asarray(jax.vmap(features)(x), np.float64)
    values = np.hstack([values, np.ones((200, 1))])
    target = np.asarray(jax.vmap(network)(x), np.float64)
    fitted = values @ np.linalg.lstsq(values, target, rcond=1e-8)[0]
    np.testing.assert_allclose(fitted, target, atol=2e-3)


def biased_problem():
    return mvue.Problem(
        dist.LogUniform(0.5, 8.0),
        lambda key, rate: jr.exponential(key, (10,)) / rate,
        names=("rate",),
        exchangeable=True,
    )


@pytest.mark.filterwarnings("ignore::mvue.exceptions.UnresolvedSignalWarning")
def test_unbiases_a_network_trained_for_mean_squared_error(swept_key):
    problem = biased_problem()
    network = mvue.standardize(
        eqx.nn.MLP(2, 1, 32, 1, jax.nn.gelu, key=swept_key),
        problem,
        features=lambda x: jnp.stack([jnp.log(jnp.mean(x)), jnp.mean(jnp.log(x))]),
        key=swept_key,
    )
    fit = mvue.fit(problem, network, mvue.emmse(), key=swept_key, steps=600)
    readout = mvue.refit_last_layer(
        fit, problem, 100.0, key=jr.fold_in(swept_key, 1), weight=lambda y: 1 / y[0] ** 2
    )
    at = jnp.geomspace(1.0, 4.0, 5)
    report = mvue.assess(
        {"before": fit, "after": readout}, problem, at=at, repeats=5_000, key=swept_key
    )
    before, after = (report.summary(n)["max_bias_over_sd"] for n in ("before", "after"))
    assert before > 0.2
    assert after < before / 2
    assert after < 0.12


def test_weight_is_that_of_the_loss(line, key):
    """A weight that picks one side of the prior fits that side only."""
    kinked = mvue.Problem(line.prior, lambda k, y: jnp.abs(y) + 0.01 * jr.normal(k, (2,)))
    right = mvue.refit_last_layer(
        eqx.nn.Linear(2, 2, key=key),
        kinked,
        0.0,
        key=key,
        weight=lambda y: jnp.where((y > 0).all(), 1.0, 0.0),
    )
    np.testing.assert_allclose(right(jnp.array([0.3, 0.6])), [0.3, 0.6], atol=0.01)


def test_fixed_data_and_own_features(line, key):
    draw = line.draw(key, 5_000, 4)
    from_data = mvue.refit_last_layer(None, draw, 10.0, features=lambda x: x)
    streamed = mvue.refit_last_layer(
        None, line, 10.0, features=lambda x: x, key=key, units=5_000, repeats=4
    )
    np.testing.assert_allclose(from_data.weight, streamed.weight, atol=0.05)
    assert from_data(jnp.zeros(2)).shape == (2,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"estimator": lambda x: x}, "last layer of equinox.nn.Linear, got function"),
        (
            {"estimator": eqx.nn.MLP(2, 2, 8, 1, final_activation=jnp.tanh, key=jr.key(0))},
            "goes on with something that is not linear",
        ),
        (
            {"estimator": eqx.nn.MLP(2, 2, 8, 1, final_activation=jax.nn.relu, key=jr.key(0))},
            "goes on with something that is not linear",
        ),
        ({"key": None}, "key must be given"),
        ({"bias_weight": -1.0}, "bias_weight must be at least 0"),
        ({"units": 1}, "units must be a whole number of at least 2"),
        ({"repeats": 1}, "repeats must be a whole number of at least 2"),
        ({"features": lambda x: 0.3 + 0 * x}, r"features\(x\) must vary with x"),
        ({"weight": lambda y: -1.0, "units": 2000}, r"weight\(y\) must be .* 2,000 of 2,000 units"),
        ({"weight": lambda y: jnp.log(y[0]), "units": 2000}, r"weight\(y\) must be a finite"),
        ({"features": lambda x: jnp.log(x), "units": 2000}, r"features\(x\), .* must be finite"),
        ({"weight": lambda y: y}, r"weight\(y\) must be a scalar"),
        ({"weight": lambda y: 0.0}, "weights positive in some units, got none in all 100"),
        ({"weight": lambda y: jnp.where(y[0] > 9e9, 1.0, 0.0)}, "weights positive in some units"),
    ],
)
def test_bad_input_is_refused(line, arguments, message):
    call = {"estimator": eqx.nn.Linear(2, 2, key=jr.key(0)), "problem_or_data": line}
    call |= {"key": jr.key(0), "units": 100} | arguments
    with pytest.raises(ValueError, match=message):
        mvue.refit_last_layer(**call)


@pytest.mark.parametrize(
    ("features", "match"),
    [
        (lambda x: x.sum(), r"a vector of real numbers .* got float32 of shape \(\)"),
        (lambda x: 1j * x, "a vector of real numbers .* got complex64"),
        (lambda x: (x, x), "a vector of real numbers .* got tuple"),
        (lambda x: jnp.log(-(x**2)), "weight.y. and measurements must be finite .* none in all 20"),
    ],
)
@pytest.mark.filterwarnings("ignore::mvue.exceptions.NonFiniteWarning")
def test_features_are_real_vectors(line, features, match):
    with pytest.raises(ValueError, match=match):
        mvue.refit_last_layer(None, line, features=features, key=jr.key(0), units=20)


def test_data_without_repeats_is_refused(line, key):
    with pytest.raises(ValueError, match="at least 2 measurements"):
        mvue.refit_last_layer(eqx.nn.Linear(2, 2, key=key), line.draw(key, 10, 1))


class OutFirst(eqx.Module):
    """Fields in another order than the layers are called in."""

    out: eqx.nn.Linear
    hidden: eqx.nn.Linear

    def __call__(self, x):
        return self.out(jax.nn.relu(self.hidden(x)))


def test_the_last_layer_is_the_one_called_last(line):
    network = OutFirst(eqx.nn.Linear(8, 2, key=jr.key(0)), eqx.nn.Linear(2, 8, key=jr.key(1)))
    assert last_layer_features(network, [jnp.ones(2)])(jnp.ones(2)).shape == (2 * 2 * 9 + 2,)


def test_failures_in_fixed_data_are_not_hidden(line, key):
    draw = line.draw(key, 2_000, 4)
    few = draw._replace(x=draw.x.at[0].set(jnp.nan))
    with pytest.warns(mvue.exceptions.NonFiniteWarning, match="1 of 2,000 units"):
        mvue.refit_last_layer(eqx.nn.Linear(2, 2, key=key), few, 1.0)
    many = draw._replace(x=draw.x.at[:500].set(jnp.nan))
    with pytest.raises(mvue.exceptions.SimulatorError, match=r"25\.00%"):
        mvue.refit_last_layer(eqx.nn.Linear(2, 2, key=key), many, 1.0)
