"""`Model`: a loaded estimator in use; checks its input and predicts batches of any size."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from .._core.checks import describe_shapes
from .._core.estimators import Carrier, MeasurementSpec
from .._core.types import Estimator
from .._finish.input_range import TrainedOn
from .._intervals.curves import IntervalCurves
from .._intervals.interval import Interval, Intervals
from .fronts import Front, front_of


@dataclasses.dataclass(frozen=True, eq=False)
class Model(Carrier):
    """An estimator with what its file says about it; what `load` returns.

    ``model(x)`` estimates from one measurement or from a batch, so that `assess`, `jax.vmap` and
    `refit_last_layer` take it. `predict` takes any number of measurements, refuses those of another
    shape, and warns of those that are unlike the ones of training; estimates of an estimator of
    scikit-learn have the shape that its own `predict` gives them.
    """

    estimator: Any
    """What was saved: a function of one measurement, or an estimator of scikit-learn."""
    trained_on: TrainedOn | None
    """Names of the parameters, shape of a measurement, and what training covered, where known."""
    training: dict[str, Any]
    """How it was trained, where it was saved from a `Fit`."""
    assessment: dict[str, Any] | None
    """The summary of an assessment, if one was given to `save`."""
    versions: dict[str, str]
    """Of what it was made with."""
    curves: IntervalCurves | None = None
    """What its confidence intervals need, if they were given to `save`."""

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the parameters, where known."""
        return None if self.trained_on is None else self.trained_on.names

    @property
    def kind(self) -> str:
        """What the estimator is, in a few words."""
        return type(self.estimator).__name__ if self.front is None else self.front.kind

    @functools.cached_property
    def front(self) -> Front | None:
        """What the library of the estimator tells about it; None for a function."""
        return front_of(self.estimator)

    @property
    def x(self) -> Any:
        """Shapes and dtypes of one measurement, where known."""
        return None if self.trained_on is None else self.trained_on.x

    @property
    def y_range(self) -> np.ndarray | None:
        """The smallest and the largest y of training, (2, d), where known."""
        return None if self.trained_on is None else self.trained_on.y_range

    @property
    def certificate(self) -> dict[str, Any] | None:
        """What was certified of its bias, with the statement in words, if it was; see `save`."""
        found = (self.assessment or {}).get("certificate")
        is_one = isinstance(found, dict) and isinstance(found.get("statement"), str)
        return found if is_one else None

    @property
    def intervals(self) -> Intervals:
        """Confidence intervals, if they were saved."""
        if self.curves is None:
            raise ValueError(
                "the model was saved without intervals: give mvue.save(..., intervals=intervals) "
                "what mvue.interval returns, or fit.intervals"
            )
        return Intervals(self, self.curves, self.names or ())

    def interval(self, x: Any, *, level: float = 0.9) -> Interval:
        """Confidence intervals from one measurement or a batch; see `mvue.interval`.

        Args:
            x: as in a call.
            level: the probability with which an interval covers.
        """
        return self.intervals(x, level=level)

    @property
    def function(self) -> Estimator:
        """The estimator as a function of one measurement in JAX."""
        return self._in_jax

    @functools.cached_property
    def _in_jax(self) -> Estimator:
        return as_function(self.estimator)

    @property
    def _spec(self) -> MeasurementSpec | None:
        columns = None if self.front is None else self.front.columns
        return None if self.x is None else MeasurementSpec(self.x, columns=columns)

    def _pieces(self, x: Any) -> Iterator[Any]:
        if self.front is not None and hasattr(x, "columns"):
            return iter([x])  # a table with names, which it checks by itself
        return super()._pieces(x)

    def _at_once(self, x: Any) -> int:
        # An estimator of another library decides by itself how to go through its rows.
        return super()._at_once(x) if self.front is None else max(len(x), 1)

    def _predicted(self, piece: Any) -> np.ndarray:
        return super()._predicted(piece) if self.front is None else self.front.predict(piece)

    def _strange(self, piece: Any) -> np.ndarray:
        known = self.trained_on
        if self.front is None:
            return super()._strange(piece) if known is None else known.outside(piece)
        rows = self.front.seen(piece)
        strange = rows.far | ~rows.usable
        inputs = None if known is None else known.inputs
        return strange if inputs is None else strange | inputs.outside(rows.x)

    def __str__(self) -> str:
        lines = [f"Model: {self.kind}"]
        if self.names:
            lines.append(f"  estimates  {', '.join(self.names)}")
        if self.x is not None:
            lines.append(f"  from       a measurement of {describe_shapes(self.x)}")
        if self.trained_on is not None and self.trained_on.y_range is not None:
            low, high = self.trained_on.y_range
            ranges = [
                f"{name} {a:.4g} … {b:.4g}"
                for name, a, b in zip(self.names or (), low, high, strict=False)
            ]
            lines.append(f"  trained on {', '.join(ranges)}")
        lines += [f"  {name:<10} {value}" for name, value in self._facts().items()]
        return "\n".join(lines)

    __repr__ = __str__

    def _facts(self) -> dict[str, str]:
        facts = {}
        for label, key in (("loss", "loss"), ("network", "network")):
            if key in self.training.get("settings", {}):
                facts[label] = str(self.training["settings"][key])
        if "outcome" in self.training:
            facts["training"] = f"{self.training['outcome']} after {self.training['step']:,} steps"
        if self.assessment:
            shown = {k: v for k, v in self.assessment.items() if isinstance(v, float)}
            if shown:
                facts["assessed"] = ", ".join(f"{k} {v:.4g}" for k, v in shown.items())
            if "notice" in self.assessment:
                facts["notice"] = self.assessment["notice"]
        if self.certificate is not None:
            facts["certified"] = self.certificate["statement"]
            notes = self.certificate.get("notes")
            facts["certified"] += "".join(
                f"\n{'':13}{note}" for note in (notes if isinstance(notes, list) else [])
            )
        if self.curves is not None:
            facts["intervals"] = (
                f"up to level {self.curves.most_level:.4g}, from {self.curves.draws:,} simulations"
            )
        facts["made with"] = ", ".join(f"{k} {v}" for k, v in self.versions.items())
        return facts


def as_function(estimator: Any) -> Estimator:
    """An estimator as a function of one measurement in JAX."""
    front = front_of(estimator)
    if front is None:
        return estimator
    with jax.ensure_compile_time_eval():  # it may be asked for while something is traced
        return front.function()
