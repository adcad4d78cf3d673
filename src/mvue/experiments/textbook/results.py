"""Results on textbook problems, in numbers and in tables."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import mvue

from ...problems import Textbook

BIAS_BAND = 0.05
"""An estimator counts as unbiased if its worst |bias| is at most this many sd of the best one."""
MSE_BAND = 1.07
"""It counts as best if its MSE is at most this many times that of the best one."""


class Measured(NamedTuple):
    """A number and its standard error."""

    value: float
    se: float

    def text(self, digits: int = 3) -> str:
        """For a table; large numbers need fewer digits."""
        if not np.isfinite(self.value):
            return "–"
        digits = max(0, digits - (self.value >= 10) - 2 * (self.value >= 100))
        return f"{self.value:.{digits}f} ± {self.se:.{digits}f}"


class RatioRange(NamedTuple):
    """The smallest and the largest of some ratios."""

    low: Measured
    high: Measured

    def text(self, digits: int = 3) -> str:
        """For a table."""
        return f"{self.low.value:.{digits}f} … {self.high.text(digits)}"

    def to_dict(self) -> dict[str, float]:
        """For ``results.json``."""
        low, high = self
        return {"min": low.value, "min_se": low.se, "max": high.value, "max_se": high.se}


@dataclasses.dataclass(frozen=True)
class JudgedProblem:
    """All estimators on one problem."""

    entry: Textbook
    report: mvue.Report
    against: str
    """The estimator that errors are compared with: ``mvue``, or else ``reference``."""
    sd: np.ndarray
    """Its standard deviation, (K, d), exact where it is known."""
    fits: Mapping[str, mvue.Fit]
    microseconds: Mapping[str, float]

    @property
    def is_control(self) -> bool:
        """Whether no unbiased estimator exists."""
        return self.entry.kind == "control"

    @property
    def label(self) -> str:
        """The name of the problem, marked where there is no best estimator to compare with."""
        marks = {"control": " (control)", "open": " (reference)"}
        return self.entry.name + marks.get(self.entry.kind, "")

    def bias(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Bias in standard deviations of the best estimator, and its standard error, (K, d)."""
        one = self.report[name]
        return one.bias / self.sd, one.bias_se / self.sd

    def worst_bias(self, name: str) -> Measured:
        """The largest |bias| / sd."""
        return _largest(*self.bias(name))

    def mse(self, name: str, other: str | None = None) -> RatioRange | None:
        """MSE over that of another estimator, by default the best, on the same measurements."""
        if name not in self.report.estimators or self.is_control:
            return None
        return _span(*self.report.mse_ratio(name, other or self.against))

    def is_within(self, name: str) -> bool | None:
        """Whether an estimator is as good as the best one; None where there is none."""
        ratio = self.mse(name)
        if ratio is None:
            return None
        return self.worst_bias(name).value <= BIAS_BAND and ratio.high.value <= MSE_BAND

    def gap(self, name: str) -> Measured:
        """The largest difference between the biases under the two priors, in sd.

        Both saw the same measurements, so that the standard error is too large if anything.
        """
        first, first_se = self.bias(name)
        second, second_se = self.bias(f"{name}_second")
        return _largest(second - first, np.hypot(first_se, second_se))

    def agrees(self, name: str) -> bool | None:
        """Whether training under the two priors leads to the same; None for controls."""
        ratio = self.mse(f"{name}_second", name)
        if ratio is None:
            return None
        inside = ratio.low.value >= 1 / MSE_BAND and ratio.high.value <= MSE_BAND
        return self.gap(name).value <= BIAS_BAND and inside

    def to_dict(self) -> dict[str, Any]:
        """For ``results.json``."""
        squeeze = (lambda a: a[:, 0]) if self.sd.shape[1] == 1 else (lambda a: a)
        numbers = self.report.to_dict()
        for name, entry in numbers["estimators"].items():
            bias, error = self.bias(name)
            worst = self.worst_bias(name)
            entry["max_bias_over_mvue_sd"] = worst.value
            entry["max_bias_over_mvue_sd_se"] = worst.se
            entry["bias_over_mvue_sd"] = squeeze(bias).tolist()
            entry["bias_over_mvue_sd_se"] = squeeze(error).tolist()
            ratio = self.mse(name)
            if ratio is not None:
                values, errors = self.report.mse_ratio(name, self.against)
                entry["mse_over_mvue"] = ratio.to_dict()
                entry["mse_over_mvue_at"] = values.tolist()
                entry["mse_over_mvue_at_se"] = errors.tolist()
                entry["within_bands"] = self.is_within(name)
            fit = self.fits.get(name)
            entry["train_seconds"] = 0.0 if fit is None else round(fit.seconds, 3)
            entry["estimate_microseconds"] = self.microseconds[name]
            if fit is not None:
                entry |= {"loss": fit.settings["loss"], "training": fit.settings["training"]}
                entry["outcome"] = str(fit.outcome)
        agreement: dict[str, Any] = {}
        for name in ("bce", "emmse"):
            gap, ratio = self.gap(name), self.mse(f"{name}_second", name)
            agreement[name] = {"max_bias_gap": gap.value, "max_bias_gap_se": gap.se}
            if ratio is not None:
                agreement[name]["mse_ratio"] = ratio.to_dict()
                agreement[name]["agree"] = self.agrees(name)
        return {
            "title": self.entry.title,
            "kind": self.entry.kind,
            "against": self.against,
            "against_sd": squeeze(self.sd).tolist(),
            "priors": agreement,
            **numbers,
        }


def summarize(problems: Sequence[JudgedProblem]) -> dict[str, dict[str, Any]]:
    """One entry for each estimator: the worst over the problems, controls apart."""
    names = dict.fromkeys(name for one in problems for name in one.report.estimators)
    return {name: _summary(name, problems) for name in names}


def _summary(name: str, problems: Sequence[JudgedProblem]) -> dict[str, Any]:
    seen = [one for one in problems if name in one.report.estimators]
    judged = [one for one in seen if not one.is_control]
    result: dict[str, Any] = {
        "problems": [one.entry.name for one in judged],
        "train_seconds": round(sum(one.fits[name].seconds for one in seen if name in one.fits), 3),
        "estimate_microseconds": float(np.median([one.microseconds[name] for one in seen])),
        "residual_bias": {
            one.entry.name: one.worst_bias(name).value for one in seen if one.is_control
        },
    }
    if not judged:
        return result
    own = [one.report.summary(name)["max_bias_over_sd"] for one in judged]
    worst = [one.worst_bias(name).value for one in judged]
    spans = [ratio for one in judged if (ratio := one.mse(name))]
    return result | {
        "max_bias_over_sd": max(own),
        "max_bias_over_mvue_sd": max(worst),
        "worst_problem": judged[int(np.argmax(worst))].entry.name,
        "mse_over_mvue": {
            "min": min(span.low.value for span in spans),
            "max": max(span.high.value for span in spans),
        },
        "within_bands": sum(bool(one.is_within(name)) for one in judged),
        "bias_over_mvue_sd": worst,
        "max_mse_over_mvue": [span.high.value for span in spans],
    }


def learned_rows(problems: Sequence[JudgedProblem]) -> list[list[str]]:
    """The unbiased estimators under both priors."""
    rows = [["problem", "bce\n|bias|/sd", "bce\nMSE/MVUE", "2nd prior\n|bias|/sd"]]
    rows[0] += ["2nd prior\nMSE/MVUE", "in both\nbands", "training\ns"]
    for one in _with_a_best(problems):
        words = dict.fromkeys(_word(one.is_within(name)) for name in ("bce", "bce_second"))
        cells = [*_cells(one, "bce"), *_cells(one, "bce_second")]
        rows.append([one.label, *cells, ", ".join(words), _seconds(one, "bce", "bce_second")])
    return rows


def prior_rows(problems: Sequence[JudgedProblem]) -> list[list[str]]:
    """What the second prior changes."""
    rows = [["problem", "bce: change\nof bias/sd", "bce: MSE\n2nd/1st prior", "priors\nagree"]]
    rows[0] += ["emmse: change\nof bias/sd", "emmse: MSE\n2nd/1st prior"]
    for one in _with_a_best(problems):
        cells = {name: _changes(one, name) for name in ("bce", "emmse")}
        rows.append([one.label, *cells["bce"], _word(one.agrees("bce")), *cells["emmse"]])
    return rows


def rival_rows(problems: Sequence[JudgedProblem]) -> list[list[str]]:
    """Maximum likelihood, and the posterior mean under both priors."""
    names = {"mle": "mle", "emmse": "emmse", "emmse_second": "2nd prior"}
    headers = [f"{name}\n{what}" for name in names.values() for what in ("|bias|/sd", "MSE/MVUE")]
    rows = [["problem", *headers, "training\ns"]]
    for one in _with_a_best(problems):
        cells = [cell for name in names for cell in _cells(one, name, digits=2)]
        rows.append([one.label, *cells, _seconds(one, "emmse", "emmse_second")])
    return rows


def control_rows(problems: Sequence[JudgedProblem]) -> list[list[str]]:
    """The bias that is left where no estimator is unbiased."""
    names = ("reference", "mle", "emmse", "emmse_second", "bce", "bce_second")
    headers = [f"{name.replace('_second', ', 2nd')}\n|bias|/sd" for name in names]
    rows = [["control: residual bias", *headers, "training\ns"]]
    for one in problems:
        if one.is_control:
            cells = [_cells(one, name)[0] for name in names]
            rows.append([one.entry.name, *cells, _seconds(one, *one.fits)])
    return rows if len(rows) > 1 else []


def _with_a_best(problems: Sequence[JudgedProblem]) -> list[JudgedProblem]:
    return [one for one in problems if not one.is_control]


def _cells(one: JudgedProblem, name: str, digits: int = 3) -> list[str]:
    """Bias and MSE as text."""
    if name not in one.report.estimators:
        return ["–", "–"]
    ratio = one.mse(name)
    return [one.worst_bias(name).text(digits), "–" if ratio is None else ratio.text(digits)]


def _changes(one: JudgedProblem, name: str) -> list[str]:
    """What the second prior changes, as text."""
    ratio = one.mse(f"{name}_second", name)
    return [one.gap(name).text(), "–" if ratio is None else ratio.text()]


def _word(holds: bool | None) -> str:
    return {True: "yes", False: "no", None: "–"}[holds]


def _seconds(one: JudgedProblem, *names: str) -> str:
    return f"{sum(one.fits[name].seconds for name in names):.0f}"


def _largest(values: np.ndarray, errors: np.ndarray) -> Measured:
    sizes = np.abs(values).ravel()
    if not np.isfinite(sizes).any():
        return Measured(np.nan, np.nan)
    i = int(np.nanargmax(sizes))
    return Measured(float(sizes[i]), float(errors.ravel()[i]))


def _span(values: np.ndarray, errors: np.ndarray) -> RatioRange:
    if not np.isfinite(values).any():
        return RatioRange(Measured(np.nan, np.nan), Measured(np.nan, np.nan))
    ends = int(np.nanargmin(values)), int(np.nanargmax(values))
    low, high = (Measured(float(values[i]), float(errors[i])) for i in ends)
    return RatioRange(low, high)
