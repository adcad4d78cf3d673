"""Which measurements are seen as sets when nobody says so."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest

import mvue
from helpers.hasty import HASTY
from helpers.layouts import statistics_for
from mvue._core.sampling import pilot_draw
from mvue._start.baseline import fit_baseline
from mvue._start.pieces import Pieces
from mvue._summaries.exchangeability import sets_in
from mvue._summaries.joint import JointStatistics
from mvue._summaries.layout import layout_of

SIZE = dist.Uniform(0.5, 2.0)
SIGNED = dist.Uniform(-0.8, 0.8)


def autoregressive(key, theta):
    step = lambda before, noise: (theta * before + noise,) * 2  # noqa: E731
    return jax.lax.scan(step, 0.0, jr.normal(key, (20,)))[1]


def changing_variance(key, theta):
    step = lambda before, noise: (noise * jnp.sqrt(1 + theta * before**2),) * 2  # noqa: E731
    return jax.lax.scan(step, 0.0, jr.normal(key, (30,)))[1]


def tone(key, theta):
    phase = 2 * jnp.pi * jr.uniform(jr.fold_in(key, 1))
    return jnp.cos(theta * jnp.arange(30) + phase) + jr.normal(key, (30,))


def correlated(key, theta):
    a, b = jr.normal(key, (2, 15))
    return {"a": a, "b": theta * a + jnp.sqrt(1 - theta**2) * b}


def two_samples(key, theta):
    one, other = jr.split(key)
    return {"a": theta * jr.normal(one, (8,)), "b": jr.exponential(other, (12,))}


def set_and_series(key, theta):
    one, other = jr.split(key)
    return {
        "a": theta * jr.normal(one, (8,)),
        "b": theta * jnp.arange(5.0) + jr.normal(other, (5,)),
    }


SETS = {
    "normal": (SIZE, lambda k, t: t * jr.normal(k, (8,))),
    "counts": (SIZE, lambda k, t: jr.poisson(k, t, (10,))),
    "heavy tails": (SIZE, lambda k, t: t + jr.cauchy(k, (12,))),
    "a shared level": (SIZE, lambda k, t: 5 * jr.normal(jr.fold_in(k, 1)) + t * jr.normal(k, (9,))),
    "vectors": (SIGNED, lambda k, t: jnp.stack(list(correlated(k, t).values()), 1)),
    "complex": (SIZE, lambda k, t: t * jr.normal(k, (6,), complex)),
    "many": (SIZE, lambda k, t: t * jr.exponential(k, (300,))),
    "one number": (SIZE, lambda k, t: t * jr.normal(k)),
}
SERIES = {
    "a weak slope": (SIGNED, lambda k, t: 0.3 * t * jnp.linspace(-1, 1, 20) + jr.normal(k, (20,))),
    "autoregressive": (SIGNED, autoregressive),
    "changing variance": (dist.Uniform(0.1, 0.9), changing_variance),
    "tone of unknown phase": (dist.Uniform(0.3, 2.8), tone),
    "a jump": (dist.Uniform(2.0, 28.0), lambda k, t: (jnp.arange(30) > t) + jr.normal(k, (30,))),
    "a rate and a duration": (SIZE, lambda k, t: jr.exponential(k, (2,)) * jnp.stack([1 / t, t])),
}


def found(prior, simulate, key, target=None):
    pilot = pilot_draw(mvue.Problem(prior, simulate, target=target), key, 1024, 4)
    return sets_in(pilot, mvue.Recipe().exchangeability)


@pytest.mark.parametrize("name", SETS)
def test_sets_are_recognised(name, swept_key):
    assert found(*SETS[name], swept_key) == [(0,)]


@pytest.mark.parametrize("name", SERIES)
def test_series_are_not_taken_for_sets(name, swept_key):
    assert found(*SERIES[name], swept_key) == []


@pytest.mark.parametrize(
    ("prior", "simulate", "groups"),
    [
        (SIGNED, correlated, [(0, 1)]),
        (SIZE, two_samples, [(0,), (1,)]),
        (SIZE, set_and_series, [(0,)]),
    ],
)
def test_arrays_that_belong_together(prior, simulate, groups, swept_key):
    assert found(prior, simulate, swept_key) == groups


@pytest.mark.parametrize(("given", "groups"), [(None, [(0,)]), (True, [(0,)]), (False, [])])
def test_what_the_problem_says_counts(given, groups, key):
    problem = mvue.Problem(SIZE, lambda k, t: t * jr.normal(k, (8,)), exchangeable=given)
    pilot = pilot_draw(problem, key, 1024, 4)
    recipe = mvue.Recipe()
    layout = layout_of(problem, pilot, recipe.exchangeability, recipe.summaries)
    assert [part.leaves for part in layout.parts if part.kind == "set"] == groups


NAMES = ("a", "b", "c", "d", "e", "f")


@pytest.mark.parametrize("breaks", NAMES)
def test_every_coordinate_of_theta_may_break_the_order(breaks, swept_key):
    """Whatever the entries of theta are called, and so wherever they stand."""
    slope = jnp.linspace(-1, 1, 12)
    assert (
        found(
            dict.fromkeys(NAMES, SIGNED),
            lambda k, t: sum(t.values()) + t[breaks] * slope + jr.normal(k, (12,)),
            swept_key,
            target=lambda t: t["a"],
        )
        == []
    )


@pytest.mark.parametrize("size", [6, 40, 400])
def test_many_coordinates_of_theta(size, key):
    prior = SIGNED.expand((size,)).to_event(1)
    slope = 3 * jnp.linspace(-1, 1, 12)
    noise = lambda k: jr.normal(k, (12,))  # noqa: E731
    assert found(prior, lambda k, t: t.sum() + noise(k), key) == [(0,)]
    assert found(prior, lambda k, t: t[-1] * slope + noise(k), key) == []


def test_what_simulations_show_reaches_whoever_asks(key, tmp_path):
    """A set that nobody declared: the model that is saved judges it as a set."""
    problem = mvue.Problem(SIZE, lambda k, t: t * jr.normal(k, (8,)))
    seen = mvue.survey(problem, key=key, recipe=HASTY)
    assert seen.layout.is_one_set
    fit = mvue.fit(problem, key=key, steps=2, recipe=HASTY)
    assert fit.problem.exchangeable
    for estimator, known in ((fit, None), (fit.estimator, problem)):
        mvue.save(estimator, tmp_path / "model.mvue", problem=known)
        inputs = mvue.load(tmp_path / "model.mvue").trained_on.inputs
        assert inputs.is_set
        assert inputs.usual.centre.shape == (1,)


def test_statistics_of_parts_are_those_of_each(key):
    x = jax.vmap(two_samples, (0, None))(jr.split(key, 50), 1.5)
    statistics = statistics_for(x, sets=[(0,), (1,)])
    assert isinstance(statistics, JointStatistics)
    one = jax.tree.map(lambda leaf: leaf[0], x)
    alone = [statistics_for(x[name], sets=[(0,)]) for name in ("a", "b")]
    inputs_of, natural_of = eqx.filter_jit(statistics.inputs), eqx.filter_jit(statistics.natural)
    inputs = [eqx.filter_jit(s.inputs)(one[name]) for s, name in zip(alone, "ab", strict=True)]
    both = jnp.concatenate(inputs)
    np.testing.assert_allclose(inputs_of(one)[: both.shape[0]], both, rtol=1e-6)
    natural = natural_of(one)
    product = jnp.mean(one["a"]) * jnp.mean(one["b"])
    assert jnp.isclose(natural, product, rtol=1e-4).any()
    shuffled = {"a": one["a"][::-1], "b": jnp.roll(one["b"], 3)}
    np.testing.assert_allclose(inputs_of(shuffled), inputs_of(one), rtol=1e-4, atol=1e-4)


def test_statistics_without_a_scale_are_left_out(key):
    """The mean of Pareto data with tail index below two; its logarithms are tame."""
    problem = mvue.Problem(
        dist.Uniform(0.4, 5.0), lambda k, t: jnp.exp(jr.exponential(k, (8,)) / t), exchangeable=True
    )
    seen = mvue.survey(problem, key=key)
    plug_in, baseline, *_ = fit_baseline(Pieces(problem, seen), seen, key=key)
    assert baseline is not None
    x = jnp.exp(jr.exponential(key, (8,))).at[0].set(1e30)  # its square is infinite

    @jax.jit
    def estimated(x):
        statistics = seen.statistics.inputs(x)
        inputs = plug_in.inputs(statistics)
        plugged, log_sd, _ = plug_in(statistics)
        return inputs, baseline(plugged, log_sd, inputs, seen.statistics.natural(x))

    inputs, estimate = estimated(x)
    assert jnp.abs(inputs).max() < 40
    assert jnp.abs(estimate).max() < 100
