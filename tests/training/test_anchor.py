"""Noise that is taken out of the penalty: it has mean zero and changes no expectation."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest

import mvue
from helpers.hasty import HASTY
from helpers.plain import plain_fit
from mvue._training.batches import SimulatedBatches
from mvue._training.control_variate import Control, ThetaFeatures
from mvue._training.program import Program
from mvue.nn._staged import Given, Staged, WithBaseline

N = 8
MOST = mvue.Recipe().control_variate.most_features
AT = jnp.linspace(-1.0, 1.0, 5)


def shrinking_problem(low=-1.0, high=1.0):
    return mvue.Problem.from_likelihood(
        dist.Uniform(low, high), lambda t: dist.Normal(t, 1.0).expand((N,)), exchangeable=True
    )


def several_unknowns(p):
    prior = {"a": dist.Uniform(-jnp.ones(p - 1), 2 * jnp.ones(p - 1)).to_event(1)}
    prior["b"] = dist.LogNormal(0.0, 0.5)
    return mvue.Problem(
        prior=prior,
        simulate=lambda key, t: jnp.append(t["a"], t["b"]) + jr.normal(key, (p,)),
        target=lambda t: t["a"][:1],
    )


@pytest.mark.parametrize("p", [2, 4, 30])
def test_features_are_nearly_orthonormal_polynomials(p, seed):
    problem = several_unknowns(p)
    features = ThetaFeatures(problem, jr.key(seed))
    assert len(features.degrees) <= MOST
    assert features.degrees[0] == 0
    theta = jax.vmap(problem.sample_prior)(jr.split(jr.key(seed + 10), 40_000))
    values = np.asarray(jax.vmap(features)(theta), np.float64)
    low = features.degrees <= 2
    gram = values[:, low].T @ values[:, low] / len(values)
    # Fourth moments of such polynomials are below 6; the quantiles of 2048 draws add as much.
    assert np.abs(gram - np.eye(low.sum())).max() < 6 * np.sqrt(6 / 2048)
    np.testing.assert_allclose(values[:, 0], 1.0)


def test_of_many_unknowns_only_a_constant_is_known(seed):
    large = mvue.Problem(
        prior=dist.Normal(jnp.zeros(MOST), 1.0).to_event(1),
        simulate=lambda key, t: t + jr.normal(key, (MOST,)),
    )
    features = ThetaFeatures(large, jr.key(seed))
    assert features.degrees.tolist() == [0]
    shifted = lambda x: x + 0.5  # noqa: E731
    shrunk = lambda x: 0.2 * x  # noqa: E731
    _, known = anchor_of(large, shifted, jr.key(seed), units=512)
    np.testing.assert_allclose(known.bias[0], 0.5, atol=5 / np.sqrt(512 * 8))
    assert float(known.trust.mean()) > 0.9
    _, unknown = anchor_of(large, shrunk, jr.key(seed), units=512)
    assert float(unknown.trust.max()) < 0.1


def anchor_of(problem, estimator, key, *, units=2**14, m=8, weights=lambda _: None):
    control = Control(ThetaFeatures(problem, jr.fold_in(key, 0)), weights)
    draw = problem.draw(jr.fold_in(key, 1), units, m)
    estimates = jax.vmap(jax.vmap(estimator))(draw.x)
    sums = control.sums(estimates - draw.y[:, None, :], draw)
    return control, control.solve(None, sums)


def test_the_noise_of_an_anchor_has_mean_zero_for_every_unknown(seed):
    problem = shrinking_problem()
    shrunk = lambda x: jnp.tanh(0.7 * jnp.mean(x))[None]  # noqa: E731
    control, anchor = anchor_of(problem, shrunk, jr.key(seed))
    assert float(anchor.trust[0]) > 0.97
    points, repeats = jnp.linspace(-0.95, 0.95, 9), 20_000
    x = points[:, None, None] + jr.normal(jr.key(seed + 50), (9, repeats, N))
    draw = mvue.Draw(points, points[:, None], x)
    noise = control.noise(anchor, jax.vmap(jax.vmap(shrunk))(x), draw, None)
    mean, sd = np.asarray(noise.mean(axis=1)), np.asarray(noise.std(axis=1))
    bias = np.asarray(jnp.tanh(0.7 * jnp.mean(x, axis=2)).mean(axis=1) - points)
    assert np.abs(bias).max() > 0.2
    # Standard errors of this mean and of the 25 coefficients from 2**17 simulations.
    error = np.sqrt(sd**2 / repeats + 25 * sd**2 / 2**17)
    assert (np.abs(mean) < 4.5 * error).all()


def test_an_anchor_whose_bias_is_no_polynomial_is_not_trusted(seed):
    problem = several_unknowns(30)
    curved = lambda x: x[:1] + x[1:2] * x[2:3]  # noqa: E731
    tame = lambda x: 0.8 * x[:1]  # noqa: E731
    features = ThetaFeatures(problem, jr.key(seed))
    assert features.degrees.max() == 1
    trust = [
        float(anchor_of(problem, estimator, jr.key(seed), units=4096)[1].trust[0])
        for estimator in (curved, tame)
    ]
    assert trust[0] < 0.5 < 0.9 < trust[1]


def gradient_noise(problem, slope, key, noise):
    """Mean and variance over batches of the penalty's gradient in the slope of an estimator."""

    def penalty(slope, key):
        draw = problem.draw(key, 16, 4)
        estimates = slope * jnp.mean(draw.x, axis=2)[:, :, None]
        known = estimates - slope * draw.y[:, None, :] if noise else None
        known = None if known is None else jax.lax.stop_gradient(known)
        return mvue.losses.bce_loss(estimates, draw.y, bias_weight=100.0, control_variate=known)

    values = jax.vmap(jax.grad(penalty), (None, 0))(slope, jr.split(key, 4000))
    return float(values.mean()), float(values.var())


def test_known_noise_leaves_the_gradient_and_lowers_its_noise(seed):
    problem = shrinking_problem()
    raw, reduced = (gradient_noise(problem, 0.9, jr.key(seed), noise) for noise in (False, True))
    assert abs(raw[0] - reduced[0]) < 4 * np.sqrt((raw[1] + reduced[1]) / 4000)
    assert reduced[1] < raw[1] / 2


def test_matching_scales_the_noise_to_the_estimates(seed):
    control = Control(ThetaFeatures(shrinking_problem(), jr.key(0)), lambda _: None)
    draw = shrinking_problem().draw(jr.key(seed), 64, 4)
    estimates = jnp.mean(draw.x, axis=2)[:, :, None]
    noise = estimates - draw.y[:, None, :]
    np.testing.assert_allclose(control.matched(3 * noise, estimates, draw), noise, rtol=1e-4)
    unrelated = jr.normal(jr.key(seed + 1), noise.shape)
    matched = control.matched(unrelated, estimates, draw)
    assert float(jnp.std(matched)) < 0.3 * float(jnp.std(noise))


def test_weights_put_the_bias_into_their_units(seed):
    problem = shrinking_problem(0.5, 4.0)
    weights = lambda draw: 1 / draw.y[:, 0] ** 2  # noqa: E731
    scaled = dataclasses.replace(
        problem, simulate=lambda key, t: t * (1 + jr.normal(key, (N,))), log_likelihood=None
    )
    shrunk = lambda x: 0.8 * jnp.mean(x)[None]  # noqa: E731
    control, anchor = anchor_of(scaled, shrunk, jr.key(seed), weights=weights)
    # The bias is a fifth of y, so in units of y it is constant.
    assert abs(float(anchor.bias[0, 0]) + 0.2) < 0.01
    assert np.abs(np.asarray(anchor.bias[1:, 0])).max() < 0.01
    draw = scaled.draw(jr.key(seed), 8, 2)
    assert control.scale(draw).shape == (8, 1)


def test_training_with_anchors_is_reproducible_and_resumes(tmp_path, key):
    problem = shrinking_problem()
    settings = {"steps": 30, "batch_size": 16, "anchors": 3, "validations": 3}
    first, second = (plain_fit(problem, key=key, **settings) for _ in range(2))
    x = jr.normal(key, (N,))
    assert float(first.estimator(x)[0]) == float(second.estimator(x)[0])
    without = plain_fit(problem, key=key, **settings | {"anchors": 0})
    assert float(without.estimator(x)[0]) != float(first.estimator(x)[0])
    assert without.settings["anchors"] == 0
    stopped = plain_fit(problem, key=key, checkpoint=tmp_path / "run", **settings)
    again = plain_fit(problem, key=key, checkpoint=tmp_path / "run", **settings)
    assert (
        float(again.estimator(x)[0])
        == float(stopped.estimator(x)[0])
        == float(first.estimator(x)[0])
    )


def test_bad_numbers_of_anchors(key):
    with pytest.raises(ValueError, match="anchors must be a whole number of at least 0"):
        plain_fit(shrinking_problem(), key=key, steps=10, anchors=-1)


def mean_of(x):
    return jnp.mean(x)[None]


def test_a_baseline_is_corrected_and_stays_unbiased(key):
    """A poor but unbiased baseline, the first of eight measurements: the network adds the rest."""
    problem = shrinking_problem()
    asked = {"steps": 600, "batch_size": 64, "anchors": 6, "validations": 3}
    fit = plain_fit(problem, baseline=lambda x: x[:1], key=key, **asked)
    report = mvue.assess(fit.estimator, problem, at=AT, repeats=20_000, key=key)["estimator"]
    variance = np.asarray(report.sd)[:, 0] ** 2
    assert (variance < 1.5 / N).all()
    assert (np.abs(np.asarray(report.bias)[:, 0]) < 0.25 * np.sqrt(variance)).all()


def test_a_perfect_baseline_is_left_alone(key):
    problem = shrinking_problem()
    asked = {"steps": 200, "validations": 3, "recipe": HASTY}
    fit = mvue.fit(problem, baseline=mean_of, key=key, **asked)
    report = mvue.assess(fit.estimator, problem, at=AT, repeats=20_000, key=key)["estimator"]
    assert (np.asarray(report.mse)[:, 0] * N < 1.06).all()
    assert (np.abs(np.asarray(report.bias)[:, 0]) * np.sqrt(N) < 0.05).all()


def test_a_biased_baseline_is_reported(key):
    with pytest.warns(UserWarning, match="baseline is biased: its squared bias"):
        plain_fit(shrinking_problem(), baseline=lambda x: 0.8 * mean_of(x), key=key, steps=5)


def test_a_baseline_of_another_shape(key):
    with pytest.raises(ValueError, match=r"baseline must return"):
        plain_fit(shrinking_problem(), baseline=lambda x: x[:2], key=key, steps=5)


@pytest.mark.parametrize("on_baseline", [False, True])
def test_what_is_not_trained_is_computed_once_a_step(on_baseline, key):
    """One first stage serves the estimator in training and its anchor."""
    calls = []

    class Scaled(Staged):
        factor: jax.Array

        def prepare(self, x):
            calls.append(x)
            return jnp.mean(x)

        def finish(self, prepared):
            return self.factor * prepared

    problem, network = shrinking_problem(), Scaled(jnp.ones(1))
    if on_baseline:
        network = WithBaseline(Given(lambda x: x[0]), network)
    control = Control(ThetaFeatures(problem, key), lambda draw: jnp.ones(draw.y.shape))
    loss = mvue.bce(10.0, weight=None)
    program = Program(SimulatedBatches(problem, 4, 3), network, loss, 10, 1e-2, "last", control)
    constants = program.arrays.constants
    assert program.simulations is not None
    pool = program.simulations.shapes()
    assert calls
    calls.clear()
    step = lambda state, pool: program.step(state, key, constants, pool)  # noqa: E731
    jax.make_jaxpr(step)(program.initial_state(), pool)
    assert not calls
    x = jr.normal(key, (N,))
    expected = jnp.mean(x) + (x[0] if on_baseline else 0.0)
    np.testing.assert_allclose(network(x), expected[None], rtol=1e-6)
