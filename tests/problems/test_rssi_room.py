"""The room with beacons against exact properties of the censored Gaussian model."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import mvue
from mvue.problems import rssi_room

# In the middle, near two corners, and right below a beacon.
PLACES = [np.array(place) for place in ((13.0, 8.0), (5.0, 2.0), (22.5, 14.5), (9.0, 8.0))]


def measurements(room, y, count, key):
    keys = jr.split(key, count)
    return jax.jit(jax.vmap(lambda k: room.problem.simulate(k, jnp.asarray(y))))(keys)


def test_problem():
    room = rssi_room(n=3)
    assert room.problem.names == ("x", "y")
    assert room.problem.exchangeable
    draw = room.problem.draw(jr.key(0), 500, 2)
    assert draw.x.shape == (500, 2, 3, 13)
    np.testing.assert_allclose(draw.y.min(axis=0), room.low, atol=0.3)
    np.testing.assert_allclose(draw.y.max(axis=0), room.high, atol=0.3)
    heard = np.asarray(room.heard(draw.x))
    x = np.asarray(draw.x)
    assert set(x[~heard]) == {-100.0}
    assert x[heard].min() > -88
    assert x[heard].min() == pytest.approx(-88, abs=0.1)
    assert repr(room) == "RSSIRoom(13 beacons in a room of 19 x 14; 3 scans, heard from -88 dBm)"


def test_mean_is_the_path_loss():
    room = rssi_room(beacons=[(0, 0)], low=(0, 0), high=(9, 9), power=-50, exponent=2, height=1)
    far = room.mean(np.array([0.0, np.sqrt(99.0)]))  # at distance 10, with the height
    assert float(far[0]) == pytest.approx(-70, abs=1e-4)
    assert float(room.mean(np.zeros(2))[0]) == pytest.approx(-50, abs=1e-4)


@pytest.mark.parametrize("place", PLACES)
def test_beacons_are_heard_as_often_as_computed(swept_key, place):
    room = rssi_room(n=4)
    x = measurements(room, place, 5_000, swept_key)
    share = np.asarray(room.heard(x), np.float64).mean(axis=(0, 1))
    expected = np.asarray(room.heard_probability(place), np.float64)
    error = np.sqrt(expected * (1 - expected) / 20_000)
    assert (np.abs(share - expected) < 4.5 * error + 1e-4).all()


@pytest.mark.parametrize("reading", [-80.0, -86.0, -95.0])
def test_likelihood_is_normalised(reading):
    """The density of what is heard and the probability of silence add to one."""
    y = jnp.zeros(2)
    room = rssi_room(n=1, beacons=[(0, 0)], low=(0, 0), high=(9, 9), power=reading, height=1)
    likelihood = jax.jit(jax.vmap(lambda v: room.problem.log_likelihood(y, v[None, None])))
    values = np.linspace(room.threshold, reading + 12 * room.shadowing, 4001)
    with jax.enable_x64(True):
        log_density = likelihood(values[1:])
        silence = jnp.exp(likelihood(np.array([room.missing]))[0])
    density = np.exp(np.asarray(log_density))
    step = float(values[1] - values[0])
    first = np.exp(-0.5 * ((room.threshold - reading) / 5) ** 2) / np.sqrt(50 * np.pi)
    total = step * (density.sum() + (first - density[-1]) / 2)
    assert total + float(silence) == pytest.approx(1.0, abs=1e-4)
    assert float(silence) == pytest.approx(1 - float(room.heard_probability(y)[0]), abs=1e-5)


@pytest.mark.parametrize("place", PLACES)
def test_fisher_information_is_the_variance_of_the_score(swept_key, place):
    room = rssi_room(n=2)
    x = measurements(room, place, 40_000, swept_key)
    score = jax.jit(jax.vmap(jax.grad(room.problem.log_likelihood), in_axes=(None, 0)))
    scores = np.asarray(score(jnp.asarray(place), x), np.float64)
    assert (np.abs(scores.mean(axis=0)) < 4.5 * scores.std(axis=0) / 200).all()
    products = scores[:, :, None] * scores[:, None, :]
    error = products.std(axis=0) / 200
    assert (np.abs(products.mean(axis=0) - np.asarray(room.fisher(place))) < 4.5 * error).all()
    np.testing.assert_allclose(room.crb(place) @ room.fisher(place), np.eye(2), atol=1e-4)


def test_information_of_extremes():
    """Heard always: that of a Gaussian mean. Heard never: none."""
    kwargs = {"n": 7, "beacons": [(0, 0), (5, 0)], "low": (0, 0), "high": (9, 9)}
    y = jnp.array([2.0, 3.0])
    always = rssi_room(threshold=-300.0, missing=-400.0, **kwargs)
    slopes = jax.jit(jax.jacobian(always.mean))(y)
    np.testing.assert_allclose(jax.jit(always.fisher)(y), 7 / 25 * slopes.T @ slopes, rtol=1e-5)
    never = rssi_room(threshold=100.0, **kwargs)
    assert float(jnp.abs(jax.jit(never.fisher)(y)).max()) < 1e-30
    silence = jax.jit(never.problem.log_likelihood)(y, jnp.full((7, 2), -100.0))
    assert float(silence) == pytest.approx(0.0, abs=1e-6)


def test_bound_is_finite_and_well_conditioned_throughout_the_room():
    room = rssi_room()
    axes = [np.linspace(low, high, 15) for low, high in zip(room.low, room.high, strict=True)]
    places = jnp.asarray(np.stack(np.meshgrid(*axes), -1).reshape(-1, 2))
    bounds = np.asarray(jax.jit(jax.vmap(room.crb))(places), np.float64)
    deviations = np.sqrt(np.diagonal(bounds, axis1=1, axis2=2))
    assert deviations.min() > 0.25
    assert deviations.max() < 0.9
    assert np.linalg.cond(bounds).max() < 10
    heard = jax.jit(jax.vmap(room.heard_probability))(places)
    assert float(heard.sum(axis=1).min()) > 2.5


def test_library_finds_the_same_information(key):
    room = rssi_room(n=2)
    place = jnp.array([12.0, 5.0])
    assert mvue.crb(room.problem, place).method == "given"
    sampled = mvue.fisher_information(room.problem, place, key=key, method="monte carlo")
    np.testing.assert_allclose(sampled.matrix, room.fisher(place), rtol=0.1, atol=0.02)


def test_sufficient_statistics_determine_the_likelihood():
    """Measurements that share them differ in likelihood by the same factor at every place."""
    room = rssi_room(n=3)
    x = jnp.stack([jnp.full(13, reading) for reading in (-70.0, -80.0, room.missing)])
    other = jnp.stack([jnp.full(13, reading) for reading in (-86.0, room.missing, -64.0)])
    np.testing.assert_allclose(room.sufficient(x), room.sufficient(other), rtol=1e-5)
    np.testing.assert_allclose(room.sufficient(x), np.repeat([2 / 3, 26 / 3], 13), rtol=1e-5)
    likelihood = jax.jit(room.problem.log_likelihood)
    ratios = [likelihood(jnp.asarray(p), x) - likelihood(jnp.asarray(p), other) for p in PLACES]
    np.testing.assert_allclose(ratios, 13 * (22**2 - 10**2) / 4 / 25, rtol=1e-4)


def test_centroid(key):
    room = rssi_room()
    x = measurements(room, (13.5, 8.0), 2_000, key)
    estimates = jax.vmap(room.centroid)(x)
    np.testing.assert_allclose(estimates.mean(axis=0), [13.5, 8.0], atol=0.2)  # by symmetry
    nothing = room.centroid(jnp.full((10, 13), room.missing))
    np.testing.assert_allclose(nothing, [13.5, 8.0])


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"n": 0}, "n must be a whole number"),
        ({"beacons": [1.0, 2.0]}, r"beacons must have shape \(k, 2\)"),
        ({"beacons": [(np.nan, 2.0)]}, "beacons must be finite"),
        ({"low": (0.0, 20.0)}, "low and high must be opposite corners"),
        ({"shadowing": 0.0}, "shadowing must be positive"),
        ({"exponent": -2.0}, "exponent must be positive"),
        ({"missing": -80.0}, "missing must be at most the threshold"),
    ],
)
def test_wrong_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        rssi_room(**kwargs)
