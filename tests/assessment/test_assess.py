"""Assessments against exact answers."""

import json

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mvue
from mvue._assessment import errors as _error_pieces
from mvue._display.figures import new_figure, share_legend
from mvue._numerics.moments import merge, moments_of, summarize

AT = np.array([[0.0, 0.5], [-0.5, 0.9], [1.0, -1.0]])


def shrink(x):
    return 0.8 * x + 0.1


def agrees(value, expected, error, width=4.5):
    """Within so many standard errors, everywhere."""
    return (np.abs(value - expected) <= width * error).all()


def test_exact_bias_sd_and_mse(line, swept_key):
    report = mvue.assess(shrink, line, at=AT, repeats=40_000, key=swept_key)
    one = report["estimator"]
    bias = 0.1 - 0.2 * AT
    assert agrees(one.bias, bias, one.bias_se)
    assert agrees(one.sd, 0.4, one.sd_se)
    assert agrees(one.mse, bias**2 + 0.16, one.mse_se)
    np.testing.assert_allclose(one.bias_se, 0.4 / 200, rtol=0.05)
    np.testing.assert_allclose(one.sd_se, 0.4 / np.sqrt(2 * 40_000), rtol=0.05)
    expected_se = np.sqrt((2 * 0.16**2 + 4 * bias**2 * 0.16) / 40_000)
    np.testing.assert_allclose(one.mse_se, expected_se, rtol=0.1)
    np.testing.assert_allclose(one.covariance[0], 0.16 * np.eye(2), atol=0.16 * 4.5 / 200 * 1.5)
    np.testing.assert_allclose(report.crb, 0.25)
    ratio = report.mse_over_crb("estimator")
    np.testing.assert_allclose(ratio, one.mse / 0.25)


def test_prior_averages(line, swept_key):
    """E‖0.1 - 0.2 y‖² over U(-1, 1)² is 2 (0.01 + 0.04/3); the MSE adds 2 · 0.16."""
    prior = mvue.assess(shrink, line, at=AT, repeats=40_000, key=swept_key)["estimator"].prior
    expected = 2 * (0.01 + 0.04 / 3)
    assert abs(prior.squared_bias - expected) < 4.5 * prior.squared_bias_se
    assert abs(prior.bmse - expected - 0.32) < 4.5 * prior.bmse_se
    assert 0 < prior.bmse_se < 0.01


def test_results_do_not_depend_on_the_pieces(line, key, monkeypatch):
    whole = mvue.assess(shrink, line, at=AT, repeats=1_000, key=key)
    monkeypatch.setattr(_error_pieces, "PIECE_NUMBERS", 3 * 2 * 137)
    pieces = mvue.assess(shrink, line, at=AT, repeats=1_000, key=key)
    for field in ("bias", "sd", "sd_se", "mse", "mse_se", "covariance"):
        np.testing.assert_allclose(
            getattr(whole["estimator"], field),
            getattr(pieces["estimator"], field),
            rtol=2e-5,
            atol=1e-7,
        )


def test_estimators_see_the_same_draws(line, key):
    report = mvue.assess(
        {"raw": lambda x: x, "shifted": lambda x: x + 1.0}, line, at=AT, repeats=500, key=key
    )
    np.testing.assert_allclose(report["shifted"].bias, report["raw"].bias + 1, atol=1e-5)
    alone = mvue.assess(lambda x: x, line, at=AT, repeats=500, key=key)
    np.testing.assert_allclose(alone["estimator"].bias, report["raw"].bias, atol=1e-6)


def test_ratio_of_mse_is_sharper_than_its_parts(line, seed):
    estimators = {"raw": lambda x: x, "nearly": lambda x: 0.99 * x}
    at = np.tile(AT, (8, 1))  # each with measurements of its own
    report = mvue.assess(estimators, line, at=at, repeats=2_000, key=jr.key(seed))
    ratio, error = report.mse_ratio("nearly", "raw")
    expected = 0.99**2 + (0.01**2 * at**2).sum(axis=1) / 0.5
    assert agrees(ratio, expected, error)
    alone = report["raw"].mse_se.sum(axis=1) / report["raw"].mse.sum(axis=1)
    assert (error < alone / 10).all()
    spread = np.std(ratio.reshape(8, -1), axis=0, ddof=1)
    assert (spread < 3 * error[: len(AT)]).all()
    assert (spread > error[: len(AT)] / 3).all()


def test_function_of_the_estimate(key):
    problem = mvue.Problem(
        dist.Uniform(1.0, 2.0),
        lambda key, t: t + 0.01 * jr.normal(key),
        crb=lambda t: jnp.full((1, 1), 1e-4),
    )
    report = mvue.assess(
        lambda x: x, problem, at=[1.0, 2.0], repeats=5_000, key=key, of=lambda y: 1 / y
    )
    np.testing.assert_allclose(report.y[:, 0], [1.0, 0.5])
    np.testing.assert_allclose(report.crb[:, 0], [1e-4, 1e-4 / 16], rtol=1e-6)
    one = report["estimator"]
    np.testing.assert_allclose(one.sd[:, 0], [0.01, 0.01 / 4], rtol=0.05)
    assert report.names == ("of(y)",)


def test_numpy_functions_are_estimators(line, key):
    in_numpy = mvue.assess(lambda x: np.sort(x), line, at=AT, repeats=50, key=key)
    in_jax = mvue.assess(lambda x: jnp.sort(x), line, at=AT, repeats=50, key=key)
    np.testing.assert_allclose(in_numpy["estimator"].bias, in_jax["estimator"].bias, atol=1e-6)


def test_failures_are_counted_not_hidden(line, swept_key):
    def fragile(x):
        return jnp.where(x[:1] > 0, x, jnp.nan)

    with pytest.warns(mvue.exceptions.NonFiniteWarning, match="non-finite estimates"):
        report = mvue.assess(fragile, line, at=[[0.0, 0.0]], repeats=1_000, key=swept_key)
    one = report["estimator"]
    assert abs(one.failures[0] - 500) < 4.5 * np.sqrt(250)
    assert one.bias[0, 0] == pytest.approx(0.5 * np.sqrt(2 / np.pi), abs=0.1)
    assert report.summary("estimator")["failures"] == one.failures[0]


def test_an_estimator_that_always_fails_is_not_perfect(line, key):
    def broken(x):
        return x * jnp.nan

    estimators = {"raw": lambda x: x, "shrink": shrink, "broken": broken}
    with pytest.warns(mvue.exceptions.NonFiniteWarning, match="broken gave"):
        report = mvue.assess(estimators, line, at=AT, repeats=300, key=key)
    figures = report.summary("broken")
    assert np.isnan(figures["max_bias_over_sd"])
    assert np.isnan(figures["bmse"])
    assert figures["prior_failures"] >= 256
    assert np.isnan(report["broken"].bias).all()
    assert json.loads(report.to_json())["estimators"]["broken"]["bmse"] is None
    assert "nan" in str(report)
    # The comparison of the others is untouched.
    alone = {name: estimators[name] for name in ("raw", "shrink")}
    without = mvue.assess(alone, line, at=AT, repeats=300, key=key)
    np.testing.assert_allclose(
        report.mse_ratio("shrink", "raw"), without.mse_ratio("shrink", "raw"), rtol=1e-4
    )


def test_failures_over_the_prior_are_counted(line, key):
    def fragile(x):
        return jnp.where(x[:1] > 1.5, jnp.nan, x)

    with pytest.warns(mvue.exceptions.NonFiniteWarning, match="units from the prior"):
        report = mvue.assess(fragile, line, at=[[-1.0, 0.0]], repeats=500, key=key)
    assert report.summary("estimator")["prior_failures"] > 0


@pytest.mark.parametrize("unit", [1e-12, 1e-6, 1.0, 1e9])
def test_units_do_not_matter(key, unit):
    """All numbers scale with the unit of y, standard errors too."""

    def problem(u):
        return mvue.Problem(dist.Uniform(u, 2 * u), lambda k, t: t + 0.1 * u * jr.normal(k, (3,)))

    estimators = {"mean": lambda x: x.mean(), "first": lambda x: x[0]}
    one, scaled = (
        mvue.assess(estimators, problem(u), at=[1.5 * u], repeats=500, key=key) for u in (1.0, unit)
    )
    for field, power in (("bias", 1), ("sd", 1), ("sd_se", 1), ("mse", 2), ("mse_se", 2)):
        a, b = (getattr(report["mean"], field) for report in (one, scaled))
        np.testing.assert_allclose(b, a * unit**power, rtol=1e-3, atol=1e-5 * unit**power)
    np.testing.assert_allclose(
        scaled["mean"].prior.bmse_se, one["mean"].prior.bmse_se * unit**2, rtol=1e-3
    )
    np.testing.assert_allclose(
        scaled.mse_ratio("mean", "first"), one.mse_ratio("mean", "first"), rtol=1e-3
    )


def test_standard_error_of_bias_over_sd(seed):
    """Of a skewed, biased estimator, against the spread between repetitions."""
    problem = mvue.Problem(dist.Uniform(0.5, 2.0), lambda k, t: t * jr.exponential(k, (2,)))
    at = np.ones(60)  # each with measurements of its own
    found = mvue.assess(lambda x: 0.5 * x.mean(), problem, at=at, repeats=400, key=jr.key(seed))
    values, stated = found["estimator"].bias_in_sd, found["estimator"].bias_over_sd_se.mean()
    assert 0.6 < values.std(ddof=1) / stated < 1.5  # sd of a sd of 60 values: 9 %


def test_constant_estimator(line, key):
    report = mvue.assess(lambda x: jnp.zeros(2), line, at=AT, repeats=50, key=key)
    assert (report["estimator"].sd == 0).all()
    np.testing.assert_allclose(report["estimator"].mse, AT**2, atol=1e-6)
    assert "inf" in str(report)
    json.loads(report.to_json())


def test_numpy_estimators_of_any_kind(line, key):
    def in_place(x):
        x[0] = 0.5
        return x

    report = mvue.assess(
        {"mask": lambda x: x[x > -9], "in place": in_place, "plain": lambda x: [0.0, 1.0]},
        line,
        at=AT,
        repeats=20,
        key=key,
    )
    np.testing.assert_allclose(report["in place"].bias[:, 0], 0.5 - AT[:, 0], atol=1e-6)

    calls = []

    def fails_later(x):
        calls.append(1)
        if len(calls) > 5:
            raise RuntimeError("out of paper")
        return np.sort(x)

    with pytest.raises(ValueError, match="'estimator' failed: out of paper"):
        mvue.assess(fails_later, line, at=AT, repeats=20, key=key)


def test_tables_lose_nothing(line, key):
    names = [f"a rather long name of an estimator [{i}]" for i in range(9)]
    report = mvue.assess(dict.fromkeys(names, shrink), line, at=AT, repeats=20, key=key)
    text = str(report)
    assert all(text.count(name) >= 2 for name in names)
    assert "…" not in text.replace(" … ", "")


def test_fit_and_assess_share_no_random_numbers(line, key):
    """The same key may be given to both."""
    from mvue._core.keys import key_for

    keys = [key_for(purpose, key) for purpose in ("fit", "assess", "standardize", "refit")]
    parts = np.concatenate([jr.key_data(jr.split(k, 4)) for k in keys])
    assert len(np.unique(parts, axis=0)) == len(parts)


def test_nuisances_may_be_left_out(key):
    problem = mvue.Problem(
        {"h": dist.Uniform(1.0, 10.0), "y": dist.Uniform(0.0, 1.0)},
        lambda key, t: t["y"] + t["h"] * jr.normal(key, (1,)),
        target=lambda t: t["y"],
    )
    report = mvue.assess(lambda x: x, problem, at={"y": [0.1, 0.9]}, repeats=20_000, key=key)
    assert ((report.theta["h"] >= 1) & (report.theta["h"] <= 10)).all()
    np.testing.assert_allclose(report["estimator"].sd[:, 0], report.theta["h"], rtol=0.03)


def test_default_values_cover_the_prior(key):
    problem = mvue.Problem(dist.Uniform(2.0, 3.0), lambda key, t: t + jr.normal(key))
    report = mvue.assess(lambda x: x, problem, repeats=100, key=key)
    assert report.y.shape == (13, 1)
    assert report.y[0, 0] < 2.01
    assert report.y[-1, 0] > 2.99
    assert (np.diff(report.y[:, 0]) > 0).all()


@pytest.mark.parametrize("with_support", [True, False])
def test_values_outside_the_prior_warn(key, with_support):
    class Plain:
        def sample(self, key):
            return jr.uniform(key, (), minval=2.0, maxval=3.0)

    prior = dist.Uniform(2.0, 3.0) if with_support else Plain()
    problem = mvue.Problem(prior, lambda key, t: t + jr.normal(key))
    mvue.assess(lambda x: x, problem, at=[2.0, 3.0 + 1e-6], repeats=10, key=key)
    with pytest.warns(mvue.exceptions.ExtrapolationWarning, match="1 of the 2 values"):
        mvue.assess(lambda x: x, problem, at=[2.0, 3.5], repeats=10, key=key)


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"estimator": lambda x: x + 1j}, ValueError, "complex numbers"),
        ({"estimator": lambda x: x[:1]}, ValueError, r"shape of y, \(2,\).*returned shape \(1,\)"),
        ({"estimator": lambda x: x @ jnp.ones((3, 2))}, ValueError, "failed on one measurement"),
        ({"estimator": {}}, ValueError, "at least one estimator"),
        ({"repeats": 1}, ValueError, "repeats must be a whole number of at least 2"),
        ({"at": {"y": np.zeros(3)}}, ValueError, "at must"),
        ({"at": np.zeros((3, 5))}, ValueError, r"shape \(K, 2\); got \(3, 5\)"),
        ({"at": np.array([[0.0, np.nan]])}, ValueError, "at must hold finite values"),
        ({"key": jnp.zeros(2)}, TypeError, r"key must be a random key such as jax.random.key\(0\)"),
        ({"of": lambda y: y @ jnp.ones((3,))}, ValueError, r"of\(y\) failed"),
    ],
)
def test_bad_input_is_refused(line, kwargs, error, message):
    call = {"estimator": shrink, "problem": line, "at": AT, "key": jr.key(0)} | kwargs
    with pytest.raises(error, match=message):
        mvue.assess(**call)


def test_report_prints_saves_and_plots(line, key, tmp_path):
    report = mvue.assess({"raw": lambda x: x, "shrink": shrink}, line, at=AT, repeats=200, key=key)
    text = str(report)
    assert "3 values of east, north" in text
    assert "shrink" in text
    saved = json.loads(report.to_json(tmp_path / "report.json"))
    assert saved == json.loads((tmp_path / "report.json").read_text())
    np.testing.assert_allclose(saved["estimators"]["shrink"]["bias"], report["shrink"].bias)
    frame = report.to_frame()
    assert len(frame) == 2 * 3 * 2
    assert set(frame["component"]) == {"east", "north"}
    report.plot().savefig(tmp_path / "report.png")
    report.to_html(tmp_path / "report.html", title="A <b>title</b>")
    page = (tmp_path / "report.html").read_text()
    assert "A &lt;b&gt;title" in page
    assert "<svg" in page
    assert 'src="http' not in page
    with pytest.raises(KeyError, match="there are \\['raw', 'shrink'\\]"):
        report["bce"]


@settings(max_examples=40, deadline=None)
@given(
    cuts=st.lists(st.sampled_from([1, 2, 3, 17, 60]), min_size=1, max_size=5),
    offset=st.floats(-100, 100),
    seed=st.integers(0, 1000),
)
def test_merged_moments_equal_those_of_the_whole(cuts, offset, seed):
    rng = np.random.default_rng(seed)
    values = (offset + rng.exponential(size=(sum(cuts), 2))).astype(np.float32)
    parts = np.split(values, np.cumsum(cuts)[:-1])
    total = None
    for part in parts:
        piece = moments_of(jnp.asarray(part), jnp.ones(len(part), bool)).on_host()
        total = piece if total is None else merge(total, piece)
    exact = values.astype(np.float64)
    mean = exact.mean(axis=0)
    scale = 1 + abs(offset)
    np.testing.assert_allclose(total.mean, mean, rtol=1e-5)
    d = exact - mean
    size = scale * len(exact)  # float32 deviations from a mean of this size
    np.testing.assert_allclose(total.second, d.T @ d, rtol=1e-3, atol=1e-4 * size)
    np.testing.assert_allclose(total.third, (d**3).sum(0), rtol=1e-3, atol=1e-3 * size)
    np.testing.assert_allclose(total.fourth, (d**4).sum(0), rtol=2e-3, atol=1e-3 * size)
    assert summarize(total).mse == pytest.approx((exact**2).mean(axis=0), rel=1e-4)


@pytest.mark.parametrize("width", [4.0, 8.0, 12.0])
def test_shared_legend_fits_the_figure(width):
    figure = new_figure(width, 3.0)
    ax = figure.subplots()
    for i in range(5):
        ax.plot([0, 1], [0, i], label=f"estimator number {i} with its standard errors")
    share_legend(figure, [ax])
    (legend,) = figure.legends
    assert legend.get_window_extent().width <= figure.bbox.width
    assert len(legend.get_texts()) == 5
