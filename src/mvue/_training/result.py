"""`Fit`: what training returns, the estimator and how it came about."""

import dataclasses
import enum
import functools
from typing import Any

import jax
import jax.random as jr
import numpy as np

from .._core.estimators import Carrier, MeasurementSpec
from .._core.keys import key_for
from .._core.problem import Problem
from .._core.types import Estimator, Key, Measurement
from .._display.tables import labelled_html, labelled_text
from .._finish.input_range import TrainedOn, trained_on_problem
from .._finish.verdict import Verdict
from .._intervals.interval import Interval, Intervals, interval
from .._reality.check import check
from .._reality.result import Check
from .._recipe.survey import Survey
from .._recipe.training_prior import TrainingPrior
from .._serialise.registry import register

RANGE_DRAWS = 2**12


@register(name="mvue.Outcome")
class Outcome(enum.StrEnum):
    """How training ended."""

    FINISHED = "finished"
    STOPPED_EARLY = "stopped early"
    INTERRUPTED = "interrupted"
    DIVERGED = "diverged"


@register(name="mvue.History")
class History(dict[str, list[float]]):
    """How training went: columns of equal length, one row for each validation.

    ``step``; ``loss``, ``mse`` and ``squared_bias`` of the training batches since the row before;
    the same on held-out units (``held_out_loss`` ...), with standard errors; ``seconds``.
    """

    def add(self, row: dict[str, float]) -> None:
        """Append a row."""
        for name, value in row.items():
            self.setdefault(name, []).append(value)

    @property
    def last(self) -> dict[str, float]:
        """The newest row; empty at the start."""
        return {name: values[-1] for name, values in self.items()}

    @property
    def best(self) -> int | None:
        """Index of the row with the lowest held-out loss; None if no loss was finite."""
        scores = np.asarray(self.get("held_out_loss", []))
        return int(np.nanargmin(scores)) if np.isfinite(scores).any() else None


@register(name="mvue.Fit")
@dataclasses.dataclass(frozen=True, eq=False)
class Fit(Carrier):
    """A trained estimator and how it came about.

    ``fit(x)`` estimates from one measurement or from a batch, ``fit.predict(x)`` from any number of
    them in NumPy.
    """

    estimator: Estimator
    """A function of one measurement, with its arrays: an Equinox module."""
    outcome: Outcome
    """How training ended."""
    step: int
    """How many steps were done."""
    weights: str
    """Which weights the estimator has, in words."""
    held_out: dict[str, float]
    """Loss, MSE and squared bias of the estimator, with standard errors, on units that neither
    training nor the choice of weights has seen; averages over the prior that was trained on. On
    fixed data, on the part that was held out, where the weights may have been chosen."""
    history: History
    """One row for each validation."""
    seconds: float
    """Wall time, compilation included."""
    compile_seconds: float
    """Wall time before the first step."""
    nonfinite: int
    """How many units were replaced because a simulation of theirs was not finite."""
    settings: dict[str, Any]
    """What was trained, and how."""
    survey: Survey | None
    """What was decided about training; None where everything was given."""
    problem: Problem | None = None
    """What was simulated, with the prior that was trained on; None for training on data."""
    trained_on: TrainedOn | None = None
    """What the data looked like; None for training on simulations."""
    verdict: Verdict | None = None
    """An independent assessment over the range of interest; None without a survey."""

    @property
    def function(self) -> Estimator:
        """The estimator."""
        return self.estimator

    @property
    def _spec(self) -> MeasurementSpec | None:
        return self._measurement

    @functools.cached_property
    def _measurement(self) -> MeasurementSpec | None:
        if self.problem is not None:
            return MeasurementSpec(self.problem.shapes()[0])
        return None if self.trained_on is None else MeasurementSpec(self.trained_on.x)

    @functools.cached_property
    def range_trained_on(self) -> TrainedOn | None:
        """What measurements looked like in training, by new simulations where there are no data."""
        if self.problem is None:
            return self.trained_on
        return trained_on_problem(self.problem)

    @property
    def y_range(self) -> np.ndarray | None:
        """The smallest and the largest y of training, (2, d), where known."""
        problem = self.problem
        if problem is None:
            return None if self.trained_on is None else self.trained_on.y_range
        keys = jr.split(key_for("save", jr.key(0)), RANGE_DRAWS)
        y = np.asarray(jax.vmap(lambda key: problem.y_of(problem.sample_prior(key)))(keys))
        return np.stack([y.min(axis=0), y.max(axis=0)]).astype(np.float64)

    @functools.cached_property
    def intervals(self) -> Intervals:
        """Confidence intervals, from simulations of what was trained on; made once."""
        if self.problem is None:
            raise ValueError(
                "intervals need simulations, and this was trained on data: give mvue.interval(fit, "
                "problem, key=...) a problem"
            )
        return interval(self, self.problem, key=key_for("intervals", jr.key(0)))

    def interval(self, x: Measurement, *, level: float = 0.9) -> Interval:
        """Confidence intervals from one measurement or a batch; see `mvue.interval`.

        The first call simulates, later ones do not, whatever the level.

        Args:
            x: as in a call.
            level: the probability with which an interval covers.
        """
        return self.intervals(x, level=level)

    def check(
        self,
        x: Measurement,
        *,
        key: Key | None = None,
        summaries: Any = None,
        simulations: int = 2**16,
        data_sets: int = 999,
    ) -> Check:
        """Could the simulator have made these measurements? See `mvue.check`.

        Args:
            x: N measurements, with a leading axis.
            key: decides all random numbers; by default always the same.
            summaries: as in `mvue.check`.
            simulations: as in `mvue.check`.
            data_sets: as in `mvue.check`.
        """
        if self.problem is None:
            raise ValueError(
                "a check needs simulations, and this was trained on data: give mvue.check(fit, "
                "problem, x, key=...) a problem"
            )
        return check(
            self,
            self.problem,
            x,
            key=jr.key(0) if key is None else key,
            summaries=summaries,
            simulations=simulations,
            data_sets=data_sets,
        )

    def _strange(self, piece: Measurement) -> np.ndarray:
        known = self.range_trained_on
        return super()._strange(piece) if known is None else known.outside(piece)

    def _headline(self) -> str:
        return (
            f"Fit: {self.outcome} after {self.step:,} of {self.settings['steps']:,} steps in "
            f"{self.seconds:.1f} s ({self.compile_seconds:.1f} s before the first)"
        )

    def _rows(self) -> list[tuple[str, str]]:
        """What it is and how good, each with a label."""
        s, seen = self.settings, self.held_out
        held_out = f"MSE {seen['mse']:.4g} ± {seen['mse_se']:.1g}"
        if np.isfinite(seen["squared_bias"]):
            held_out += f", bias² {seen['squared_bias']:.2g} ± {seen['squared_bias_se']:.1g}"
        rows = [
            ("loss", s["loss"]),
            *([("bias", s["bias"])] if "bias" in s else []),
            ("batch", s["batch"]),
            ("summaries", s["summaries"]),
            ("start", s["start"]),
            ("network", f"{s['network']}; {self.weights}"),
            ("calibration", s["calibration"]),
            ("training", s["training"]),
            ("held out", f"{held_out} ({s['held_out']})"),
        ]
        if self.verdict is not None:
            rows.append(("verdict", str(self.verdict)))
        if self.nonfinite:
            left_out = f"{self.nonfinite:,} units with non-finite simulations were left out"
            prior = None if self.problem is None else self.problem.prior
            if isinstance(prior, TrainingPrior) and prior.undefined:
                left_out += (
                    f"; {prior.undefined:.1%} of the values trained on, beyond the range of "
                    "interest, are outside of where the simulator is defined"
                )
            rows.append(("warning", left_out))
        if self.outcome is Outcome.DIVERGED:
            diverged = (
                f"the loss or the weights were not finite at step {self.step + 1:,}: "
                "try a smaller learning rate, or weights that even out the errors"
            )
            rows.append(("warning", diverged))
        return rows

    def __str__(self) -> str:
        return labelled_text(self._headline(), self._rows())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return labelled_html(self._headline(), self._rows())
