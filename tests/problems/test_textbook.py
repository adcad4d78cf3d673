"""The catalogue of textbook problems: every claim it makes is checked.

Some 1500 statistical comparisons are made. One of them is called wrong beyond 6.5 standard errors,
or 5 for the hundred that pool all values of an entry: a false alarm in the whole file has a
probability below 1e-4, and a stated variance that is wrong by 3 % is seen in every entry.
"""

import functools
from pathlib import Path

import jax
import jax.flatten_util
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import integrate, special, stats

from mvue.problems import Textbook, textbook
from mvue.problems._textbook.counts import poisson
from mvue.problems._textbook.normal import hyp0f1

ONE, POOLED = 6.5, 5.0
SEED = 0  # any will do
REPEATS = 36_000
FEW_REPEATS = 6_000  # for estimators that integrate
ALL = textbook()
# Fourth moments that hardly exist: their formulas are checked in longer records.
LONGER = {"normal-snr": 24, "bivariate-precision": 24}


def entry_to_check(name: str) -> Textbook:
    return textbook(name, n=LONGER[name]) if name in LONGER else ALL[name]


def repeats_of(name: str) -> int:
    pitman = ("laplace-location", "logistic-location", "cauchy-location")
    return FEW_REPEATS if name in pitman else REPEATS


@functools.cache
def simulated(name: str) -> dict[str, np.ndarray]:
    """Estimates and scores at each value, (K, R, ...), from one compiled function."""
    entry = entry_to_check(name)
    problem, estimator = entry.problem, entry.mvue or entry.reference
    at = jax.tree.map(jnp.asarray, entry.at)
    _, flat_to_theta = jax.flatten_util.ravel_pytree(jax.tree.map(lambda v: v[0], at))

    def one(key, theta):
        x = problem.simulate(key, theta)
        result = {"estimates": estimator(x)}
        if problem.log_likelihood is not None:
            result["log_likelihood"] = problem.log_likelihood(theta, x)
        if problem.crb is not None:
            score = jax.grad(problem.log_likelihood)(theta, x)
            result["scores"] = jax.flatten_util.ravel_pytree(score)[0]
        return result

    def at_value(keys, theta):
        result = jax.vmap(one, in_axes=(0, None))(keys, theta)
        result["y"] = problem.y_of(theta)
        if problem.crb is not None:
            flat = jax.flatten_util.ravel_pytree(theta)[0]
            result["jacobian"] = jax.jacobian(lambda f: problem.y_of(flat_to_theta(f)))(flat)
        return result

    shape = len(jax.tree.leaves(at)[0]), repeats_of(name)
    # Most of the time goes into compilation.
    quick = {"xla_backend_optimization_level": 1}
    program = jax.jit(jax.vmap(at_value), compiler_options=quick)
    result = program(jr.split(jr.key(SEED), shape), at)
    return {key: np.asarray(value, np.float64) for key, value in result.items()}


def agrees(estimate, error, exact, allowed=ONE):
    """Within `allowed` standard errors, at each value and in the mean of all ratios."""
    estimate, error, exact = np.broadcast_arrays(estimate, error, exact)
    np.testing.assert_array_less(np.abs(estimate - exact), allowed * error + 1e-6 * np.abs(exact))
    used = exact > 0
    ratio, ratio_error = estimate[used] / exact[used], error[used] / exact[used]
    weights = ratio_error**-2 / np.sum(ratio_error**-2)
    assert abs(np.sum(weights * ratio) - 1) < POOLED * np.sum(weights**2 * ratio_error**2) ** 0.5


UNBIASED = [name for name, e in ALL.items() if e.kind not in ("control", "open")]


@pytest.mark.parametrize("name", UNBIASED)
def test_estimator_is_unbiased_and_has_the_variance_that_is_stated(name):
    entry, sample = entry_to_check(name), simulated(name)
    errors = sample["estimates"] - sample["y"][:, None]
    repeats = errors.shape[1]
    bias, variance = errors.mean(axis=1), errors.var(axis=1, ddof=1)
    assert (np.abs(bias) < ONE * np.sqrt(variance / repeats)).all()
    assert np.isfinite(sample.get("log_likelihood", 0.0)).all()
    if entry.variance is None:
        return
    fourth = ((errors - bias[:, None]) ** 4).mean(axis=1)
    stated = entry.variance(entry.at)
    assert stated.dtype == np.float64
    assert stated.shape == variance.shape
    error = np.sqrt((fourth - variance**2) / repeats)
    agrees(variance, error, stated)


BOUNDED = [name for name, e in ALL.items() if e.problem.crb is not None and e.kind != "open"]


@pytest.mark.parametrize("name", BOUNDED)
def test_bound_is_that_of_the_likelihood(name):
    """The variance of the score gives the bound; the error of its inverse to first order."""
    entry, sample = entry_to_check(name), simulated(name)
    scores, jacobian = sample["scores"], sample["jacobian"]
    repeats = scores.shape[1]
    fisher = scores.swapaxes(1, 2) @ scores / repeats
    gain = np.linalg.solve(fisher, jacobian.swapaxes(1, 2))  # (K, p, d)
    bound = np.einsum("kdp,kpd->kd", jacobian, gain)
    influence = (scores @ gain) ** 2
    error = influence.std(axis=1) / np.sqrt(repeats)
    agrees(bound, error + 1e-12, entry.crb(entry.at))


@pytest.mark.parametrize("name", ALL)
def test_fields_say_what_holds(name):
    entry = ALL[name]
    assert entry.name == name
    assert not entry.title.endswith(".")
    assert entry.notes.endswith(".")
    exact = entry.kind in ("regular", "irregular", "discrete", "nonparametric")
    assert (entry.mvue is not None) == exact
    assert (entry.reference is not None) == (not exact)
    bound = entry.crb(entry.at)
    assert (entry.kind == "regular") <= (bound is not None)
    if bound is None or entry.variance is None:
        assert not entry.attained
        return
    variance = entry.variance(entry.at)
    assert bound.dtype == np.float64
    assert (variance >= bound * (1 - 1e-9)).all()
    assert entry.attained == np.allclose(variance, bound, rtol=1e-9, atol=0)


def is_leaf(node):
    return not isinstance(node, dict)


@pytest.mark.parametrize("name", ALL)
def test_both_priors_range_over_the_values(name):
    entry = ALL[name]
    values = jax.tree.leaves(entry.at)
    for problem in (entry.problem, entry.with_prior().problem):
        for prior, at in zip(jax.tree.leaves(problem.prior, is_leaf=is_leaf), values, strict=True):
            lower, upper = prior.support.lower_bound, prior.support.upper_bound
            assert at.min() == pytest.approx(float(lower), rel=1e-6)
            assert at.max() == pytest.approx(float(upper), rel=1e-6)
            assert at.shape[1:] == jax.eval_shape(prior.sample, jr.key(0)).shape


@pytest.mark.parametrize("name", ["normal-mean", "exponential-rate", "german-tank"])
def test_second_prior_is_another_one(name, swept_key):
    entry = ALL[name]
    at, draws = np.ravel(entry.at), []
    for problem in (entry.problem, entry.with_prior().problem):
        drawn = np.asarray(jax.jit(jax.vmap(problem.sample_prior))(jr.split(swept_key, 4_000)))
        assert drawn.min() >= at.min() - 1e-6
        assert drawn.max() <= at.max() + 1e-6
        assert (drawn > np.quantile(at, 0.9)).mean() > 0.02  # neither forgets an end
        draws.append(drawn)
    assert stats.ks_2samp(*draws).statistic > 0.2


@pytest.mark.parametrize("name", ALL)
def test_number_of_observations_is_checked(name):
    with pytest.raises(ValueError, match="n must be a whole number of at least"):
        textbook(name, n=0)


def test_number_of_observations_is_used():
    entry = textbook("normal-variance", n=20)
    assert entry.problem.shapes()[0].shape == (20,)
    np.testing.assert_allclose(entry.variance(entry.at) / entry.crb(entry.at), 20 / 19)


def test_wrong_names_are_told_from_near_ones():
    with pytest.raises(ValueError, match="did you mean 'exponential-rate'"):
        textbook("exponental-rate")
    with pytest.raises(ValueError, match="n needs the name"):
        textbook(n=3)


def test_core_is_a_small_part():
    core = [entry for entry in ALL.values() if entry.core]
    assert len(ALL) == 53
    assert len(core) == 20
    assert {entry.kind for entry in core} == {"regular", "irregular", "control", "open"}


@pytest.mark.parametrize(
    ("name", "n", "theta", "ratio"),
    [
        ("normal-sd", 8, {"mean": [0.0], "sd": [1.0]}, 1.18),
        ("normal-log-variance", 8, [1.0], 1.14),
        ("gamma-rate", 8, [1.0], 24 / 22),
        ("bivariate-determinant", 8, {"sd1": [1.0], "sd2": [1.0], "correlation": [0.3]}, 1.21),
        ("bivariate-precision", 9, {"sd1": [1.0], "sd2": [1.0], "correlation": [0.3]}, 2.25),
    ],
)
def test_ratios_to_the_bound(name, n, theta, ratio):
    entry = textbook(name, n=n)
    theta = jax.tree.map(np.asarray, theta, is_leaf=lambda node: isinstance(node, list))
    found = entry.variance(theta) / entry.crb(theta)
    assert found[0, 0] == pytest.approx(ratio, abs=0.005)


def test_zero_truncated_poisson_by_summation():
    """Mean and variance over all totals, whose probabilities are found by convolution."""
    entry = textbook("zero-truncated-poisson", n=4)
    for rate in (0.9, 3.0):
        mass = stats.poisson.pmf(np.arange(150), rate)
        mass[0] = 0
        total = np.array([1.0])
        for _ in range(4):
            total = np.convolve(total, mass / mass.sum())
        totals = np.arange(4, 150)
        counts = np.stack([totals - 3, *np.ones((3, len(totals)))], axis=1)
        with jax.enable_x64(True):
            estimates = np.asarray(jax.vmap(entry.mvue)(jnp.asarray(counts)))[:, 0]
        assert total[4:150] @ estimates == pytest.approx(rate, rel=1e-10)
        variance = total[4:150] @ (estimates - rate) ** 2
        assert entry.variance(np.array([rate]))[0, 0] == pytest.approx(variance, rel=1e-9)
    assert entry.variance(np.array([0.9]))[0, 0] == pytest.approx(0.3519, abs=5e-5)


def test_controls_have_the_bias_of_theory():
    """Over all numbers of successes, with their probabilities."""
    n, p = 8, np.asarray(ALL["binomial-odds"].at)
    samples = np.arange(n)[None, :] < np.arange(n + 1)[:, None]
    mass = stats.binom.pmf(np.arange(n + 1)[None, :], n, p[:, None])
    for name, expected in (
        ("binomial-odds", p / (1 - p) * (1 - p**n)),
        ("binomial-reciprocal", (1 - (1 - p) ** (n + 1)) / p),
    ):
        estimates = jax.vmap(ALL[name].reference)(jnp.asarray(samples, int))[:, 0]
        np.testing.assert_allclose(mass @ np.asarray(estimates, np.float64), expected, rtol=1e-5)


def test_draws_without_replacement():
    draw = jax.jit(jax.vmap(lambda key: ALL["german-tank"].problem.simulate(key, jnp.asarray(20))))
    x = np.asarray(draw(jr.split(jr.key(0), 20_000)))
    assert x.min() == 1
    assert x.max() == 20
    assert all(len(set(row)) == 8 for row in x[:2_000].tolist())
    for place in (0, 7):  # each draw is uniform by itself
        counts = np.bincount(x[:, place] - 1, minlength=20)
        assert stats.chisquare(counts).pvalue > 1e-6


@pytest.mark.parametrize("rate", [0.0, 0.3, 4.0, 50.0])
def test_poisson_by_inversion(rate):
    draws = np.asarray(poisson(jr.key(0), jnp.full(100_000, rate)))
    assert draws.dtype == np.float32
    if rate == 0:
        assert (draws == 0).all()
        return
    ends = np.unique(stats.poisson.ppf(np.linspace(0.02, 0.98, 15), rate))
    cells = np.searchsorted(ends, draws)
    expected = np.diff(np.concatenate([[0.0], stats.poisson.cdf(ends, rate), [1.0]]))
    observed = np.bincount(cells, minlength=len(expected))
    assert stats.chisquare(observed, expected * draws.size).pvalue > 1e-6
    assert np.isnan(poisson(jr.key(0), jnp.full(3, 61.0))).all()


def test_hypergeometric_series():
    z = np.array([0.0, 0.1, 3.0, 40.0, 300.0])
    for b in (0.5, 3.5, 25.0):
        series = jax.vmap(lambda one, b=b: hyp0f1(b, one))(jnp.asarray(z, jnp.float32))
        np.testing.assert_allclose(series, special.hyp0f1(b, z), rtol=2e-5)


@pytest.mark.parametrize("law", ["laplace", "logistic", "cauchy"])
def test_pitman_estimators_are_the_mean_of_the_likelihood(law):
    estimate = jax.jit(ALL[f"{law}-location"].reference)
    density = getattr(stats, law)
    for seed in range(3):
        x = density.rvs(loc=0.7, size=8, random_state=seed).astype(np.float32)
        grid = np.linspace(-60.0, 60.0, 120_001)
        logs = sum(density.logpdf(one - grid) for one in x.astype(np.float64))
        weights = np.exp(logs - logs.max())
        mean = np.sum(weights * grid) / np.sum(weights)
        assert float(estimate(x)[0]) == pytest.approx(mean, abs=2e-4)


def test_survival_variance_by_substitution():
    """The same integral over the probability instead of the total time."""
    entry, rate, n, time = ALL["exponential-survival"], 2.0, 8, 0.5

    def square(u):
        total = stats.gamma.ppf(u, n) / rate
        return max(1 - time / total, 0.0) ** (2 * n - 2)

    second = integrate.quad(square, 0, 1, limit=200)[0]
    variance = entry.variance(np.array([rate]))[0, 0]
    assert variance == pytest.approx(second - np.exp(-2 * rate * time), rel=1e-6)


def row_of(entry: Textbook) -> str:
    """The row of a problem in the documentation's table."""
    ratio, bound = "–", entry.crb(entry.at)
    if bound is not None and entry.variance is not None:
        variance = entry.variance(entry.at)
        reachable = bound > 1e-12
        ratios = np.where(reachable, variance / np.where(reachable, bound, 1.0), np.inf)
        ratio = "1" if entry.attained else f"{np.median(ratios):.2f}"
    star = " ★" if entry.core else ""
    return f"| `{entry.name}`{star} | {entry.title} | {entry.kind} | {ratio} |"


def test_documentation_lists_every_problem():
    page = (Path(__file__).parents[2] / "docs" / "textbook.md").read_text()
    listed = [line for line in page.splitlines() if line.startswith("| `")]
    assert listed == [row_of(entry) for entry in ALL.values()]
