"""Textbook problems under two priors: does training find the best unbiased estimator?"""

import dataclasses
import zlib
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

import mvue

from ..._display.pages import Section
from ...problems import Textbook, snr_mle, textbook
from .._common import Experiment, Findings, Run, as_text, estimate_microseconds
from .figures import plot_biases, plot_overview
from .results import (
    BIAS_BAND,
    MSE_BAND,
    JudgedProblem,
    control_rows,
    learned_rows,
    prior_rows,
    rival_rows,
    summarize,
)

TIMED_MEASUREMENTS = 10_000

POSITIVE = (0.0, np.inf)
MODEL_RANGE: dict[str, Any] = {
    "mean": "none",
    "variance": POSITIVE,
    "sd": POSITIVE,
    "log_mean": "none",
    "log_sd": POSITIVE,
    "coefficients": "none",
    "sd1": POSITIVE,
    "sd2": POSITIVE,
    "correlation": (-1.0, 1.0),
}
"""Where the entries of theta make sense: maximum likelihood knows nothing of the prior."""
SCALAR_RANGE: dict[str, Any] = {
    "normal-mean": "none",
    "normal-absolute-mean": "none",
    "linear-coefficients": "none",
    "linear-energy": "none",
    "exponential-rate": POSITIVE,
    "exponential-survival": POSITIVE,
    "poisson-zero-probability": POSITIVE,
    "poisson-absurd": POSITIVE,
    "bernoulli-variance": (0.0, 1.0),
}
"""The same where theta is one array."""
CLOSED_FORM: dict[str, Any] = {
    "uniform-maximum": lambda x: jnp.max(x)[None],
    "snr-of-symbols": snr_mle,
}
"""Maximum likelihood by hand: where the maximum is a jump, or the symbols are unknown."""
WITHOUT_MLE = ("binomial-odds",)
"""With all successes the estimate is infinite, so that it has neither bias nor variance."""

READING = (
    "Every number is the worst over nine values that span the range of the parameter, both ends "
    "included, with its standard error. Bias is in standard deviations of the best unbiased "
    "estimator (exact where known). MSE/MVUE is the smallest … largest ratio to the measured MSE "
    "of that estimator on the same measurements, not to its exact variance: some of them have "
    "heavy tails, whose luck the ratio cancels. Of several components it is the ratio of sums. "
    f"The bands are |bias|/sd ≤ {BIAS_BAND:g} and MSE/MVUE ≤ {MSE_BAND:g}.",
    "The worst of several noisy numbers is too large on average: mvue, which has no bias at all, "
    "shows by how much. Lines that leave the right panel of the figure go on beyond it.",
)
DRAWN = (
    "bce draws its parameters as fit does by default: evenly, over a range wider than the one of "
    "interest, decided by a survey of the problem. Of the prior this range keeps only the support, "
    "so a second prior would hardly change it.",
    "bce_second therefore draws one half of its parameters from the second prior itself "
    "(log-uniform for positive parameters, leaning to the low end for others), the other half as "
    "bce does, so that the range beyond the ends remains covered.",
    "emmse and emmse_second draw from the first and the second prior, with the same networks.",
    "mle is sought where the model makes sense, not within the prior's range.",
)


@dataclasses.dataclass(frozen=True)
class TextbookSettings:
    """How large a run is."""

    problems: tuple[str, ...] | str
    """Names of problems; ``core`` for all of the core."""
    repeats: int
    """Measurements at each value in the assessment."""
    steps: int | str = "default"
    """Updates of each estimator; ``default`` for those of `fit`."""
    width: int | str = "default"
    """Of a hidden layer on the plain data, drawn from the priors themselves without a survey, to
    test all but the recipe; ``default`` for the recipe of `fit`."""


@dataclasses.dataclass(frozen=True)
class Mixture:
    """A prior that is one of two, each half of the time."""

    first: mvue.Problem
    second: mvue.Problem

    def sample(self, key: Array) -> Any:
        """One theta."""
        coin, *keys = jr.split(key, 3)
        heads = jr.bernoulli(coin)
        drawn = self.first.sample_prior(keys[0]), self.second.sample_prior(keys[1])
        return jax.tree.map(lambda a, b: jnp.where(heads, a, b.astype(a.dtype)), *drawn)


def train(run: Run, entry: Textbook) -> dict[str, mvue.Fit]:
    """The four learned estimators of one problem."""
    s: TextbookSettings = run.settings
    first, second = entry.problem, entry.with_prior().problem
    common: dict[str, Any] = {} if s.steps == "default" else {"steps": s.steps}
    unbiased: dict[str, Any] = {"loss": mvue.bce()}
    own_range: dict[str, Any] = {}
    if isinstance(s.width, int):
        common["network"] = small_network(first, s.width, key=key_of(run, entry, "network"))
        unbiased = {"loss": mvue.bce(weight=None)}
        own_range = {"training_prior": first.prior}

    def fit(name: str, problem: mvue.Problem, **more: Any) -> mvue.Fit:
        key = key_of(run, entry, name)
        return run.fit(f"{entry.name}-{name}", problem, key=key, **common, **more)

    bce = fit("bce", first, **unbiased, **own_range)
    wide = first.prior if bce.survey is None else bce.survey.training_prior
    mixture = Mixture(second, dataclasses.replace(first, prior=wide, crb=None))
    return {
        "emmse": fit("emmse", first, loss=mvue.emmse()),
        "emmse_second": fit("emmse_second", second, loss=mvue.emmse()),
        "bce": bce,
        "bce_second": fit("bce_second", second, training_prior=mixture, **unbiased),
    }


def small_network(problem: mvue.Problem, width: int, *, key: Array) -> mvue.nn.Standardized:
    """One hidden layer on the data as they are."""
    network_key, pilot_key = jr.split(key)
    x, y = problem.shapes()
    inner = eqx.nn.MLP(int(np.prod(x.shape)), y.shape[0], width, 1, key=network_key)
    return mvue.standardize(inner, problem, key=pilot_key)


def maximum_likelihood(entry: Textbook) -> Any:
    """Maximum likelihood where it has a mean, else None."""
    if entry.name in WITHOUT_MLE:
        return None
    if entry.name in CLOSED_FORM:
        return CLOSED_FORM[entry.name]
    return mvue.maximum_likelihood(entry.problem, bounds=model_range(entry), starts=2)


def model_range(entry: Textbook) -> Any:
    """Where theta makes sense, as the bounds of `mvue.maximum_likelihood`."""
    prior = entry.problem.prior
    if isinstance(prior, dict):
        return {name: MODEL_RANGE[name] for name in prior}
    return SCALAR_RANGE[entry.name]


def judge(run: Run, entry: Textbook) -> JudgedProblem:
    """Train and assess on one problem."""
    fits = train(run, entry)
    against = "mvue" if entry.mvue is not None else "reference"
    best = entry.mvue or entry.reference
    assert best is not None
    mle = maximum_likelihood(entry)
    estimators: dict[str, Any] = {
        against: best,
        **({} if mle is None else {"mle": mle}),
        **{name: fit.estimator for name, fit in fits.items()},
    }
    run.say(f"assessing {entry.name} ...")
    report = mvue.assess(
        estimators,
        entry.problem,
        at=entry.at,
        repeats=run.settings.repeats,
        key=key_of(run, entry, "assess"),
        progress=run.progress,
    )
    exact = None if entry.variance is None else entry.variance(entry.at)
    count = min(TIMED_MEASUREMENTS, run.settings.repeats)
    drawn = entry.problem.draw(key_of(run, entry, "timing"), count, 1)
    x = jax.tree.map(lambda leaf: leaf[:, 0], drawn.x)
    return JudgedProblem(
        entry=entry,
        report=report,
        against=against,
        sd=report[against].sd if exact is None else np.sqrt(exact),
        fits=fits,
        microseconds={name: estimate_microseconds(e, x) for name, e in estimators.items()},
    )


def key_of(run: Run, entry: Textbook, purpose: str) -> Array:
    """A key for one purpose, whatever other problems there are."""
    return jr.fold_in(run.key, zlib.crc32(f"{entry.name}/{purpose}".encode()))


def body(run: Run) -> Findings:
    """Train, assess, and tell."""
    s: TextbookSettings = run.settings
    if isinstance(s.problems, str):
        entries = [entry for entry in textbook().values() if entry.core]
    else:
        entries = [textbook(name) for name in s.problems]
    entries.sort(key=lambda entry: entry.kind == "control")
    problems = [judge(run, entry) for entry in entries]
    tables = [rows(problems) for rows in (learned_rows, prior_rows, rival_rows, control_rows)]
    learned, priors, rivals, controls = tables
    overview, biases = plot_overview(problems), plot_biases(problems)
    sections = [
        Section("Every problem", READING, figure=overview),
        Section("Without bias, under two priors", table=learned),
        Section(
            "What the second prior changes",
            [
                "The paper's Theorem 1: the unbiased estimator does not depend on the prior. The "
                "posterior mean does. The figure has bias in standard deviations of the best "
                "unbiased estimator, with two standard errors to each side; grey is the band.",
                "The changes are the largest over the range; priors agree if the change of bias "
                "and the ratio of the MSEs, either way, are within the bands. Both saw the same "
                "measurements, so that the standard errors of changes are too large if anything.",
            ],
            figure=biases,
            table=priors,
        ),
        Section("Maximum likelihood and the posterior mean", table=rivals),
    ]
    if controls:
        sections.append(
            Section(
                "Negative controls",
                [
                    "No unbiased estimator exists: a bias is left whatever is done, and there is "
                    "no best estimator to compare with. The residual bias is the worst over the "
                    "range, in standard deviations of the reference."
                ],
                table=controls,
            )
        )
    sections.append(Section("What was drawn in training", items=DRAWN))
    sections.append(Section("The problems", table=problem_rows(problems)))
    shown = [as_text(_one_line(rows)) for rows in tables if rows]
    return Findings(
        estimators=summarize(problems),
        lead=lead(problems),
        sections=sections,
        figures={"textbook": overview, "textbook-bias": biases},
        table="\n\n".join([lead(problems), *shown]),
        more={"problems": {one.entry.name: one.to_dict() for one in problems}},
    )


def problem_rows(problems: list[JudgedProblem]) -> list[list[str]]:
    """What each problem is."""
    return [
        ["problem", "kind", "parameter"],
        *([one.entry.name, one.entry.kind, one.entry.title] for one in problems),
    ]


def lead(problems: list[JudgedProblem]) -> str:
    """The finding in two sentences."""
    judged = [one for one in problems if not one.is_control]
    within = sum(bool(one.is_within("bce")) for one in judged)
    agree = sum(bool(one.agrees("bce")) for one in judged)
    worst = max(one.worst_bias("bce").value for one in judged)
    highest = max(ratio.high.value for one in judged if (ratio := one.mse("bce")))
    gaps = {name: max(one.gap(name).value for one in judged) for name in ("bce", "emmse")}
    return (
        f"On {within} of {len(judged)} problems, one recipe finds the best unbiased estimator: "
        f"|bias| at most {BIAS_BAND:g} of its standard deviation and MSE at most {MSE_BAND:g} "
        f"times its own (the worst are {worst:.3f} and {highest:.3f}). Under another prior the "
        f"answer is the same within these bands on {agree} of {len(judged)}; its bias moves by at "
        f"most {gaps['bce']:.3f} standard deviations, that of the posterior mean by up to "
        f"{gaps['emmse']:.2f}."
    )


def _one_line(rows: list[list[str]]) -> list[list[str]]:
    return [[cell.replace("\n", " ") for cell in row] for row in rows]


QUICK = (
    "normal-sd",
    "lognormal-mean",
    "exponential-rate",
    "uniform-maximum",
    "bernoulli-variance",
    "binomial-odds",
)
EXPERIMENT = Experiment(
    name="textbook",
    title="Textbook problems under two priors",
    summary="textbook problems under two priors: MLE, EMMSE and BCE against the exact MVUE",
    presets={
        "smoke": TextbookSettings(
            ("uniform-maximum", "bernoulli-variance"), 500, steps=20, width=16
        ),
        "quick": TextbookSettings(QUICK, 40_000),
        "paper": TextbookSettings("core", 100_000),
    },
    body=body,
)
