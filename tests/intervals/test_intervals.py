"""Intervals: they cover at every value, are as short as exact ones, and say what they cannot."""

import dataclasses
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import mvue
from mvue._intervals.coverage import coverage_of
from mvue._training.result import History
from mvue.exceptions import NonFiniteWarning

SIMULATIONS = 2**16
REPEATS = 10_000
LEVEL = 0.9


def rate_problem(low=0.1, high=24.0):
    return mvue.Problem(
        dist.LogUniform(low, high),
        lambda key, rate: jr.exponential(key, (10,)) / rate,
        names=("rate",),
        exchangeable=True,
    )


def best_rate(x):
    return 9 / x.sum()


def rate_intervals(seed=0, **settings):
    settings = {"simulations": SIMULATIONS} | settings
    return mvue.interval(best_rate, rate_problem(), key=jr.key(seed), **settings)


@pytest.fixture(scope="module")
def rates():
    return rate_intervals()


def assert_covers(covers, level=LEVEL, slack=0.02):
    """Within two per cent, and what the standard error of the count adds."""
    assert (np.abs(covers.rate - level) < slack + 3 * covers.rate_se).all(), covers.rate


def test_a_rate_has_the_exact_interval(swept_key):
    intervals = mvue.interval(best_rate, rate_problem(), key=swept_key, simulations=SIMULATIONS)
    at = jnp.geomspace(0.3, 8.0, 5)
    covers = coverage_of(intervals, rate_problem(), at, repeats=REPEATS, key=jr.key(7))
    assert_covers(covers)
    x = np.asarray(jr.exponential(jr.key(8), (2000, 10)))
    found = intervals(x)
    total = x.sum(axis=1)
    exact = [stats.chi2.ppf(p, 20) / (2 * total) for p in (0.05, 0.95)]
    ratio = (found.upper - found.lower)[:, 0] / (exact[1] - exact[0])
    assert found.determined.all()
    assert 0.97 < ratio.mean() < 1.05
    np.testing.assert_allclose(found.estimate[:, 0], 9 / total, rtol=1e-5)


def test_the_ends_of_the_range_are_covered_as_the_rest(seed):
    problem = rate_problem(0.3, 8.0)
    intervals = mvue.interval(best_rate, problem, key=jr.key(seed), simulations=SIMULATIONS)
    covers = coverage_of(
        intervals, problem, jnp.array([0.3, 8.0]), repeats=REPEATS, key=jr.key(seed + 10)
    )
    assert_covers(covers)
    assert (covers.open > 0.4).all()


def test_other_parameters_are_taken_at_their_estimates(seed):
    """The interval of a normal mean with unknown variance is Student's, at every variance."""
    problem = mvue.Problem(
        {"mean": dist.Uniform(-3.0, 3.0), "variance": dist.LogUniform(0.1, 10.0)},
        lambda key, t: t["mean"] + jnp.sqrt(t["variance"]) * jr.normal(key, (8,)),
        target=lambda t: jnp.stack([t["mean"], t["variance"]]),
        names=("mean", "variance"),
    )
    intervals = mvue.interval(
        lambda x: jnp.stack([x.mean(), x.var(ddof=1)]),
        problem,
        key=jr.key(seed),
        simulations=SIMULATIONS,
    )
    at = {"mean": jnp.array([0.0, 0.0, 2.0]), "variance": jnp.array([0.3, 3.0, 1.0])}
    assert_covers(coverage_of(intervals, problem, at, repeats=REPEATS, key=jr.key(seed + 10)))
    x = np.asarray(jr.normal(jr.key(3), (500, 8)))
    found = intervals(x)
    exact = 2 * stats.t.ppf(0.95, 7) * x.std(axis=1, ddof=1) / np.sqrt(8)
    ratio = (found.upper - found.lower)[:, 0] / exact
    assert abs(ratio.mean() - 1) < 0.05
    region = intervals.region(x)
    assert region.matrix.shape == (500, 2, 2)
    assert region.contains(region.centre).all()
    drawn = problem.draw(jr.key(seed + 20), 4000, 1)
    inside = intervals.region(np.asarray(drawn.x)[:, 0]).contains(np.asarray(drawn.y))
    assert abs(inside.mean() - LEVEL) < 4 * np.sqrt(0.09 / 4000)


@pytest.mark.parametrize("kind", ["binomial", "poisson"])
def test_discrete_data_are_covered_at_least_as_often(kind, seed):
    likelihood = {
        "binomial": lambda p: dist.Binomial(20, p).to_event(0),
        "poisson": lambda rate: dist.Poisson(5 * rate),
    }[kind]
    low, high, unit = (0.05, 0.95, 20) if kind == "binomial" else (0.5, 10.0, 5)
    problem = mvue.Problem.from_likelihood(dist.Uniform(low, high), likelihood)
    intervals = mvue.interval(
        lambda x: x / unit, problem, key=jr.key(seed), simulations=SIMULATIONS
    )
    assert "at least the level" in str(intervals)
    at = jnp.linspace(low, high, 11)
    covers = coverage_of(intervals, problem, at, repeats=REPEATS, key=jr.key(seed + 10))
    assert (covers.rate > LEVEL - 0.005 - 3 * covers.rate_se).all(), covers.rate


def test_one_set_of_simulations_serves_several_levels(rates):
    x = np.asarray(jr.exponential(jr.key(1), (10,)))
    ends = [rates(x, level=level) for level in (0.5, 0.8, 0.9, 0.95)]
    assert all(a.lower > b.lower and a.upper < b.upper for a, b in itertools.pairwise(ends))
    for level in (0.5, 0.95):
        covers = coverage_of(
            rates, rate_problem(), jnp.array([1.0]), repeats=REPEATS, key=jr.key(2), level=level
        )
        assert_covers(covers, level)


def test_one_measurement_and_a_batch_agree(rates):
    x = np.asarray(jr.exponential(jr.key(1), (3, 10)))
    batch, one = rates(x), rates(x[1])
    assert one.lower.shape == (1,)
    np.testing.assert_allclose(batch.lower[1], one.lower, rtol=1e-6)
    np.testing.assert_allclose(batch.upper[1], one.upper, rtol=1e-6)


def test_plug_in_is_symmetric():
    plug_in = rate_intervals(method="plug_in")
    x = np.asarray(jr.exponential(jr.key(1), (10,)))
    found = plug_in(x)
    z = stats.norm.ppf(0.95)
    # The standard deviation of 9 / sum is rate / sqrt(8).
    np.testing.assert_allclose(found.upper - found.lower, 2 * z * found.estimate / np.sqrt(8), 0.05)


def test_an_end_beyond_the_simulated_range_is_flagged(rates):
    x = np.ones((4, 10), np.float32) * np.array([[9 / 250], [9 / 15], [9 / 0.2], [9 / 0.005]]) / 10
    found = rates(x.astype(np.float32))
    np.testing.assert_allclose(found.estimate[:, 0], [250, 15, 0.2, 0.005], rtol=1e-4)
    assert found.determined[:, 0].tolist() == [False, False, True, False]
    assert found.upper[:2, 0].tolist() == [np.inf, np.inf]
    assert 24 < found.lower[0, 0] < 25
    assert found.lower[3, 0] == -np.inf
    assert 0.09 < found.upper[3, 0] < 0.1


def test_estimates_that_are_not_finite_are_counted():
    problem = rate_problem()
    fails = lambda x: jnp.where(x[0] > x[1], jnp.nan, best_rate(x))  # noqa: E731
    with pytest.warns(NonFiniteWarning, match="had no finite estimate"):
        intervals = mvue.interval(fails, problem, key=jr.key(0), simulations=SIMULATIONS)
    assert abs(intervals.curves.failures / SIMULATIONS - 0.5) < 0.02
    assert "the interval is NaN" in str(intervals)
    x = np.array([[2.0, 1.0, *[1.0] * 8], [1.0, 2.0, *[1.0] * 8]], np.float32)
    found = intervals(x)
    assert np.isnan(found.lower[0]).all()
    assert not found.determined[0].any()
    assert np.isfinite(found.lower[1]).all()


def test_levels_and_numbers_that_cannot_be():
    for level in (0.0, 1.0, -0.5, 90):
        with pytest.raises(ValueError, match="level must be between 0 and 1"):
            rate_intervals(level=level)
    with pytest.raises(ValueError, match="needs about 18,000 simulations, got simulations=100"):
        rate_intervals(level=0.9925, simulations=100)
    few = rate_intervals(simulations=4000)
    with pytest.raises(ValueError, match=r"level 0.999 needs about 135,000 simulations, and there"):
        few(np.ones(10, np.float32), level=0.999)
    with pytest.raises(TypeError, match=r"outside of jax.jit"):
        jax.jit(few)(np.ones(10, np.float32))


def test_a_function_in_numpy_will_do():
    intervals = mvue.interval(
        lambda x: 9 / float(np.sum(x)), rate_problem(), key=jr.key(0), simulations=4000
    )
    found = intervals(np.ones((2, 10), np.float32))
    assert (found.lower < 0.9).all()
    assert (found.upper > 0.9).all()


def test_reports_have_coverage_where_asked(rates, tmp_path):
    problem = rate_problem()
    at = np.array([0.5, 4.0])
    report = mvue.assess(rates, problem, at=at, repeats=2000, level=0.8, key=jr.key(0))
    (covers,) = report.coverage.values()
    assert covers.level == 0.8
    assert_covers(covers, 0.8)
    assert "Coverage of confidence intervals of level 0.8" in str(report)
    frame = report.to_frame()
    assert frame["interval_coverage"].tolist() == covers.rate[:, 0].tolist()
    assert report.to_dict()["level"] == 0.8
    report.to_html(tmp_path / "page.html")
    assert "Coverage" in (tmp_path / "page.html").read_text()
    plain = mvue.assess(best_rate, problem, at=at, repeats=100, key=jr.key(0))
    assert not plain.coverage
    assert "interval_coverage" not in plain.to_frame()
    with pytest.raises(ValueError, match="level has no use with of"):
        mvue.assess(rates, problem, of=lambda y: 1 / y, level=0.8, key=jr.key(0))


def test_model_files_keep_them(tmp_path, line):
    estimator = mvue.wls(np.eye(2), 0.25)
    intervals = mvue.interval(estimator, line, key=jr.key(0), simulations=SIMULATIONS)
    path = tmp_path / "line.mvue"
    mvue.save(estimator, path, problem=line, intervals=intervals)
    x = np.array([[0.1, -0.3], [0.5, 0.2]], np.float32)
    loaded = mvue.load(path)
    before, after = intervals(x), loaded.interval(x, level=0.9)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    assert "intervals  up to level" in str(loaded)
    mvue.save(loaded, tmp_path / "again.mvue")
    assert mvue.load(tmp_path / "again.mvue").curves is not None
    mvue.save(estimator, path, problem=line)
    with pytest.raises(ValueError, match="saved without intervals"):
        mvue.load(path).interval(x)
    with pytest.raises(ValueError, match="intervals are for 1 parameters"):
        mvue.save(estimator, path, problem=line, intervals=rate_intervals(simulations=4000))


def test_a_fit_makes_them_once_and_files_keep_them(tmp_path):
    problem = rate_problem(0.5, 4.0)
    network = eqx.nn.Linear(10, 1, key=jr.key(0))
    done = {"seconds": 0.0, "compile_seconds": 0.0, "nonfinite": 0, "settings": {}}
    fit = mvue.Fit(
        network,
        mvue.Outcome.FINISHED,
        1,
        "last",
        {},
        History(),
        survey=None,
        problem=problem,
        **done,
    )
    x = np.asarray(jr.exponential(jr.key(1), (5, 10)))
    found = fit.interval(x, level=0.8)
    assert fit.intervals is fit.intervals
    mvue.save(fit, tmp_path / "fit.mvue")
    again = mvue.load(tmp_path / "fit.mvue").interval(x, level=0.8)
    np.testing.assert_allclose(again.upper, found.upper, rtol=1e-4)


@pytest.mark.parametrize(("factor", "warns"), [(1.0, False), (2.0, True), (20.0, True)])
def test_errors_that_jump_with_the_parameter_are_warned_about(factor, warns, key):
    problem = mvue.Problem(
        dist.Uniform(0.0, 2.0),
        lambda k, t: t + 0.1 * jnp.where(t > 1.0, factor, 1.0) * jr.normal(k, (4,)),
        names=("level",),
    )
    if not warns:
        mvue.interval(jnp.mean, problem, key=key)
        return
    with pytest.warns(mvue.exceptions.CoverageWarning, match=r"near level = (0\.9|1\.0)"):
        mvue.interval(jnp.mean, problem, key=key)


def test_files_do_not_keep_the_intervals_of_another_estimator(tmp_path, line):
    """They know what they were made for: names, the shape of a measurement, and the weights."""
    made = lambda estimator, problem: mvue.interval(  # noqa: E731
        estimator, problem, key=jr.key(0), simulations=SIMULATIONS
    )
    ours, other = mvue.wls(np.eye(2), 0.25), mvue.lmmse(np.eye(2), 0.25, 1.0)
    path = tmp_path / "line.mvue"
    nameless = dataclasses.replace(line, names=None)
    wide = mvue.Problem(line.prior, lambda key, t: jnp.tile(line.simulate(key, t), 2))
    for intervals, problem, match in (
        (made(other, line), line, "got those of one with other weights"),
        (made(ours, dataclasses.replace(line, names=("a", "b"))), line, "got those of a, b"),
        (made(lambda x: x[:2], wide), line, r"got those of measurements of shape \(4,\)"),
    ):
        with pytest.raises(ValueError, match=f"intervals must be of this estimator.*{match}"):
            mvue.save(ours, path, problem=problem, intervals=intervals)
        assert not path.exists()
    mvue.save(ours, path, problem=line, intervals=made(ours, nameless))
    mvue.save(mvue.load(path), path, intervals=made(mvue.load(path), line))
    with pytest.raises(ValueError, match="other weights"):
        mvue.save(mvue.load(path), path, intervals=made(other, line))


def test_intervals_of_another_function_are_not_saved(key, tmp_path):
    problem = mvue.Problem(
        dist.Uniform(0.5, 5.0), lambda k, t: jr.exponential(k, (10,)) / t, names=("rate",)
    )
    of_another = mvue.interval(lambda x: 1.5 / x.mean(), problem, key=key, simulations=20_000)
    network = eqx.nn.MLP(10, 1, 4, 1, key=key)
    with pytest.raises(ValueError, match="intervals must be of this estimator"):
        mvue.save(network, tmp_path / "m.mvue", problem=problem, intervals=of_another)
