"""Maximum likelihood and bootstrap correction against closed forms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.optimize
import scipy.special

import mvue
from mvue.problems import snr, snr_mle

POSITIVE = (0.0, np.inf)
RATE = mvue.Problem.from_likelihood(
    dist.LogUniform(0.3, 8.0), lambda r: dist.Exponential(r).expand((10,)), names=("rate",)
)
NORMAL = mvue.Problem.from_likelihood(
    {"mean": dist.Normal(0.0, 3.0), "sd": dist.HalfNormal(2.0)},
    lambda t: dist.Normal(t["mean"], t["sd"]).expand((12,)),
    target=lambda t: t["sd"],
)
GAMMA = mvue.Problem.from_likelihood(
    {"shape": dist.LogUniform(0.5, 5.0), "rate": dist.LogUniform(0.2, 5.0)},
    lambda t: dist.Gamma(t["shape"], t["rate"]).expand((20,)),
    target=lambda t: jnp.stack([t["shape"], t["rate"]]),
)


def log_likelihood_of_correlation(r, x):
    quadratic = jnp.sum(x**2) - 2 * r * jnp.sum(x[:, 0] * x[:, 1])
    return -0.5 * len(x) * jnp.log(1 - r**2) - 0.5 * quadratic / (1 - r**2)


CORRELATION = mvue.Problem(
    dist.Uniform(-1.0, 1.0),
    lambda key, r: r + jr.normal(key, (20, 2)),  # not used
    log_likelihood_of_correlation,
)


def gamma_mle(x):
    """In float64, from the likelihood equation of the shape."""
    spread = np.log(x.mean()) - np.log(x).mean()
    shape = scipy.optimize.brentq(
        lambda k: np.log(k) - scipy.special.digamma(k) - spread, 1e-3, 1e5, xtol=1e-12
    )
    return [shape, shape / x.mean()]


def correlation_mle(x):
    """The best root of the cubic likelihood equation."""
    n, squares, products = len(x), (x**2).sum(), x.prod(axis=1).sum()
    roots = np.roots([-n, products, n - squares, products])
    roots = roots[(np.abs(roots.imag) < 1e-9) & (np.abs(roots) < 1)].real
    values = n * np.log(1 - roots**2) + (squares - 2 * roots * products) / (1 - roots**2)
    return [roots[values.argmin()]]


def three_seeds(sample):
    """NumPy draws quickly: the compilers have enough to do with the estimators."""
    return np.concatenate([sample(np.random.default_rng(seed)) for seed in range(3)], dtype="f4")


def rates(count, rate=1.0):
    return three_seeds(lambda rng: rng.exponential(1 / rate, (count, 10)))


def solve(estimator, x):
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(estimator.solve))(x))


@eqx.filter_jit
def batch(estimator, x):
    return jax.vmap(estimator)(x)


def normal_samples(rng):
    return rng.normal(5.0, 1.5, (500, 12))


def gamma_samples(rng):
    return rng.gamma(2.0, 1.0, (500, 20))


def correlated_samples(rng):
    return rng.multivariate_normal([0.0, 0.0], [[1.0, 0.6], [0.6, 1.0]], (500, 20))


@pytest.mark.parametrize(
    ("problem", "bounds", "sample", "exact"),
    [
        (NORMAL, None, normal_samples, lambda x: [x.std()]),
        (GAMMA, POSITIVE, gamma_samples, gamma_mle),
        (CORRELATION, None, correlated_samples, correlation_mle),
    ],
    ids=["normal", "gamma", "correlation"],
)
def test_agrees_with_closed_forms(problem, bounds, sample, exact):
    x = three_seeds(sample)
    found = solve(mvue.maximum_likelihood(problem, bounds=bounds), x)
    expected = np.array([exact(np.asarray(one, np.float64)) for one in x])
    error = np.abs(found.y - expected) / expected.std(axis=0)
    assert found.converged.all()
    assert not found.at_bound.any()
    assert np.quantile(error, 0.999) < 2e-4
    assert error.max() < 1e-3


def test_agrees_with_expectation_maximisation():
    problem = snr()
    noise = three_seeds(lambda rng: rng.normal(size=(300, 50)))
    symbols = np.where(np.random.default_rng(3).random(noise.shape) < 0.5, -1, 1)
    x = np.stack([3 * (symbols + noise / np.sqrt(y)) for y in (3.0, 10.0, 40.0)], dtype="f4")
    estimator = mvue.maximum_likelihood(problem, bounds={"h": POSITIVE, "snr": POSITIVE})
    found = solve(estimator, x.reshape(-1, 50))
    expected = jax.vmap(jax.vmap(lambda one: snr_mle(one, tolerance=1e-6)))(x)
    error = np.abs(found.y - expected.reshape(-1, 1)).reshape(3, -1) / expected.std(axis=1)
    assert found.converged.mean() >= 0.999
    assert np.quantile(error.ravel()[found.converged], 0.999) < 1e-3


def test_one_at_a_time_as_in_batches_with_derivatives():
    estimator = mvue.maximum_likelihood(RATE, starts=2)
    x = jnp.asarray(rates(5))
    value_and_grad = jax.value_and_grad(lambda x: estimator(x)[0])
    together, gradients = jax.jit(jax.vmap(value_and_grad))(x)
    np.testing.assert_allclose(jax.jit(estimator)(x[0]), together[:1], rtol=1e-6)
    np.testing.assert_allclose(together, 1 / x.mean(axis=1), rtol=1e-5)
    exact = jnp.broadcast_to(-1 / (10 * x.mean(axis=1, keepdims=True) ** 2), x.shape)
    np.testing.assert_allclose(gradients, exact, rtol=1e-4)


def test_maximum_on_a_bound():
    """By default the prior's support clips; that is right for a single hump."""
    x = np.concatenate([rates(200, rate) for rate in (0.3, 1.0, 6.0)])
    found = solve(mvue.maximum_likelihood(RATE), x)
    free = 1 / x.mean(axis=1)
    assert found.converged.all()
    np.testing.assert_allclose(found.y[:, 0], np.clip(free, 0.3, 8.0), rtol=1e-5)
    np.testing.assert_array_equal(found.at_bound, (free < 0.3) | (free > 8.0))
    assert 0 < found.at_bound.mean() < 0.5


def test_bounds_of_some_entries_and_measurements_without_a_maximum():
    regular = three_seeds(lambda rng: rng.normal(0.5, 1.0, (100, 12)))
    x = np.concatenate([regular, np.full((1, 12), 0.2, "f4"), np.full((1, 12), np.nan, "f4")])
    found = solve(mvue.maximum_likelihood(NORMAL, bounds={"mean": (0.0, 0.4)}, starts=2), x)
    *good, equal, unknown = range(len(x))
    mean = np.clip(x[good].mean(axis=1), 0.0, 0.4)
    np.testing.assert_allclose(found.theta["mean"][good], mean, atol=1e-5)
    sd = np.sqrt(np.mean((x[good] - mean[:, None]) ** 2, axis=1))
    np.testing.assert_allclose(found.theta["sd"][good], sd, rtol=1e-5)
    np.testing.assert_array_equal(found.y[:, 0], found.theta["sd"])
    assert found.converged[good].all()
    # Equal samples push the standard deviation to the end of its range, where it is flagged.
    assert not found.converged[equal] or found.at_bound[equal]
    assert not found.converged[unknown]


def cauchy(starts, **options):
    problem = mvue.Problem.from_likelihood(
        dist.Uniform(-30.0, 30.0), lambda t: dist.Cauchy(t, 1.0).expand((3,))
    )
    return mvue.maximum_likelihood(problem, starts=starts, **options)


def test_the_best_of_several_maxima_wins():
    """Three far samples of a Cauchy law: one maximum near each, the best near the close pair."""
    centres = jr.uniform(jr.key(0), (200, 1), minval=-25.0, maxval=25.0)
    x = jnp.concatenate([centres, centres + 2.5, -centres], axis=1)
    grid = np.linspace(-30, 30, 60_001)
    values = -np.log1p((np.asarray(x, np.float64)[:, :, None] - grid) ** 2).sum(axis=1)
    best = grid[values.argmax(axis=1)]
    found = solve(cauchy(starts=4), x)
    level = found.log_likelihood + 3 * np.log(np.pi)
    missed = values.max(axis=1) - level
    assert found.converged.all()
    assert np.quantile(missed, 0.95) < 1e-4
    assert missed.max() < 0.2  # only maxima that are nearly as high are taken for the highest
    assert np.quantile(np.abs(found.theta - best), 0.95) < 2e-3
    stuck = solve(cauchy(starts=1, init=lambda x: x[2]), x)
    level = stuck.log_likelihood + 3 * np.log(np.pi)
    assert (level < values.max(axis=1) - 0.1).mean() > 0.5


def test_starts_that_are_given():
    """Two steps suffice from the maximum itself, and do not from far away."""
    x = rates(50)
    near = x[:, 0] > x[:, 1]
    estimator = mvue.maximum_likelihood(
        RATE,
        init=lambda x: jnp.where(x[0] > x[1], 1 / x.mean(), 7.0),
        starts=2,
        bounds=POSITIVE,
        max_steps=2,
    )
    found = solve(estimator, x)
    np.testing.assert_array_equal(found.converged, near)
    np.testing.assert_allclose(found.y[near, 0], 1 / x[near].mean(axis=1), rtol=1e-5)
    assert (found.start[near] == 0).all()


UNIFORM = mvue.Problem(
    dist.Uniform(0.5, 3.0),
    lambda key, high: high * jr.uniform(key, (5,)),
    lambda high, x: jnp.where(x.max() <= high, -5 * jnp.log(high), -jnp.inf),
)
LAPLACE = mvue.Problem.from_likelihood(
    dist.Uniform(-5.0, 5.0), lambda t: dist.Laplace(t, 1.0).expand((4,))
)


def test_failures_are_counted():
    failing = mvue.maximum_likelihood(UNIFORM, starts=1)
    at = jnp.array([2.9])  # all samples below 0.5 would be a maximum on a bound
    with pytest.warns(
        mvue.exceptions.NonFiniteWarning, match="gave 100 non-finite estimates in 100"
    ):
        report = mvue.assess(failing, UNIFORM, at=at, repeats=100, key=jr.key(0))
    assert report["estimator"].failures.tolist() == [100]


def test_what_is_not_a_smooth_maximum_is_kept_on_demand_only():
    x = three_seeds(lambda rng: rng.laplace(1.0, size=(20, 4)))
    kept = mvue.maximum_likelihood(LAPLACE, starts=1, on_failure="keep")
    assert jnp.isfinite(batch(kept, x)).all()
    found = solve(kept, x)
    assert not found.converged.any()
    assert not found.at_bound.any()


def test_counts_have_maxima_too():
    problem = mvue.Problem.from_likelihood(
        dist.Uniform(0.0, 5.0), lambda rate: dist.Poisson(rate).expand((4,))
    )
    x = np.concatenate([np.random.default_rng(0).poisson(1.0, (300, 4)), np.zeros((1, 4), int)])
    found = solve(mvue.maximum_likelihood(problem), x)
    assert found.converged.all()
    np.testing.assert_allclose(found.y[:, 0], x.mean(axis=1), atol=1e-4)
    assert found.at_bound[-1]


def test_a_simplex_has_coordinates_of_its_own():
    problem = mvue.Problem(
        dist.Dirichlet(jnp.ones(3)),
        lambda key, p: 50 * p + jr.normal(key, (3,)),
        lambda p, x: jnp.sum(x * jnp.log(p)),
    )
    x = jnp.array([[10.0, 20.0, 20.0], [5.0, 5.0, 40.0]])
    found = solve(mvue.maximum_likelihood(problem), x)
    assert found.converged.all()
    np.testing.assert_allclose(found.theta, x / 50, atol=1e-5)


def test_double_precision_where_it_is_switched_on():
    estimator = mvue.maximum_likelihood(RATE, starts=1)
    with jax.enable_x64(True):
        x = jnp.asarray(np.random.default_rng(0).exponential(size=10))
        assert float(jax.jit(estimator)(x)[0]) == pytest.approx(float(1 / x.mean()), rel=1e-9)


def variance_problem(n):
    return mvue.Problem.from_likelihood(
        {"mean": dist.Normal(0.0, 3.0), "variance": dist.HalfNormal(2.0)},
        lambda t: dist.Normal(t["mean"], jnp.sqrt(t["variance"])).expand((n,)),
        target=lambda t: t["variance"],
    )


VARIANCE = variance_problem(5)


def moments(x):
    return {"mean": x.mean(), "variance": x.var()}


def test_bootstrap_takes_the_bias_of_the_variance_away(swept_key):
    n, repeats = 5, 10_000

    def corrected(iterations):
        return mvue.bootstrap_correct(
            jnp.var,
            VARIANCE,
            theta_of=moments,
            iterations=iterations,
            repeats=100,
            key=swept_key,
        )

    theta = {"mean": jnp.asarray(1.0), "variance": jnp.asarray(2.0)}
    x = jax.vmap(lambda k: VARIANCE.simulate(k, theta))(jr.split(swept_key, repeats))
    once, twice = (batch(corrected(i), x)[:, 0] for i in (1, 2))
    for estimates, order in ((jax.vmap(jnp.var)(x), 1), (once, 2), (twice, 3)):
        error = np.asarray(estimates, np.float64) - 2.0
        assert abs(error.mean() + 2.0 / n**order) < 4.5 * error.std() / np.sqrt(repeats)


RATE_MLE = mvue.maximum_likelihood(RATE, bounds=POSITIVE, starts=1, init=lambda x: 1 / x[0])


def test_bootstrap_of_maximum_likelihood(swept_key):
    """The rate's bias of 1/(n - 1) becomes one of the order 1/n²."""
    n, repeats = 10, 500
    corrected = mvue.bootstrap_correct(RATE_MLE, RATE, repeats=50, key=swept_key)
    x = jax.vmap(lambda k: RATE.simulate(k, jnp.asarray(2.0)))(jr.split(swept_key, repeats))
    estimates = np.asarray(batch(corrected, x)[:, 0], np.float64)
    exact = np.asarray(1 / x.mean(axis=1), np.float64) * (1 - 1 / (n - 1))
    # Estimates of simulations at r have the mean m = r n/(n - 1) and the variance m²/(n - 2).
    squared = 2.0**2 * n**2 / ((n - 1) * (n - 2))
    noise = np.sqrt(squared / (n - 2) / 50) * n / (n - 1)
    assert abs((estimates - exact).mean()) < 4.5 * noise / np.sqrt(repeats)
    assert np.std(estimates - exact) == pytest.approx(noise, rel=0.2)


def test_bootstrap_depends_on_key_and_measurement_alone():
    problem = mvue.Problem(dist.Uniform(0.5, 2.0), lambda k, t: t * jr.exponential(k, (4,)))
    one, other = (
        jax.vmap(mvue.bootstrap_correct(jnp.median, problem, repeats=20, key=jr.key(i)))
        for i in (0, 1)
    )
    x = jnp.stack([jnp.arange(1.0, 5.0), jnp.arange(4.0, 0.0, -1.0), jnp.arange(1.0, 5.0)])
    assert one(x)[0] == one(x)[2]
    assert one(x)[0] != one(x)[1]
    assert one(x)[0] != other(x)[0]


def test_bootstrap_hides_no_failures():
    problem = variance_problem(4)

    def estimator(x):
        return jnp.where(x[0] > 0, x.var(), jnp.nan)

    corrected = mvue.bootstrap_correct(
        estimator, problem, theta_of=lambda x: {"mean": x[0], "variance": x[1] ** 2}, key=jr.key(0)
    )
    x = jnp.array([[9.0, 1.0, 8.0, 8.5], [0.1, 1.0, 0.0, 0.0], [-9.0, 1.0, 0.0, 0.0]])
    assert jnp.isfinite(jax.vmap(corrected)(x)[:, 0]).tolist() == [True, False, False]


def integers():
    return mvue.Problem(
        dist.DiscreteUniform(1, 9), lambda k, t: t + jr.normal(k, (2,)), lambda t, x: -x.sum() * t
    )


def no_likelihood():
    return mvue.Problem(dist.Uniform(0.0, 1.0), lambda k, t: t + jr.normal(k, (2,)))


def vector_likelihood():
    return mvue.Problem(
        dist.Uniform(0.0, 1.0), lambda k, t: t + jr.normal(k, (2,)), lambda t, x: -((x - t) ** 2)
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mvue.maximum_likelihood(no_likelihood()), "problem has no log_likelihood"),
        (lambda: mvue.maximum_likelihood(integers()), "the prior must be continuous"),
        (lambda: mvue.maximum_likelihood(vector_likelihood()), "one number, got shape"),
        (lambda: mvue.maximum_likelihood(RATE, bounds="prior"), "bounds must be None"),
        (lambda: mvue.maximum_likelihood(RATE, bounds=(2.0, 1.0)), "must have low < high"),
        (lambda: mvue.maximum_likelihood(RATE, bounds=3.0), "a pair"),
        (lambda: mvue.maximum_likelihood(NORMAL, bounds={"var": POSITIVE}), r"name \['var'\]"),
        (lambda: mvue.maximum_likelihood(NORMAL, bounds=({"sd": 0.0}, 1.0)), "theta has shapes"),
        (lambda: mvue.maximum_likelihood(RATE, init=jnp.ones(2)), "init must give a theta of"),
        (lambda: mvue.maximum_likelihood(RATE, init=lambda x: x["a"]), r"init\(x\) failed"),
        (lambda: mvue.maximum_likelihood(RATE, starts=0), "starts must be a whole number"),
        (lambda: mvue.maximum_likelihood(RATE, tolerance=0.0), "tolerance must be"),
        (lambda: mvue.maximum_likelihood(RATE)(jnp.ones((3, 9))), r"\(n, 10\), got \(3, 9\)"),
        (
            lambda: mvue.maximum_likelihood(RATE).solve(jnp.ones((3, 10))),
            r"batch of shape \(3, 10\)",
        ),
        (lambda: mvue.maximum_likelihood(RATE)(jnp.ones(())), r"x must be one measurement"),
        (lambda: mvue.maximum_likelihood(RATE)({"x": jnp.ones(10)}), "arranged in another way"),
        (lambda: mvue.bootstrap_correct(jnp.var, NORMAL, key=jr.key(0)), "theta_of must say"),
        (lambda: mvue.bootstrap_correct(np.linalg.eigh, RATE, key=jr.key(0)), "written in JAX"),
        (
            lambda: mvue.bootstrap_correct(jnp.var, NORMAL, key=jr.key(0), theta_of=jnp.mean),
            "theta_of must return a theta of",
        ),
        (
            lambda: mvue.bootstrap_correct(jnp.mean, RATE, key=jr.key(0), repeats=1),
            "repeats must be a whole number of at least 2",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
