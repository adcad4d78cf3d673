"""Certificates: the confidence holds, decisions are right, and what cannot be said is not said."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import mvue
from mvue._assessment.certificate import Decision, certify
from mvue._assessment.simultaneous import fewest_repeats, look_plan, max_t_quantile

LIMIT = 0.1
WIDE = 0.3  # decided by few repeats, which is the harder case for the confidence
AT = np.linspace(0.0, 1.0, 7)


def known_problem(noise, sd=1.0):
    """The second number of x is y: estimators have any bias / sd, a function of y."""
    problem = mvue.Problem(
        dist.Uniform(0.0, 1.0), lambda key, y: jnp.stack([y + noise(key), y]), names=("y",)
    )
    return problem, lambda bias: lambda x: x[0] + sd * bias(x[1])


def rare(key):
    one, two = jr.split(key)
    return jr.normal(one) + 5.0 * jr.bernoulli(two, 0.05) - 0.25


NOISES = {
    "normal": (jr.normal, 1.0),
    "t(3)": (lambda key: jr.t(key, 3.0), np.sqrt(3.0)),
    "rare": (rare, np.sqrt(1 + 25 * 0.05 * 0.95)),
}


@pytest.fixture(scope="module")
def normal():
    return known_problem(jr.normal)


def of_repetitions(report, name, limit, looks=1):
    """Certificates of the parts of a report, whose values are those of many assessments."""
    one = report[name]
    for start in range(0, len(report.y), len(AT)):
        part = slice(start, start + len(AT))
        fields = {k: v[part] for k, v in vars(one).items() if isinstance(v, np.ndarray)}
        short = dataclasses.replace(
            report,
            y=report.y[part],
            theta=report.theta[part],
            estimators={name: dataclasses.replace(one, **fields)},
            looks=looks,
        )
        yield certify(short, name, limit)


@pytest.mark.parametrize("kind", NOISES)
def test_wrong_answers_are_as_rare_as_stated(kind):
    """At the limit, where they are most frequent; in 150 assessments, with and without stopping."""
    problem, make = known_problem(*NOISES[kind])
    estimators = {
        "beyond": make(lambda y: 1.001 * WIDE * y**4),
        "within": make(lambda y: 0.999 * WIDE + 0.0 * y),
    }
    limit = mvue.BiasLimit(WIDE, 0.9)
    looks, count = limit.looks(300, 7), 150
    assert len(looks) == 2
    at = np.tile(AT, count)
    reports = [mvue.assess(estimators, problem, at=at, repeats=n, key=jr.key(1)) for n in looks]
    allowed = stats.binom.isf(1e-3, count, 0.1) / count
    for name, wrong in (("beyond", Decision.PASS), ("within", Decision.FAIL)):
        fixed = [c.decision is wrong for c in of_repetitions(reports[0], name, limit)]
        assert np.mean(fixed) <= allowed
        both = zip(*(of_repetitions(r, name, limit, 2) for r in reports), strict=True)
        stopped = [
            (one if one.decision is not Decision.UNDECIDED else two).decision is wrong
            for one, two in both
        ]
        assert np.mean(stopped) <= allowed
    missed = [
        ((c.bias_lower > 0.999 * WIDE) | (c.bias_upper < 0.999 * WIDE)).any()
        for c in of_repetitions(reports[0], "within", limit)
    ]
    assert np.mean(missed) <= allowed


def test_the_largest_t_of_many():
    one = np.ones((1, 1))
    assert max_t_quantile([one], 0.05) == pytest.approx(stats.norm.isf(0.025))
    independent = max_t_quantile([one] * 8, 0.05)
    assert max_t_quantile([np.eye(2)] * 4, 0.05) == pytest.approx(independent, abs=0.03)
    same = max_t_quantile([np.ones((2, 2))] * 4, 0.05)
    assert same == pytest.approx(max_t_quantile([one] * 4, 0.05), abs=0.03)


def test_unseen_errors_cannot_make_up_a_bias():
    """A rare error of probability p has bias / sd = sqrt(p / (1 - p))."""
    n = fewest_repeats(0.05, 0.05)
    p = 0.05**2 / (1 + 0.05**2)
    assert (1 - p) ** n <= 0.05 < (1 - p) ** (n - 1)


def test_looks_double_and_end_at_the_limit():
    assert look_plan(1000, 100) == [125, 250, 500, 1000]
    assert look_plan(100, 1000) == [100]
    looks = mvue.BiasLimit(0.05).looks(1_000_000, 13)
    assert looks[-1] == 1_000_000
    assert looks[0] >= fewest_repeats(0.05, 0.05 / len(looks))


def test_decisions(normal, swept_key):
    problem, make = normal
    estimators = {
        "unbiased": make(lambda y: 0.0 * y),
        "biased": make(lambda y: 0.3 * (y > 0.9)),
        "close": make(lambda y: 0.1 + 0.0 * y),
    }
    report = mvue.assess(estimators, problem, at=AT, repeats=4_000, key=swept_key)
    good, bad, open_ = (report.certify(LIMIT, 0.999, name=name) for name in estimators)
    assert good.decision is Decision.PASS
    assert good.passed
    assert good.margin == pytest.approx(LIMIT - good.upper)
    assert 0 < good.margin < LIMIT
    assert good.statement.startswith("pass: |bias|/sd ≤ 0.1 at all 7 values of y")
    assert bad.decision is Decision.FAIL
    assert bad.lower > LIMIT
    assert "at 1 of 7 values" in bad.statement
    assert "at y = 1 " in bad.statement
    assert bad.more_repeats is None
    assert open_.decision is Decision.UNDECIDED
    assert open_.margin < 0
    assert open_.more_repeats is None or open_.more_repeats > 4_000
    assert "the largest is between" in str(open_)
    with pytest.raises(ValueError, match="name must be one of"):
        report.certify(LIMIT)


def test_more_repeats_do_decide(normal, swept_key):
    problem, make = normal
    estimator = make(lambda y: 0.0 * y)
    first = mvue.assess(estimator, problem, at=AT, repeats=400, key=swept_key).certify(LIMIT)
    assert first.decision is Decision.UNDECIDED
    assert first.more_repeats is not None
    more = 400 + 4 * first.more_repeats
    assert mvue.assess(estimator, problem, at=AT, repeats=more, key=swept_key).certify(LIMIT).passed


def test_until_simulates_what_the_decision_needs(normal, key):
    problem, make = normal
    biased, unbiased = make(lambda y: 0.5 + 0.0 * y), make(lambda y: 0.0 * y)
    until = mvue.BiasLimit(LIMIT)
    report = mvue.assess(biased, problem, at=AT, repeats=40_000, until=until, key=key)
    assert report.repeats < 5_000
    assert report.certificates["estimator"].decision is Decision.FAIL
    assert report.looks == len(until.looks(40_000, 7))
    # The same as looking at the first of the same measurements.
    again = mvue.assess(biased, problem, at=AT, repeats=report.repeats, key=key)
    np.testing.assert_allclose(again["estimator"].bias, report["estimator"].bias, rtol=1e-5)
    assert again.certify(LIMIT).lower > report.certify(LIMIT).lower  # one look, not several
    both = {"biased": biased, "unbiased": unbiased}
    report = mvue.assess(both, problem, at=AT, repeats=40_000, until=until, key=key)
    assert {n: str(c.decision) for n, c in report.certificates.items()} == {
        "biased": "fail",
        "unbiased": "pass",
    }
    assert "unbiased: pass" in str(report)
    assert report.to_dict()["certificates"]["biased"]["decision"] == "fail"


def test_estimates_that_are_not_finite_are_counted(normal, key):
    problem, _ = normal

    def sometimes(x):
        return jnp.where(x[0] > x[1] + 2, jnp.nan, x[0])

    with pytest.warns(mvue.exceptions.NonFiniteWarning):
        report = mvue.assess(sometimes, problem, at=AT, repeats=3_000, key=key)
    found = report.certify(LIMIT)
    assert found.failures == report["estimator"].failures.sum() > 0
    assert f"{found.failures:,} of 21,000 estimates were not finite" in str(found)
    with pytest.warns(mvue.exceptions.NonFiniteWarning):
        report = mvue.assess(lambda x: x[0] * jnp.nan, problem, at=AT, repeats=300, key=key)
    found = report.certify(LIMIT)
    assert found.decision is Decision.UNDECIDED
    assert "no estimate that is finite" in found.reason
    assert found.more_repeats is None


def test_too_few_repeats_say_how_many(normal, key):
    problem, make = normal
    report = mvue.assess(make(lambda y: 0.0 * y), problem, at=AT, repeats=100, key=key)
    found = report.certify(0.05)
    assert found.decision is Decision.UNDECIDED
    assert f"at least {fewest_repeats(0.05, 0.05):,} finite estimates" in found.reason
    assert found.more_repeats > fewest_repeats(0.05, 0.05) - 100


def test_no_statement_where_single_draws_decide(key):
    problem, make = known_problem(lambda key: jr.t(key, 1.0))
    report = mvue.assess(make(lambda y: 0.0 * y), problem, at=AT, repeats=20_000, key=key)
    found = report.certify(0.5)
    assert found.decision is Decision.UNDECIDED
    assert "heavy tails" in found.reason


def test_no_statement_outside_of_prior_and_training(normal, key, tmp_path):
    problem, make = normal
    at = np.append(AT, [1.5, 3.0])
    biased_there = make(lambda y: jnp.where(y > 1, 5.0, 0.0))
    with pytest.warns(mvue.exceptions.ExtrapolationWarning):
        report = mvue.assess(biased_there, problem, at=at, repeats=4_000, key=key)
    found = report.certify(LIMIT)
    assert found.passed
    assert found.covered.tolist() == [True] * 7 + [False] * 2
    assert "no statement at 2 of 9 values" in str(found)
    wide = mvue.Problem(
        dist.Uniform(0.0, 4.0), lambda key, y: y + jr.normal(key, (2,)), names=("y",)
    )
    narrow = dataclasses.replace(wide, prior=dist.Uniform(0.0, 1.0))
    path = tmp_path / "narrow.mvue"
    mvue.save(mvue.wls(np.ones((2, 1)), 1.0), path, problem=narrow)
    report = mvue.assess(mvue.load(path), wide, at=[0.5, 1.0, 3.0], repeats=1_000, key=key)
    assert report["estimator"].outside.tolist() == [False, False, True]
    only = mvue.assess(mvue.load(path), wide, at=[3.0], repeats=1_000, key=key).certify()
    assert only.decision is Decision.UNDECIDED
    assert "all values lie outside" in only.reason


def test_exact_estimators(normal, key):
    problem, _ = normal
    estimators = {"exact": lambda x: x[1], "off": lambda x: x[1] + 1.0}
    report = mvue.assess(estimators, problem, at=AT, repeats=2_000, key=key)
    assert report.certify(LIMIT, name="exact").passed
    assert report.certify(LIMIT, name="off").decision is Decision.FAIL


def test_curve_between_the_values(normal, swept_key):
    problem, make = normal
    report = mvue.assess(make(lambda y: 0.1 * y), problem, repeats=4_000, key=swept_key)
    curve = report.certify(0.2, 0.999).curve
    assert curve is not None
    truth = 0.1 * curve.y
    assert ((curve.lower < truth) & (truth < curve.upper)).all()
    assert curve.largest < 0.25
    jumps = make(lambda y: 2.0 * (jnp.floor(y * 12.01) % 2))
    found = mvue.assess(jumps, problem, at=np.linspace(0, 1, 13), repeats=4_000, key=swept_key)
    assert "on no smooth curve" in str(found.certify())


def test_several_components(line, key):
    report = mvue.assess(lambda x: x, line, repeats=8_000, key=key)
    found = report.certify(0.1)
    assert found.passed
    assert found.bias_lower.shape == (13, 2)
    assert "no statement between the values: more than one number varies" in str(found)
    assert len(found.plot().axes) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0,), "max_bias_over_sd must be a positive number, got 0.0"),
        ((float("nan"),), "max_bias_over_sd must be"),
        ((True,), "max_bias_over_sd must be"),
        ((0.1, 1.0), "confidence must be a number between 0 and 1, such as 0.95, got 1.0"),
        ((0.1, 95), "confidence must be"),
    ],
)
def test_bad_limits(arguments, message):
    with pytest.raises(ValueError, match=message):
        mvue.BiasLimit(*arguments)


def test_until_must_be_a_limit(line, key):
    with pytest.raises(TypeError, match="until"):
        mvue.assess(lambda x: x, line, until=0.05, key=key)


def test_certificates_are_shown_and_stored(normal, key, tmp_path):
    problem, _ = normal
    estimator = mvue.wls(np.array([[1.0], [0.0]]), 1.0)
    until = mvue.BiasLimit(LIMIT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = mvue.assess(estimator, problem, repeats=20_000, until=until, key=key)
    report.to_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "Certificate" in page
    assert "pass: |bias|/sd ≤ 0.1" in page
    assert page.count("<svg") == 2
    path = tmp_path / "model.mvue"
    # The second number of x is y itself.
    with pytest.warns(mvue.exceptions.NoiselessWarning):
        mvue.save(estimator, path, problem=problem, assessment=report)
    loaded = mvue.load(path)
    assert loaded.certificate["decision"] == "pass"
    assert loaded.certificate["statement"] in str(loaded)
    certificate = report.certify(0.2)
    mvue.save(loaded, path, certificate=certificate)
    loaded = mvue.load(path)
    assert loaded.certificate["max_bias_over_sd"] == 0.2
    assert "max_bias_over_sd" in loaded.assessment  # the summary is still there
    with pytest.raises(TypeError, match="certificate"):
        mvue.save(loaded, path, certificate={})
    jax.tree.leaves(certificate.to_dict())
