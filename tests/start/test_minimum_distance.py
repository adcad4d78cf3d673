"""The emulator of mean summaries, and the start by minimum distance."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest

import mvue
from helpers.hasty import HASTY
from mvue._default.network import default_network
from mvue._default.scoring import FirstState, Scored
from mvue._start.emulator import Emulator, fit_emulator
from mvue._start.minimum_distance import MinimumDistance, codes_of, with_codes
from mvue._summaries.joint import moment_orders

SETTINGS = mvue.Recipe.MinimumDistance()
# What comes before it need not be good: it is there to be poor.
FEW = dataclasses.replace(HASTY, minimum_distance=mvue.Recipe.MinimumDistance(pieces=16))
N, NOISE, SD = 3000, 1 / 16, 0.3


@pytest.fixture(scope="module")
def tone():
    """A tone of 24 samples: frequency, and a phase that is a nuisance."""
    time = np.arange(24) - 11.5

    def simulate(key, theta):
        angle = theta["frequency"] * time + theta["phase"]
        waves = jnp.concatenate([jnp.cos(angle), jnp.sin(angle)])
        return waves + SD * jr.normal(key, waves.shape)

    prior = {"frequency": dist.Uniform(0.5, 1.5), "phase": dist.Uniform(-1.0, 1.0)}
    return mvue.Problem(prior, simulate, target=lambda theta: theta["frequency"], layout="vector")


def start_of(problem, key, recipe):
    survey = mvue.survey(problem, key=key, recipe=recipe)
    trained_on = dataclasses.replace(problem, prior=survey.training_prior)
    return survey, default_network(trained_on, survey, key=jr.fold_in(key, 1))


def test_waves_of_several_coordinates_are_emulated(seed):
    rng = np.random.default_rng(seed)
    places = rng.uniform(-1, 1, size=(N, 2))
    angles = places @ rng.uniform(-9, 9, size=(2, 5))
    truth = 3 * np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    means = truth + np.sqrt(NOISE) * rng.normal(size=truth.shape)
    found = fit_emulator(places, means.astype(np.float32), NOISE, np.full(2, 20.0), SETTINGS, rng)
    emulated = np.asarray(jax.vmap(found.emulator)(jnp.asarray(places, jnp.float32)))
    terms = len(found.emulator.coefficients)
    # What least squares cannot avoid: the noise of so many terms, and as much again.
    assert np.mean((emulated - truth) ** 2) < 2 * NOISE * terms / N + 0.01
    assert found.error == pytest.approx(np.mean((emulated - truth) ** 2), abs=0.02)


def test_a_smooth_mean_needs_no_waves(seed):
    rng = np.random.default_rng(seed)
    places = rng.uniform(-1, 1, size=(N, 1))
    means = places**3 + np.sqrt(NOISE) * 0.1 * rng.normal(size=places.shape)
    found = fit_emulator(places, means.astype(np.float32), NOISE * 0.01, np.ones(1), SETTINGS, rng)
    assert found.emulator.frequencies.shape == (0, 1)
    assert found.error < 1e-3


def test_slopes_are_derivatives(seed):
    rng = np.random.default_rng(seed)
    parts = (rng.normal(size=(6, 2)), rng.normal(size=(1 + 2 * 3 + 2 * 6, 4)))
    emulator = Emulator(*(jnp.asarray(part, jnp.float32) for part in parts))
    assert emulator.degree == 3
    place = jnp.asarray(rng.uniform(-1, 1, size=2), jnp.float32)
    mean, slopes = emulator.with_slopes(place)
    np.testing.assert_allclose(mean, emulator(place), rtol=1e-5)
    np.testing.assert_allclose(slopes, jax.jacfwd(emulator)(place).T, rtol=1e-4, atol=1e-5)


def test_the_start_of_a_tone_is_nearly_efficient(tone, seed):
    survey, made = start_of(tone, jr.key(seed), FEW)
    assert isinstance(made.network, Scored)
    assert isinstance(made.network.first, FirstState)
    assert made.is_nearest
    draw = dataclasses.replace(tone, prior=survey.training_prior).draw(jr.key(seed + 50), 256, 8)
    first = made.network.first
    # Of a signal in noise the means of the numbers tell all: their products are left out.
    orders = np.array(moment_orders(survey.statistics, jax.tree.map(lambda a: a[0, 0], draw.x)))
    used = np.abs(np.asarray(first.distance.whitening)).max(axis=1) > 0
    assert set(orders[used]) == {1}

    def estimate(x):
        inputs = made.network.plug_in.inputs(made.network.statistics.inputs(x))
        return made.network.in_units(first(first.distance(inputs).place))

    time = np.arange(24) - 11.5
    bound = SD**2 / np.sum(time**2)  # of the frequency, with its phase unknown
    errors = jax.jit(jax.vmap(jax.vmap(estimate)))(draw.x) - draw.y[:, None, :]
    ratio = np.mean(np.asarray(errors) ** 2) / bound
    # The standard error of a mean square of 2048 independent errors, and the error of emulation.
    assert abs(ratio - 1) < 4 * np.sqrt(2 / 2048) + 0.1


def test_more_first_estimates_where_few_leave_some_far_off(seed):
    """A narrow mean in a wide range: too few values of theta miss it."""
    rng = np.random.default_rng(seed)
    frequencies = np.array([[40.0], [10.0], [3.0]])
    coefficients = np.zeros((7, 6))
    coefficients[1:, :] = 6 * np.eye(6)
    emulator = Emulator(*(jnp.asarray(part, jnp.float32) for part in (frequencies, coefficients)))
    few = MinimumDistance(
        jnp.eye(6), emulator, *codes_of(emulator, (0.004,), 16, rng), (0.004,), 15.0
    )
    many = with_codes(few, 4096, key=jr.key(seed))
    places = jnp.asarray(rng.uniform(-0.95, 0.95, size=(400, 1)), jnp.float32)
    seen = jax.vmap(emulator)(places) + jnp.asarray(rng.normal(size=(400, 6)), jnp.float32)
    far = [
        np.mean(np.abs(np.asarray(jax.jit(jax.vmap(d))(seen).place) - places) > 0.05)
        for d in (few, many)
    ]
    assert many.codes.shape == (4096, 1)
    assert far[0] > 0.2
    assert far[1] < 0.02


def test_a_target_of_several_coordinates(tone):
    """Its place is read off the nearest theta, too."""
    problem = dataclasses.replace(
        tone, target=lambda theta: theta["frequency"] + 0.2 * theta["phase"]
    )
    survey, made = start_of(problem, jr.key(0), FEW)
    assert isinstance(made.network, Scored)
    first = made.network.first
    assert isinstance(first, FirstState)
    assert first.tied == (None,)
    assert len(first.nuisances) == 2
    assert max(made.start) < 1.6
    assert survey.layout.parts[0].kind == "vector"


def test_it_can_be_left_out(tone):
    recipe = dataclasses.replace(FEW, minimum_distance=mvue.Recipe.MinimumDistance(used=False))
    _, made = start_of(tone, jr.key(0), recipe)
    assert not made.is_nearest
    assert not isinstance(getattr(made.network, "first", None), FirstState)
