"""Results on problems of the field, in numbers and in tables."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import mvue

from ...problems import FieldProblem

LEARNED = "bce"
RIVALS = ("mle", "mle_corrected")


class Span(NamedTuple):
    """The smallest, the median and the largest of some ratios."""

    low: float
    middle: float
    high: float

    def text(self) -> str:
        """For a table."""
        return " … ".join(f"{value:.3g}" for value in self)


@dataclasses.dataclass(frozen=True)
class JudgedProblem:
    """All estimators on one problem."""

    entry: FieldProblem
    reports: Mapping[str, mvue.Report]
    """The report that each estimator is in: slow ones have fewer repeats."""
    fits: Mapping[str, mvue.Fit]
    microseconds: Mapping[str, float]
    left_out: str = ""
    """Why there is no maximum likelihood, or no correction of it, where that is so."""

    @property
    def names(self) -> list[str]:
        """The estimators."""
        return list(self.reports)

    @property
    def seeds(self) -> list[str]:
        """The default recipe, once a seed."""
        return [name for name in self.reports if name.split("_")[0] == LEARNED]

    @property
    def label(self) -> str:
        """The name of the problem, marked where no unbiased estimator exists."""
        return self.entry.name + ("" if self.entry.has_unbiased else " (control)")

    @property
    def against(self) -> str:
        """What errors are compared with: the bound, the best rival, or nothing."""
        if self.reports[LEARNED].crb is not None:
            return "CRB"
        return "best rival" if self._others else "nothing"

    @property
    def _others(self) -> list[str]:
        return [name for name in self.names if name not in (*self.seeds, "emmse")]

    def worst_bias(self, name: str) -> float:
        """The largest |bias| / sd over values and components."""
        return float(self.reports[name].summary(name)["max_bias_over_sd"])

    def ratios(self, name: str) -> np.ndarray | None:
        """MSE over the bound, or over the smallest MSE of the rivals, (K, d)."""
        report = self.reports[name]
        if report.crb is not None:
            return report.mse_over_crb(name)
        if not self._others:
            return None
        best = np.fmin.reduce([self.reports[other][other].mse for other in self._others])
        return report[name].mse / best

    def span(self, name: str) -> Span | None:
        """The range of these ratios; None without anything to compare with."""
        ratios = self.ratios(name)
        if ratios is None or not np.isfinite(ratios).any():
            return None
        return Span(*(float(f(ratios)) for f in (np.nanmin, np.nanmedian, np.nanmax)))

    def verdict(self, name: str) -> str:
        """What the fit says about itself."""
        fit = self.fits.get(name)
        return "–" if fit is None or fit.verdict is None else str(fit.verdict.judgement)

    def to_dict(self) -> dict[str, Any]:
        """For ``results.json``."""
        estimators = {}
        for name, report in self.reports.items():
            entry = dict(report.to_dict()["estimators"][name])
            fit, span = self.fits.get(name), self.span(name)
            entry["repeats"] = report.repeats
            entry["train_seconds"] = 0.0 if fit is None else round(fit.seconds, 3)
            entry["estimate_microseconds"] = self.microseconds[name]
            if self.against == "best rival" and span is not None:
                entry["mse_over_best_rival"] = dict(
                    zip(("min", "median", "max"), span, strict=True)
                )
            if fit is not None:
                entry |= {"loss": fit.settings["loss"], "outcome": str(fit.outcome)}
                entry["verdict"] = self.verdict(name)
                entry["seconds_before_training"] = round(fit.compile_seconds, 3)
            estimators[name] = entry
        first = self.reports[LEARNED]
        return {
            "description": self.entry.description,
            "notes": self.entry.notes,
            "has_unbiased": self.entry.has_unbiased,
            "names": list(first.names),
            "theta": np.asarray(first.theta).tolist(),
            "bound_note": first.bound_note,
            "against": self.against,
            "left_out": self.left_out,
            "estimators": estimators,
        }


def summarize(problems: Sequence[JudgedProblem]) -> dict[str, dict[str, Any]]:
    """One entry for each estimator: the worst over the problems, controls apart."""
    names = dict.fromkeys(name for one in problems for name in one.names)
    return {name: _summary(name, problems) for name in names}


def _summary(name: str, problems: Sequence[JudgedProblem]) -> dict[str, Any]:
    seen = [one for one in problems if name in one.reports]
    judged = [one for one in seen if one.entry.has_unbiased]
    result: dict[str, Any] = {
        "problems": [one.entry.name for one in judged],
        "train_seconds": round(sum(one.fits[name].seconds for one in seen if name in one.fits), 3),
        "estimate_microseconds": float(np.median([one.microseconds[name] for one in seen])),
    }
    if not judged:
        return result
    worst = [one.worst_bias(name) for one in judged]
    bounded = [one.span(name) for one in judged if one.against == "CRB"]
    spans = [span for span in bounded if span is not None]
    result |= {
        "max_bias_over_sd": float(np.nanmax(worst)),
        "worst_problem": judged[int(np.nanargmax(worst))].entry.name,
        "bias_over_sd": worst,
    }
    if spans:
        result["mse_over_crb"] = {
            "min": min(span.low for span in spans),
            "median": float(np.median([span.middle for span in spans])),
            "max": max(span.high for span in spans),
        }
    return result


def learned_rows(problems: Sequence[JudgedProblem]) -> list[list[str]]:
    """The default recipe, a row a problem and seed."""
    rows = [["problem", "estimator", "worst\n|bias|/sd", "MSE ratio\nleast … median … largest"]]
    rows[0] += ["against", "verdict", "fit\ns", "estimate\nµs"]
    for one in problems:
        for name in one.seeds:
            row = [one.label, name, f"{one.worst_bias(name):.3f}", _text(one.span(name))]
            row += [one.against, one.verdict(name), f"{one.fits[name].seconds:.0f}"]
            rows.append([*row, f"{one.microseconds[name]:.3g}"])
    return rows


def rival_rows(problems: Sequence[JudgedProblem]) -> list[list[str]]:
    """Maximum likelihood, the estimators of the field, and posterior means."""
    rows = [["problem", "estimator", "worst\n|bias|/sd", "MSE ratio\nleast … median … largest"]]
    rows[0] += ["failed", "repeats", "estimate\nµs"]
    for one in problems:
        for name in one.names:
            if name in one.seeds:
                continue
            failed = int(one.reports[name][name].failures.sum())
            row = [one.label, name, f"{one.worst_bias(name):.3f}", _text(one.span(name))]
            row += [str(failed), str(one.reports[name].repeats)]
            rows.append([*row, f"{one.microseconds[name]:.3g}"])
    return rows if len(rows) > 1 else []


def problem_rows(problems: Sequence[JudgedProblem]) -> list[list[str]]:
    """What each problem is, what is approximated, and what was left out."""
    rows = [["problem", "data and parameter", "notes"]]
    for one in problems:
        notes = " ".join(text for text in (one.entry.notes, one.left_out) if text)
        rows.append([one.entry.name, one.entry.description, notes])
    return rows


def _text(span: Span | None) -> str:
    return "–" if span is None else span.text()
