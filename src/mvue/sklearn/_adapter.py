"""What `mvue.save`, `mvue.load` and the export need to know of estimators of scikit-learn."""

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from sklearn.utils.validation import check_is_fitted

import sklearn

from .._core.checks import checked_names
from .._core.types import Estimator
from .._finish.input_range import InputRange, TrainedOn
from .._models.fronts import Front, Seen, register_front
from .._training.result import Fit
from ._fronts import (
    FrontParts,
    check_front,
    check_savable,
    in_jax,
    natural_units,
    parts_of,
    rows_like,
    seen_by_regressor,
    without_form,
)

LARGEST_POWER = 1000  # of two


class ScikitLearnFront(Front):
    """An estimator of mvue.sklearn, also as the last step of a pipeline."""

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    @functools.cached_property
    def parts(self) -> FrontParts:
        """The estimator, taken apart."""
        return parts_of(self.estimator)

    @property
    def kind(self) -> str:
        chain = [*self.parts.before, self.parts.regressor, *self.parts.after]
        return " → ".join(type(part).__name__ for part in chain)

    @property
    def versions(self) -> dict[str, str]:
        return {"scikit-learn": sklearn.__version__}

    @property
    def has_form(self) -> bool:
        return not without_form(self.estimator)

    def trained_on(self) -> TrainedOn:
        check_is_fitted(self.estimator)
        check_savable(self.estimator)
        regressor = self.parts.regressor
        x = jax.ShapeDtypeStruct((self.parts.columns,), np.dtype(np.float64))
        if hasattr(regressor, "fit_"):
            seen, (x_units, y_units) = regressor.fit_.trained_on, regressor._units
            inputs = seen.inputs.in_units(x_units.shift, x_units.scale)
            y_range = natural_units(self.estimator, y_units.natural(seen.y_range))
            return TrainedOn(seen.names, x, inputs, y_range)
        inputs, seen = None, regressor._mean_and_variance()
        if seen is not None:
            powers = np.zeros(1, int) if regressor._powers is None else regressor._powers.x
            # Beyond that the units themselves are no double-precision numbers.
            if np.abs(powers).max() < LARGEST_POWER:
                units = np.ldexp(np.ones_like(seen[0]), powers)
                inputs = InputRange.of_moments(*seen).in_units(np.zeros_like(units), units)
        known = getattr(regressor, "target_names_", None)
        names = checked_names(
            None if known is None else list(map(str, known)), np.size(regressor.intercept_)
        )
        return TrainedOn(names, x, inputs, None)

    @property
    def columns(self) -> tuple[str, ...] | None:
        names = getattr(self.estimator, "feature_names_in_", None)
        return None if names is None else tuple(map(str, names))

    def fit(self) -> Fit | None:
        return getattr(self.parts.regressor, "fit_", None)

    def check(self, x: Any) -> Any:
        check_front(self.estimator)
        if getattr(x, "shape", None) != (self.parts.columns,):
            raise ValueError("the number of columns is not that of a measurement")
        return jax.ShapeDtypeStruct((self.parts.regressor.n_features_in_,), x.dtype)

    def function(self) -> Estimator:
        return in_jax(self.estimator)

    def predict(self, x: Any) -> np.ndarray:
        usable = self.seen(x).usable
        with _unnamed_columns():
            if usable.all() and len(usable):
                return self.estimator.predict(x)
            some = self.estimator.predict(x[usable] if usable.any() else np.zeros((1, x.shape[1])))
        estimates = np.full((len(usable), *some.shape[1:]), np.nan, some.dtype)
        estimates[usable] = some[: usable.sum()]
        return estimates

    def seen(self, x: Any) -> Seen:
        with _unnamed_columns():
            return seen_by_regressor(self.estimator, np.asarray(x, np.float64))

    def typical_rows(
        self, rng: np.random.Generator, n: int, inputs: InputRange | None
    ) -> np.ndarray:
        values = rng.standard_normal((n, self.parts.regressor.n_features_in_))
        if inputs is not None:
            values = inputs.usual.centre + inputs.usual.spread * values
        return rows_like(self.estimator, values)


@contextmanager
def _unnamed_columns() -> Iterator[None]:
    """Columns are in order where they have no names."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "X does not have valid feature names")
        yield


def _is_front(estimator: Any) -> bool:
    return hasattr(estimator, "predict") and hasattr(estimator, "get_params")


register_front(_is_front, ScikitLearnFront)
