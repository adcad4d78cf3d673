"""Slow simulations: fewer of them, and each is used several times."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest

import mvue
from helpers.hasty import HASTY_END
from mvue._core.sampling import Simulations
from mvue._recipe.cost import affordable, processor_seconds, uses_of
from mvue._start.pieces import Pieces
from mvue._training.pools import RenewedPools

SD, N = 0.5, 4
ALWAYS_SLOW = mvue.Recipe.Schedule(seconds=1e-9, most_uses=8, fewest_simulations=1e-9)
STEPS = 96


@pytest.fixture(scope="module")
def location():
    """y ~ U(-1, 1), four readings with normal noise: the mean is the best there is."""
    return mvue.Problem(
        prior=dist.Uniform(-1.0, 1.0),
        simulate=lambda key, y: y + SD * jr.normal(key, (N,)),
        names=("place",),
    )


@pytest.fixture(scope="module")
def seen(location):
    return mvue.survey(location, key=jr.key(0), recipe=HASTY_END)


def test_what_an_allowance_pays_for():
    assert affordable(1000, 1e-3, 1.0) == 1.0
    assert affordable(1001, 1e-3, 1.0) == 0.5
    assert affordable(8000, 1e-3, 1.0) == 0.125
    assert affordable(10**9, 1e-12, 1.0) == 1.0


@pytest.mark.parametrize("slower", [1, 3, 30, 3000])
def test_an_allowance_is_kept(slower):
    share = affordable(1e6, 1e-5 * slower, 10.0)
    assert share * 1e6 * 1e-5 * slower <= 10.0
    assert share == 1.0 or 2 * share * 1e6 * 1e-5 * slower > 10.0


def test_uses_are_limited_by_the_weights_of_the_network():
    settings = mvue.Recipe.Schedule(seconds=1.0, most_uses=16, fewest_simulations=4.0)
    assert uses_of(100_000, 1e-6, 100, settings) == 1  # quick
    assert uses_of(100_000, 3e-5, 100, settings) == 4
    assert uses_of(100_000, 1.0, 100, settings) == 16
    assert uses_of(100_000, 1.0, 5_000, settings) == 4  # five simulations a weight
    assert uses_of(100_000, 1.0, 10**6, settings) == 1


def test_other_processes_are_not_counted():
    found, seconds = processor_seconds(lambda: jnp.zeros(3))
    assert found.shape == (3,)
    assert 0 <= seconds < 5


def test_the_start_is_fitted_to_fewer_slow_simulations(location, seen):
    usual = Pieces(location, dataclasses.replace(seen, recipe=mvue.Recipe()))
    slow = dataclasses.replace(seen, recipe=mvue.Recipe(), seconds=1.0)
    few = Pieces(location, slow)
    settings = mvue.Recipe().baseline
    assert (usual.units, usual.share) == (settings.units, 1.0)
    assert few.units == settings.fewest_units
    made = list(few(jr.key(0), settings.pieces))
    assert len(made) == settings.fewest_pieces
    assert made[0].y.shape == (settings.fewest_units, 1)


@pytest.fixture(scope="module")
def simulations(location):
    return Simulations(location, 8, 2, lambda _, x: jnp.mean(x))


@pytest.mark.parametrize("uses", [2, 8])
def test_each_simulation_is_used_so_many_times(simulations, uses):
    steps = 40 * simulations.count
    pools = RenewedPools(simulations, jr.key(1), steps, uses, kept=10**8)
    first, step = set(), 0
    while step < steps:
        pool, after = pools.feed(step)
        assert after > step
        first |= set(np.asarray(pool.draw.y).ravel().tolist())
        step = after
    simulated = len(first)
    wanted = steps * 8 / uses
    # Two draws may have the same y.
    assert 0.9 * wanted < simulated <= wanted + 8 * simulations.count


def test_pools_depend_on_the_step_alone(simulations):
    steps = 20 * simulations.count
    settings = jr.key(1), steps, 4, 10**8
    pools, others = (RenewedPools(simulations, *settings) for _ in range(2))
    step = 0
    while step < steps:
        pool, step = pools.feed(step)
    again, _ = others.feed(steps - 1)
    assert all(map(np.array_equal, jax.tree.leaves(pool), jax.tree.leaves(again)))


def test_few_numbers_are_kept(simulations):
    pools = RenewedPools(simulations, jr.key(1), 40 * simulations.count, 2, kept=1)
    pool, _ = pools.feed(0)
    assert pool.finite.shape[0] == simulations.count


def slow_fit(problem, **settings):
    recipe = dataclasses.replace(HASTY_END, schedule=ALWAYS_SLOW)
    return mvue.fit(problem, key=jr.key(3), recipe=recipe, steps=STEPS, validations=2, **settings)


@pytest.fixture(scope="module")
def whole(location, tmp_path_factory):
    """A fit whose simulations are used eight times, and where its checkpoints are."""
    folder = tmp_path_factory.mktemp("whole")
    return slow_fit(location, checkpoint=folder, checkpoint_every=0.0), folder


def test_a_fit_says_how_often_and_is_as_good(location, whole):
    fit, _ = whole
    assert "used 8 times on average" in str(fit)
    report = mvue.assess(fit, location, at=[-1.0, 0.0, 1.0], repeats=4000, key=jr.key(4))
    found = report["estimator"]
    assert (np.abs(found.bias) < 0.1 * SD / N**0.5 + 4 * found.bias_se).all()
    assert (found.mse < 1.2 * SD**2 / N).all()


def test_a_resumed_fit_is_the_same(location, whole):
    fit, folder = whole
    newest = max(int(path.name) for path in folder.iterdir() if path.name.isdigit())
    shutil.rmtree(folder / str(newest))
    resumed = slow_fit(location, checkpoint=folder)
    x = location.draw(jr.key(5), 6, 1).x[:, 0]
    np.testing.assert_array_equal(resumed.predict(x), fit.predict(x))
