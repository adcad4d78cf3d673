"""The experiment on textbook problems: its files, and how it judges."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from typer.testing import CliRunner

import mvue
from helpers.contract import CONTRACT
from mvue._training.result import History
from mvue.cli.main import app
from mvue.experiments.textbook import figures
from mvue.experiments.textbook import results as results_of
from mvue.experiments.textbook.experiment import (
    CLOSED_FORM,
    EXPERIMENT,
    WITHOUT_MLE,
    Mixture,
    maximum_likelihood,
    model_range,
)
from mvue.problems import textbook

LEARNED = ("emmse", "emmse_second", "bce", "bce_second")


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    folder = tmp_path_factory.mktemp("textbook")
    command = ["reproduce", "textbook", "--preset", "smoke", "--out", str(folder)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    return folder, json.loads((folder / "results.json").read_text()), result.output


def test_results_nest_by_problem(smoke):
    _, results, _ = smoke
    assert set(results["problems"]) == {"uniform-maximum", "bernoulli-variance"}
    problem = results["problems"]["uniform-maximum"]
    assert set(problem["estimators"]) == {"mvue", "mle", *LEARNED} == set(results["estimators"])
    for name, entry in problem["estimators"].items():
        assert CONTRACT - set(entry) == {"crb", "mse_over_crb"}  # an irregular problem
        assert len(entry["y"]) == len(entry["bias_over_mvue_sd"]) == 9
        assert (entry["train_seconds"] > 0) == (name in LEARNED)
        assert entry["mse_over_mvue"]["min"] <= entry["mse_over_mvue"]["max"]
        total, other = results["estimators"][name], results["problems"]["bernoulli-variance"]
        both = [entry, other["estimators"][name]]
        worst = max(one["max_bias_over_mvue_sd"] for one in both)
        assert total["max_bias_over_mvue_sd"] == worst
        assert total["worst_problem"] in results["problems"]
        assert total["within_bands"] == sum(one["within_bands"] for one in both)
    assert problem["estimators"]["mvue"]["mse_over_mvue_at"] == [1.0] * 9
    # The largest value is below the maximum by 1/(n+1) of it: 1/9 over sqrt(1/80).
    mle = problem["estimators"]["mle"]
    exact, noise = np.sqrt(80) / 9, 4.5 * mle["max_bias_over_mvue_sd_se"]
    assert abs(mle["max_bias_over_mvue_sd"] - exact) < noise
    assert not problem["priors"]["emmse"]["agree"]


def test_page_and_figures(smoke):
    folder, _, output = smoke
    assert (folder / "index.html").read_text().count("<svg") == 2
    assert {p.name for p in (folder / "figures").iterdir()} == {
        f"{name}.{kind}" for name in ("textbook", "textbook-bias") for kind in ("png", "svg")
    }
    assert not (folder / "unfinished").exists()
    assert "priors agree" in output


def test_every_core_problem_is_ready():
    for settings in EXPERIMENT.presets.values():
        if settings.problems != "core":
            assert all(textbook(name).core for name in settings.problems)
    for name, entry in textbook().items():
        if entry.core and name not in (*WITHOUT_MLE, *CLOSED_FORM):
            model_range(entry)


def test_maximum_likelihood_leaves_the_range_of_the_prior():
    mle = maximum_likelihood(textbook("normal-mean"))
    assert jax.jit(lambda x: mle(x))(jnp.full(8, 5.0))[0] == pytest.approx(5.0, abs=1e-3)
    assert maximum_likelihood(textbook("binomial-odds")) is None


def test_a_mixture_draws_half_from_each(swept_key):
    entry = textbook("normal-sd")
    mixture = Mixture(entry.problem, entry.with_prior().problem)
    count = 20_000
    drawn = jax.jit(jax.vmap(mixture.sample))(jr.split(swept_key, count))
    assert set(drawn) == {"mean", "sd"}
    # Below 1 lies a third of the uniform and half of the log-uniform law on [0.5, 2].
    low = drawn["sd"] < 1
    assert abs(float(low.mean()) - (1 / 3 + 1 / 2) / 2) < 4.5 * 0.5 / np.sqrt(count)
    # All of theta comes from one of the two: below 0 lies a half of the one law of the mean, and
    # sqrt(1/2) of the other, so that both are low together more often than by chance.
    both = float((low & (drawn["mean"] < 0)).mean())
    exact = (1 / 3 * 1 / 2 + 1 / 2 * np.sqrt(1 / 2)) / 2
    assert abs(both - exact) < 4.5 * 0.5 / np.sqrt(count)


def judged(name, shift, key, repeats=1_000):
    """As if `bce_second` and both EMMSE were the best estimator, shifted."""
    entry = textbook(name)
    best = entry.mvue or entry.reference
    shifted = lambda x: best(x) + jnp.asarray(shift, jnp.result_type(float))  # noqa: E731
    estimators = {"bce": best, "bce_second": shifted, "emmse": shifted, "emmse_second": shifted}
    against = "mvue" if entry.mvue else "reference"
    problem = dataclasses.replace(entry.problem, crb=None, log_likelihood=None)
    report = mvue.assess(
        {against: best, **estimators}, problem, at=entry.at, repeats=repeats, key=key
    )
    done = mvue.Fit(best, mvue.Outcome.FINISHED, 1, "", {}, History(), 1.0, 0.5, 0, {}, None)
    sd = report[against].sd if entry.variance is None else np.sqrt(entry.variance(entry.at))
    return results_of.JudgedProblem(entry, report, against, sd, dict.fromkeys(LEARNED, done), {})


def test_judging(key):
    sd = np.sqrt(np.diag(textbook("linear-coefficients").problem.crb(jnp.zeros(3))))
    one = judged("linear-coefficients", 0.2 * sd * np.array([0.0, 1.0, 0.0]), key)
    control = judged("binomial-odds", np.zeros(1), key)
    noise = 4.5 / np.sqrt(1_000)  # the largest of 27 standard normal numbers is below 4.5
    assert one.worst_bias("mvue").value < noise
    assert abs(one.worst_bias("bce_second").value - 0.2) < noise
    assert one.gap("bce").value == pytest.approx(0.2, abs=1e-4)
    assert one.gap("emmse").value == 0
    assert one.mse("bce").low.value == one.mse("bce").high.value == pytest.approx(1)
    assert one.agrees("bce") is False
    assert one.agrees("emmse") is True
    assert one.is_within("bce_second") is False

    # The reference of the odds is below by the factor 1-pⁿ, p up to 0.9, n = 8.
    residual = control.worst_bias("bce")
    assert abs(residual.value * control.sd[-1, 0] / (9 * 0.9**8) - 1) < 0.2
    assert control.mse("bce") is control.is_within("bce") is control.agrees("bce") is None

    problems = [one, control]
    for rows in (results_of.learned_rows, results_of.prior_rows, results_of.rival_rows):
        table = rows(problems)
        assert [row[0] for row in table] == ["problem", "linear-coefficients"]
        assert len(table[0]) == len(table[1])
    assert [row[0] for row in results_of.control_rows(problems)][1:] == ["binomial-odds"]
    assert results_of.control_rows([one]) == []
    left, right = figures.plot_overview(problems).axes
    assert [t.get_text() for t in left.get_yticklabels()][1] == "binomial-odds (control)"
    assert "no unbiased estimator" in right.texts[0].get_text()
    assert len(figures.plot_biases(problems).axes) == 2
