"""Bounds above that of Cramér and Rao, against the smallest variances that are known."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest

import mvue

N = 10


def iid(prior, likelihood, target=None):
    more = {} if target is None else {"target": lambda t: target(t)[None]}
    return mvue.Problem.from_likelihood(
        prior, lambda t: likelihood(t).expand((N,)), exchangeable=True, **more
    )


MEAN_SQUARED = iid(dist.Uniform(-2.0, 2.0), lambda m: dist.Normal(m, 1.0), lambda m: m**2)
POISSON = iid(dist.Uniform(0.5, 3.0), dist.Poisson, lambda m: m**2)
ZERO = iid(dist.Uniform(0.5, 3.0), dist.Poisson, lambda m: jnp.exp(-m))
EXPONENTIAL = iid(dist.LogUniform(0.3, 8.0), dist.Exponential)


@pytest.mark.parametrize(
    ("problem", "theta", "variance"),
    [
        (MEAN_SQUARED, 0.3, 4 * 0.3**2 / N + 2 / N**2),
        (POISSON, 1.5, 4 * 1.5**3 / N + 2 * 1.5**2 / N**2),
    ],
    ids=["normal", "poisson"],
)
def test_polynomials_of_the_natural_statistic_are_reached(problem, theta, variance, swept_key):
    bound = mvue.bhattacharyya(problem, theta, order=2, key=swept_key, samples=2**13)
    assert abs(bound.matrix[0, 0] - variance) < 4.5 * bound.se[0, 0]
    assert bound.se[0, 0] < 0.1 * variance
    first = mvue.bhattacharyya(problem, theta, order=1, key=swept_key, samples=2**13)
    exact = mvue.crb(problem, theta).matrix[0, 0]
    assert abs(first.matrix[0, 0] - exact) < 4.5 * first.se[0, 0]


@pytest.mark.parametrize(
    ("problem", "theta", "variance"),
    [
        (ZERO, 1.0, np.exp(-2.0) * np.expm1(1.0 / N)),
        (EXPONENTIAL, 2.0, 4 / (N - 2)),
    ],
    ids=["probability of zero", "rate"],
)
def test_never_above_the_smallest_variance(problem, theta, variance, key):
    crb = mvue.crb(problem, theta).matrix[0, 0]
    found = [
        mvue.bhattacharyya(problem, theta, order=3, key=key, samples=2**13),
        mvue.barankin(problem, theta, key=key, samples=2**13),
    ]
    for bound in found:
        assert crb < bound.matrix[0, 0] < variance + 4.5 * bound.se[0, 0]


def test_gaussian_closed_form_is_exact():
    bound = mvue.barankin(MEAN_SQUARED, 0.3)
    variance = 4 * 0.3**2 / N + 2 / N**2
    assert bound.se is None
    assert bound.matrix[0, 0] == pytest.approx(variance, rel=1e-4)
    # One test point alone with the score, by hand.
    point = mvue.barankin(MEAN_SQUARED, 0.3, points=[1.0])
    g = np.array([[N, N * 0.7], [N * 0.7, np.expm1(N * 0.7**2)]])
    d = np.array([0.6, 1.0 - 0.09])
    assert point.matrix[0, 0] == pytest.approx(d @ np.linalg.solve(g, d))
    assert point.matrix[0, 0] <= variance
    np.testing.assert_allclose(point.points, [[1.0]])


def test_moving_support(key):
    """Only test points below theta are valid for U(0, θ), none for U(θ - 1, θ + 1)."""
    uniform = iid(dist.Uniform(1.0, 2.0), lambda t: dist.Uniform(0.0, t))
    bound = mvue.barankin(uniform, 1.5, key=key, samples=2**13)
    smallest = 1.5**2 / (N * (N + 2))
    assert 0.7 * smallest < bound.matrix[0, 0] < smallest + 4.5 * bound.se[0, 0]
    assert (bound.points < 1.5).all()
    assert "without scores" in bound.method
    with pytest.raises(mvue.exceptions.IrregularModelError, match="can occur there cannot"):
        mvue.barankin(uniform, 1.5, points=[1.6], key=key, samples=2**13)
    with pytest.raises(mvue.exceptions.IrregularModelError):
        mvue.bhattacharyya(uniform, 1.5, key=key)
    both = iid(dist.Uniform(1.0, 2.0), lambda t: dist.Uniform(t - 1.0, t + 1.0))
    with pytest.raises(mvue.exceptions.IrregularModelError):
        mvue.barankin(both, 1.5, key=key, samples=2**13)


def test_several_components_and_nuisances(key):
    problem = mvue.Problem.from_likelihood(
        {"a": dist.Uniform(0.5, 2.0), "b": dist.Uniform(0.5, 2.0)},
        lambda t: dist.Normal(t["a"], t["b"]).expand((N,)),
        target=lambda t: jnp.stack([t["a"], t["b"] ** 2]),
        exchangeable=True,
    )
    bound = mvue.bhattacharyya(problem, {"a": 1.0, "b": 1.0}, order=2, key=key)
    smallest = np.diag([1 / N, 2 / (N - 1)])  # sample mean and sample variance
    assert (np.abs(bound.matrix - smallest) < 4.5 * bound.se).all()


def test_what_no_data_tell_has_an_infinite_bound():
    """As that of Cramér and Rao, which it is never below."""
    prior = {"a": dist.Uniform(0.0, 1.0), "b": dist.Uniform(1.0, 2.0)}
    both = mvue.Problem.from_likelihood(
        prior,
        lambda t: dist.Normal(t["a"] + t["b"], 1.0).expand((N,)),
        target=lambda t: jnp.stack([t["a"], t["a"] + t["b"]]),
    )
    bound = mvue.bhattacharyya(both, {"a": 0.5, "b": 1.5})
    assert bound.matrix[0, 0] == np.inf
    assert np.isnan(bound.matrix[0, 1])
    assert abs(bound.matrix[1, 1] - 1 / N) < 4.5 * bound.se[1, 1]
    square = iid(dist.Uniform(-1.0, 1.0), lambda t: dist.Normal((t - 0.25) ** 2, 1.0))
    for order in (1, 2, 3):
        assert mvue.bhattacharyya(square, 0.25, order=order).matrix[0, 0] == np.inf


@pytest.mark.parametrize("order", [2, 3, 4])
def test_of_few_yes_and_no_only_low_powers_have_estimators(order):
    two = mvue.Problem.from_likelihood(
        dist.Uniform(0.1, 0.9),
        lambda t: dist.Bernoulli(probs=t).expand((2,)),
        target=lambda t: t**3,
    )
    assert np.isinf(mvue.bhattacharyya(two, 0.4, order=order).matrix[0, 0]) == (order > 2)


def test_bad_input():
    simulator = mvue.Problem(dist.Uniform(0.0, 1.0), lambda key, y: y + jr.normal(key))
    for function in (mvue.bhattacharyya, mvue.barankin):
        with pytest.raises(mvue.exceptions.BoundError, match="no log_likelihood"):
            function(simulator, 0.5)
        with pytest.raises(mvue.exceptions.BoundError, match="outside of the model"):
            function(EXPONENTIAL, -1.0)
    with pytest.raises(mvue.exceptions.BoundError, match="points: theta"):
        mvue.barankin(EXPONENTIAL, 1.0, points=[-1.0])
    with pytest.raises(ValueError, match="points must differ"):
        mvue.barankin(EXPONENTIAL, 1.0, points=[1.0])
    with pytest.raises(ValueError, match="points must hold"):
        mvue.barankin(EXPONENTIAL, 1.0, points=[[1.0, 2.0]])
    with pytest.raises(ValueError, match="order must be"):
        mvue.bhattacharyya(EXPONENTIAL, 1.0, order=0)


def test_arrays_of_numpy_in_a_likelihood(key):
    """Single and double precision take turns: what one has compiled must not stop the other."""
    times = np.arange(4.0)
    problem = mvue.Problem.from_likelihood(
        dist.Uniform(0.5, 2.0), lambda t: dist.Normal(t * times, 1.0), exchangeable=False
    )
    for _ in range(2):
        exact = mvue.crb(problem, 1.0).matrix
        np.testing.assert_allclose(mvue.barankin(problem, 1.0).matrix, exact, rtol=1e-6)
        bound = mvue.bhattacharyya(problem, 1.0, order=1, samples=1024, key=key)
        assert abs(bound.matrix - exact) < 4.5 * bound.se
        problem.draw(key, 2, 2)
