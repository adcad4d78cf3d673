"""Estimated bounds against exact ones, and models where there is none."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest

import mvue
from mvue._assessment.sections import report_sections
from mvue._information.bound import MEANING
from mvue.exceptions import BoundError, IrregularModelError, SimulatorError

N = 10
SAMPLES = 2**15
WIDTH = 3.5  # standard errors
UNIFORM = mvue.Problem(
    dist.Uniform(1.0, 2.0), lambda k, top: top * jr.uniform(k, (N,)), exchangeable=True
)
RATE = mvue.Problem(
    dist.LogUniform(0.3, 8.0),
    lambda k, rate: jr.exponential(k, (N,)) / rate,
    names=("rate",),
    exchangeable=True,
)
LAPLACE = mvue.Problem(
    dist.Uniform(-3.0, 3.0), lambda k, at: at + jr.laplace(k, (N,)), exchangeable=True
)


def normal(key, theta):
    return theta["mean"] + jnp.sqrt(theta["variance"]) * jr.normal(key, (N,))


NORMAL = mvue.Problem(
    {"mean": dist.Uniform(-3.0, 3.0), "variance": dist.Uniform(0.5, 4.0)},
    normal,
    target=lambda t: jnp.stack([t["mean"] / jnp.sqrt(t["variance"]), t["variance"]]),
    names=("ratio", "variance"),
    exchangeable=True,
)


def agrees(found, exact, slack):
    """Not below the bound, and not far above it, beyond chance."""
    variance, se = np.diag(found.matrix), np.diag(found.se)
    assert (variance > np.diag(exact) - WIDTH * se).all()
    assert (variance < slack * np.diag(exact) + WIDTH * se).all()


def test_of_one_parameter_from_its_sufficient_statistic(swept_key):
    found = mvue.information_bound(RATE, 2.0, key=swept_key, samples=SAMPLES)
    agrees(found, [[2.0**2 / N]], 1.03)
    information = found.information
    assert information.names == ("theta",)
    assert abs(information.matrix - N / 2.0**2) < WIDTH * information.se + 0.03 * N / 2.0**2
    assert information.samples == SAMPLES
    assert found.names == ("rate",)
    assert found.unidentifiable == ()


def test_of_functions_of_two_parameters(swept_key):
    """By the chain rule, with a nuisance that both components share."""
    found = mvue.information_bound(
        NORMAL, {"mean": 1.0, "variance": 2.0}, key=swept_key, samples=SAMPLES
    )
    slopes = np.array([[2**-0.5, -0.5 * 2**-1.5], [0.0, 1.0]])
    exact = slopes @ np.diag([2 / N, 2 * 2.0**2 / N]) @ slopes.T
    agrees(found, exact, 1.04)
    assert abs(found.matrix[0, 1] - exact[0, 1]) < WIDTH * found.se[0, 1] + 0.1
    assert np.allclose(found.matrix, found.matrix.T)


def test_the_learned_score_is_sharper_where_statistics_are_not_sufficient(key):
    found = mvue.information_bound(LAPLACE, 0.5, key=key, samples=SAMPLES)
    agrees(found, [[1 / N]], 1.1)
    assert found.method == "learned score"
    assert found.matrix < found.of_statistics - 2 * found.se
    own = mvue.information_bound(
        LAPLACE, 0.5, key=key, samples=SAMPLES, statistics=lambda x: jnp.sign(x - 0.5).sum()
    )
    agrees(own, [[1 / N]], 1.1)
    assert own.of_statistics < found.of_statistics


def test_printed_as_what_it_is(key):
    found = mvue.information_bound(RATE, 2.0, key=key, samples=2**12)
    assert str(found).startswith(MEANING)
    assert "upper estimate of the Cramér-Rao bound" in MEANING
    assert repr(found) == str(found)
    assert "estimated bound" in found._repr_html_()
    again = mvue.information_bound(RATE, 2.0, key=key, samples=2**12)
    np.testing.assert_array_equal(found.matrix, again.matrix)


def both_ends(key, theta):
    return theta - 1 + 2 * jr.uniform(key, (N,))


def shifted(key, theta):
    return theta["start"] + theta["scale"] * jr.exponential(key, (N,))


SHIFTED = mvue.Problem(
    {"start": dist.Uniform(-1.0, 1.0), "scale": dist.Uniform(0.5, 2.0)},
    shifted,
    target=lambda t: t["scale"][None],
)


def test_a_support_that_moves_is_refused(swept_key):
    with pytest.raises(IrregularModelError, match="shrinks like δ to the power"):
        mvue.information_bound(UNIFORM, 1.5, key=swept_key, samples=2**14)


@pytest.mark.parametrize(
    ("problem", "theta"),
    [
        (mvue.Problem(dist.Uniform(-1.0, 1.0), both_ends, exchangeable=True), 0.2),
        (SHIFTED, {"start": 0.0, "scale": 1.0}),
    ],
)
def test_jumps_besides_what_is_smooth_are_refused(problem, theta, key):
    with pytest.raises(IrregularModelError, match="shrinks like δ to the power"):
        mvue.information_bound(problem, theta, key=key, samples=2**14)


def test_what_the_data_do_not_tell_apart(key):
    problem = mvue.Problem(
        {"a": dist.Uniform(0.0, 1.0), "b": dist.Uniform(0.0, 1.0)},
        lambda k, t: t["a"] + t["b"] + jr.normal(k, (N,)),
        target=lambda t: jnp.stack([t["a"], t["a"] + t["b"]]),
        names=("a", "sum"),
        exchangeable=True,
    )
    found = mvue.information_bound(problem, {"a": 0.4, "b": 0.5}, key=key, samples=2**14)
    assert np.isinf(found.matrix[0, 0])
    assert np.isnan(found.matrix[0, 1])
    assert abs(found.matrix[1, 1] - 1 / N) < WIDTH * found.se[1, 1] + 0.005
    assert len(found.unidentifiable) == 1


def test_at_the_end_of_the_prior(key):
    """The simulator may be moved beyond the prior, but not across zero."""
    signed = mvue.Problem(
        dist.Uniform(0.0, 2.0),
        lambda k, sd: jnp.where(sd > 0, sd, jnp.nan) * jr.normal(k, (N,)),
        exchangeable=True,
    )
    found = mvue.information_bound(signed, 0.05, key=key, samples=2**14)
    agrees(found, [[0.05**2 / (2 * N)]], 1.06)


@pytest.mark.parametrize(
    ("problem", "theta", "error", "message"),
    [
        (RATE, 9.0, BoundError, "theta is outside of the support of the prior, theta = 9 not"),
        (RATE, [1.0, 2.0], ValueError, "theta must be ONE value of the prior's"),
        (
            mvue.Problem(dist.Poisson(3.0), lambda k, t: t + jr.normal(k, (3,))),
            3,
            BoundError,
            "theta is discrete",
        ),
        (
            mvue.Problem(dist.Uniform(0.0, 1.0), lambda k, t: t * jnp.ones(3)),
            0.5,
            SimulatorError,
            "simulate ignores its key",
        ),
        (
            mvue.Problem(dist.Uniform(0.0, 1.0), lambda k, t: jr.normal(k, (3,))),
            0.5,
            BoundError,
            "were not seen to change with theta",
        ),
        (
            mvue.Problem(
                dist.Uniform(-1.0, 1.0),
                lambda k, t: jnp.where(jnp.abs(t - 0.5) < 0.1, jnp.nan, t) + jr.normal(k, (3,)),
            ),
            0.5,
            (BoundError, SimulatorError),
            "finite",
        ),
    ],
)
def test_no_bound(problem, theta, error, message, key):
    with pytest.raises(error, match=message):
        mvue.information_bound(problem, theta, key=key, samples=2**12)


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"samples": 100}, ValueError, "samples must be a whole number of at least 4096"),
        ({"statistics": 3.0}, TypeError, "statistics must be a function of one measurement"),
        ({"statistics": [jnp.mean, "sum"]}, TypeError, "a Fit or a Model, got 'sum'"),
        ({"statistics": lambda x: x @ x @ x}, ValueError, r"statistics\[0\] failed on a measure"),
        ({"statistics": lambda x: jnp.log(x - 1)}, ValueError, r"statistics\[0\] is not finite on"),
    ],
)
def test_bad_arguments_are_refused(kwargs, error, message, key):
    with pytest.raises(error, match=message):
        mvue.information_bound(RATE, 2.0, key=key, **kwargs)


def test_a_report_has_the_estimated_bound_where_it_is_asked_for(key, tmp_path):
    best = lambda x: 9 / x.sum()  # noqa: E731
    at = jnp.array([4.0])
    plain = mvue.assess(best, RATE, at=at, repeats=4000, key=key)
    assert plain.bound is None
    assert plain.bound_note == "no bound: the problem has neither crb nor log_likelihood"
    report = mvue.assess(best, RATE, at=at, repeats=4000, key=key, bound="estimated")
    np.testing.assert_array_equal(report["estimator"].mse, plain["estimator"].mse)
    assert report.crb is None
    assert report.mse_over_crb("estimator") is None
    exact = np.asarray(at)[:, None] ** 2 / N
    error = np.einsum("kii->ki", report.bound_se)
    assert (np.abs(report.bound_variance - 1.02 * exact) < 0.02 * exact + 4 * error).all()
    one = report["estimator"]
    spread = 4 * one.mse_se / exact + 6 * error / exact
    assert (np.abs(report.mse_over_bound("estimator") - 1.25) < 0.06 + spread).all()
    text = str(report)
    assert "MSE/estimated bound" in text
    assert "upper estimate of the Cramér-Rao bound" in text
    assert "MSE/CRB" not in text
    entry = report.to_dict()["estimators"]["estimator"]
    assert {"estimated_bound", "estimated_bound_se", "mse_over_estimated_bound"} <= set(entry)
    assert not {"crb", "mse_over_crb"} & set(entry)
    assert "estimated_bound" in report.to_frame()
    summary = report_sections(report)[0]
    assert any("upper estimate" in part for part in summary.paragraphs)
    (_, mse, ratio) = report.plot().axes
    assert ratio.get_title() == "mean squared error / estimated bound"
    assert "estimated bound" in mse.get_legend_handles_labels()[1]
    with pytest.raises(BoundError, match="the report has an estimated bound"):
        report.biased_crb("estimator")


def test_a_known_bound_goes_first(line, key):
    at = jnp.array([[0.0, 0.5]])
    report = mvue.assess(lambda x: x, line, at=at, repeats=100, key=key, bound="estimated")
    assert not report.is_estimated
    np.testing.assert_allclose(report.crb, 0.25)
    with pytest.raises(ValueError, match="bound must be 'estimated' or None, got 'learned'"):
        mvue.assess(lambda x: x, line, at=at, key=key, bound="learned")


def test_a_report_is_not_lost_where_there_is_none(key):
    report = mvue.assess(
        lambda x: 1.1 * x.max(),
        UNIFORM,
        at=jnp.array([1.3]),
        repeats=100,
        key=key,
        bound="estimated",
    )
    assert report.bound is None
    assert report.bound_note.startswith("no estimated bound: the density of the data has a jump")


def test_an_estimator_is_a_statistic(key):
    mean = mvue.wls(np.ones((N, 1)), np.eye(N))
    found = mvue.information_bound(RATE, 2.0, key=key, samples=2**13, statistics=[mean, jnp.max])
    agrees(found, [[2.0**2 / N]], 1.05)
