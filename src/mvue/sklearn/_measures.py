"""Bias and variance of predictions on data with repeats."""

import math
from numbers import Integral
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from sklearn.metrics import make_scorer

from .._data.units import group_rows
from ._tables import as_table

Multioutput: TypeAlias = Literal["uniform_average", "raw_values", "sum"]


class SquaredBias(NamedTuple):
    """The mean squared bias of predictions; arrays of shape (d,) where components are kept."""

    value: Any
    """Mean over units."""
    se: Any
    """Its standard error over units; NaN where there is only one."""
    units: int
    """Number of units with enough rows."""


class BiasDecomposition(NamedTuple):
    """MSE = squared bias + variance; arrays of shape (d,) where components are kept."""

    mse: Any
    """Mean over units of the mean squared error of each."""
    squared_bias: Any
    """Mean over units of the squared bias; estimated without bias, so it may be negative."""
    variance: Any
    """Mean over units of the variance within each."""
    mse_se: Any
    squared_bias_se: Any
    variance_se: Any
    units: int
    """Number of units with enough rows."""


def mean_squared_bias(
    y_true: Any,
    y_pred: Any,
    *,
    unit_ids: Any = None,
    min_repeats: int = 2,
    unbiased: bool = True,
    multioutput: Multioutput = "uniform_average",
    return_se: bool = False,
) -> Any:
    """Mean over units of the squared bias of the predictions.

    The rows of a unit are repeats of one parameter. Every unit with at least `min_repeats` rows
    counts once, however many it has; the others are left out. The noise of different rows should
    be independent: what near-copies have in common counts as bias.

    Args:
        y_true: shape (n,) or (n, d), the same for all rows of a unit.
        y_pred: predictions of the same shape.
        unit_ids: the unit of each row, shape (n,), integers or strings; by default rows with
            exactly equal y_true are one unit.
        min_repeats: the fewest rows of a unit that counts, at least 2. The paper took 8, which
            its plug-in estimate needs; the unbiased one makes use of smaller units too.
        unbiased: average the products of errors of *different* rows, whose expectation is the
            squared bias for any number of rows; near zero it may be negative. If False, square
            the mean error as the paper does, whose expectation is bias² + variance/rows.
        multioutput: ``"uniform_average"`` over the components of y, ``"sum"``, or
            ``"raw_values"`` for each of them, shape (d,).
        return_se: return a `SquaredBias` with the standard error and the number of units. It is
            the error over units drawn at random, with the fitted model as given.
    """
    units = _error_moments(y_true, y_pred, unit_ids, min_repeats)
    squared_bias = units.squared_bias if unbiased else units.squared_mean
    value, se = _over_units(squared_bias, multioutput)
    return SquaredBias(value, se, len(squared_bias)) if return_se else value


def bias_decomposition(
    y_true: Any,
    y_pred: Any,
    *,
    unit_ids: Any = None,
    min_repeats: int = 2,
    multioutput: Multioutput = "uniform_average",
) -> BiasDecomposition:
    """Mean squared error of predictions, and its parts: squared bias and variance.

    All three are means over the same units, those with at least `min_repeats` rows, each of which
    counts once; so the MSE is not the mean over rows where units differ in size. Squared bias and
    variance are estimated without bias, and add up to the MSE exactly. Standard errors are over
    units, as in `mean_squared_bias`.

    Args:
        y_true: as in `mean_squared_bias`.
        y_pred: as in `mean_squared_bias`.
        unit_ids: as in `mean_squared_bias`.
        min_repeats: as in `mean_squared_bias`.
        multioutput: as in `mean_squared_bias`.
    """
    units = _error_moments(y_true, y_pred, unit_ids, min_repeats)
    mse, mse_se = _over_units(units.squared_bias + units.variance, multioutput)
    bias, bias_se = _over_units(units.squared_bias, multioutput)
    variance, variance_se = _over_units(units.variance, multioutput)
    return BiasDecomposition(mse, bias, variance, mse_se, bias_se, variance_se, len(units.rows))


def make_squared_bias_scorer(*, min_repeats: int = 2, unbiased: bool = True) -> Any:
    """A scorer for `scoring=`: minus `mean_squared_bias`, so that greater is better.

    Units are the rows with equal y. With scikit-learn's metadata routing switched on,
    ``set_score_request(unit_ids=True)`` lets it have ids.

    Args:
        min_repeats: as in `mean_squared_bias`; held-out rows are counted.
        unbiased: as in `mean_squared_bias`.
    """
    return make_scorer(
        mean_squared_bias, greater_is_better=False, min_repeats=min_repeats, unbiased=unbiased
    )


mean_squared_bias_scorer = make_squared_bias_scorer()
"""The scorer with default settings; to set requests, make one of your own."""


class _ErrorMoments(NamedTuple):
    squared_mean: np.ndarray  # (units, d)
    variance: np.ndarray  # (units, d), with the divisor rows − 1
    rows: np.ndarray  # (units, 1)

    @property
    def squared_bias(self) -> np.ndarray:
        """The mean of the products of errors of different rows."""
        return self.squared_mean - self.variance / self.rows


def _error_moments(y_true: Any, y_pred: Any, unit_ids: Any, min_repeats: int) -> _ErrorMoments:
    if not isinstance(min_repeats, Integral) or min_repeats < 2:
        raise ValueError(
            f"min_repeats must be an integer of at least 2, got {min_repeats!r}: one row does not "
            "tell bias from noise"
        )
    y_true, y_pred = as_table(y_true, "y_true"), as_table(y_pred, "y_pred")
    if y_true.shape != y_pred.shape:
        raise ValueError(
            f"y_pred must have the shape of y_true, {y_true.shape} as rows and components, got "
            f"{y_pred.shape}: give one prediction for each row"
        )
    rows = group_rows(y_true, unit_ids)
    sizes = np.diff(rows.starts)
    enough = sizes >= min_repeats
    if not enough.any():
        same = "the same unit id" if unit_ids is not None else "exactly equal y_true"
        raise ValueError(
            f"min_repeats={min_repeats} rows of a unit are needed to see its bias, got "
            f"{sizes.size} units of which the largest has {sizes.max()}, counting rows with {same} "
            "as one unit: lower min_repeats (to 2 at least), or take more rows of each unit"
        )
    if not enough.all():
        rows, sizes = rows.take(np.flatnonzero(enough)), sizes[enough]
    errors = y_pred - y_true
    if rows.order is not None:
        errors = errors[rows.order]
    starts, count = rows.starts[:-1], sizes[:, None]
    mean = np.add.reduceat(errors, starts, axis=0) / count
    # About the mean of each unit: a large bias costs the variance no digits.
    scatter = np.add.reduceat((errors - np.repeat(mean, sizes, axis=0)) ** 2, starts, axis=0)
    return _ErrorMoments(mean**2, scatter / (count - 1), count)


def _over_units(per_unit: np.ndarray, multioutput: Multioutput) -> tuple[Any, Any]:
    """Mean over units and its standard error, from values of shape (units, d)."""
    if multioutput == "uniform_average":
        per_unit = per_unit.mean(axis=1)
    elif multioutput == "sum":
        per_unit = per_unit.sum(axis=1)
    elif multioutput != "raw_values":
        raise ValueError(
            f"multioutput must be 'uniform_average', 'raw_values' or 'sum', got {multioutput!r}"
        )
    units = len(per_unit)
    mean = per_unit.mean(axis=0)
    se = (
        per_unit.std(axis=0, ddof=1) / math.sqrt(units) if units > 1 else np.full_like(mean, np.nan)
    )
    return (mean, se) if multioutput == "raw_values" else (float(mean), float(se))
