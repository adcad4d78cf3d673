"""The base of the linear estimators: checks of the data, and prediction."""

import warnings
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from .._core.checks import refuse_masked
from .._data.units import group_rows
from .._linear.grouped_moments import MomentSummary
from .._linear.regressed_moments import Pairs, pairs_of, units_of_theta, without_copies
from .._serialise.registry import register
from ..exceptions import NoRepeatsWarning

UNUSUAL = 1e-100
"""Sums of squares below this, or above one over it, are of columns that are looked at."""
STEP = 256
"""Powers of two are multiples of this: the usual sizes have none, and pieces of the same data have
the same. Squares of what is left are in range."""
LEAST = 1e-290
"""Of y beside its largest column: the coefficients of smaller ones would vanish."""


@register(name="mvue.sklearn.Powers")
class Powers(NamedTuple):
    """Powers of two of the units in which columns have numbers about one, where others are used.

    Moments are of squares: those of columns that are too small or too large for that vanish or
    overflow. To multiply by a power of two changes no digit.
    """

    x: np.ndarray
    y: np.ndarray

    @classmethod
    def of(cls, X: np.ndarray, y: np.ndarray) -> "Powers | None":
        """Those of data; None if all columns can be squared as they are."""
        x_power, y_power = _powers_of(X), _powers_of(y)
        # One for all of y: its components are compared with each other.
        y_power = np.full_like(y_power, y_power[np.abs(y_power).argmax()])
        sizes = np.abs(y).max(axis=0)
        scaled = np.ldexp(sizes, -y_power)
        if ((scaled < LEAST) & (sizes > 0)).any():
            raise ValueError(
                "columns of y must be of sizes that double precision can hold together, got up to "
                f"{sizes.max():.3g} in one and {sizes.min():.3g} in another: give them in other "
                "units, or fit them one by one"
            )
        return cls(x_power, y_power) if x_power.any() or y_power.any() else None

    def scaled(self, X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Data in these units."""
        return np.ldexp(X, -self.x), np.ldexp(y, -self.y)


def same_powers(one: Powers | None, other: Powers | None) -> bool:
    """Whether moments are in the same units."""
    if one is None or other is None:
        return one is other
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def has_usual_squares(moments: MomentSummary) -> bool:
    """Whether no column can be too small or too large to be squared."""
    squares = np.diag(moments.scatter_xx), np.diag(moments.scatter_yy)
    return all(((each > UNUSUAL) & (each < 1 / UNUSUAL)).all() for each in squares)


def _powers_of(columns: np.ndarray) -> np.ndarray:
    largest = np.maximum(columns.max(axis=0), -columns.min(axis=0)).astype(np.float64)
    power = np.where(np.isfinite(largest), np.frexp(largest)[1], 0)
    return STEP * np.rint(power / STEP).astype(int)


def targets_as_rows(y: Any) -> np.ndarray:
    """Numbers of y, shape (n, d); scikit-learn looks for missing numbers before None is one."""
    y = np.asarray(y, np.float64).reshape(len(y), -1)
    if not np.isfinite(y).all():
        raise ValueError(
            f"Input y contains NaN or infinity in {(~np.isfinite(y).all(axis=1)).sum()} of "
            f"{len(y)} rows: leave rows without a known y out"
        )
    return y


class LinearRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """What all linear estimators share once they have coefficients."""

    _powers: Powers | None = None
    """The units of the moments and of what is fitted to them, where these are not those of X."""

    def _fitted(self) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients, shape (d, p), and intercept, shape (d,), in the units of the moments."""
        raise NotImplementedError

    def _mean_and_variance(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Of the columns of X in training, in the units of the moments, where known."""
        return None

    @property
    def coef_(self) -> np.ndarray:
        """Coefficients, shape (p,) or (d, p)."""
        check_is_fitted(self)
        coefficients, _ = self._fitted()
        if self._powers is not None:
            with np.errstate(over="ignore", under="ignore"):
                coefficients = np.ldexp(coefficients, self._powers.y[:, None] - self._powers.x)
        return coefficients[0] if self._y_is_vector else coefficients

    @property
    def intercept_(self) -> Any:
        """Intercept, a number or shape (d,)."""
        check_is_fitted(self)
        _, intercept = self._fitted()
        if self._powers is not None:
            intercept = np.ldexp(intercept, self._powers.y)
        return float(intercept[0]) if self._y_is_vector else intercept

    def predict(self, X: Any) -> np.ndarray:
        """Estimates of y, shape (n,) or (n, d).

        Args:
            X: shape (n, p).
        """
        check_is_fitted(self)
        refuse_masked("X", X)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        if self._powers is None:
            return X @ self.coef_.T + self.intercept_
        coefficients, intercept = self._fitted()
        small = np.ldexp(X, -self._powers.x) @ coefficients.T + intercept
        estimates = np.ldexp(small, self._powers.y)
        return estimates[:, 0] if self._y_is_vector else estimates

    def _validated_pairs(
        self, X: Any, y: Any, sample_weight: Any, unit_ids: Any, theta: Any
    ) -> "tuple[Sample, Pairs | None]":
        """A whole sample, and functions of theta where it has no repeats."""
        sample = self._validated(X, y, sample_weight, unit_ids, reset=True, least=2)
        if sample.weights is not None and (sample.weights != 1).any():
            if theta is not None:
                raise ValueError(
                    "theta is for rows without repeats that count alike, got sample_weight, too: "
                    "give one of them"
                )
            return sample, None
        if theta is not None:
            theta = _theta_rows(theta, len(sample.y))
            ids = units_of_theta(sample.y, sample.unit_ids, theta)
            sample = sample._replace(unit_ids=ids)
        kept = without_copies(sample.X, sample.y, sample.unit_ids)
        if kept is not None:
            warnings.warn(
                f"{len(sample.X) - len(kept):,} of {len(sample.X):,} rows are copies of others, "
                "with equal y and equal X, and no unit has two different rows: each is used once",
                NoRepeatsWarning,
                stacklevel=5,
            )
            ids = None if sample.unit_ids is None else sample.unit_ids[kept]
            theta = None if theta is None else theta[kept]
            sample = Sample(sample.X[kept], sample.y[kept], ids, None, np.ones(len(kept), bool))
        return sample, pairs_of(sample.X, sample.y, sample.unit_ids, theta)

    def _validated(
        self, X: Any, y: Any, sample_weight: Any, unit_ids: Any, *, reset: bool, least: int
    ) -> "Sample":
        names = _column_names(y)
        # Whether X is finite shows in its moments; a pass over it would cost a third of a fit.
        refuse_masked("X", X)
        refuse_masked("y", y)
        X, y = validate_data(
            self,
            X,
            y,
            reset=reset,
            dtype=[np.float64, np.float32],
            ensure_all_finite=False,
            ensure_min_samples=least,
            multi_output=True,
            y_numeric=True,
        )
        known = getattr(self, "target_names_", None)
        if not reset and not _same(names, known):
            raise ValueError(
                f"y must have the same column names in every piece of the data, {known}, got "
                f"{names}"
            )
        if reset:
            self._y_is_vector = y.ndim == 1
            if names is not None:
                self.target_names_ = names
            elif hasattr(self, "target_names_"):
                del self.target_names_
        y = targets_as_rows(y)
        if unit_ids is not None:
            unit_ids = np.asarray(unit_ids)
            check_consistent_length(X, unit_ids)
        if sample_weight is None:
            return Sample(X, y, unit_ids, None, np.ones(len(y), bool))
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
        if (weights < 0).any():
            raise ValueError(
                f"sample_weight must not be negative, got {weights.min():g}: leave rows out by a "
                "weight of 0"
            )
        present = weights > 0
        if not present.all():  # a weight of zero is the same as no row
            X, y, weights = X[present], y[present], weights[present]
            unit_ids = None if unit_ids is None else unit_ids[present]
        if not len(y):
            raise ValueError("sample_weight must have a positive entry, got zeros only")
        return Sample(X, y, unit_ids, weights, present)


class Sample(NamedTuple):
    """Validated rows of positive weight."""

    X: np.ndarray
    y: np.ndarray
    unit_ids: np.ndarray | None
    weights: np.ndarray | None
    present: np.ndarray  # which of the rows given these are

    def split(self, splitter: Any) -> list[tuple[np.ndarray, np.ndarray]]:
        """Train and test rows by a splitter, which sees all rows given and units as groups."""
        groups = np.full(self.present.size, -1)
        groups[self.present] = group_rows(self.y, self.unit_ids).unit_of_row()
        place = np.cumsum(self.present) - 1
        return [
            (place[train[self.present[train]]], place[test[self.present[test]]])
            for train, test in splitter.split(np.zeros((groups.size, 1)), groups, groups)
        ]


def _theta_rows(theta: Any, rows: int) -> np.ndarray:
    """The numbers of theta, (rows, k)."""
    refuse_masked("theta", theta)
    found = np.asarray(theta)
    if found.dtype.kind not in "biuf":
        raise TypeError(f"theta must hold real numbers, got an array of {found.dtype}")
    found = (found[:, None] if found.ndim == 1 else found).astype(np.float64)
    if found.ndim != 2 or len(found) != rows or not np.isfinite(found).all():
        raise ValueError(
            f"theta must be finite and have the shape ({rows},) or ({rows}, k), one entry per row, "
            f"got the shape {np.shape(theta)} and {np.sum(~np.isfinite(found))} entries that are "
            "NaN or infinite"
        )
    return found


def _column_names(y: Any) -> np.ndarray | None:
    if hasattr(y, "columns"):
        return np.asarray(y.columns, dtype=object)
    name = getattr(y, "name", None)
    return np.asarray([name], dtype=object) if isinstance(name, str) else None


def _same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    return a is b is None or (a is not None and b is not None and list(a) == list(b))
