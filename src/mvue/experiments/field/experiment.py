"""The default recipe on problems of the field: how near to the bound, and with how much bias?"""

import dataclasses
import zlib
from typing import Any

import jax
import jax.random as jr
import numpy as np
from jaxtyping import Array

import mvue

from ..._display.pages import Section
from ...problems import FieldProblem, field
from .._common import (
    Experiment,
    Findings,
    Option,
    OptionError,
    Run,
    as_text,
    estimate_microseconds,
)
from ..textbook.experiment import small_network
from .figures import plot_overview
from .published import hurst_section, ivim_sections
from .results import LEARNED, JudgedProblem, learned_rows, problem_rows, rival_rows, summarize
from .rivals import (
    WITHOUT_CORRECTION,
    assess_slowly,
    maximum_likelihood,
    reason_without,
)

TIMED_MEASUREMENTS = 10_000
PRESET = "preset"
READING = (
    "Every estimator is trained by mvue.fit(problem, key=key) as it is: a prior and a simulator, "
    "no likelihood, no hint at what the data are. The worst |bias| is over all values and "
    "components, in standard deviations of the estimator itself. MSE is in units of the exact "
    "Cramér-Rao bound where there is one, otherwise of the smallest MSE among the other "
    "estimators; the bound is not attainable everywhere, and maximum likelihood shows by how much.",
    "The worst of several noisy numbers is too large on average: about two standard errors, "
    "1/√repeats each, of an unbiased estimator.",
    "mle is maximum likelihood over the range in which the model makes sense; mle_corrected "
    "subtracts its bias by a parametric bootstrap. Both know the likelihood, and are judged on "
    "fewer measurements because they take long; estimates that did not converge are left out and "
    "counted. emmse, a posterior mean, stands in where nothing else is known.",
)


@dataclasses.dataclass(frozen=True)
class FieldSettings:
    """How large a run is."""

    problems: tuple[str, ...] | str
    """Names of problems; ``all`` for all."""
    repeats: int
    """Measurements at each value in the assessment."""
    mle_repeats: int
    """The same for maximum likelihood."""
    corrected_repeats: int
    """The same for its bias-corrected version."""
    bootstrap: int
    """Simulations for each correction."""
    seeds: int = 1
    """How many trainings, with seeds from that of the run on."""
    steps: int | str = "default"
    """Updates of each estimator; ``default`` for those of `fit`."""
    width: int | str = "default"
    """Of a hidden layer on the plain data, drawn from the prior itself without a survey, to test
    all but the recipe; ``default`` for the recipe of `fit`."""


def train(run: Run, entry: FieldProblem) -> dict[str, mvue.Fit]:
    """The default recipe for each seed; a posterior mean where there is nothing to compare with."""
    s: FieldSettings = run.settings
    given: dict[str, Any] = {} if s.steps == "default" else {"steps": s.steps}
    if isinstance(s.width, int):
        network = small_network(entry.problem, s.width, key=key_of(run, entry, "network"))
        given |= {"network": network, "training_prior": entry.problem.prior}
        given |= {"loss": mvue.bce(weight=None)}
    fits = {}
    for more in range(s.seeds):
        seed = run.seed + more
        name = LEARNED if more == 0 else f"{LEARNED}_seed{seed}"
        fits[name] = run.fit(f"{entry.name}-{name}", entry.problem, key=jr.key(seed), **given)
    known = entry.known.log_likelihood is not None or entry.classical
    if not known and run.options["rivals"] == "all":
        given["loss"] = mvue.emmse()
        fits["emmse"] = run.fit(f"{entry.name}-emmse", entry.problem, key=jr.key(run.seed), **given)
    return fits


def judge(run: Run, entry: FieldProblem) -> JudgedProblem:
    """Train and assess on one problem."""
    s: FieldSettings = run.settings
    fits = train(run, entry)
    closed: dict[str, Any] = {**fits, **entry.classical}
    run.say(f"assessing {entry.name} ...")
    report = mvue.assess(
        closed,
        entry.known,
        at=entry.at,
        repeats=s.repeats,
        key=key_of(run, entry, "assess"),
        progress=run.progress,
    )
    reports = dict.fromkeys(closed, report)
    drawn = entry.problem.draw(key_of(run, entry, "timing"), min(TIMED_MEASUREMENTS, s.repeats), 1)
    x = jax.tree.map(lambda leaf: leaf[:, 0], drawn.x)
    times = {
        name: estimate_microseconds(getattr(one, "estimator", one), x)
        for name, one in closed.items()
    }
    mle = maximum_likelihood(entry) if run.options["rivals"] == "all" else None
    if mle is not None:
        key = key_of(run, entry, "bootstrap")
        corrected = mvue.bootstrap_correct(mle, entry.known, repeats=s.bootstrap, key=key)
        climbing = [("mle", mle, s.mle_repeats), ("mle_corrected", corrected, s.corrected_repeats)]
        for name, one, repeats in climbing[: 1 if entry.name in WITHOUT_CORRECTION else 2]:
            run.say(f"assessing {name} on {entry.name} ...")
            key = key_of(run, entry, name)
            reports[name], times[name] = assess_slowly(name, one, entry, report, repeats, key)
    return JudgedProblem(entry, reports, fits, times, reason_without(entry))


def key_of(run: Run, entry: FieldProblem, purpose: str) -> Array:
    """A key for one purpose, whatever other problems there are."""
    return jr.fold_in(run.key, zlib.crc32(f"{entry.name}/{purpose}".encode()))


def chosen_problems(run: Run) -> list[FieldProblem]:
    """The problems of the preset, or those that were asked for; controls last."""
    asked, preset = run.options["problems"], run.settings.problems
    names = list(field()) if preset == "all" else list(preset)
    if asked != PRESET:
        names = list(dict.fromkeys(asked.split(",")))
    try:
        entries = [field(name) for name in names]
    except ValueError as error:
        raise OptionError(f"problems: {error}") from error
    return sorted(entries, key=lambda entry: not entry.has_unbiased)


def body(run: Run) -> Findings:
    """Train, assess, and tell."""
    if run.options["rivals"] not in ("all", "none"):
        raise OptionError(f"rivals must be all or none, got {run.options['rivals']!r}")
    problems = [judge(run, entry) for entry in chosen_problems(run)]
    learned, rivals = learned_rows(problems), rival_rows(problems)
    overview = plot_overview(problems)
    perfusion, ivim = ivim_sections(problems, run.settings.repeats, jr.fold_in(run.key, 1))
    hurst = hurst_section(problems)
    sections = [
        Section("Every problem", READING, figure=overview),
        Section("The default recipe", table=learned),
        *([Section("Other estimators", table=rivals)] if rivals else []),
        *([hurst] if hurst else []),
        *perfusion,
        Section("The problems", table=problem_rows(problems)),
    ]
    shown = [as_text(_one_line(rows)) for rows in (learned, rivals) if rows]
    return Findings(
        estimators=summarize(problems),
        lead=lead(problems),
        sections=sections,
        figures={"field": overview},
        table="\n\n".join([lead(problems), *shown]),
        more={
            "problems": {one.entry.name: one.to_dict() for one in problems},
            **({"ivim": ivim} if ivim else {}),
        },
    )


def lead(problems: list[JudgedProblem]) -> str:
    """The finding in a sentence or two."""
    judged = [one for one in problems if one.entry.has_unbiased]
    if not judged:
        return "No unbiased estimator exists for any of these problems."
    biases = [one.worst_bias(name) for one in judged for name in one.seeds]
    text = (
        f"One recipe on {len(judged)} problems: worst |bias|/sd {np.median(biases):.3f} in the "
        f"median training, {max(biases):.3f} in the worst."
    )
    bounded = [one for one in judged if one.against == "CRB"]
    spans = [span for one in bounded for name in one.seeds if (span := one.span(name))]
    if spans:
        text += (
            f" Its MSE is {np.median([span.middle for span in spans]):.3g} times the Cramér-Rao "
            f"bound in the median, {max(span.high for span in spans):.3g} at the worst value."
        )
    return text


def _one_line(rows: list[list[str]]) -> list[list[str]]:
    return [[cell.replace("\n", " ") for cell in row] for row in rows]


QUICK = ("tone", "delay", "decay", "autoregression", "nakagami-shape", "rician-amplitude")
EXPERIMENT = Experiment(
    name="field",
    title="Problems of the field",
    summary="signals, series, images, curves and counts: the default recipe against bound and MLE",
    presets={
        "smoke": FieldSettings(
            ("decay", "capture-recapture"), 500, 128, 128, 4, steps=20, width=16
        ),
        "quick": FieldSettings(QUICK, 20_000, 2_000, 500, 50),
        "paper": FieldSettings("all", 40_000, 4_000, 500, 50, seeds=3),
    },
    body=body,
    options={
        "problems": Option(PRESET, "names of problems separated by commas"),
        "rivals": Option("all", "all, or none for the default recipe and closed forms alone"),
    },
)
