"""A certificate: is |bias|/sd within a limit at all assessed values, with stated confidence?"""

import dataclasses
import enum
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtri

from .bias_curve import BiasCurve, bias_curve
from .simultaneous import (
    FEWEST_EFFECTIVE,
    Ratios,
    fewest_repeats,
    first_look,
    look_plan,
    max_t_quantile,
    repeats_until,
    usual_largest,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .report import Report

NEVER = 1e15  # repeats that nobody makes


class Decision(enum.StrEnum):
    """What a certificate says."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    UNDECIDED = "undecided"


@dataclasses.dataclass(frozen=True)
class BiasLimit:
    """What a certificate is to decide: whether |bias|/sd is within a limit, for every value.

    Give it to `assess` as ``until=``, which then simulates until it is decided.
    """

    max_bias_over_sd: float = 0.05
    """The largest |bias|/sd that passes."""
    confidence: float = 0.95
    """Both wrong answers, pass and fail, have at most about probability 1 - confidence. A wrong
    fail is more likely where rare large errors cancel the bias: 8 % were seen for 5 %."""

    def __post_init__(self) -> None:
        for name, low, high, range_ in (
            ("max_bias_over_sd", 0.0, math.inf, "a positive number"),
            ("confidence", 0.0, 1.0, "a number between 0 and 1, such as 0.95"),
        ):
            value = getattr(self, name)
            number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
            if not number or not low < value < high:
                raise ValueError(f"{name} must be {range_}, got {value!r}")

    @property
    def error(self) -> float:
        """The largest probability of a wrong answer."""
        return 1 - self.confidence

    def looks(self, repeats: int, count: int) -> list[int]:
        """Repeats after which to look whether it is decided, at so many values and components.

        The first is the least from which an unbiased estimator has a chance to pass, each further
        one twice that before, the last the given number. Each may err with an equal part of the
        probability, so that all together hold whenever one stops.
        """
        looks = look_plan(repeats, first_look(self.max_bias_over_sd, self.error, count))
        while len(looks) > 1:  # each look has a part of the error, and so needs more repeats
            first = first_look(self.max_bias_over_sd, self.error / len(looks), count)
            if looks[0] >= first:
                break
            looks = looks[1:]
        return looks


class Subject:
    """What was assessed, by which `save` tells whether it is the estimator to be saved.

    It is no part of a result: it is neither printed nor pickled.

    Args:
        estimator: as it was given.
        examples: some measurements, in arrays with a leading axis.
    """

    def __init__(self, estimator: Any = None, examples: Any = None) -> None:
        self.estimator, self.examples = estimator, examples

    def __reduce__(self) -> tuple[Any, ...]:
        return Subject, ()


@dataclasses.dataclass(frozen=True)
class Certificate:
    """Whether |bias|/sd of an estimator is within a limit at all assessed values, or not known.

    It is about the simulated measurements: of a problem that describes the real ones badly, it
    says nothing.
    """

    estimator: str
    """Name of the estimator in its report."""
    limit: BiasLimit
    decision: Decision
    lower: float
    """Lower confidence limit of the largest |bias|/sd."""
    upper: float
    """Upper confidence limit of the largest |bias|/sd; pass if it is within the limit."""
    reason: str
    """Why it is undecided."""
    more_repeats: int | None
    """About how many more repeats would decide, if bias / sd is what it seems; else None."""
    names: tuple[str, ...]
    """Of the components of y."""
    y: np.ndarray
    """The assessed values, (K, d)."""
    covered: np.ndarray
    """Those that the statement is about, (K,): not those outside of the prior or of training."""
    bias_over_sd: np.ndarray
    """Bias / sd with its sign, (K, d)."""
    bias_lower: np.ndarray
    """Confidence limits of bias / sd that hold at all values and components at once, (K, d)."""
    bias_upper: np.ndarray
    repeats: int
    """At each value."""
    looks: int
    """How often it was, or could have been, looked whether to stop."""
    failures: int
    """Estimates that were not finite; the statement is about the others."""
    curve: BiasCurve | None
    """Bias / sd between the values, for one parameter."""
    curve_note: str
    """Why there is no curve."""
    subject: Subject = dataclasses.field(default_factory=Subject, compare=False)
    """What was assessed."""

    @property
    def margin(self) -> float:
        """The limit less the upper confidence limit: positive if it passes."""
        return self.limit.max_bias_over_sd - self.upper

    @property
    def passed(self) -> bool:
        """Whether it is a pass."""
        return self.decision is Decision.PASS

    @property
    def statement(self) -> str:
        """What is certified, in one sentence."""
        limit, count = f"{self.limit.max_bias_over_sd:g}", int(self.covered.sum())
        where = f"{count} value{'s' if count != 1 else ''} of {', '.join(self.names)}"
        sure = f"at confidence {self.limit.confidence:.6g}"
        made = f"{self.repeats:,} repeats each"
        if self.decision is Decision.PASS:
            return (
                f"pass: |bias|/sd ≤ {limit} at all {where}, {sure}; it is at most "
                f"{self.upper:.3g} ({made})"
            )
        if self.decision is Decision.FAIL:
            beyond = self._distance()[0] > self.limit.max_bias_over_sd
            value, component = np.unravel_index(self._distance()[0].argmax(), beyond.shape)
            return (
                f"fail: |bias|/sd > {limit} at {beyond.any(axis=1).sum()} of {where}, {sure}; it "
                f"is at least {self.lower:.3g} at {self.names[component]} = "
                f"{self.y[value, component]:.4g} ({made})"
            )
        more = "" if self.more_repeats is None else f"; about {self.more_repeats:,} more may decide"
        return (
            f"undecided: whether |bias|/sd ≤ {limit} at all {where}, {sure}: {self.reason} "
            f"({made}{more})"
        )

    @property
    def notes(self) -> list[str]:
        """What the statement leaves out, and what is known between the values."""
        notes = []
        if self.failures:
            made = self.repeats * len(self.y)
            notes.append(
                f"{self.failures:,} of {made:,} estimates were not finite; the statement is about "
                "the others"
            )
        left_out = int((~self.covered).sum())
        if left_out:
            notes.append(
                f"no statement at {left_out} of {len(self.y)} values, which lie outside of the "
                "prior or of the training"
            )
        if self.curve is not None:
            low, high = self.curve.y[0], self.curve.y[-1]
            notes.append(
                f"between the values, {self.names[0]} {low:.4g} … {high:.4g}, |bias|/sd is at most "
                f"{self.curve.largest:.3g}, if a polynomial of degree {self.curve.degree} "
                f"describes it (lack of fit: p = {self.curve.lack_of_fit:.2g})"
            )
        elif self.curve_note:
            notes.append(self.curve_note)
        return notes

    def to_dict(self) -> dict[str, Any]:
        """Everything as lists, numbers and texts."""
        fields = {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in vars(self).items()
            if name != "subject"
        }
        return fields | {
            "limit": dataclasses.asdict(self.limit),
            "decision": str(self.decision),
            "names": list(self.names),
            "curve": None if self.curve is None else self.curve.to_dict(),
            "margin": self.margin,
            "statement": self.statement,
            "notes": self.notes,
        }

    def summary(self) -> dict[str, Any]:
        """The headline figures and the statement, as a model file keeps them."""
        return {
            "decision": str(self.decision),
            **dataclasses.asdict(self.limit),
            "lower": self.lower,
            "upper": self.upper,
            "margin": self.margin,
            "values": int(self.covered.sum()),
            "repeats": self.repeats,
            "looks": self.looks,
            "failures": self.failures,
            "statement": self.statement,
            "notes": self.notes,
        }

    def plot(self) -> "Figure":
        """Bias / sd with its simultaneous limits, the curve between, and the limit to keep."""
        from .plot import plot_certificate

        return plot_certificate(self)

    def _distance(self) -> tuple[np.ndarray, np.ndarray]:
        """Simultaneous limits of |bias|/sd, (K, d)."""
        return _absolute(self.bias_lower, self.bias_upper)

    def __str__(self) -> str:
        return "\n".join([self.statement, *(f"  {note}" for note in self.notes)])

    __repr__ = __str__


def certify(report: "Report", name: str, limit: BiasLimit) -> Certificate:
    """Decide from an assessment whether |bias|/sd is within the limit.

    The components at one value are correlated, as estimated; values have random numbers of their
    own, so that their bias is independent.
    """
    one = report[name]
    error = limit.error / report.looks
    covered = np.ones(len(report.y), bool) if one.outside is None else ~one.outside
    ratios = _ratios(report, name)
    inside = np.broadcast_to(covered[:, None], ratios.value.shape)
    with np.errstate(invalid="ignore", divide="ignore"):
        effective = np.where(one.kurtosis > 0, ratios.number / one.kurtosis, ratios.number)
    unknown = ~np.isfinite(ratios.se) | (effective < FEWEST_EFFECTIVE) | ~inside

    fewest = fewest_repeats(limit.max_bias_over_sd, error)
    quantile = max_t_quantile(_correlations(one.covariance[covered]), error)
    low, high = ratios.limits(quantile)
    low, high = np.where(unknown, -np.inf, low), np.where(unknown, np.inf, high)
    each = ratios.largest_below(1 - error)
    each = np.where(unknown | (ratios.number < fewest), np.inf, each)
    upper = float(np.max(each[covered], initial=0.0)) if covered.any() else math.inf
    lower = float(np.max(_absolute(low, high)[0][covered], initial=0.0))

    decision = Decision.UNDECIDED
    if covered.any() and upper <= limit.max_bias_over_sd:
        decision = Decision.PASS
    elif lower > limit.max_bias_over_sd:
        decision = Decision.FAIL
    reason, more = "", None
    if decision is Decision.UNDECIDED:
        open_ = _Open(ratios, one.kurtosis, effective, inside, fewest, error, quantile)
        reason, more = open_.reason(lower, upper), open_.more(limit, report.repeats)
    curve, note = bias_curve(report, ratios, covered, error)
    return Certificate(
        estimator=name,
        limit=limit,
        decision=decision,
        lower=lower,
        upper=upper,
        reason=reason,
        more_repeats=more,
        names=report.names,
        y=report.y,
        covered=covered,
        bias_over_sd=ratios.value,
        bias_lower=low,
        bias_upper=high,
        repeats=report.repeats,
        looks=report.looks,
        failures=int(one.failures.sum()),
        curve=curve,
        curve_note=note,
        subject=report.subjects.get(name, Subject()),
    )


@dataclasses.dataclass(frozen=True)
class _Open:
    """What a decision still lacks."""

    ratios: Ratios
    kurtosis: np.ndarray
    effective: np.ndarray
    inside: np.ndarray
    fewest: int
    error: float
    quantile: float

    def reason(self, lower: float, upper: float) -> str:
        if not self.inside.any():
            return "all values lie outside of the prior or of the training"
        number = self.ratios.number[self.inside].min()
        if number < 2:
            return "at some values there is no estimate that is finite"
        tails = self.effective[self.inside].min()
        if tails < FEWEST_EFFECTIVE:
            return (
                f"the errors have heavy tails, so that at some values about {tails:.1f} draws make "
                f"up the variance, and {FEWEST_EFFECTIVE} are needed"
            )
        if number < self.fewest:
            return (
                f"at least {self.fewest:,} finite estimates at each value are needed, there are "
                f"{number:,.0f}"
            )
        return f"the largest is between {lower:.3g} and {upper:.3g}"

    def more(self, limit: BiasLimit, repeats: int) -> int | None:
        """About how many more repeats would decide."""
        size, se = np.abs(self.ratios.value[self.inside]), self.ratios.se[self.inside]
        if not size.size or not np.isfinite(se).all():
            return None
        unit_se = se * math.sqrt(repeats)  # of each repeat, failed ones included
        noise = usual_largest(size.size)
        beyond = size - limit.max_bias_over_sd
        seen = beyond > noise * se
        if seen.any():
            needed = repeats_until(beyond[seen], unit_se[seen], self.quantile).min()
        else:
            # Part of the largest values is noise, which more repeats remove.
            distance = limit.max_bias_over_sd - np.maximum(size - noise * se, 0)
            width = float(-ndtri(self.error)) + noise
            needed = repeats_until(distance, unit_se, width).max()
            needed = max(needed, self.fewest * repeats / self.ratios.number[self.inside].min())
        tails = FEWEST_EFFECTIVE / self.effective[self.inside].min()
        needed = max(needed, tails * repeats)
        return max(1, math.ceil(needed - repeats)) if needed < NEVER else None


def _ratios(report: "Report", name: str) -> Ratios:
    """Bias / sd of one estimator; without spread, 0 or infinite without error."""
    one = report[name]
    number = np.broadcast_to((report.repeats - one.failures)[:, None], one.bias.shape)
    exact = (one.sd == 0) & (number > 1)
    with np.errstate(invalid="ignore"):
        value = np.where(exact & (one.bias == 0), 0.0, one.bias_in_sd)
    se = np.where(exact, 0.0, one.bias_over_sd_se)
    skewness = np.where(exact, 0.0, one.skewness)
    kurtosis = np.where(exact, 1.0, one.kurtosis)
    return Ratios(value, np.where(number > 1, se, np.nan), skewness, kurtosis, number)


def _correlations(covariances: np.ndarray) -> list[np.ndarray]:
    found = []
    for matrix in covariances:
        unit = np.sqrt(np.diag(matrix))
        with np.errstate(invalid="ignore", divide="ignore"):
            correlation = matrix / unit[:, None] / unit
        np.fill_diagonal(correlation, 1.0)
        found.append(np.where(np.isfinite(correlation), correlation, 0.0))
    return found


def _absolute(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Limits of the absolute value."""
    return np.maximum(np.maximum(low, -high), 0.0), np.maximum(-low, high)
