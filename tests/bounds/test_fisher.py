"""Information and bounds against closed forms."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gamma, polygamma

import mvue
from mvue import problems
from mvue._assessment.sections import report_sections
from mvue._bounds import monte_carlo as _score_sampling
from mvue._bounds.crb import note_bounds
from mvue._bounds.quadrature import _GAUSS, _INNER, _KRONROD
from mvue.exceptions import BoundError, IrregularModelError

N = 10
ONE = dist.Uniform(0.2, 4.0)
TWO = dist.Uniform(0.2, 4.0).expand((2,))


def of(likelihood, prior=ONE, **kwargs):
    return mvue.Problem.from_likelihood(
        prior, lambda t: likelihood(t).expand((N,)), exchangeable=True, **kwargs
    )


def own(log_density, sample, prior=ONE):
    """A problem whose likelihood does not know its support."""
    return mvue.Problem(prior, sample, lambda t, x: jnp.sum(log_density(t, x)), exchangeable=True)


def trigamma(*arguments):
    return polygamma(1, np.array(arguments))


NORMAL = of(lambda t: dist.Normal(t[0], jnp.sqrt(t[1])), TWO)
GAMMA = of(lambda t: dist.Gamma(t[0], t[1]), TWO)
NORMAL_INFORMATION = np.diag([1 / 3, 1 / 18])
GAMMA_AT = [0.7, 1.5]
GAMMA_INFORMATION = np.array([[trigamma(0.7)[0], -1 / 1.5], [-1 / 1.5, 0.7 / 1.5**2]])
EXPONENTIAL = own(lambda t, x: jnp.log(t) - t * x, lambda k, t: jr.exponential(k, (N,)) / t)
POWER = own(
    lambda t, x: jnp.log(t) + (t - 1) * jnp.log1p(-x),
    lambda k, t: 1 - jr.uniform(k, (N,)) ** (1 / t),
)
LAPLACE = own(
    lambda t, x: -jnp.abs(x - t[0]) / t[1] - jnp.log(2 * t[1]),
    lambda k, t: t[0] + t[1] * jr.laplace(k, (N,)),
    TWO,
)
POISSON = of(dist.Poisson)
UNIFORM = of(lambda t: dist.Uniform(0.0, t))
OWN_UNIFORM = own(lambda t, x: -jnp.log(t) + 0 * x, lambda k, t: t * jr.uniform(k, (N,)))
NOT_FINITE = own(lambda t, x: jnp.sqrt(-t - x**2), lambda k, t: jr.normal(k, (N,)))


@pytest.mark.parametrize(
    ("problem", "theta", "method", "exact"),
    [
        (of(lambda t: dist.Normal(t, 2.0)), 1.5, "gaussian", [[1 / 4]]),
        (of(lambda t: dist.Normal(0.5, jnp.sqrt(t))), 3.0, "gaussian", [[1 / 18]]),
        (NORMAL, [1.5, 3.0], "gaussian", NORMAL_INFORMATION),
        (NORMAL, [1.5, 3.0], "quadrature", NORMAL_INFORMATION),
        (NORMAL, [9.0, 3.0], "quadrature", NORMAL_INFORMATION),  # 0 is 5.2 sd away
        (EXPONENTIAL, 1.5, "auto", [[1 / 1.5**2]]),
        (GAMMA, GAMMA_AT, "auto", GAMMA_INFORMATION),
        (POWER, 1.7, "auto", [[1 / 1.7**2]]),
        (POWER, 1.0, "auto", [[1.0]]),
        (LAPLACE, [1.3, 2.0], "auto", np.eye(2) / 4),  # the score jumps
        (of(lambda t: dist.Cauchy(t[0], t[1]), TWO), [1.3, 2.0], "auto", np.eye(2) / 8),
        (POISSON, 0.1, "auto", [[1 / 0.1]]),
        (POISSON, 300.0, "auto", [[1 / 300.0]]),
        (of(dist.Bernoulli, dist.Uniform(0.1, 0.9)), 0.3, "auto", [[1 / 0.21]]),
        (of(dist.Geometric, dist.Uniform(0.1, 0.9)), 0.3, "auto", [[1 / 0.09 / 0.7]]),
    ],
)
def test_deterministic_information(problem, theta, method, exact):
    found = mvue.fisher_information(problem, theta, method=method)
    np.testing.assert_allclose(found.matrix / N, exact, rtol=1e-7, atol=1e-9)
    assert found.matrix.dtype == np.float64
    assert found.se is None
    assert found.method == ("Gaussian closed form" if method == "gaussian" else "quadrature")


@pytest.mark.parametrize(("order", "nodes"), [(22, _KRONROD), (13, _GAUSS)])
def test_quadrature_weights(order, nodes):
    for power in range(0, order + 1, 2):
        assert nodes @ _INNER**power == pytest.approx(2 / (power + 1), rel=1e-14)


FLIP = jnp.array([[0.0, 1.0], [1.0, 0.0]])
CORRELATION = mvue.Problem.from_likelihood(
    dist.Uniform(-0.9, 0.9),
    lambda t: dist.MultivariateNormal(jnp.zeros((N, 2)), (jnp.eye(2) + t * FLIP)[None]),
    exchangeable=True,
)


@jax.numpy_rank_promotion("allow")  # numpyro's expand() needs it
def test_gaussian_forms_agree():
    """Covariance matrices, low rank, events and expansions: (1 + ρ²) / (1 - ρ²)² for each draw."""
    rho = 0.6
    exact = N * (1 + rho**2) / (1 - rho**2) ** 2
    assert mvue.fisher_information(CORRELATION, rho).matrix[0, 0] == pytest.approx(exact)
    prior = dist.Uniform(0.1, 0.9)
    low_rank = mvue.Problem.from_likelihood(
        prior,
        lambda t: (
            dist.LowRankMultivariateNormal(
                jnp.zeros(2), jnp.sqrt(t) * jnp.ones((2, 1)), (1 - t) * jnp.ones(2)
            )
            .expand((2, 5))
            .to_event(2)
        ),
    )
    assert mvue.fisher_information(low_rank, rho).matrix[0, 0] == pytest.approx(exact)
    known = mvue.gaussian_fisher_information(
        np.zeros(2), lambda t: jnp.eye(2) + t["rho"] * FLIP, {"rho": rho}, samples=N
    )
    assert known.matrix[0, 0] == pytest.approx(exact)
    assert known.names == ("rho",)
    times = jnp.arange(5.0)
    trend = mvue.Problem.from_likelihood(
        TWO, lambda t: dist.Normal(t[0] + t[1] * times, 1 + times).to_event(1)
    )
    design = np.stack([np.ones(5), times], axis=1) / (1 + np.asarray(times))[:, None]
    np.testing.assert_allclose(mvue.fisher_information(trend, [1.0, 2.0]).matrix, design.T @ design)


@settings(max_examples=5, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=6, max_size=6))
def test_reparametrisation(numbers):
    """With theta = g(phi), the information about phi is Gᵀ F G."""
    shift = np.array(numbers[:4]).reshape(2, 2) + 2.5 * np.eye(2)
    phi = np.array(numbers[4:])

    def mean(t):
        return jnp.stack([t[0], t[0] * t[1], t[1]])

    def covariance(t):
        return jnp.stack([jnp.exp(t[0]), 1 + t[1] ** 2, jnp.ones_like(t[0])])

    def g(phi):
        return jnp.tanh(jnp.asarray(shift) @ phi)

    theta = np.tanh(shift @ phi)
    G = (1 - theta**2)[:, None] * shift
    direct = mvue.gaussian_fisher_information(mean, covariance, theta).matrix
    through = mvue.gaussian_fisher_information(
        lambda p: mean(g(p)), lambda p: covariance(g(p)), phi
    )
    np.testing.assert_allclose(through.matrix, G.T @ direct @ G, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize(
    ("problem", "theta", "exact"),
    [
        (GAMMA, GAMMA_AT, GAMMA_INFORMATION),
        (CORRELATION, 0.6, np.array([[(1 + 0.36) / (1 - 0.36) ** 2]])),
        (LAPLACE, [1.3, 2.0], np.eye(2) / 4),
    ],
)
def test_monte_carlo_agrees_within_its_errors(problem, theta, exact, swept_key):
    found = mvue.fisher_information(problem, theta, method="monte carlo", key=swept_key)
    assert found.method == "Monte Carlo"
    assert (np.abs(found.matrix - N * exact) <= 4 * found.se).all()
    assert (found.se <= 0.05 * np.abs(found.matrix).max()).all()
    assert (np.abs(found.mean_score) < 4.5).all()
    assert found.samples == 16_384
    bound = mvue.crb(problem, theta, method="monte carlo", key=swept_key)
    assert (np.abs(bound.matrix - np.linalg.inv(exact) / N) <= 4 * bound.se).all()


def test_stated_errors_are_the_spread_between_keys(seed):
    calls = [
        mvue.crb(
            LAPLACE, [1.3, 2.0], method="monte carlo", samples=4096, key=jr.key(100 * seed + i)
        )
        for i in range(30)
    ]
    ratio = np.std([b.matrix for b in calls], axis=0, ddof=1) / np.mean([b.se for b in calls], 0)
    assert ((ratio > 0.6) & (ratio < 1.5)).all()  # the sd of 30 values is known to 13 %


SNR = problems.snr()


def test_snr_with_a_nuisance():
    for y, known in ((2, 0.6325), (5, 1.573), (10, 4.841), (20, 17.60), (50, 104.0)):
        theta = {"h": 3.0, "snr": float(y)}
        given = mvue.crb(SNR, theta)
        found = mvue.crb(SNR, theta, method="quadrature")
        assert (given.method, found.method) == ("given", "quadrature")
        assert found.names == ("snr",)
        np.testing.assert_allclose(found.matrix, given.matrix, rtol=1e-7)
        assert found.matrix[0, 0] == pytest.approx(known, rel=5e-4)
    assert mvue.fisher_information(SNR, theta).names == ("h", "snr")
    sampled = mvue.crb(SNR, theta, method="monte carlo")
    assert abs(sampled.matrix - found.matrix) < 4 * sampled.se
    known_amplitude = 1 / mvue.fisher_information(SNR, theta).matrix[1, 1]
    assert known_amplitude < found.matrix[0, 0]


def test_bound_of_a_target():
    def target(t):
        return jnp.stack([t[1], t[0] ** 2, t[0] + t[1]])

    problem = dataclasses.replace(NORMAL, target=target, names=None)
    mu, variance = 1.5, 3.0
    J = np.array([[0.0, 1.0], [2 * mu, 0.0], [1.0, 1.0]])
    exact = J @ np.diag([variance, 2 * variance**2]) @ J.T / N
    np.testing.assert_allclose(mvue.crb(problem, [mu, variance]).matrix, exact, atol=1e-12)


def test_singular_information():
    """x tells a + b only: c and a - b are free."""
    priors = dict.fromkeys("abc", dist.Uniform(1.0, 2.0))
    problem = mvue.Problem.from_likelihood(
        priors,
        lambda t: dist.Normal(2 * t["a"] + t["b"], 1.0).expand((N,)),
        target=lambda t: jnp.stack([t["a"], 2 * t["a"] + t["b"], t["c"]]),
        names=("part", "sum", "absent"),
        exchangeable=True,
    )
    theta = dict.fromkeys("abc", 1.0)
    for method in ("gaussian", "monte carlo"):
        bound = mvue.crb(problem, theta, method=method)
        np.testing.assert_array_equal(np.diag(bound.matrix)[[0, 2]], np.inf)
        assert bound.matrix[1, 1] == pytest.approx(1 / N, rel=1e-9 if bound.se is None else 0.06)
        assert set(bound.unidentifiable) == {"a - 2 b", "c"}
    noted = note_bounds(problem, {name: np.ones(2) for name in "abc"}, None, jr.key(0))
    assert noted.note.startswith("CRB: Gaussian closed form; the data say nothing about")


def shifted(shape):
    """A Weibull distribution whose support begins at theta."""

    def log_density(t, x):
        above = jnp.where(x > t, x - t, 1.0)
        inside = jnp.log(shape) + (shape - 1) * jnp.log(above) - above**shape
        return jnp.where(x > t, inside, -jnp.inf)

    return own(log_density, lambda k, t: t + jr.exponential(k, (N,)) ** (1 / shape))


# Ends that move together: what they add to the mean score cancels.
BOX = mvue.Problem.from_likelihood(
    ONE, lambda t: dist.Uniform(t - 1.0, t + 1.0).expand((N,)), exchangeable=True
)
CUT_OFF = mvue.Problem.from_likelihood(
    ONE,
    lambda t: dist.TruncatedNormal(t, 1.0, low=t - 1.0, high=t + 1.0).expand((N,)),
    exchangeable=True,
)
OWN_BOX = own(
    lambda t, x: jnp.where(jnp.abs(x - t) < 1, -jnp.log(2.0), -jnp.inf),
    lambda k, t: t + jr.uniform(k, (N,), minval=-1.0),
)


@pytest.mark.parametrize(
    ("problem", "method", "message"),
    [
        (UNIFORM, "auto", "support of the data depends on theta: the mean score of theta is not 0"),
        (UNIFORM, "monte carlo", "support of the data depends on theta, or simulate and"),
        (OWN_UNIFORM, "auto", "support of the data depends on theta, or simulate and"),
        (shifted(1.0), "auto", "support of the data depends on theta: the mean score of theta"),
        (shifted(1.5), "auto", "of the information about theta, which may be infinite"),
        (NOT_FINITE, "monte carlo", "simulated measurements have a score that is not finite"),
        (BOX, "auto", "support of the data depends on theta: if theta changes a little"),
        (BOX, "monte carlo", "support of the data depends on theta: if theta changes a little"),
        (CUT_OFF, "auto", "support of the data depends on theta: if theta changes a little"),
        (OWN_BOX, "quadrature", "support of the data depends on theta: if theta changes a little"),
    ],
)
def test_irregular_models_have_no_bound(problem, method, message):
    with pytest.raises(IrregularModelError, match=message):
        mvue.crb(problem, 1.3, method=method)


def with_support(find):
    """A normal distribution that finds its support by a function of its location."""

    class OwnSupport(dist.Normal):
        support = property(lambda self: find(self.loc))

    problem = of(lambda t: dist.Normal(t, 1.0))
    return dataclasses.replace(problem, likelihood=lambda t: OwnSupport(t * jnp.ones(N), 1.0))


class BrokenInterval(dist.constraints.interval):
    """An interval that cannot say what is in it."""

    def __call__(self, x):
        raise RuntimeError("this support is broken")


def broken(location):
    raise RuntimeError("this support is broken")


def unknown(location):
    raise NotImplementedError("this support is not known")


def for_numbers_only(location):
    return dist.constraints.real if (location > 0).all() else dist.constraints.positive


@pytest.mark.parametrize("method", ["monte carlo", "quadrature"])
@pytest.mark.parametrize("find", [broken, lambda at: BrokenInterval(at - 9.0, at + 9.0)])
def test_a_support_that_fails_is_not_taken_for_one_that_rests(find, method):
    with pytest.raises(BoundError, match=r"depends on theta cannot be told.*support is broken"):
        mvue.crb(with_support(find), 1.3, method=method)


@pytest.mark.parametrize("find", [unknown, for_numbers_only])
@pytest.mark.parametrize(("method", "error"), [("monte carlo", 0.06), ("quadrature", 1e-6)])
def test_a_support_that_is_not_known_is_taken_to_rest(find, method, error):
    bound = mvue.crb(with_support(find), 1.3, method=method)
    assert bound.matrix[0, 0] == pytest.approx(1 / N, rel=error)


def test_regular_models_with_a_sharp_end():
    """A support that moves does no harm where the density vanishes fast enough at its end."""
    exact = N * 9 * gamma(0.5)
    assert mvue.fisher_information(shifted(4.0), 1.3).matrix[0, 0] == pytest.approx(exact, rel=1e-6)


def test_quadrature_is_refused_where_it_is_wrong():
    """A common factor of all draws makes them dependent; a missing constant spoils the mass."""

    def simulate(key, t):
        common, each = jr.split(key)
        return t + jr.normal(common) + jr.normal(each, (N,))

    def log_likelihood(t, x):
        return dist.MultivariateNormal(t * jnp.ones(N), jnp.eye(N) + jnp.ones((N, N))).log_prob(x)

    dependent = mvue.Problem(ONE, simulate, log_likelihood, exchangeable=True)
    with pytest.raises(BoundError, match="not the sum of one function of each element"):
        mvue.crb(dependent, 1.0, method="quadrature")
    bound = mvue.crb(dependent, 1.0)
    assert bound.method == "Monte Carlo"
    assert abs(bound.matrix[0, 0] - (1 + 1 / N)) < 4 * bound.se[0, 0]

    scaled = own(lambda t, x: -0.5 * (x - t) ** 2, lambda k, t: t + jr.normal(k, (N,)))
    with pytest.raises(BoundError, match=r"one draw has mass 2\.5066"):
        mvue.crb(scaled, 1.0, method="quadrature")

    # Singular at an end that double precision cannot resolve.
    with pytest.raises(BoundError, match="does not converge at the ends"):
        mvue.crb(POWER, 0.5, method="quadrature")


@pytest.mark.parametrize("rate", [1e-5, 1e-2, 3.0])
def test_independent_draws_are_recognised_by_their_likelihood(rate):
    """Without exchangeable=True; where the parameters of the elements differ, they are not."""
    prior = dist.Uniform(1e-6, 5.0)
    counts = mvue.Problem.from_likelihood(prior, lambda t: dist.Poisson(t).expand((N,)))
    found = mvue.fisher_information(counts, rate)
    assert found.method == "quadrature"
    exact = N / np.float32(rate).astype(float)
    assert found.matrix[0, 0] == pytest.approx(exact, rel=1e-6)
    exposures = jnp.linspace(1.0, 2.0, N)
    of_several = mvue.Problem.from_likelihood(prior, lambda t: dist.Poisson(t * exposures))
    with pytest.raises(BoundError, match="not the sum of one function of each element"):
        mvue.fisher_information(of_several, rate, method="quadrature")


def test_what_tells_may_be_too_rare_for_draws():
    counts = mvue.Problem.from_likelihood(dist.Uniform(1e-7, 5.0), dist.Poisson)
    with pytest.raises(IrregularModelError, match="16,384 samples are too few: all have the same"):
        mvue.fisher_information(counts, 1e-6, method="monte carlo")


def test_relative_error(monkeypatch):
    found = mvue.fisher_information(EXPONENTIAL, 2.0, method="monte carlo", relative_error=0.01)
    assert found.se[0, 0] <= 0.01 * found.matrix[0, 0]
    assert 10_000 < found.samples < 60_000
    assert abs(found.matrix[0, 0] - N / 4) < 4 * found.se[0, 0]
    with pytest.warns(
        mvue.exceptions.UnreachedPrecisionWarning, match="4,096 draws bring .* give more"
    ):
        mvue.crb(EXPONENTIAL, 2.0, method="monte carlo", relative_error=0.001, samples=4096)


def test_memory_does_not_grow_with_samples(monkeypatch):
    sizes, piece = [], _score_sampling._piece
    monkeypatch.setattr(
        _score_sampling, "_piece", lambda *args: sizes.append(args[-1]) or piece(*args)
    )
    few, many = (
        mvue.fisher_information(EXPONENTIAL, 2.0, method="monte carlo", samples=samples)
        for samples in (16_384, 100_000)
    )
    assert len(sizes) == 8
    assert len(set(sizes)) == 1
    assert many.samples == 100_000
    assert many.se[0, 0] < 0.6 * few.se[0, 0]
    monkeypatch.setattr(_score_sampling, "PIECE_NUMBERS", 2**16)
    pieces = mvue.fisher_information(EXPONENTIAL, 2.0, method="monte carlo", samples=16_384)
    np.testing.assert_allclose(pieces.matrix, few.matrix, rtol=1e-12)
    np.testing.assert_allclose(pieces.se, few.se, rtol=1e-9)


def test_code_that_insists_on_single_precision():
    def simulate(key, t):
        return jax.lax.fori_loop(
            0,
            2,
            lambda i, x: x + jr.normal(jr.fold_in(key, i), (3,), jnp.float32),
            jnp.zeros(3, "f4"),
        ) + t.astype("f4")

    problem = mvue.Problem(
        ONE,
        simulate,
        lambda t, x: jax.lax.fori_loop(
            0,
            3,
            lambda i, s: s - jnp.float32(0.25) * (x[i] - t.astype("f4")) ** 2,
            jnp.float32(0.0),
        ),
    )
    bound = mvue.crb(problem, 1.0)
    assert abs(bound.matrix[0, 0] - 2 / 3) < 4 * bound.se[0, 0]


class Dice:
    def sample(self, key):
        return jr.randint(key, (), 1, 7)


def failing(t, x):
    return -t["rate"] * jnp.sum(x)


NO_LIKELIHOOD = mvue.Problem(ONE, EXPONENTIAL.simulate)
DISCRETE = mvue.Problem(Dice(), lambda k, t: t + jr.normal(k), lambda t, x: t * x)
FAILING = mvue.Problem(ONE, EXPONENTIAL.simulate, failing)
NOT_SUMMED = mvue.Problem(ONE, EXPONENTIAL.simulate, lambda t, x: t * x)
known = mvue.gaussian_fisher_information
SKEW = np.array([[1.0, 0.5], [0.0, 1.0]])
SHARES = mvue.Problem(
    dist.Dirichlet(jnp.ones(3)),
    lambda k, t: jr.categorical(k, jnp.log(t), shape=(5,)),
    lambda t, x: jnp.sum(jnp.log(t)[x]),
)
MANY = mvue.Problem(
    dist.Normal(0.0, 1.0).expand((60,)),
    lambda k, t: t + jr.normal(k, (60,)),
    lambda t, x: -0.5 * jnp.sum((x - t) ** 2),
)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: mvue.crb(NO_LIKELIHOOD, 1.0), BoundError, "no log_likelihood"),
        (lambda: mvue.crb(DISCRETE, 2), BoundError, "theta is discrete"),
        (lambda: mvue.crb(SHARES, np.ones(3) / 3), BoundError, "Dirichlet prior .* not free"),
        (lambda: mvue.crb(FAILING, 1.0), BoundError, "must be written in JAX"),
        (lambda: mvue.crb(NOT_SUMMED, 1.0), BoundError, r"one number, got shape \(10,\)"),
        (lambda: mvue.crb(POISSON, 1.0, method="fast"), ValueError, "method must be one of auto"),
        (lambda: mvue.crb(POISSON, 1.0, method="gaussian"), BoundError, "is Poisson, not"),
        (lambda: mvue.crb(EXPONENTIAL, 1.0, method="gaussian"), BoundError, "from_likelihood"),
        (lambda: mvue.crb(CORRELATION, 0.1, method="quadrature"), BoundError, "one scalar"),
        (lambda: mvue.crb(POISSON, 1.0, samples=10), ValueError, "samples must be .* at least 128"),
        (lambda: mvue.crb(POISSON, 1.0, relative_error=2.0), ValueError, "between 0 and 1, got 2"),
        (lambda: mvue.crb(GAMMA, [1.0, 2.0, 3.0]), ValueError, r"\(3,\) in place of \(2,\)"),
        (lambda: mvue.crb(GAMMA, [1.0, np.nan]), ValueError, "theta must be finite"),
        (lambda: mvue.crb(SNR, {"h": 1.0}), ValueError, "structure of the prior's samples"),
        (lambda: mvue.crb(POISSON, -1.0), BoundError, "theta = -1.0 is outside of the model"),
        (lambda: mvue.fisher_information(POISSON, -1.0), BoundError, "invalid rate"),
        (lambda: mvue.crb(MANY, np.zeros(60), samples=200), ValueError, "at least 240, got 200"),
        (lambda: known(lambda t: 1j * t, 1.0, 2.0), ValueError, "mean.*must be real"),
        (lambda: known(lambda t: t * jnp.ones(2), SKEW, 2.0), ValueError, "must be symmetric"),
        (lambda: known(0.0, 1.0, 2.0), TypeError, "function of theta"),
        (lambda: known(lambda t: t, -1.0, 2.0), ValueError, "positive definite"),
        (lambda: known(lambda t: t * jnp.ones(3), np.eye(2), 2.0), ValueError, r"and \(2, 2"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_few_draws_for_many_parameters(swept_key):
    """The inverse of 60 × 60 mean products of 600 draws is 10 % too large, and corrected."""
    bound = mvue.crb(MANY, np.zeros(60), samples=600, key=swept_key)
    found = np.diag(bound.matrix)
    assert abs(found.mean() - 1) < 4 * found.std() / np.sqrt(60)


def mean(x):
    return x.mean()


def test_bounds_of_functions_of_y():
    at = np.array([0.5, 1.0, 3.0])
    found = note_bounds(EXPONENTIAL, at, lambda y: 1 / y, jr.key(0))
    np.testing.assert_allclose(found.matrix[:, 0, 0], 1 / at**2 / N, rtol=1e-6)
    assert found.se is None
    assert found.note == "CRB: quadrature"


def test_reports_say_why_there_is_no_bound(key, monkeypatch):
    report = mvue.assess(mean, UNIFORM, at=[1.0, 2.0], repeats=50, key=key)
    note = "no bound: the support of the data depends on theta"
    assert report.bound is None
    assert report.bound_note.startswith(note)
    assert note in str(report)
    assert report.to_dict()["bound_note"] == report.bound_note
    monkeypatch.setattr(mvue.Report, "plot", lambda self: None)
    assert report_sections(report)[0].paragraphs[-1] == f"{report.bound_note}."
    with pytest.raises(BoundError, match="no bound to start from"):
        report.biased_crb("estimator")


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"log_likelihood": None}, "no bound: the problem has neither crb nor log_likelihood"),
        ({"log_likelihood": failing}, "no bound: log_likelihood(theta, x) cannot be differ"),
    ],
)
def test_whatever_goes_wrong_is_noted(changes, note):
    problem = dataclasses.replace(EXPONENTIAL, **changes)
    found = note_bounds(problem, np.array([1.0, 2.0]), None, jr.key(0))
    assert found.matrix is None
    assert found.note.startswith(note)


def test_a_given_bound_that_fails_is_noted():
    calls = []

    def moody(t):
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("out of order")
        return jnp.ones((1, 1))

    problem = dataclasses.replace(EXPONENTIAL, crb=moody)
    found = note_bounds(problem, np.array([1.0, 2.0]), None, jr.key(0))
    assert found == (None, None, "no bound: RuntimeError: out of order")


def test_bounds_at_some_values_only():
    def log_likelihood(t, x):
        return jnp.where(t > 1.5, jnp.nan, 1.0) * dist.Exponential(t).log_prob(x).sum()

    problem = dataclasses.replace(EXPONENTIAL, log_likelihood=log_likelihood, exchangeable=False)
    found = note_bounds(problem, np.array([1.0, 2.0]), None, jr.key(0))
    assert found.note.startswith("CRB: Monte Carlo; none at 1 of 2 values: 16,384 of 16,384 sim")
    assert abs(found.matrix[0, 0, 0] - 1 / N) < 4.5 * found.se[0, 0, 0]
    assert np.isnan(found.matrix[1, 0, 0])


NORMAL_MEAN = of(lambda t: dist.Normal(t, 1.0))


def test_bound_of_a_biased_estimator(swept_key):
    """a·mean + c attains its own bound: a² / n + bias²."""
    at = np.array([3.0, 0.5, 1.0, 2.0, 2.2])
    estimators = {"affine": lambda x: 0.7 * x.mean() + 0.2, "mean": mean}
    report = mvue.assess(estimators, NORMAL_MEAN, at=at, repeats=20_000, key=swept_key)
    np.testing.assert_allclose(report.crb, 1 / N)
    assert "CRB: Gaussian closed form\n" in str(report)
    matrix, se = report.biased_crb("affine")
    exact = 0.49 / N + (0.2 - 0.3 * at) ** 2
    assert (np.abs(matrix[:, 0, 0] - exact) < 4.5 * se[:, 0, 0]).all()
    one = report["affine"]
    assert (one.mse[:, 0] > matrix[:, 0, 0] - 4.5 * np.hypot(se[:, 0, 0], one.mse_se[:, 0])).all()
    unbiased, _ = report.biased_crb("mean")
    np.testing.assert_allclose(unbiased[:, 0, 0], 1 / N, rtol=0.1)

    rough = dataclasses.replace(report, bound_se=0.1 * report.bound)
    columns = rough.to_dict()["estimators"]["mean"]
    np.testing.assert_allclose(columns["crb_se"], 0.1 * np.array(columns["crb"]))
    free = dataclasses.replace(report, bound=np.where(at > 2, np.inf, 1.0)[:, None, None])
    np.testing.assert_array_equal(np.isnan(free.mse_over_crb("mean")[:, 0]), at > 2)
    assert np.isfinite(free.summary("mean")["mse_over_crb"]["max"])
    # The stated error is the spread when the bias alone is measured again and again.
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(400, len(at), 1)) * one.bias_se
    again = [
        dataclasses.replace(report, estimators={"affine": dataclasses.replace(one, bias=b)})
        for b in one.bias + noise
    ]
    spread = np.std([r.biased_crb("affine")[0] for r in again], axis=0)
    np.testing.assert_allclose(spread, se, rtol=0.2)


def test_biased_bound_in_two_dimensions(line, swept_key):
    A, c = np.array([[0.8, 0.1], [0.0, 0.6]]), np.array([0.1, -0.2])
    at = np.random.default_rng(0).uniform(-1, 1, (12, 2))
    report = mvue.assess(
        lambda x: jnp.asarray(A, x.dtype) @ x + jnp.asarray(c, x.dtype),
        line,
        at=at,
        repeats=20_000,
        key=swept_key,
    )
    matrix, se = report.biased_crb("estimator")
    bias = at @ (A - np.eye(2)).T + c
    exact = 0.25 * A @ A.T + bias[:, :, None] * bias[:, None, :]
    assert (np.abs(matrix - exact) < 4.5 * se + 1e-3 * se.max()).all()
    spread = np.std(
        [
            dataclasses.replace(
                report,
                estimators={"again": dataclasses.replace(report["estimator"], bias=bias)},
            ).biased_crb("again")[0]
            for bias in bias_again(report["estimator"], report.repeats)
        ],
        axis=0,
    )
    np.testing.assert_allclose(spread, se, rtol=0.25)

    flat = dataclasses.replace(report, y=at * np.array([1.0, 0.0]))
    with pytest.raises(BoundError, match="on a line or plane"):
        flat.biased_crb("estimator")
    few = dataclasses.replace(report, y=at[:5], theta=at[:5])
    with pytest.raises(BoundError, match="needs at least 6 values, got 5"):
        few.biased_crb("estimator")
    single = dataclasses.replace(report, y=at[:, :1])
    with pytest.raises(BoundError, match="fix the nuisances"):
        single.biased_crb("estimator")
    equal = dataclasses.replace(single, theta=at[:, :1], y=np.ones((12, 1)))
    with pytest.raises(BoundError, match="at least 3 different values"):
        equal.biased_crb("estimator")


def bias_again(one, repeats):
    rng = np.random.default_rng(0)
    return np.stack(
        [
            rng.multivariate_normal(mean, covariance / repeats, size=400)
            for mean, covariance in zip(one.bias, one.covariance, strict=True)
        ],
        axis=1,
    )


@pytest.mark.parametrize("method", ["auto", "quadrature"])
@pytest.mark.parametrize(
    ("shift", "sd", "right"), [(0.0, 1.0, True), (0.0, 2.0, False), (0.5, 1.0, False)]
)
def test_quadrature_compares_the_likelihood_with_simulations(shift, sd, right, method):
    """A density of another noise has mass one and a score of mean zero all the same."""
    problem = mvue.Problem(
        dist.Uniform(-1.0, 1.0),
        lambda k, t: t + jr.normal(k, (5,)),
        exchangeable=True,
        log_likelihood=lambda t, x: dist.Normal(t + shift, sd).log_prob(x).sum(),
    )
    if right:
        np.testing.assert_allclose(mvue.crb(problem, 0.3, method=method).matrix, [[0.2]], rtol=1e-6)
        return
    with pytest.raises(IrregularModelError, match="simulate and log_likelihood disagree"):
        mvue.crb(problem, 0.3, method=method)


@pytest.mark.parametrize("factor", [2.0, 0.5, 0.1, 10.0, -1.0, 1.0])
@pytest.mark.parametrize("noise", ["normal", "laplace"])
def test_a_log_likelihood_that_is_off_by_a_factor_is_named(noise, factor):
    """Its score has mean zero all the same, and its bound is off by the square of the factor."""
    draw, of_noise = {
        "normal": (jr.normal, dist.Normal(0.0, 1.0)),
        "laplace": (jr.laplace, dist.Laplace(0.0, 1.0)),
    }[noise]
    problem = mvue.Problem(
        dist.Uniform(0.5, 1.0),
        lambda key, t: t + draw(key, (3,)),
        log_likelihood=lambda t, x: factor * of_noise.log_prob(x - t).sum(),
    )
    if factor == 1.0:
        assert mvue.crb(problem, 0.7, method="monte carlo").matrix[0, 0] == pytest.approx(
            1 / 3, 0.1
        )
        return
    with pytest.raises(mvue.exceptions.IrregularModelError, match="multiplied by a factor") as told:
        mvue.crb(problem, 0.7)
    assert "support" not in str(told.value)
