"""The result of an assessment: arrays first, then text, tables and figures of them."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._core.types import Theta
from .._display.tables import Rows, html_of, text_of
from .._information.bound import ESTIMATED
from .._intervals.coverage import Coverage
from .._numerics.moments import ErrorMoments
from .._reality.result import Check
from .._serialise.files import write_text
from .._serialise.text import json_text
from .certificate import BiasLimit, Certificate, Subject, certify
from .tables import coverage_rows, summary_rows, value_rows

CRB = "CRB"

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class PriorAverage(NamedTuple):
    """Averages over units drawn from the prior, summed over components."""

    bmse: float
    """Mean squared error."""
    bmse_se: float
    squared_bias: float
    """Mean of the squared bias; estimated without bias, so it may be slightly negative."""
    squared_bias_se: float
    failures: int
    """Units that were left out because an estimate of theirs was not finite."""

    @classmethod
    def unknown(cls) -> "PriorAverage":
        """Where no average over the prior was made."""
        return cls(np.nan, np.nan, np.nan, np.nan, failures=0)


@dataclasses.dataclass(frozen=True)
class Assessment:
    """One estimator at K values of the parameter; arrays of shape (K, d) unless stated."""

    bias: np.ndarray
    """Mean of estimate - y."""
    bias_se: np.ndarray
    sd: np.ndarray
    """Standard deviation of the estimate."""
    sd_se: np.ndarray
    mse: np.ndarray
    """Mean of (estimate - y)²."""
    mse_se: np.ndarray
    covariance: np.ndarray
    """Covariance of the estimate, (K, d, d)."""
    failures: np.ndarray
    """Non-finite estimates, left out of everything else, (K,)."""
    prior: PriorAverage
    """Averages over the prior."""
    bias_over_sd_se: np.ndarray
    """Standard error of bias / sd, about 1 / sqrt(repeats) where the bias is small."""
    skewness: np.ndarray
    kurtosis: np.ndarray
    """3 for a normal distribution; repeats / kurtosis is about how many draws make up sd²."""
    outside: np.ndarray | None = None
    """Values outside of the prior, or of the range of y that it was trained on, (K,)."""

    @property
    def bias_in_sd(self) -> np.ndarray:
        """Bias / sd, with its sign."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.bias / self.sd

    @property
    def bias_over_sd(self) -> np.ndarray:
        """|bias| / sd."""
        return np.abs(self.bias_in_sd)


@dataclasses.dataclass(frozen=True)
class Report:
    """Bias, variance and MSE of one or more estimators, with the bound where it is known."""

    names: tuple[str, ...]
    """Names of the components of y."""
    y: np.ndarray
    """The values assessed at, (K, d)."""
    theta: Theta
    """What was simulated; leaves (K, ...)."""
    repeats: int
    """Measurements at each value."""
    estimators: dict[str, Assessment]
    bound: np.ndarray | None
    """Lower bound on the covariance of unbiased estimators, (K, d, d), or an upper estimate of it:
    `bound_is` tells."""
    squared_errors: dict[tuple[str, str], ErrorMoments]
    """Joint moments of two estimators' ‖error‖² on common measurements; see `mse_ratio`."""
    bound_se: np.ndarray | None = None
    """Standard errors of the bound, (K, d, d), where it comes from Monte Carlo; nan at values
    where it does not."""
    bound_note: str = ""
    """Where the bound comes from, or why there is none; empty if the problem gives it."""
    looks: int = 1
    """How often it might have been stopped, with ``assess(until=...)``."""
    certificates: dict[str, Certificate] = dataclasses.field(default_factory=dict)
    """Of each estimator, with ``assess(until=...)``."""
    coverage: dict[str, Coverage] = dataclasses.field(default_factory=dict)
    """Of the confidence intervals of each estimator, with ``assess(level=...)``."""
    bound_is: str = CRB
    """What the bound is: ``CRB``, or ``estimated bound`` with ``assess(bound="estimated")``."""
    subjects: dict[str, Subject] = dataclasses.field(default_factory=dict, compare=False)
    """What each estimator is."""
    measurements: Check | None = None
    """Real measurements beside the simulator; see `with_check`."""

    @property
    def is_estimated(self) -> bool:
        """Whether the bound is an upper estimate of the Cramér-Rao bound, from simulations."""
        return self.bound_is == ESTIMATED

    @property
    def bound_variance(self) -> np.ndarray | None:
        """The bound on the variance of each component, (K, d), known or estimated."""
        return None if self.bound is None else np.einsum("kii->ki", self.bound)

    @property
    def crb(self) -> np.ndarray | None:
        """The bound on the variance of each component, (K, d); None where it is but estimated."""
        return None if self.is_estimated else self.bound_variance

    def mse_over_bound(self, name: str) -> np.ndarray | None:
        """MSE of each component in units of the bound, (K, d); nan where that is infinite.

        None where there is no bound. An estimated bound may be above the smallest variance there
        is: a ratio below 1 says nothing against the estimator then.
        """
        bound = self.bound_variance
        if bound is None:
            return None
        with np.errstate(divide="ignore"):  # a bound may be zero, where the slope of y is
            return self[name].mse / np.where(np.isfinite(bound), bound, np.nan)

    def mse_over_crb(self, name: str) -> np.ndarray | None:
        """The same in units of the Cramér-Rao bound; None where that is not known."""
        return None if self.is_estimated else self.mse_over_bound(name)

    def biased_crb(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The bound for an estimator with this one's bias, and its standard error, (K, d, d).

        (I + ∂b/∂y) CRB (I + ∂b/∂y)ᵀ + b bᵀ: no estimator with the bias b(y) has a mean squared
        error below it. The gradient of the bias comes from the assessed values, which must differ
        in y alone.
        """
        from .biased_bound import biased_crb

        return biased_crb(self, name)

    def certify(
        self,
        max_bias_over_sd: float = 0.05,
        confidence: float = 0.95,
        *,
        name: str | None = None,
    ) -> Certificate:
        """Decide whether |bias|/sd is within a limit at all assessed values and components.

        Pass: it is; fail: it is not, somewhere; each is wrong with at most the probability 1 -
        confidence. Undecided: there are too few repeats. There is no statement about values outside
        of the prior or of the training, and none about estimates that are not finite.

        Args:
            max_bias_over_sd: the limit.
            confidence: of the answer.
            name: which estimator; needed where there are several.
        """
        if name is None and len(self.estimators) > 1:
            raise ValueError(f"name must be one of the estimators, {list(self.estimators)}")
        name = next(iter(self.estimators)) if name is None else self._known(name)
        return certify(self, name, BiasLimit(max_bias_over_sd, confidence))

    def mse_ratio(self, name: str, other: str) -> tuple[np.ndarray, np.ndarray]:
        """Ratio of two estimators' MSE at each value, and its standard error, (K,).

        Both saw the same measurements, which makes the ratio sharper than its parts. Measurements
        on which one of the two failed are left out.
        """
        if self._known(name) == self._known(other):
            return np.ones(len(self.y)), np.zeros(len(self.y))
        swap = (name, other) not in self.squared_errors
        pair = self.squared_errors[(other, name) if swap else (name, other)]
        i, j = (1, 0) if swap else (0, 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(pair.number[:, None] > 0, pair.mean, np.nan)
            ratio = mean[:, i] / mean[:, j]
            cov = pair.covariance / pair.number[:, None, None] / mean[:, j, None, None] ** 2
            variance = cov[:, i, i] - 2 * ratio * cov[:, i, j] + ratio**2 * cov[:, j, j]
            return ratio, np.sqrt(np.maximum(variance, 0))

    def summary(self, name: str) -> dict[str, Any]:
        """The headline figures of one estimator."""
        one = self[name]
        flat = np.nan_to_num(one.bias_over_sd, nan=-np.inf).argmax()
        figures: dict[str, Any] = {
            "max_bias_over_sd": float(one.bias_over_sd.ravel()[flat]),
            "max_bias_over_sd_se": float(one.bias_over_sd_se.ravel()[flat]),
        }
        if (self.y > 0).all():
            figures["max_relative_bias"] = float(
                np.fmax.reduce((np.abs(one.bias) / self.y).ravel())
            )
        ratio = self.mse_over_bound(name)
        if ratio is not None:
            seen = np.isfinite(ratio)
            figures[f"mse_over_{self._bound_key}"] = {
                "min": float(np.fmin.reduce(ratio.ravel())),
                "median": float(np.median(ratio[np.isfinite(ratio)])) if seen.any() else np.nan,
                "max": float(np.fmax.reduce(ratio.ravel())),
            }
        figures |= {
            name: value for name, value in one.prior._asdict().items() if name != "failures"
        }
        figures["failures"] = int(one.failures.sum())
        figures["prior_failures"] = one.prior.failures
        return figures

    def to_dict(self) -> dict[str, Any]:
        """Everything as lists and numbers; y and what belongs to it one entry per value."""
        squeeze = (lambda a: a[:, 0]) if len(self.names) == 1 else (lambda a: a)
        result: dict[str, Any] = {
            "names": list(self.names),
            "repeats": self.repeats,
            "bound_note": self.bound_note,
            "estimators": {},
        }
        if self.certificates:
            result["certificates"] = {n: c.to_dict() for n, c in self.certificates.items()}
        if self.measurements is not None:
            result["measurements"] = self.measurements.to_dict()
        for name, one in self.estimators.items():
            columns = {"y": self.y} | {
                field: getattr(one, field)
                for field in ("bias", "bias_se", "sd", "sd_se", "mse", "mse_se")
            }
            if self.bound_variance is not None:
                columns[self._bound_key] = self.bound_variance
            if name in self.coverage:
                covers = self.coverage[name]
                result.setdefault("level", covers.level)
                columns |= {f"interval_{field}": values for field, values in covers.columns()}
            if self.bound_se is not None:
                columns[f"{self._bound_key}_se"] = np.einsum("kii->ki", self.bound_se)
            result["estimators"][name] = self.summary(name) | {
                column: squeeze(values).tolist() for column, values in columns.items()
            }
        return result

    def to_json(self, path: str | Path | None = None) -> str:
        """The report as JSON text, also written to `path`; null for what is not finite."""
        text = json_text(self.to_dict())
        if path is not None:
            write_text(path, text)
        return text

    def to_frame(self) -> Any:
        """A tidy pandas DataFrame: one row for each estimator, value and component."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("to_frame needs pandas: pip install 'mvue[frame]'") from error
        rows = []
        for name, one in self.estimators.items():
            for k, c in np.ndindex(*self.y.shape):
                row = {"estimator": name, "value": k, "component": self.names[c]}
                row["y"] = self.y[k, c]
                for field in ("bias", "bias_se", "sd", "sd_se", "mse", "mse_se", "bias_over_sd"):
                    row[field] = getattr(one, field)[k, c]
                row["crb"] = np.nan if self.crb is None else self.crb[k, c]
                if self.is_estimated and self.bound_variance is not None:
                    row[self._bound_key] = self.bound_variance[k, c]
                row["failures"] = one.failures[k]
                if name in self.coverage:
                    for field, values in self.coverage[name].columns():
                        row[f"interval_{field}"] = values[k, c]
                rows.append(row)
        return pd.DataFrame(rows)

    def with_check(self, check: Check) -> "Report":
        """The same report with a check of real measurements, which print and page then show.

        All else in a report is about simulated measurements.

        Args:
            check: what `mvue.check` or ``fit.check`` returns.
        """
        if not isinstance(check, Check):
            raise TypeError(
                f"check must be what mvue.check returns, got {type(check).__name__}: give "
                "report.with_check(fit.check(x))"
            )
        return dataclasses.replace(self, measurements=check)

    def plot(self) -> "Figure":
        """Bias, standard deviation and MSE against y, with bands of two standard errors."""
        from .plot import plot_report

        return plot_report(self)

    def to_html(self, path: str | Path, *, title: str = "Assessment") -> None:
        """Write a self-contained page with the figure and the tables."""
        from .._display.pages import write_page
        from .sections import report_sections

        write_page(path, title=title, sections=report_sections(self))

    def __getitem__(self, name: str) -> Assessment:
        return self.estimators[self._known(name)]

    @property
    def _bound_key(self) -> str:
        """What the bound is called in tables of numbers."""
        return self.bound_is.lower().replace(" ", "_")

    def _known(self, name: str) -> str:
        if name not in self.estimators:
            raise KeyError(f"no estimator named {name!r}; there are {list(self.estimators)}")
        return name

    def _parts(self) -> list[str | Rows]:
        """What is shown, as lines and tables."""
        headline = (
            f"Assessment at {len(self.y)} values of {', '.join(self.names)}, "
            f"{self.repeats:,} repeats each"
        )
        notes = [self.bound_note] if self.bound_note else []
        parts = [headline, *notes, summary_rows(self), value_rows(self)]
        if self.coverage:
            level = next(iter(self.coverage.values())).level
            parts += [f"Coverage of confidence intervals of level {level:g}", coverage_rows(self)]
        several = len(self.certificates) > 1
        for name, certificate in self.certificates.items():
            parts.append(f"{name}: {certificate}" if several else str(certificate))
        return parts + ([] if self.measurements is None else self.measurements.parts())

    def __str__(self) -> str:
        return text_of(*self._parts())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_of(*self._parts())
