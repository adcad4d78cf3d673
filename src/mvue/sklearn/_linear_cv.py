"""Linear bias constrained estimators whose bias weight is chosen by cross-validation."""

import functools
import inspect
import warnings
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import _fit_context
from sklearn.model_selection import GroupKFold, check_cv
from sklearn.utils._param_validation import Interval, StrOptions

from .._data.units import group_rows
from .._linear.grouped_moments import MomentSummary
from .._linear.path import (
    LinearBCEPath,
    Split,
    deal_units,
    default_bias_weights,
    path_of_splits,
    split_rows,
)
from .._linear.regressed_moments import Pairs
from .._linear.spectrum import warn_no_repeats, warn_unresolved
from .._serialise.registry import register
from ..exceptions import BiasToleranceWarning
from ._base import LinearRegressor, Powers, Sample
from ._linear import FITTED, SHARED_CONSTRAINTS, resolution_of

DEFAULT_FOLDS = 5


class LinearBCECV(LinearRegressor):
    """`LinearBCE` with the bias weight chosen by cross-validation over whole units.

    Args:
        bias_weights: the values of λ to choose from; by default fifty from 0 to infinity.
        rule: ``"lowest_mse"``, or ``"bias_tolerance"``: the lowest MSE among those whose root mean
            squared bias is at most `bias_tolerance` standard deviations of the estimate.
        bias_tolerance: for that rule.
        cv: number of folds, at most as many as there are units; or a splitter of scikit-learn,
            which gets the units as groups, or a list of pairs of rows to fit to and to hold out.
            One that cuts units apart, such as KFold, does not show the bias at new parameters.
        fit_intercept: as in `LinearBCE`.
        regularization: as in `LinearBCE`.
        resolution: as in `LinearBCE`.

    Attributes:
        bias_weight_: the λ that was chosen.
        path_: a `LinearBCEPath` with all of them; of columns whose squares overflow or vanish, in
            units of a power of two.
        coef_: shape (p,) or (d, p).
        intercept_: a number or shape (d,).
        n_features_in_: p.
        feature_names_in_: names of the columns of X, where it has any.
        target_names_: names of the columns of y, where it has any.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "bias_weights": [None, "array-like"],
        "rule": [StrOptions({"lowest_mse", "bias_tolerance"})],
        "bias_tolerance": [Interval(Real, 0, None, closed="left")],
        "cv": ["cv_object"],
        **SHARED_CONSTRAINTS,
    }

    def __init__(
        self,
        bias_weights: Any = None,
        *,
        rule: str = "lowest_mse",
        bias_tolerance: float = 0.1,
        cv: Any = DEFAULT_FOLDS,
        fit_intercept: bool = True,
        regularization: float = 0.0,
        resolution: float | str = "auto",
    ) -> None:
        self.bias_weights = bias_weights
        self.rule = rule
        self.bias_tolerance = bias_tolerance
        self.cv = cv
        self.fit_intercept = fit_intercept
        self.regularization = regularization
        self.resolution = resolution

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        unit_ids: Any = None,
        theta: Any = None,
    ) -> Self:
        """Choose the bias weight and fit with it to all of the data.

        Args:
            X: as in `LinearBCE.fit`.
            y: as in `LinearBCE.fit`.
            sample_weight: as in `LinearBCE.fit`.
            unit_ids: as in `LinearBCE.fit`.
            theta: as in `LinearBCE.fit`.
        """
        sample, pairs = self._validated_pairs(X, y, sample_weight, unit_ids, theta)
        self._powers = Powers.of(sample.X, sample.y)
        if self._powers is not None:
            x_scaled, y_scaled = self._powers.scaled(sample.X, sample.y)
            sample = sample._replace(X=x_scaled, y=y_scaled)
        bias_weights = _checked_bias_weights(self.bias_weights)
        splits, moments = self._splits(sample, pairs)
        self.path_ = path_of_splits(
            splits,
            moments,
            bias_weights,
            fit_intercept=self.fit_intercept,
            ridge=self.regularization,
            resolution=resolution_of(self.resolution),
        )
        warn_no_repeats(moments, stacklevel=3)
        chosen = self._choose(self.path_)
        self.bias_weight_ = float(bias_weights[chosen])
        warn_unresolved(moments, int(self.path_.altered[chosen]), self.bias_weight_, stacklevel=3)
        self._chosen = chosen
        self._seen = moments.mean_x, np.diag(moments.scatter_xx) / moments.weight
        return self

    def _mean_and_variance(self) -> tuple[np.ndarray, np.ndarray] | None:
        return getattr(self, "_seen", None)

    def _fitted(self) -> tuple[np.ndarray, np.ndarray]:
        return self.path_.coef[self._chosen], self.path_.intercept[self._chosen]

    def _splits(self, sample: Sample, pairs: Pairs | None) -> tuple[list[Split], MomentSummary]:
        rows = group_rows(sample.y, sample.unit_ids)
        if len(rows.y) < 2:
            raise ValueError(
                "cross-validation holds out whole units and needs at least 2, got 1: every row has "
                "the same y or the same unit id"
            )
        if self.cv is None or isinstance(self.cv, Integral):
            folds = min(int(self.cv or DEFAULT_FOLDS), len(rows.y))
            if pairs is None:
                return deal_units(sample.X, rows, sample.weights, folds)
            # Whole units, which in pairs may be two rows by chance.
            splitter = GroupKFold(folds)
        else:
            splitter = check_cv(self.cv)
        indices = sample.split(splitter)
        if pairs is None:
            return split_rows(sample.X, sample.y, sample.unit_ids, sample.weights, indices)
        of = functools.partial(pairs.moments, sample.X, sample.y)
        return [(of(train), of(test)) for train, test in indices], of(slice(None))

    def _choose(self, path: LinearBCEPath) -> int:
        if self.rule == "lowest_mse":
            return path.lowest_mse()
        chosen = path.lowest_mse_within(self.bias_tolerance)
        if chosen is None:
            chosen = int(np.argmin(path.squared_bias))
            warnings.warn(
                f"no bias weight reaches a bias of {self.bias_tolerance:g} standard deviations: "
                f"bias_weight={path.bias_weights[chosen]:g} with the smallest squared bias is used",
                BiasToleranceWarning,
                stacklevel=4,
            )
        return chosen


register(
    LinearBCECV,
    fields=(
        *inspect.signature(LinearBCECV).parameters,
        *FITTED,
        "path_",
        "bias_weight_",
        "_chosen",
    ),
)


def linear_bce_path(
    X: Any,
    y: Any,
    *,
    bias_weights: Any = None,
    unit_ids: Any = None,
    sample_weight: Any = None,
    theta: Any = None,
    cv: Any = DEFAULT_FOLDS,
    fit_intercept: bool = True,
    regularization: float = 0.0,
    resolution: float | str = "auto",
) -> LinearBCEPath:
    """Linear estimators for many bias weights from one pass over the data.

    Args:
        X: as in `LinearBCE.fit`.
        y: as in `LinearBCE.fit`.
        bias_weights: as in `LinearBCECV`.
        unit_ids: as in `LinearBCE.fit`.
        sample_weight: as in `LinearBCE.fit`.
        theta: as in `LinearBCE.fit`.
        cv: as in `LinearBCECV`.
        fit_intercept: as in `LinearBCE`.
        regularization: as in `LinearBCE`.
        resolution: as in `LinearBCE`.
    """
    model = LinearBCECV(
        bias_weights,
        cv=cv,
        fit_intercept=fit_intercept,
        regularization=regularization,
        resolution=resolution,
    )
    return model.fit(X, y, sample_weight, unit_ids, theta).path_


def _checked_bias_weights(values: Any) -> np.ndarray:
    weights = default_bias_weights() if values is None else np.asarray(values, np.float64)
    if weights.ndim != 1 or not weights.size or not (weights >= 0).all():
        raise ValueError(f"bias_weights must be a list of numbers of at least 0, got {values!r}")
    return weights
