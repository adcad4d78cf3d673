"""Linear bias constrained estimators as scikit-learn estimators."""

import inspect
from collections.abc import Iterable
from functools import reduce
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import _fit_context
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from .._data.simulated import SimulatedData
from .._linear.grouped_moments import GroupedMoments, MomentSummary
from .._linear.spectrum import LinearFit, fit_moments
from .._runtime.processes import failing_together, from_each, own_share
from .._serialise.registry import register
from ._base import LinearRegressor, Powers, Sample, has_usual_squares, same_powers

SHARED_CONSTRAINTS: dict[str, list[Any]] = {
    "fit_intercept": ["boolean"],
    "regularization": [Interval(Real, 0, None, closed="left")],
    "resolution": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="both")],
}


class LinearBCE(LinearRegressor):
    """The linear estimator of least mean squared error + λ · squared bias, from data with repeats.

    λ = 0 is ordinary least squares of y on x, the LMMSE estimator of the sample, whose estimates
    are drawn towards the mean of y. As λ grows the estimates become unbiased for every y. With S
    the second moments of x, W the pooled covariance of x within units and C the moments of y with
    x, the coefficients are C (S − λ/(λ+1) W)⁻¹, about the means with an intercept. W has the
    divisor rows − units, so the correction is right for any number of repeats; it takes the noise
    to be the same for all units, or the number of repeats to be unrelated to it.

    Where no unit was measured twice (fewer than a tenth of the rows share their y), `fit` takes W
    from a regression: x less what smooth functions of `theta` predict of it from the other rows.
    A `NoRepeatsWarning` says so where `theta` is not given. Pieces cannot be regressed: from
    `partial_fit`, `fit_pieces` and `merge`, data without repeats give least squares, with a
    warning.

    The fit is one pass over the data in float64, and predictions do not depend on the units of x.
    Directions of x that carry no signal that the sample can tell from zero are not given a bias
    weight above 10, with an `UnresolvedSignalWarning` that counts them; a larger λ counts as 100/λ
    there. Sparse X is refused.

    Args:
        bias_weight: λ from 0 to infinity.
        fit_intercept: estimate an intercept.
        regularization: ridge; this multiple of its own variance is added to each feature's.
        resolution: the share of signal in a direction of x below which it counts as none;
            ``"auto"`` is what noise alone may show in a sample of this size.
        max_open_units: how many units `partial_fit` and `merge` keep at hand because more of
            their rows may come; by default as many as fit into 4 MiB, at least. Of the others
            eight bytes remain, and rows that come too late are an error.

    Attributes:
        coef_: shape (p,) or (d, p).
        intercept_: a number or shape (d,).
        noise_shares_: the noise share of each uncorrelated direction of x, ascending.
        n_units_: number of units seen.
        n_functions_: of theta, which noise was told by where no unit was measured twice; else 0.
        n_features_in_: p.
        feature_names_in_: names of the columns of X, where it has any.
        target_names_: names of the columns of y, where it has any.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "bias_weight": [Interval(Real, 0, None, closed="both")],
        **SHARED_CONSTRAINTS,
        "max_open_units": [None, Interval(Integral, 1, None, closed="left")],
    }

    _regressed: MomentSummary | None = None
    """Moments of data without repeats, regressed on functions of theta."""

    def __init__(
        self,
        bias_weight: float = 10.0,
        *,
        fit_intercept: bool = True,
        regularization: float = 0.0,
        resolution: float | str = "auto",
        max_open_units: int | None = None,
    ) -> None:
        self.bias_weight = bias_weight
        self.fit_intercept = fit_intercept
        self.regularization = regularization
        self.resolution = resolution
        self.max_open_units = max_open_units

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        unit_ids: Any = None,
        theta: Any = None,
    ) -> Self:
        """Fit to data.

        Args:
            X: shape (n, p).
            y: shape (n,) or (n, d), the same for all rows of a unit.
            sample_weight: how often each row counts, shape (n,). A weight of 2 is the same as the
                row twice, so the scale matters: weights that do not count should have a mean of
                1.
            unit_ids: the unit of each row, shape (n,), integers or strings; by default rows with
                exactly equal y are one unit.
            theta: all that each row depends on, nuisance parameters included, shape (n,) or
                (n, k); by default y. Rows of one unit share it.
        """
        sample, pairs = self._validated_pairs(X, y, sample_weight, unit_ids, theta)
        self._begin(sample)
        self._regressed = None
        if pairs is not None:
            X, y = sample.X, sample.y
            if self._powers is not None:
                X, y = self._powers.scaled(X, y)
            self._regressed = pairs.moments(X, y, slice(None))
        self._solve(stacklevel=5)
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self, X: Any, y: Any, sample_weight: Any = None, unit_ids: Any = None
    ) -> "LinearBCE":
        """Add more rows; after all of them the estimator is the same as after one `fit`.

        Memory does not grow with the number of rows. A unit may be spread over several calls, as
        long as no more than `max_open_units` others come in between. Coefficients are computed
        when they are asked for.

        Args:
            X: as in `fit`.
            y: as in `fit`.
            sample_weight: as in `fit`.
            unit_ids: as in `fit`; with every call or with none.
        """
        first = not hasattr(self, "moments_")
        sample = self._validated(X, y, sample_weight, unit_ids, reset=first, least=1)
        if first:
            self._begin(sample)
        else:
            self._accumulate(self.moments_, sample)
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def fit_pieces(self, pieces: SimulatedData | Iterable[tuple[Any, ...]]) -> Self:
        """Fit to data that come in pieces and need not fit into memory.

        The same as `partial_fit` on each of them. After `mvue.distributed.initialize`, the
        processes of the job take the pieces in turn, and all of them end with the estimator of all
        pieces: each must call this with the same pieces.

        Args:
            pieces: simulated data, whose shards are the pieces; or tuples of X and y, or of X, y
                and unit_ids, as in `fit`. Each process draws all pieces of a generator, and uses
                its own.
        """
        if isinstance(pieces, SimulatedData):
            mine = pieces.pieces(own_share(range(pieces.shard_count)))
        else:
            mine = own_share(pieces)
        share = LinearBCE(**self.get_params())
        with failing_together():
            for piece in mine:
                if not isinstance(piece, tuple) or len(piece) not in (2, 3):
                    raise TypeError(
                        "pieces must be tuples (X, y) or (X, y, unit_ids), got "
                        f"{type(piece).__name__}"
                    )
                share.partial_fit(piece[0], piece[1], unit_ids=(*piece, None)[2])
        merged = reduce(_joined, from_each(share))
        if not hasattr(merged, "moments_"):
            raise ValueError("pieces must hold at least one piece of data, got none")
        for name in FITTED:
            vars(self).pop(name, None)
        vars(self).update(vars(merged))
        self._solve(stacklevel=5)
        return self

    def merge(self, other: "LinearBCE") -> "LinearBCE":
        """The estimator fitted to the data of both; units that both have seen become one.

        Args:
            other: fitted to other rows with the same columns.
        """
        if not isinstance(other, LinearBCE):
            raise TypeError(f"other must be a LinearBCE, got {type(other).__name__}")
        check_is_fitted(self)
        check_is_fitted(other)
        ours, theirs = self.get_params(), other.get_params()
        for name in sorted(set(ours) - {"max_open_units"}):  # that decides no number
            if ours[name] != theirs[name]:
                raise ValueError(
                    f"estimators must have the same {name} to be merged, got {ours[name]!r} and "
                    f"{theirs[name]!r}: give both the same with set_params"
                )
        for attribute, what in (("feature_names_in_", "feature"), ("target_names_", "target")):
            names = [list(getattr(e, attribute, [])) for e in (self, other)]
            if names[0] != names[1]:
                raise ValueError(
                    f"estimators must have the same {what} names to be merged, got {names[0]} and "
                    f"{names[1]}"
                )
        if not same_powers(self._powers, other._powers):
            raise ValueError(
                "estimators must have seen x and y of about the same sizes to be merged, got some "
                "that are too large or too small for the units of the other"
            )
        merged = LinearBCE(**self.get_params())
        for name in FITTED:
            if hasattr(self, name):
                setattr(merged, name, getattr(self, name))
        merged.moments_ = self.moments_.merge(other.moments_)
        merged._regressed = None
        merged._fit_record = None
        return merged

    @property
    def noise_shares_(self) -> np.ndarray:
        """Noise share of each uncorrelated direction of x, ascending."""
        return self._solve(stacklevel=4).spectrum.noise_share

    @property
    def n_units_(self) -> int:
        """Number of units seen."""
        check_is_fitted(self)
        return self.moments_.summary().units

    @property
    def n_functions_(self) -> int:
        """Functions of theta by which noise was told, or 0."""
        check_is_fitted(self)
        return 0 if self._regressed is None else self._regressed.functions

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "moments_")

    def _begin(self, sample: Sample) -> None:
        """The first rows, which decide in which units moments are."""
        self._powers = None
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                self._accumulate(GroupedMoments(self.max_open_units), sample)
                usual = has_usual_squares(self.moments_.summary())
        except ValueError:  # perhaps because it is too large to be squared
            if (powers := Powers.of(sample.X, sample.y)) is None:
                raise
        else:  # only if squares are unusual are the numbers looked at, which takes time
            powers = None if usual else Powers.of(sample.X, sample.y)
        if powers is not None:
            self._powers = powers
            self._accumulate(GroupedMoments(self.max_open_units), sample)

    def _accumulate(self, moments: GroupedMoments, sample: Sample) -> None:
        self._regressed = None
        X, y = sample.X, sample.y
        if self._powers is not None:
            X, y = self._powers.scaled(X, y)
        moments.add(X, y, unit_ids=sample.unit_ids, weights=sample.weights)
        self.moments_ = moments
        self._fit_record: tuple[Any, LinearFit] | None = None

    def _mean_and_variance(self) -> tuple[np.ndarray, np.ndarray] | None:
        if not hasattr(self, "moments_"):
            return None
        moments = self.moments_.summary()
        return moments.mean_x, np.diag(moments.scatter_xx) / moments.weight

    def _fitted(self) -> tuple[np.ndarray, np.ndarray]:
        solved = self._solve(stacklevel=5)
        return solved.coefficients, solved.intercept

    def _solve(self, stacklevel: int) -> LinearFit:
        check_is_fitted(self)
        # Parameters may be set at any time: the solution is kept for those it was made with.
        asked = (self.bias_weight, self.fit_intercept, self.regularization, self.resolution)
        record = self._fit_record
        if record is None or record[0] != asked:
            self._validate_params()
            solved = fit_moments(
                self.moments_.summary() if self._regressed is None else self._regressed,
                float(self.bias_weight),
                fit_intercept=self.fit_intercept,
                ridge=self.regularization,
                resolution=resolution_of(self.resolution),
                spectrum=record[1].spectrum if record and record[0][1:] == asked[1:] else None,
                stacklevel=stacklevel,
            )
            record = self._fit_record = (asked, solved)
        return record[1]


FITTED = ("n_features_in_", "feature_names_in_", "target_names_", "_y_is_vector", "_powers")
register(
    LinearBCE,
    fields=(
        *inspect.signature(LinearBCE).parameters,
        *FITTED,
        "moments_",
        "_regressed",
        "_fit_record",
    ),
)


def _joined(one: LinearBCE, other: LinearBCE) -> LinearBCE:
    """Both together, where one of them may have seen nothing."""
    if not hasattr(other, "moments_"):
        return one
    return one.merge(other) if hasattr(one, "moments_") else other


def resolution_of(value: float | str) -> float | None:
    return None if isinstance(value, str) else float(value)
