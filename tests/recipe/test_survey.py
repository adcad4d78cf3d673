"""The recipe of `fit`: where it trains, how it weights, and what comes of it."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest

import mvue
from helpers.hasty import HASTY, HASTY_SURVEY
from mvue._core.ranges import ranges_of
from mvue._linear.refit import LinearReadout
from mvue._start.baseline import fit_baseline
from mvue._start.pieces import Pieces
from mvue.problems import textbook

N = 8


def log_sd(survey, thetas):
    return np.asarray(jax.vmap(survey.log_sd)(thetas))[:, 0]


# Problems that are surveyed with several keys: one object each, so that it is traced once.
RATE, WIDE_RATE = (
    mvue.Problem(prior, lambda k, t: jr.exponential(k, (N,)) / t, exchangeable=True)
    for prior in (dist.Uniform(0.5, 5.0), dist.Uniform(0.01, 100.0))
)
SHAPE = np.cos(0.3 * np.arange(16.0))
AMPLITUDE = mvue.Problem(
    dist.Uniform(-2.0, 2.0),
    lambda k, t: t * SHAPE.astype("float32") + jr.normal(k, (16,)),
    exchangeable=False,
)


def test_expected_error_and_range_of_a_rate(swept_key):
    """Deviation θ/√n: evenly on a logarithmic scale, a few deviations beyond both ends."""
    seen = mvue.survey(RATE, key=swept_key)
    at = jnp.geomspace(0.5, 5.0, 9)
    np.testing.assert_allclose(log_sd(seen, at), np.log(at / np.sqrt(N)), atol=0.2)
    (found,) = seen.ranges
    assert found.interest == (0.5, 5.0)
    reach = np.log([0.5 / found.training[0], found.training[1] / 5.0]) * np.sqrt(N)
    assert ((reach > 1.5) & (reach < 3.3)).all()
    drawn = jax.vmap(seen.training_prior.sample)(jr.split(swept_key, 4_000))
    assert found.training[0] <= drawn.min()
    assert drawn.max() <= found.training[1]
    # Half of the draws below the geometric middle, as on a logarithmic scale.
    middle = np.sqrt(found.training[0] * found.training[1])
    assert abs(np.mean(drawn < middle) - 0.5) < 0.08
    np.testing.assert_allclose(seen.weight(at[0]), np.exp(-2 * seen.log_sd(at[0])), rtol=1e-5)
    assert "of interest: 0.5 … 5" in str(seen)


def test_range_over_powers_of_ten(swept_key):
    """Four decades of a uniform prior: as evenly on a logarithmic scale as within one."""
    seen = mvue.survey(WIDE_RATE, key=swept_key)
    at = jnp.geomspace(0.01, 100.0, 9)
    np.testing.assert_allclose(log_sd(seen, at), np.log(at / np.sqrt(N)), atol=0.3)
    (found,) = seen.ranges
    assert abs(found.width - (np.log(1e4) * np.sqrt(N) + 5)) < 4
    assert 0.002 < found.training[0] < 0.007
    drawn = jax.vmap(seen.training_prior.sample)(jr.split(swept_key, 4_000))
    assert abs(np.mean(drawn < 1.0) - 0.5) < 0.08


def test_many_statistics_do_not_tell_more_than_they_do(swept_key):
    """154 statistics of 16 numbers: a part of what they seem to tell of an amplitude is chance."""
    seen = mvue.survey(AMPLITUDE, key=swept_key)
    expected = -0.5 * np.log(np.sum(SHAPE**2))
    np.testing.assert_allclose(log_sd(seen, jnp.array([-1.5, 0.0, 1.5])), expected, atol=0.2)


ZERO = {
    "location": (0.05, True, lambda k, t: t + jr.normal(k, (N,)), None),
    "start": (0.0, True, lambda k, t: t + jr.exponential(k, (N,)), None),
    "either sign": (0.0, False, lambda k, t: jnp.sqrt(1 + t**2) * jr.normal(k, (N,)), None),
    "cut off": (0.05, False, lambda k, t: jnp.maximum(t, 0) + jr.normal(k, (N,)), None),
    "no target": (0.0, False, lambda k, t: t + jr.normal(k, (N,)), lambda t: jnp.log(t + 1e-3)),
}


@pytest.mark.parametrize("kind", ZERO)
def test_zero_is_an_end_only_if_the_data_say_so(kind, key):
    low, passes, simulate, target = ZERO[kind]
    problem = mvue.Problem(dist.Uniform(low, 3.0), simulate, target=target, exchangeable=True)
    (found,) = mvue.survey(problem, key=key).ranges
    assert found.training[0] < -0.1 if passes else found.training[0] >= 0


@pytest.mark.parametrize("given", ["likelihood", "simulator"])
def test_training_stays_where_the_simulator_is_defined(key, given):
    prior = dist.Uniform(0.1, 0.9)
    if given == "likelihood":
        problem = mvue.Problem.from_likelihood(
            prior, lambda p: dist.Bernoulli(p).expand((N,)), exchangeable=True
        )
    else:
        problem = mvue.Problem(
            prior, lambda k, p: jr.bernoulli(k, p, (N,)).astype(float), exchangeable=True
        )
    (found,) = mvue.survey(problem, key=key).ranges
    assert 0 < found.training[0] < 0.06
    assert 0.94 < found.training[1] < (1.0 if given == "likelihood" else 1.06)


def test_margins_that_only_together_leave_the_domain_are_kept(key):
    """Defined where the sum is below 2.2: each coordinate alone may go beyond 1, not both."""

    def simulate(key, theta):
        x = theta[None] + 0.2 * jr.normal(key, (4, 2))
        return jnp.where(theta.sum() < 2.2, x, jnp.nan)

    prior = dist.Uniform(jnp.zeros(2), jnp.ones(2)).to_event(1)
    seen = mvue.survey(mvue.Problem(prior, simulate, exchangeable=True), key=key)
    low, high = np.array([along.training for along in seen.ranges]).T
    assert (low < -0.15).all()
    assert (high > 1.05).all()
    assert high.sum() > 2.2
    drawn = jax.vmap(seen.training_prior.sample)(jr.split(key, 20_000))
    undefined = np.mean(np.asarray(drawn).sum(axis=1) >= 2.2)
    assert 0 < undefined < 0.1
    assert abs(seen.training_prior.undefined - undefined) < 5 * np.sqrt(undefined / 1024)


def test_error_where_the_slope_of_the_target_vanishes(key):
    """The bound on μ² is zero at μ = 0, the error is not: 4μ²/n + 2/n²."""
    problem = mvue.Problem(
        dist.Uniform(-2.0, 2.0),
        lambda k, t: t + jr.normal(k, (N,)),
        target=lambda t: t**2,
        exchangeable=True,
    )
    at = jnp.array([-1.5, 0.0, 0.7])
    expected = 0.5 * np.log(4 * at**2 / N + 2 / N**2)
    np.testing.assert_allclose(log_sd(mvue.survey(problem, key=key), at), expected, atol=0.35)


def test_error_over_six_decades_of_the_target(key):
    """y = e^θ has the deviation e^θ/√n; the smallest are 1e-3 of the median and less."""
    problem = mvue.Problem(
        dist.Uniform(-9.0, 9.0),
        lambda k, t: t + jr.normal(k, (N,)),
        target=jnp.exp,
        exchangeable=True,
    )
    at = jnp.linspace(-9.0, 9.0, 7)
    expected = at + 0.5 * np.log(np.expm1(2 / N) - 2 * np.expm1(0.5 / N))  # E[(e^(ε/√n) - 1)²]
    np.testing.assert_allclose(log_sd(mvue.survey(problem, key=key), at), expected, atol=0.35)


def test_error_in_a_narrow_valley_of_several_unknowns(key):
    """(μ₁ - μ₂)² is uncertain by little where the two are the same, whatever the other means."""
    problem = mvue.Problem(
        dist.Uniform(-3.0, 3.0).expand((4,)),
        lambda k, t: t[None, :] + jr.normal(k, (N, 4)),
        target=lambda t: (t[0] - t[1]) ** 2,
        exchangeable=True,
    )
    at = jnp.array([[0.0, 0.0, 0.0, 0.0], [1.5, 1.5, -2.0, 2.0], [2.0, -2.0, 0.0, 1.0]])
    square = np.asarray(at[:, 0] - at[:, 1]) ** 2
    expected = 0.5 * np.log(4 * square * 2 / N + 3 * (2 / N) ** 2)
    np.testing.assert_allclose(log_sd(mvue.survey(problem, key=key), at), expected, atol=0.4)


def test_priors_that_are_no_ranges_are_left_alone(key):
    class Shell:
        def sample(self, key):
            direction = jr.normal(key, (2,))
            return direction / jnp.linalg.norm(direction)

    problem = mvue.Problem(Shell(), lambda k, t: t + 0.1 * jr.normal(k, (2,)))
    seen = mvue.survey(problem, key=key)
    assert seen.training_prior is problem.prior
    assert not seen.ranges
    assert "Shell is not a range" in str(seen)
    assert np.isfinite(seen.log_sd(jnp.array([1.0, 0.0]))).all()


def test_probabilities_that_sum_to_one_have_ranges_of_free_coordinates(key):
    """Shares of counts: deviation √(p (1 − p) / n), and training comes closer to the faces."""
    count = 40

    def simulate(key, theta):
        drawn = jr.categorical(key, jnp.log(theta["shares"]), shape=(count,))
        noise = jr.normal(jr.fold_in(key, 1))
        return {"counts": jnp.bincount(drawn, length=3), "size": theta["size"] + 0.1 * noise}

    problem = mvue.Problem(
        {"size": dist.Uniform(1.0, 2.0), "shares": dist.Dirichlet(2.0 * jnp.ones(3))},
        simulate,
        target=lambda t: t["shares"],
    )
    shares = jnp.array([[0.2, 0.3, 0.5], [0.5, 0.25, 0.25], [0.6, 0.2, 0.2]])
    at = {"size": jnp.full(3, 1.5), "shares": shares}
    seen = mvue.survey(problem, key=key)
    found = np.asarray(jax.vmap(seen.log_sd)(at))
    np.testing.assert_allclose(found, np.log(np.sqrt(shares * (1 - shares) / count)), atol=0.5)
    names = [r.name for r in seen.ranges]
    assert names == ["shares (free 0)", "shares (free 1)", "size"]
    drawn = jax.vmap(seen.training_prior.sample)(jr.split(key, 2_000))["shares"]
    np.testing.assert_allclose(drawn.sum(axis=1), 1.0, atol=1e-5)
    assert (drawn >= 0).all()
    own = dist.Dirichlet(2.0 * jnp.ones(3)).sample(key, (2_000,))
    assert (jnp.quantile(drawn, 0.05, axis=0) < jnp.quantile(own, 0.05, axis=0)).all()


@pytest.mark.parametrize(
    "prior",
    [
        dist.Dirichlet(jnp.ones(4)),
        dist.LKJCholesky(3, 2.0),
        dist.Wishart(6.0, jnp.eye(2)),
        {"a": dist.Dirichlet(jnp.ones(3)), "b": dist.Normal(0.0, 1.0).expand((2,))},
        dist.Uniform(0.0, 1.0).expand((2, 3)),
        dist.Poisson(30.0).expand((2,)),
    ],
    ids=["simplex", "cholesky", "matrix", "several", "box", "whole"],
)
def test_coordinates_and_back(prior, key):
    problem = mvue.Problem(
        prior,
        lambda k, _: jr.normal(k, (2,)),
        target=lambda t: sum(jnp.sum(leaf) for leaf in jax.tree.leaves(t)),
    )
    found = ranges_of(problem, key)
    coordinates = found.coordinates
    theta = problem.sample_prior(key)
    values = coordinates.from_theta(theta)
    assert len(coordinates.names) == len(values) == found.draws.shape[1]
    back = coordinates.to_theta(values)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), theta, back)
    jax.tree.map(lambda a, b: np.testing.assert_equal(a.dtype, b.dtype), theta, back)
    assert (found.low < found.high).all()


def test_training_prior_is_what_the_loss_asks_for(line, key):
    network = LinearReadout(lambda x: x, jnp.eye(2), jnp.zeros(2))
    narrow = mvue.fit(line, network, mvue.emmse(), key=key, steps=5)
    assert narrow.survey is None
    assert "the prior" in narrow.settings["training"]
    wide = mvue.fit(line, network, key=key, steps=5, recipe=HASTY_SURVEY)
    assert wide.survey is not None
    for found in wide.survey.ranges:
        assert found.training[0] < found.interest[0] < found.interest[1] < found.training[1]
    assert "east" in str(wide)
    assert "weighted by the expected error" in wide.settings["loss"]
    given = mvue.fit(line, network, key=key, steps=5, training_prior=line.prior)
    assert "prior that was given" in given.settings["training"]


def test_weights_left_to_fit_cannot_be_used_elsewhere(line, key):
    draw = line.draw(key, 4, 2)
    with pytest.raises(ValueError, match="weight='auto' is decided by fit"):
        mvue.bce(3.0)(draw.x, draw, 0.0)


@pytest.fixture(scope="module")
def entry():
    """One problem for all seeds, whose programs are traced once."""
    return textbook("exponential-rate")


def test_no_tuning_comes_near_the_best_unbiased_estimator(swept_key, entry):
    """A tenth of the default training; both ends of the range included."""
    recipe = mvue.Recipe(verdict=HASTY.verdict)  # it is judged here
    fit = mvue.fit(entry.problem, key=swept_key, steps=600, validations=3, recipe=recipe)
    assert entry.mvue is not None
    report = mvue.assess(
        {"learned": fit, "best": entry.mvue},
        entry.problem,
        at=entry.at,
        repeats=10_000,
        key=swept_key,
    )
    error = 1 / np.sqrt(10_000)
    assert report.summary("learned")["max_bias_over_sd"] < 0.06 + 3 * error
    ratio, ratio_se = report.mse_ratio("learned", "best")
    assert (ratio - 3 * ratio_se).max() < 1.12


def test_data_that_do_not_change_with_theta_are_refused(key):
    problem = mvue.Problem(dist.Uniform(0.0, 1.0), lambda k, t: jr.normal(k, (N,)) + 0 * t)
    with pytest.raises(mvue.exceptions.SimulatorError, match="not seen to change with theta"):
        mvue.survey(problem, key=key, recipe=HASTY_SURVEY)


def test_ranges_that_single_precision_does_not_resolve_are_refused(key):
    problem = mvue.Problem(dist.Uniform(1e6, 1e6 + 1), lambda k, t: t + 0.05 * jr.normal(k, (N,)))
    with pytest.raises(mvue.exceptions.SimulatorError, match="subtract an offset"):
        mvue.survey(problem, key=key, recipe=HASTY_SURVEY)


@pytest.mark.parametrize(("low", "sd"), [(300.0, 0.05), (0.0, 1e-4)])
def test_closed_form_of_a_location_in_a_wide_range(low, sd, key):
    """The mean is linear in the summaries, however small its error is against its range."""
    problem = mvue.Problem(dist.Uniform(low, low + 1), lambda k, t: t + sd * jr.normal(k, (N,)))
    seen = mvue.survey(problem, key=key, recipe=HASTY)
    start = fit_baseline(Pieces(problem, seen), seen, key=key)
    assert max(start.error) < 1.3


def test_training_reaches_further_beyond_wide_ranges(key):
    problem = mvue.Problem(
        dist.Uniform(jnp.zeros(2), jnp.array([100.0, 10.0])).to_event(1),
        lambda k, t: t + jr.normal(k, (2,)),
    )
    wide, narrow = mvue.survey(problem, key=key, recipe=HASTY_SURVEY).ranges
    assert wide.training[1] - 100 > 1.4 * (narrow.training[1] - 10)
