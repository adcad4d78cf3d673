"""What a measurement is taken for: by its words, by simulations, and by its shape."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpyro.distributions as dist
import pytest

import mvue
from helpers.hasty import HASTY
from mvue._core.sampling import pilot_draw
from mvue._summaries.layout import layout_of

SIGNED = dist.Uniform(-0.8, 0.8)
SIZE = dist.Uniform(0.5, 2.0)


def layout(simulate, key, prior=SIGNED, **said):
    problem = mvue.Problem(prior, simulate, **said)
    pilot = pilot_draw(problem, key, 1024, 4)
    recipe = mvue.Recipe()
    return layout_of(problem, pilot, recipe.exchangeability, recipe.summaries)


def kinds(found):
    return [(part.kind, part.axis) for part in found.parts]


def moving_average(key, theta, n=1000):
    noise = jr.normal(key, (n + 1,))
    return noise[1:] + theta * noise[:-1]


def array_of_sensors(key, theta):
    """Snapshots of a plane wave: sensors first, then snapshots."""
    signal, noise = jr.split(key)
    steering = jnp.exp(1j * jnp.pi * theta * jnp.arange(8))
    return jnp.outer(steering, jr.normal(signal, (10,), complex)) + jr.normal(
        noise, (8, 10), complex
    )


ramp = jnp.linspace(-1, 1, 24)
SEEN = {
    "a long moving average": (moving_average, [("series", None)]),
    "a short ordered vector": (
        lambda k, t: t * ramp[:6] + 0.1 * jr.normal(k, (6,)),
        [("vector", None)],
    ),
    "two channels": (
        lambda k, t: t * jnp.outer(ramp, jnp.array([1.0, 2.0])) + jr.normal(k, (24, 2)),
        [("series", 1)],
    ),
    "two channels, first": (
        lambda k, t: t * jnp.outer(jnp.array([1.0, 2.0]), ramp) + jr.normal(k, (2, 24)),
        [("series", 0)],
    ),
    "an image": (
        lambda k, t: t * jnp.outer(ramp, ramp) + jr.normal(k, (24, 24)),
        [("image", None)],
    ),
    "an image of three colours": (
        lambda k, t: t * jnp.outer(ramp, ramp)[..., None] + jr.normal(k, (24, 24, 3)),
        [("image", 2)],
    ),
    "snapshots along the second axis": (array_of_sensors, [("set", 1)]),
    "snapshots along the first axis": (lambda k, t: array_of_sensors(k, t).T, [("set", 0)]),
    "many independent draws": (lambda k, t: t + jr.normal(k, (3000,)), [("set", 0)]),
}


@pytest.mark.parametrize("name", SEEN)
def test_layouts_are_recognised(name, swept_key):
    simulate, expected = SEEN[name]
    found = layout(simulate, swept_key)
    assert kinds(found) == expected
    assert not found.told


def test_one_number_is_a_set_without_an_axis(key):
    found = layout(lambda k, t: t + 0.3 * jr.normal(k), key)
    assert kinds(found) == [("set", None)]
    assert not found.is_one_set


def test_several_arrays_have_layouts_of_their_own(key):
    def simulate(key, theta):
        one, two, three = jr.split(key, 3)
        return {
            "image": theta * jnp.outer(ramp, ramp) + jr.normal(one, (24, 24)),
            "sample": theta + jr.normal(two, (9,)),
            "series": theta * ramp + jr.normal(three, (24,)),
        }

    found = layout(simulate, key)
    assert kinds(found) == [("set", 0), ("image", None), ("series", None)]
    text = found.describe(mvue.Problem(SIGNED, simulate).shapes()[0])
    assert "x['sample'] seen as a set (simulations show no order)" in text
    assert "x['image'] seen as an image (its order matters)" in text


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"layout": "series"}, [("series", None)]),
        ({"layout": "vector"}, [("vector", None)]),
        ({"layout": "set"}, [("set", 0)]),
        ({"exchangeable": False}, [("series", None)]),
    ],
)
def test_what_the_problem_says_counts(said, expected, key):
    assert kinds(layout(lambda k, t: t + jr.normal(k, (12,)), key, **said)) == expected


def test_words_reach_the_fit(key):
    problem = mvue.Problem(SIZE, lambda k, t: t * jr.normal(k, (12,)), layout="series")
    assert not problem.exchangeable
    fit = mvue.fit(problem, key=key, steps=2, recipe=HASTY)
    assert "of a series of 12" in " ".join(str(fit).split())
    assert "x seen as a series (as the problem says)" in " ".join(str(fit).split())


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"layout": "matrix"}, "layout must be one of 'set', 'series', 'image', 'vector'"),
        ({"layout": "image"}, r"layout 'image' needs an array of 2 to 3 axes, got x of shape"),
        ({"layout": {"a": "set"}}, "in the structure of x"),
        ({"layout": "set", "exchangeable": False}, "say one of them"),
        ({"layout": "series", "exchangeable": True}, "say one of them"),
    ],
)
def test_words_that_contradict_are_refused(said, message):
    with pytest.raises(ValueError, match=message):
        mvue.Problem(SIZE, lambda k, t: t * jr.normal(k, (12,)), **said)


def test_summaries_of_ones_own(key):
    problem = mvue.Problem(SIZE, lambda k, t: t * jr.normal(k, (12,)))
    fit = mvue.fit(
        problem, key=key, steps=2, recipe=HASTY, summaries=[jnp.max, lambda x: jnp.stack([x[0]])]
    )
    x = jr.normal(key, (12,))
    assert jnp.isclose(fit.survey.statistics.inputs(x)[-2:], jnp.stack([x.max(), x[0]])).all()
    assert "2 given functions of x" in " ".join(str(fit).split())


@pytest.mark.parametrize(
    ("summaries", "error", "message"),
    [
        (3, TypeError, "summaries must be"),
        ([jnp.max, 3], TypeError, "summaries must be a function of one measurement"),
        (lambda x: jnp.log(x), ValueError, r"summaries\[0\] .* is not finite on"),
        (lambda x: x.sum(axis=3), ValueError, r"summaries\[0\] .* failed on a measurement"),
    ],
)
def test_summaries_that_will_not_do(summaries, error, message, key):
    problem = mvue.Problem(SIZE, lambda k, t: t * jr.normal(k, (12,)))
    with pytest.raises(error, match=message):
        mvue.survey(problem, key=key, recipe=HASTY, summaries=summaries)


def test_summaries_for_a_network_of_ones_own_are_refused(line, key):
    network = lambda x: jax.numpy.zeros(2)  # noqa: E731
    with pytest.raises(ValueError, match="summaries has no use here"):
        mvue.fit(line, network, key=key, summaries=jnp.max)
