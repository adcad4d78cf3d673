"""Draws: independent noise, shared unknowns, and nothing that depends on batching."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest

import mvue
from mvue._core.ranges import ranges_of
from mvue._core.sampling import pilot_draw


def noisy(key, theta):
    return theta + jr.normal(key, (4,))


def scalar_problem(**kwargs):
    return mvue.Problem(dist.Uniform(0.0, 1.0), noisy, **kwargs)


def test_shapes_and_shared_theta(line, key):
    theta, y, x = line.draw(key, 7, 3)
    assert theta.shape == (7, 2)
    assert y.shape == (7, 2)
    assert x.shape == (7, 3, 2)
    np.testing.assert_array_equal(theta, y)


def test_no_two_draws_repeat(swept_key):
    draw = scalar_problem().draw(swept_key, 500, 40)
    assert len(np.unique(draw.theta)) >= 498  # two of 500 rarely share a float32
    noise = np.asarray(draw.x - draw.theta[:, None, None])
    assert len(np.unique(np.asarray(draw.x))) > 0.999 * draw.x.size
    # Noise of different measurements is uncorrelated, within and between unknowns.
    flat = noise.reshape(500 * 40, 4)
    for shift in (1, 40):
        products = (flat[:-shift] * flat[shift:]).ravel()
        assert abs(products.mean()) < 4.5 * products.std() / np.sqrt(products.size)
    assert abs((noise.std() - 1) * np.sqrt(2 * noise.size)) < 4.5


def test_a_larger_draw_begins_with_the_smaller(key):
    problem = scalar_problem()
    small, large = problem.draw(key, 3, 2), problem.draw(key, 9, 5)
    np.testing.assert_array_equal(small.theta, large.theta[:3])
    np.testing.assert_array_equal(small.x, large.x[:3, :2])
    jitted = jax.jit(problem.draw, static_argnums=(1, 2))(key, 3, 2)
    np.testing.assert_allclose(small.x, jitted.x, rtol=1e-6)


def test_pytrees_nuisances_and_target(key):
    problem = mvue.Problem(
        prior={"gain": dist.Uniform(1.0, 2.0), "level": dist.Normal(0.0, 1.0).expand((2,))},
        simulate=lambda key, t: {
            "a": t["gain"] * jr.normal(key, (3,)),
            "b": t["level"] + jr.normal(jr.fold_in(key, 1), (2,)),
        },
        target=lambda t: t["level"],
        names=("left", "right"),
    )
    draw = problem.draw(key, 6, 4)
    assert draw.y.shape == (6, 2)
    assert draw.theta["gain"].shape == (6,)
    assert draw.x["a"].shape == (6, 4, 3)
    assert "left, right" in repr(problem)


def test_any_object_with_sample_is_a_prior(key):
    class Dice:
        def sample(self, key):
            return jr.randint(key, (), 1, 7)

    problem = mvue.Problem(Dice(), lambda key, t: t + jr.normal(key, (2,)))
    y = problem.draw(key, 100, 1).y
    assert y.dtype == jnp.float32
    assert set(np.unique(y)) <= set(range(1, 7))


def test_from_likelihood(swept_key):
    problem = mvue.Problem.from_likelihood(
        dist.Uniform(0.5, 4.0), lambda t: dist.Normal(0.0, t).expand((50,)), exchangeable=True
    )
    draw = problem.draw(swept_key, 400, 20)
    z = np.asarray(draw.x / draw.theta[:, None, None])
    assert abs(z.mean()) < 4.5 / np.sqrt(z.size)
    assert problem.log_likelihood is not None
    x = draw.x[0, 0]
    expected = dist.Normal(0.0, 2.0).log_prob(x).sum()
    np.testing.assert_allclose(problem.log_likelihood(2.0, x), expected, rtol=1e-6)


def prior_of_wrong_kind():
    mvue.Problem(3.0, noisy)


def shapes_disagree():
    mvue.Problem(
        dist.Uniform(0.0, 1.0).expand((3,)), lambda key, t: jnp.ones((2,)) @ t.reshape(1, 3)
    )


def several_parts_without_target():
    mvue.Problem({"a": dist.Uniform(0, 1), "b": dist.Uniform(0, 1)}, lambda key, t: t["a"])


def matrix_unknown():
    mvue.Problem(dist.Uniform(0.0, 1.0).expand((2, 2)), lambda key, t: t)


def wrong_names():
    scalar_problem(names=("a", "b"))


def not_exchangeable():
    mvue.Problem(dist.Uniform(0.0, 1.0), lambda key, t: t + jr.normal(key), exchangeable=True)


def bad_target():
    scalar_problem(target=lambda t: t["missing"])


def zero_units():
    scalar_problem().draw(jr.key(0), 0, 1)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (prior_of_wrong_kind, TypeError, r"method sample\(key\).*got float"),
        (
            shapes_disagree,
            mvue.exceptions.SimulatorError,
            r"simulate\(key, theta\) failed.*shape \(3,\)",
        ),
        (several_parts_without_target, mvue.exceptions.SimulatorError, "say with target"),
        (
            matrix_unknown,
            mvue.exceptions.SimulatorError,
            r"vector of shape \(d,\), got shape \(2, 2\)",
        ),
        (wrong_names, ValueError, "one entry for each of the 1 components"),
        (not_exchangeable, mvue.exceptions.SimulatorError, "same leading axis"),
        (bad_target, mvue.exceptions.SimulatorError, r"target\(theta\) failed"),
        (zero_units, ValueError, "n must be a whole number of at least 1, got 0"),
    ],
)
def test_bad_problems_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def by_converting(key, t):
    return np.asarray(t) + 1.0


def by_float(key, t):
    return float(t) + jr.normal(key, (4,))


def by_branching(key, t):
    return t + jr.normal(key, (4,)) if t > 0.5 else jr.normal(key, (4,))


def by_numpy_noise(key, t):
    return np.random.default_rng(0).normal(t, 1.0, 4)


def by_seeding_with_the_key(key, t):
    return np.random.default_rng(key).normal(size=4)


def by_filling_an_array(key, t):
    x = np.zeros(4)
    x[0] = t
    return x


def by_assigning_in_place(key, t):
    x = jr.normal(key, (4,))
    x[0] = t
    return x


def by_repeating(key, t):
    return sum(jr.normal(key, (4,)) for _ in range((10 * t).astype(int)))


def by_formatting(key, t):
    return t + jr.normal(key, (len(f"{t:.3f}"),))


def with_another_name_for_rng(t, generator):
    return generator.normal(1.0, 1.0, 4)


@pytest.mark.parametrize(
    "simulate",
    [
        by_converting,
        by_float,
        by_branching,
        by_numpy_noise,
        by_seeding_with_the_key,
        by_filling_an_array,
        by_assigning_in_place,
        by_repeating,
        by_formatting,
        with_another_name_for_rng,
    ],
)
def test_a_simulator_in_numpy_is_told_of_simulate(simulate):
    with pytest.raises(mvue.exceptions.SimulatorError, match="is not written in JAX") as error:
        mvue.Problem(dist.Uniform(0.0, 1.0), simulate)
    message = str(error.value)
    assert "simulate(key, theta)" in message
    assert "jax.numpy and jax.random" in message
    assert "data = mvue.simulate(simulator, prior)" in message
    assert "fit = mvue.fit_data(data, key=jax.random.key(0))" in message


@pytest.mark.parametrize(
    "simulate",
    [
        lambda theta, rng: theta + rng.normal(size=4),
        lambda theta, rng: rng.normal(theta[0], 1.0, 4),
        lambda theta, rng: np.sin(theta) + rng.normal(size=4),
    ],
)
def test_a_simulator_with_the_arguments_of_simulate_is_told_so(simulate):
    with pytest.raises(
        mvue.exceptions.SimulatorError, match=r"written as simulate\(theta, rng\)"
    ) as error:
        mvue.Problem(dist.Uniform(0.0, 1.0), simulate)
    assert "mvue.simulate(simulator, prior)" in str(error.value)


def test_other_functions_in_numpy_are_named():
    class Prior:
        def sample(self, key):
            return np.random.default_rng(int(key)).uniform()

    def refused(what):
        return pytest.raises(mvue.exceptions.SimulatorError, match=rf"^{what}.* is not written in")

    with refused("prior.sample"):
        mvue.Problem(Prior(), noisy)
    with refused("target"):
        scalar_problem(target=lambda t: np.log(t))
    with refused("log_likelihood"):
        scalar_problem(log_likelihood=lambda t, x: float(jnp.sum(x - t)))
    with refused("likelihood"):
        mvue.Problem.from_likelihood(dist.Uniform(0.0, 1.0), lambda t: dist.Normal(np.sqrt(t), 1.0))


def test_a_mistake_in_jax_is_not_taken_for_numpy():
    with pytest.raises(mvue.exceptions.SimulatorError, match=r"simulate.* failed .*no attribute"):
        mvue.Problem(dist.Uniform(0.0, 1.0), lambda key, t: t.men() + jr.normal(key))


def test_a_simulator_that_ignores_its_key_is_refused(key):
    problem = mvue.Problem(dist.Uniform(0.0, 1.0), lambda key, t: t * jnp.ones(3))
    with pytest.raises(mvue.exceptions.SimulatorError, match="ignores its key"):
        pilot_draw(problem, key, 64, 1)
    with pytest.raises(mvue.exceptions.SimulatorError, match="ignores its key"):
        mvue.fit(problem, key=key, steps=10)


def test_noise_that_was_drawn_once_is_noticed(swept_key):
    once = np.random.default_rng(0).normal(size=3)

    def partly(key, t):
        return jnp.append(t + once, t + jr.normal(key))

    with pytest.warns(mvue.exceptions.NoiselessWarning, match="3 of 4 numbers of x never differ"):
        pilot_draw(mvue.Problem(dist.Uniform(0.0, 1.0), partly), swept_key, 64, 2)

    def legitimate(key, t):  # constants, and counts that are rare
        rare = jr.poisson(key, 1e-2, (50,)).astype(float)
        return jnp.concatenate([jnp.ones(2), rare, t + jr.normal(key, (1,))])

    pilot_draw(mvue.Problem(dist.Uniform(0.0, 1.0), legitimate), swept_key, 64, 2)


def with_a_constant(target):
    prior = {"level": dist.Uniform(0.0, 1.0), "noise": dist.Delta(jnp.array(2.0))}
    simulate = lambda key, t: t["level"] + t["noise"] * jr.normal(key, (4,))  # noqa: E731
    return mvue.Problem(prior, simulate, target=target, names=None)


def test_a_constant_in_y_is_refused(key):
    problem = with_a_constant(lambda t: jnp.stack([t["level"], t["noise"]]))
    with pytest.raises(mvue.exceptions.SimulatorError, match="y2 is the same for all parameters"):
        pilot_draw(problem, key, 64, 1)


def test_a_constant_in_theta_is_drawn_from_the_prior(key):
    found = ranges_of(with_a_constant(lambda t: t["level"][None]), key)
    assert found == "noise is the same in all of its draws"


@pytest.mark.parametrize("scale", [1e17, 1e30])
def test_numbers_that_are_too_large_to_be_squared_are_refused(scale, key):
    problem = mvue.Problem(dist.Uniform(0.0, 1.0), lambda key, t: scale * noisy(key, t))
    with pytest.raises(mvue.exceptions.SimulatorError, match="beyond the range of float32"):
        pilot_draw(problem, key, 64, 1)


def test_a_prior_that_ignores_its_key_is_refused(key):
    class Fixed:
        def sample(self, key):
            return np.random.default_rng(0).uniform(1.0, 2.0)

    problem = mvue.Problem(Fixed(), noisy)
    with pytest.raises(mvue.exceptions.SimulatorError, match=r"prior\.sample ignores its key"):
        mvue.fit(problem, key=key, steps=10)


def test_constant_parts_of_x_are_no_missing_noise(key):
    problem = mvue.Problem(
        dist.Uniform(1.0, 2.0),
        lambda k, t: {"t": jnp.linspace(0, 1, 5), "n": jr.poisson(k, t, (5,))},
    )
    assert pilot_draw(problem, key, 64, 1).x["n"].shape == (64, 1, 5)


def test_wrong_bound_is_refused_at_once():
    with pytest.raises(ValueError, match=r"crb\(theta\) must return a matrix of shape \(1, 1\)"):
        scalar_problem(crb=lambda t: jnp.ones(3))


def test_many_nonfinite_simulations_are_refused_with_their_fraction(key):
    problem = mvue.Problem(
        dist.Uniform(0.0, 1.0), lambda key, t: jnp.where(t > 0.8, jnp.nan, t) + jr.normal(key, (2,))
    )
    with pytest.raises(
        mvue.exceptions.SimulatorError, match=r"(1[89]|2[012])\.\d+% of the simulated"
    ):
        mvue.fit(problem, key=key, steps=10)
