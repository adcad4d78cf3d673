"""A neural network on data with repeats, scikit-learn style."""

import inspect
import warnings
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin, _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from .._core.checks import refuse_masked
from .._core.types import Estimator, Key
from .._data.repeats import Repeats
from .._serialise.registry import register
from .._training.fit_data import fit_data, keys_of
from .._training.result import Outcome
from ..losses._objectives import Loss, bce, emmse
from ..nn._frozen import Affine, Frozen
from ..nn._layers import perceptron
from ..nn._standardize import DOUBLE, mean_and_deviation
from ._base import targets_as_rows

AUTO_UNITS = 50  # from so many units on, early_stopping="auto" holds some of them out
VALIDATIONS = 100
CURVE_POINTS = 25  # where nothing is decided by them


@register
def _relu(x: Array) -> Array:
    return jnp.maximum(x, 0.0)


@register
def _gelu(x: Array) -> Array:
    return jax.nn.gelu(x)


@register
def _tanh(x: Array) -> Array:
    return jnp.tanh(x)


# Plain functions, which can be pickled.
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"relu": _relu, "gelu": _gelu, "tanh": _tanh}


@register
class Rescaled(Frozen):
    """A network in standard units, as a function in those of the data."""

    network: Estimator
    x_units: "Units"
    y_units: "Units"

    def __call__(self, x: Array) -> Array:
        """The estimate from one row."""
        z = jnp.reshape(self.network(self.x_units.standard(x)), (-1,))
        return self.y_units.natural(z)


@register
class Units(NamedTuple):
    """Shift and scale of columns."""

    shift: Any
    scale: Any

    @classmethod
    def of(cls, values: np.ndarray, *, common: bool = False) -> "Units":
        """Those in which columns have mean 0 and standard deviation 1, each or on average."""
        shift, scale = mean_and_deviation(values, DOUBLE)
        if common:
            largest = scale.max() or 1.0
            scale = np.full_like(scale, largest * np.sqrt(np.mean((scale / largest) ** 2)))
        return cls(shift, np.where(scale == 0, 1.0, scale))

    def standard(self, values: Any) -> Any:
        """To standard units."""
        return (values - self.shift) / self.scale

    def natural(self, values: Any) -> Any:
        """From standard units."""
        return values * self.scale + self.shift

    def single(self) -> "Units":
        """In single precision, for JAX."""
        with np.errstate(over="ignore"):
            return Units(*(jnp.asarray(np.asarray(part).astype(np.float32)) for part in self))


class BCERegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """A neural network whose bias is penalised, from data with repeated measurements.

    Rows with equal y, or with equal `unit_ids`, are repeats of one parameter: a unit. Every step
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
        repeats: rows of one unit in a batch at most; of larger units, a random part.
        learning_rate: the peak of the schedule.
        early_stopping: hold a part of the data out, stop when the loss on it no longer falls, and
            keep the best weights; ``"auto"`` does so from 50 units on.
        validation_fraction: how much to hold out.
        validation_split: hold out whole ``"units"``, to be good at new parameters, or ``"rows"`` of
            all units, to be good at new measurements of these.
        n_iter_no_change: how many of the 100 validations of a run may pass without a better loss.
        warm_start: go on from the weights of the last `fit`.
        random_state: decides all random numbers.
        verbose: show a progress bar.

    Attributes:
        estimator_: the network, a function of one row for JAX.
        fit_: the `Fit`, with all that is known about the training, in standard units of X and y.
        n_iter_: how many updates were made.
        loss_curve_: the training loss at each of the validations.
        validation_curve_: the held-out loss at the same times.
        n_units_: how many units there are.
        n_features_in_: p.
        feature_names_in_: names of the columns of X, where it has any.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "bias_weight": [Interval(Real, 0, None, closed="left")],
        "hidden": ["array-like", Interval(Integral, 1, None, closed="left")],
        "activation": [StrOptions(set(ACTIVATIONS))],
        "penalty": [StrOptions({"plug-in", "unbiased"})],
        "target_weight": [None, "array-like"],
        "steps": [Interval(Integral, 1, None, closed="left")],
        "batch_rows": [Interval(Integral, 1, None, closed="left")],
        "batch_units": [Interval(Integral, 1, None, closed="left")],
        "repeats": [Interval(Integral, 2, None, closed="left")],
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
        repeats: int = 64,
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
        self.repeats = repeats
        self.learning_rate = learning_rate
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.validation_split = validation_split
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, unit_ids: Any = None, theta: Any = None) -> Self:
        """Fit to data.

        Args:
            X: shape (n, p).
            y: shape (n,) or (n, d), the same for all rows of a unit; whole numbers are taken as
                numbers.
            unit_ids: the unit of each row, shape (n,), integers or strings; by default rows with
                exactly equal y are one unit.
            theta: all that each row depends on, nuisance parameters included, shape (n,) or
                (n, k); by default y. Where no unit was measured twice, the bias is looked for as a
                smooth function of it.
        """
        before = getattr(self, "_units", None) if self.warm_start else None
        refuse_masked("X", X)
        refuse_masked("y", y)
        X, y = validate_data(
            self, X, y, dtype=[np.float64, np.float32], multi_output=True, y_numeric=True
        )
        if unit_ids is not None:
            check_consistent_length(X, unit_ids)
        self._y_is_vector = y.ndim == 1
        X, y = X.astype(np.float64), targets_as_rows(y)
        network: Estimator | None = None
        if before is not None:
            shapes = [np.shape(units.shift) for units in before]
            if shapes != [X.shape[1:], y.shape[1:]]:
                raise ValueError(
                    f"warm_start=True goes on with a network for {shapes[0][0]} columns of X and "
                    f"{shapes[1][0]} of y, got {X.shape[1]} and {y.shape[1]}: use a new estimator"
                )
            network = self.fit_.estimator
        # One scale for all of y: the loss stays that of y in its own units.
        self._units = before or (Units.of(X), Units.of(y, common=True))
        x_units, y_units = self._units
        standard_y = y_units.standard(y)
        rows = x_units.standard(X)
        data = Repeats.from_rows(rows, standard_y, theta=theta, unit_ids=unit_ids)
        weight = self._target_weight(y.shape[1])
        stops = self.early_stopping
        if stops == "auto":
            stops = len(data.y) >= AUTO_UNITS
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        key = jr.key(seed)
        if network is None:
            hidden = np.atleast_1d(np.asarray(self.hidden, int)).tolist()
            activation = ACTIVATIONS[self.activation]
            network = _network(X.shape[1], hidden, standard_y, activation, key=keys_of(key)[0])
        self.fit_ = fit_data(
            data,
            network,
            _loss(float(self.bias_weight), self.penalty, weight),
            key=key,
            validation=float(self.validation_fraction) if stops else 0.0,
            split=self.validation_split,  # pyright: ignore
            steps=int(self.steps),
            batch_rows=int(self.batch_rows),
            batch_units=int(self.batch_units),
            repeats=int(self.repeats),
            optimizer=float(self.learning_rate),
            validations=VALIDATIONS if stops else CURVE_POINTS,
            patience=int(self.n_iter_no_change) if stops else None,
            progress=self.verbose,
        )
        with np.errstate(over="ignore", under="ignore"):
            history, unit = self.fit_.history, np.square(y_units.scale[0])
        self.n_iter_ = self.fit_.step
        self.loss_curve_ = [unit * value for value in history.get("loss", [])]
        held_out = [unit * value for value in history.get("held_out_loss", [])]
        self.validation_curve_ = held_out if stops else None
        self.n_units_ = len(data.y)
        if self.fit_.outcome is Outcome.DIVERGED:
            warnings.warn(
                f"training diverged at step {self.n_iter_ + 1}: the best weights before are kept. "
                "Try a smaller learning_rate",
                ConvergenceWarning,
                stacklevel=4,
            )
        if self.fit_.outcome is Outcome.INTERRUPTED:
            raise KeyboardInterrupt  # so that a search ends, too; the estimator is usable
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Estimates of y, shape (n,) or (n, d).

        Args:
            X: shape (n, p).
        """
        check_is_fitted(self)
        refuse_masked("X", X)
        X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        x_units, y_units = self._units
        rows = x_units.standard(X.astype(np.float64)).astype(np.float32)
        estimates = y_units.natural(self.fit_.predict(rows, warn=False).astype(np.float64))
        return estimates[:, 0] if self._y_is_vector else estimates

    @property
    def estimator_(self) -> Rescaled:
        """The network, a function of one row for JAX."""
        check_is_fitted(self)
        return Rescaled(self.fit_.estimator, *(units.single() for units in self._units))

    def _target_weight(self, d: int) -> np.ndarray | None:
        if self.target_weight is None:
            return None
        weight = np.asarray(self.target_weight, np.float64)
        if weight.shape != (d,) or not (weight > 0).all():
            raise ValueError(
                f"target_weight must have one positive entry for each of the {d} components of y, "
                f"got {self.target_weight!r}"
            )
        return weight


register(
    BCERegressor,
    fields=(
        *inspect.signature(BCERegressor).parameters,
        *("fit_", "n_iter_", "loss_curve_", "validation_curve_", "n_units_", "n_features_in_"),
        *("feature_names_in_", "_units", "_y_is_vector"),
    ),
    renamed={"max_repeats": "repeats"},
)


def _network(
    columns: int,
    hidden: list[int],
    y: np.ndarray,
    activation: Callable[[Array], Array],
    *,
    key: Key,
) -> eqx.nn.Sequential:
    """A perceptron of standard units, whose outputs have the scales of the components of y."""
    layers = perceptron(columns, hidden, y.shape[1], activation, key=key).layers
    scale = jnp.asarray(Units.of(y).scale, jnp.float32)
    return eqx.nn.Sequential([*layers, eqx.nn.Lambda(Affine(jnp.zeros_like(scale), scale))])


def _loss(bias_weight: float, penalty: Any, weight: np.ndarray | None) -> Loss:
    of_y = None if weight is None else lambda _: jnp.asarray(weight, jnp.float32)
    if bias_weight == 0:
        return emmse(weight=of_y)
    return bce(bias_weight, penalty=penalty, weight=of_y)
