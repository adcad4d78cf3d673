"""A neural network on data with repeats, scikit-learn style."""

from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin, _fit_context
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from .._fit_data import fit_data
from .._objectives import bce, emmse
from .._repeats import Repeats
from .._types import Estimator

AUTO_UNITS = 50  # from so many units on, early_stopping="auto" holds some of them out
PREDICTED_AT_ONCE = 1024


def _relu(x: Array) -> Array:
    return jnp.maximum(x, 0.0)


def _gelu(x: Array) -> Array:
    return jax.nn.gelu(x)


def _tanh(x: Array) -> Array:
    return jnp.tanh(x)


# Plain functions, which can be pickled.
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"relu": _relu, "gelu": _gelu, "tanh": _tanh}


class BCERegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """A neural network whose bias is penalised, from data with repeated measurements.

    Rows with equal y, or with equal `unit_ids`, are repeats of one unknown: a unit. Every step
    takes a batch of rows, for the mean squared error, and a batch of whole units, for the squared
    bias. X and y are brought to standard units inside; the loss is in the units of y.

    Args:
        bias_weight: λ, at least 0; 0 is ordinary regression. On few data, 1 to 3 give most of the
            gain.
        hidden: sizes of the hidden layers.
        activation: ``"relu"``, ``"gelu"`` or ``"tanh"``.
        penalty: ``"plug-in"`` or ``"unbiased"``; see `bce`. The unbiased one is refused where the
            data are too few for it.
        target_weight: weight of each component of y in the loss, shape (d,); None for equal ones.
        steps: how many updates at most.
        batch_rows: rows in a batch.
        batch_units: units in a batch.
        max_repeats: rows of one unit in a batch at most; of larger units, a random part.
        learning_rate: the peak of the schedule.
        early_stopping: hold a part of the data out, stop when the loss on it no longer falls, and
            keep the best weights; ``"auto"`` does so from 50 units on.
        validation_fraction: how much to hold out.
        validation_split: hold out whole ``"units"``, to be good at new unknowns, or ``"rows"`` of
            all units, to be good at new measurements of these.
        n_iter_no_change: how many of the 100 validations of a run may pass without a better loss.
        warm_start: go on from the weights of the last `fit`.
        random_state: decides all random numbers.
        verbose: show a progress bar.

    Attributes:
        estimator_: the network, a function of one row for JAX.
        fit_: the `Fit`, with all that is known about the training.
        n_iter_: how many updates were made.
        loss_curve_: the training loss at each of the validations.
        validation_curve_: the held-out loss at the same times.
        n_units_: how many units there are.
        n_features_in_: p.
        feature_names_in_: names of the columns of X, where it has any.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "bias_weight": [Interval(Real, 0, None, closed="left")],
        "hidden": ["array-like"],
        "activation": [StrOptions(set(ACTIVATIONS))],
        "penalty": [StrOptions({"plug-in", "unbiased"})],
        "target_weight": [None, "array-like"],
        "steps": [Interval(Integral, 1, None, closed="left")],
        "batch_rows": [Interval(Integral, 1, None, closed="left")],
        "batch_units": [Interval(Integral, 1, None, closed="left")],
        "max_repeats": [Interval(Integral, 2, None, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "early_stopping": ["boolean", StrOptions({"auto"})],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "validation_split": [StrOptions({"units", "rows"})],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "warm_start": ["boolean"],
        "random_state": ["random_state"],
        "verbose": ["boolean"],
    }

    def __init__(
        self,
        bias_weight: float = 10.0,
        *,
        hidden: Any = (64, 64),
        activation: str = "relu",
        penalty: str = "plug-in",
        target_weight: Any = None,
        steps: int = 3_000,
        batch_rows: int = 256,
        batch_units: int = 32,
        max_repeats: int = 64,
        learning_rate: float = 5e-3,
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.1,
        validation_split: str = "units",
        n_iter_no_change: int = 30,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.bias_weight = bias_weight
        self.hidden = hidden
        self.activation = activation
        self.penalty = penalty
        self.target_weight = target_weight
        self.steps = steps
        self.batch_rows = batch_rows
        self.batch_units = batch_units
        self.max_repeats = max_repeats
        self.learning_rate = learning_rate
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.validation_split = validation_split
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, unit_ids: Any = None) -> Self:
        """Fit to data.

        Args:
            X: shape (n, p).
            y: shape (n,) or (n, d), the same for all rows of a unit; whole numbers are taken as
                numbers.
            unit_ids: the unit of each row, shape (n,), integers or strings; by default rows with
                exactly equal y are one unit.
        """
        X, y = validate_data(
            self, X, y, dtype=[np.float64, np.float32], multi_output=True, y_numeric=True
        )
        if unit_ids is not None:
            check_consistent_length(X, unit_ids)
        self._y_is_vector = y.ndim == 1
        data = Repeats.from_rows(X, y, unit_ids=unit_ids)
        weight = self._weight(data.y.shape[1])
        loss = (
            bce(self.bias_weight, penalty=self.penalty, weight=weight)  # pyright: ignore
            if self.bias_weight > 0
            else emmse(weight=weight)
        )
        stops = self.early_stopping
        if stops == "auto":
            stops = len(data.y) >= AUTO_UNITS
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        network: Estimator | None = None
        if self.warm_start and hasattr(self, "estimator_"):
            network = self.estimator_
        self.fit_ = fit_data(
            data,
            network,
            loss,
            key=jr.key(seed),
            hidden=tuple(np.atleast_1d(np.asarray(self.hidden, int)).tolist()),
            activation=ACTIVATIONS[self.activation],
            validation=float(self.validation_fraction) if stops else 0.0,
            split=self.validation_split,  # pyright: ignore
            steps=int(self.steps),
            batch_rows=int(self.batch_rows),
            batch_units=int(self.batch_units),
            max_repeats=int(self.max_repeats),
            optimizer=float(self.learning_rate),
            patience=int(self.n_iter_no_change) if stops else None,
            progress=self.verbose,
        )
        self.estimator_ = self.fit_.estimator
        self.n_iter_ = self.fit_.step
        self.loss_curve_ = list(self.fit_.history.get("loss", []))
        self.validation_curve_ = list(self.fit_.history.get("held_out_loss", [])) if stops else None
        self.n_units_ = len(data.y)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Estimates of y, shape (n,) or (n, d).

        Args:
            X: shape (n, p).
        """
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        X = X.astype(np.float32)
        parts = []
        for start in range(0, len(X), PREDICTED_AT_ONCE):
            part = X[start : start + PREDICTED_AT_ONCE]
            # Always of one size: one program, and no rounding that depends on the other rows.
            padded = np.pad(part, [(0, PREDICTED_AT_ONCE - len(part)), (0, 0)])
            parts.append(np.asarray(_estimates(self.estimator_, padded))[: len(part)])
        estimates = np.concatenate(parts).astype(np.float64)
        return estimates[:, 0] if self._y_is_vector else estimates

    def _weight(self, d: int) -> Callable[[Any], Any] | None:
        if self.target_weight is None:
            return None
        weight = np.asarray(self.target_weight, np.float32)
        if weight.shape != (d,) or not (weight > 0).all():
            raise ValueError(
                f"target_weight must have one positive entry for each of the {d} components of y, "
                f"got {self.target_weight!r}"
            )
        return lambda _: jnp.asarray(weight)


@eqx.filter_jit
def _estimates(estimator: Estimator, x: Any) -> Array:
    return jax.vmap(lambda row: jnp.reshape(estimator(row), (-1,)))(x)
