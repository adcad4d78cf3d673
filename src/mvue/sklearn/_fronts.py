"""Pipelines in model files: transformers of scikit-learn around a regressor of mvue."""

import warnings
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from sklearn.base import BaseEstimator
from sklearn.compose import TransformedTargetRegressor
from sklearn.dummy import DummyRegressor
from sklearn.pipeline import Pipeline

from .._core.types import Estimator
from .._linear.refit import LinearReadout
from .._models.fronts import Seen
from .._serialise.registry import entry_of, register, register_built
from ..nn._measurements import flatten
from ._base import LinearRegressor
from ._network import BCERegressor
from ._transformers import KNOWN, constant, known

TARGET_FITTED = ("regressor_", "transformer_", "feature_names_in_")


class FrontParts(NamedTuple):
    """A front, taken apart."""

    before: list[Any]
    """Transformers of X, in the order in which they act."""
    regressor: Any
    after: list[Any]
    """Transformers of y, whose inverses act on estimates in this order."""

    @property
    def columns(self) -> int:
        """How many columns X has."""
        return (self.before[0] if self.before else self.regressor).n_features_in_


def parts_of(front: Any) -> FrontParts:
    """Take an estimator of scikit-learn apart."""
    if isinstance(front, Pipeline):
        before = [part for _, step in front.steps[:-1] for part in _flat(step)]
        inner = parts_of(front.steps[-1][1])
        return inner._replace(before=[*before, *inner.before])
    if isinstance(front, TransformedTargetRegressor):
        inner = parts_of(front.regressor_)
        return inner._replace(after=[*inner.after, front.transformer_])
    return FrontParts([], front, [])


def _flat(step: Any) -> list[Any]:
    if step is None or step == "passthrough":
        return []
    if isinstance(step, Pipeline):
        return [part for _, inner in step.steps for part in _flat(inner)]
    return [step]


def check_savable(front: Any) -> None:
    """Refuse an estimator with a part that files cannot hold, by its name."""
    if isinstance(front, Pipeline):
        for setting in ("memory", "transform_input"):
            if getattr(front, setting, None) is not None:
                raise TypeError(
                    f"cannot save a Pipeline with {setting}, which only fitting uses: call "
                    f"set_params({setting}=None) first"
                )
        for name, step in front.steps:
            _check_part(f"step {name!r}", step)
    elif isinstance(front, TransformedTargetRegressor):
        _check_part("the regressor", front.regressor_)
        about = known(front.transformer_)
        if about is None or not about.is_affine:
            scalers = ", ".join(cls.__name__ for cls, each in KNOWN.items() if each.is_affine)
            raise TypeError(
                "cannot save a TransformedTargetRegressor whose transformer is a "
                f"{type(front.transformer_).__name__}: it may be one of {scalers}"
            )


def _check_part(place: str, part: Any) -> None:
    if part is None or part == "passthrough":
        return
    if isinstance(part, (Pipeline, TransformedTargetRegressor)):
        check_savable(part)
    elif entry_of(type(part)) is None:
        names = ", ".join(cls.__name__ for cls in KNOWN)
        raise TypeError(
            f"cannot save {place}, a {type(part).__name__}: files can hold {names} in front of an "
            "estimator of mvue.sklearn. Transform the data before the pipeline instead, or let the "
            "class be known with mvue.register(..., fields=...)"
        )
    elif (about := known(part)) is not None and hasattr(part, "n_features_in_"):
        try:
            about.columns(part)
        except ValueError as error:
            raise TypeError(f"cannot save {place}: {error}") from None


def check_front(front: Any) -> None:
    """Refuse what was loaded if its parts do not fit together."""
    parts = parts_of(front)
    columns = parts.columns
    for part in parts.before:
        if part.n_features_in_ != columns:
            raise ValueError(f"a {type(part).__name__} gets {columns} columns")
        about = known(part)
        columns = about.columns(part) if about else part.transform(np.zeros((1, columns))).shape[1]
    if parts.regressor.n_features_in_ != columns:
        raise ValueError(f"the regressor gets {columns} columns")


def without_form(front: Any) -> list[Any]:
    """Transformers of a user, registered, of which only Python knows what they do."""
    parts = parts_of(front)
    return [part for part in (*parts.before, *parts.after) if known(part) is None]


def in_jax(front: Any) -> Estimator:
    """An estimator of scikit-learn as a function of one row in JAX."""
    parts = parts_of(front)
    for part in without_form(front):
        raise TypeError(
            f"a {type(part).__name__} has no form in JAX: use predict, which takes any number of "
            "measurements"
        )
    rows = [KNOWN[type(part)].in_jax(part) for part in parts.before]
    estimate = _regressor_in_jax(parts.regressor)
    units = [_shift_and_scale(part) for part in parts.after]
    if not rows and not units:
        return estimate

    def function(x: Array) -> Array:
        for row in rows:
            x = row(x)
        y = jnp.reshape(estimate(x), (-1,))
        for shift, scale in units:
            y = shift + scale * y
        return y

    return function


def _regressor_in_jax(regressor: Any) -> Estimator:
    if isinstance(regressor, BCERegressor):
        return regressor.estimator_
    if not isinstance(regressor, LinearRegressor):
        raise TypeError(f"a {type(regressor).__name__} has no form in JAX: use predict")
    weight = jnp.atleast_2d(constant(regressor.coef_))
    return LinearReadout(flatten, weight, jnp.atleast_1d(constant(regressor.intercept_)))


def _shift_and_scale(transformer: Any) -> tuple[Array, Array]:
    """What its inverse does to a row."""
    d = transformer.n_features_in_
    shift, end = transformer.inverse_transform(np.stack([np.zeros(d), np.ones(d)]))
    return constant(shift), constant(end - shift)


def natural_units(front: Any, y: np.ndarray | None) -> np.ndarray | None:
    """Rows of y as the regressor has them, in the units of the whole."""
    for part in parts_of(front).after if y is not None else ():
        y = part.inverse_transform(y)
    return y


def seen_by_regressor(front: Any, x: np.ndarray) -> Seen:
    """What the transformers of a front make of rows."""
    parts = parts_of(front)
    usable = np.ones(len(x), bool)
    far = np.asarray(np.isnan(x).all(axis=1))  # nothing was measured, whatever is put in its place
    for part in parts.before if len(x) else ():
        takes_nan = part.__sklearn_tags__().input_tags.allow_nan
        usable &= ~(np.isinf(x) if takes_nan else ~np.isfinite(x)).any(axis=1)
        x = np.where(usable[:, None], x, 0.0)
        about = known(part)
        usual = None if about is None else about.trained_on(part)
        if usual is not None:
            far |= usual.outside(np.where(np.isnan(x), usual.usual.centre, x))
        x = np.asarray(part.transform(x))
    return Seen(x, usable & np.isfinite(x).all(axis=1), far)


def rows_like(front: Any, seen: np.ndarray) -> np.ndarray:
    """Rows that the regressor would see as those given, or nearly."""
    rng = np.random.default_rng(0)
    for part in reversed(parts_of(front).before):
        about = known(part)
        back = None if about is None else about.undo(part, seen)
        seen = rng.normal(size=(len(seen), part.n_features_in_)) if back is None else back
    return seen


def _check_pipeline(pipeline: Pipeline) -> None:
    steps = getattr(pipeline, "steps", None)
    if pipeline.memory is not None or type(pipeline.verbose) is not bool:
        raise ValueError("a pipeline must have no memory")
    if pipeline.transform_input is not None or not isinstance(steps, list) or not steps:
        raise ValueError("a pipeline must have steps")
    for step in steps:
        if not (isinstance(step, tuple) and len(step) == 2 and isinstance(step[0], str)):
            raise ValueError("a step must be a name and an estimator")
        _check_estimator(step[1], may_pass=step is not steps[-1])


def _taken_target(front: TransformedTargetRegressor) -> dict[str, Any]:
    """Parameters, public fitted attributes, and as how many axes y is estimated."""
    names = [name for name in TARGET_FITTED if name in vars(front)]
    fields = {**front.get_params(deep=False), **{name: getattr(front, name) for name in names}}
    if "regressor_" not in fields:
        return fields
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its columns may have names
        estimates = front.predict(np.zeros((1, parts_of(front).columns)))
    return {**fields, "axes": np.ndim(estimates)}


def _built_target(fields: dict[str, Any]) -> TransformedTargetRegressor:
    axes = fields.pop("axes", None)
    fitted = {name: fields.pop(name) for name in TARGET_FITTED if name in fields}
    front = TransformedTargetRegressor(**fields)
    if front.func is not None or front.inverse_func is not None:
        raise ValueError("a function of y cannot be saved")
    if type(front.check_inverse) is not bool:
        raise ValueError("check_inverse must be true or false")
    for part in (front.regressor, front.transformer):
        _check_estimator(part, may_pass=False)
    if not fitted:
        return front
    if axes not in (1, 2):
        raise ValueError("y must have one or two axes")
    about = known(fitted.get("transformer_"))
    if about is None or not about.is_affine:
        raise ValueError("y must be shifted and scaled only")
    _check_estimator(fitted.get("regressor_"), may_pass=False)
    # How many axes y has, it keeps in private: a stand-in has as many.
    front = TransformedTargetRegressor(DummyRegressor()).fit(
        np.zeros((2, 1)), np.zeros((2, 1)[:axes])
    )
    front.set_params(**fields)
    for name, value in fitted.items():
        setattr(front, name, value)
    return front


def _check_estimator(value: Any, *, may_pass: bool) -> None:
    if not (may_pass and value in (None, "passthrough")) and not isinstance(value, BaseEstimator):
        raise ValueError(f"a {type(value).__name__} is not an estimator of scikit-learn")


register(
    Pipeline,
    name="sklearn.Pipeline",
    fields=("steps", "transform_input", "memory", "verbose"),
    check=_check_pipeline,
)
register_built(
    TransformedTargetRegressor,
    name="sklearn.TransformedTargetRegressor",
    fields=(
        *("regressor", "transformer", "func", "inverse_func", "check_inverse"),
        *(*TARGET_FITTED, "axes"),
    ),
    taken=_taken_target,
    built=_built_target,
    renamed={"_training_dim": "axes"},
)
