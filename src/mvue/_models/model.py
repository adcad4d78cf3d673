"""A saved estimator in use: checks of what goes in, and batches of any size."""

import dataclasses
import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._core.checks import describe_shapes
from .._core.types import Estimator, Measurement
from .._training.input_range import TrainedOn, numbers_of
from ..exceptions import OutsideTrainingWarning

AT_ONCE = 1024
AT_ONCE_NUMBERS = 2**22


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """An estimator with what its file says about it; what `load` returns.

    A function of one measurement like the estimator itself, so that `assess`, `jax.vmap` and
    `refit_last_layer` take it, and more: `predict` takes any number of measurements, refuses those
    of another shape, and warns of those that are unlike the ones of training.
    """

    estimator: Any
    """What was saved: a function of one measurement, or an estimator of scikit-learn."""
    trained_on: TrainedOn | None
    """Names of the unknowns, shape of a measurement, and what training covered, where known."""
    training: dict[str, Any]
    """How it was trained, where it was saved from a `Fit`."""
    assessment: dict[str, Any] | None
    """The summary of an assessment, if one was given to `save`."""
    versions: dict[str, str]
    """Of what it was made with."""

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the unknowns, where known."""
        return None if self.trained_on is None else self.trained_on.names

    @property
    def kind(self) -> str:
        """What the estimator is, in a few words."""
        if not is_front(self.estimator):
            return type(self.estimator).__name__
        from ..sklearn._fronts import parts_of

        parts = parts_of(self.estimator)
        chain = [*parts.before, parts.regressor, *parts.after]
        return " → ".join(type(part).__name__ for part in chain)

    @property
    def x(self) -> Any:
        """Shapes and dtypes of one measurement, where known."""
        return None if self.trained_on is None else self.trained_on.x

    def __call__(self, x: Measurement) -> Array:
        """The estimate from one measurement, in JAX."""
        return jnp.reshape(self.function(jax.tree.map(jnp.asarray, x)), (-1,))

    def predict(self, x: Measurement, *, warn: bool = True) -> np.ndarray:
        """Estimates from many measurements, shape (n, d).

        Those of an estimator of scikit-learn have the shape that its own `predict` gives them.

        Args:
            x: measurements with a leading axis.
            warn: look for measurements that are far outside of those of training.
        """
        x = self._checked(x)
        if warn:
            outside = int(self.outside(x).sum())
            if outside:
                count = len(jax.tree.leaves(x)[0])
                warnings.warn(
                    f"{outside:,} of {count:,} measurements are far outside of those that the "
                    "estimator was trained on, or not finite: do not rely on its estimates there",
                    OutsideTrainingWarning,
                    stacklevel=2,
                )
        if is_front(self.estimator):
            return self._predict_rows(x)
        leaves = jax.tree.leaves(x)
        count = len(leaves[0])
        size = sum(int(np.prod(leaf.shape[1:])) for leaf in leaves)
        at_once = int(np.clip(AT_ONCE_NUMBERS // max(size, 1), 1, AT_ONCE))
        parts = []
        for start in range(0, max(count, 1), at_once):
            # Always of one size: one program, and no rounding that depends on the other rows.
            part = jax.tree.map(lambda leaf, s=start: _padded(leaf[s : s + at_once], at_once), x)
            parts.append(np.asarray(_estimates(self.function, part)))
        return np.concatenate(parts)[:count]

    def _predict_rows(self, x: Any) -> np.ndarray:
        """The estimates of an estimator of scikit-learn; NaN for rows that it cannot take."""
        usable = self._seen(x).usable
        with _unnamed_columns():
            if usable.all() and len(usable):
                return self.estimator.predict(x)
            some = self.estimator.predict(x[usable] if usable.any() else np.zeros((1, x.shape[1])))
        estimates = np.full((len(usable), *some.shape[1:]), np.nan, some.dtype)
        estimates[usable] = some[: usable.sum()]
        return estimates

    def _seen(self, x: Any) -> Any:
        """Rows as the regressor of an estimator of scikit-learn sees them."""
        from ..sklearn._fronts import seen_by_regressor

        with _unnamed_columns():
            return seen_by_regressor(self.estimator, np.asarray(x, np.float64))

    def outside(self, x: Measurement) -> np.ndarray:
        """Which of many measurements are far outside of those of training, (n,) booleans.

        Of measurements like those of training, fewer than one in a thousand are. Where training
        is not known, only those are that are not finite.

        Args:
            x: measurements with a leading axis.
        """
        x = self._checked(x)
        seen = None if self.trained_on is None else self.trained_on.inputs
        if is_front(self.estimator):
            rows = self._seen(x)
            strange = rows.far | ~rows.usable
            return strange if seen is None else strange | seen.outside(rows.x)
        if seen is not None:
            return seen.outside(numbers_of(x, is_set=seen.is_set))
        numbers = numbers_of(x, is_set=False)
        return np.asarray(~np.isfinite(numbers).all(axis=1))

    @functools.cached_property
    def function(self) -> Estimator:
        """The estimator as a function of one measurement in JAX."""
        return as_function(self.estimator)

    def _checked(self, x: Any) -> Any:
        if is_front(self.estimator) and hasattr(x, "columns"):
            return x  # a table with names, which it checks by itself
        if self.x is None:
            return jax.tree.map(np.asarray, x)
        one, structure = jax.tree.flatten(self.x)
        try:
            given = [np.asarray(leaf) for leaf in structure.flatten_up_to(x)]
        except (ValueError, TypeError):
            given = None
        lengths = set() if given is None else {leaf.shape[:1] for leaf in given}
        fits = given is not None and all(
            leaf.shape[1:] == want.shape and leaf.ndim == want.ndim + 1
            for leaf, want in zip(given, one, strict=True)
        )
        if given is None or not fits or len(lengths) != 1:
            got = "other arrays" if given is None else ", ".join(str(leaf.shape) for leaf in given)
            hint = ""
            if given is not None and [g.shape for g in given] == [w.shape for w in one]:
                hint = ": for a single measurement call the model itself"
            raise ValueError(
                f"x must be measurements of {describe_shapes(self.x)} with one more axis in front, "
                f"got {got}{hint}"
            )
        cast = [_cast(leaf, want.dtype) for leaf, want in zip(given, one, strict=True)]
        return jax.tree.unflatten(structure, cast)

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
            facts["assessed"] = ", ".join(f"{k} {v:.4g}" for k, v in shown.items())
            if "notice" in self.assessment:
                facts["notice"] = self.assessment["notice"]
        facts["made with"] = ", ".join(f"{k} {v}" for k, v in self.versions.items())
        return facts


def is_front(estimator: Any) -> bool:
    """Whether it is an estimator of scikit-learn."""
    return hasattr(estimator, "predict") and hasattr(estimator, "get_params")


def as_function(estimator: Any) -> Estimator:
    """An estimator as a function of one measurement in JAX."""
    if not is_front(estimator):
        return estimator
    from ..sklearn._fronts import in_jax

    with jax.ensure_compile_time_eval():  # it may be asked for while something is traced
        return in_jax(estimator)


@contextmanager
def _unnamed_columns() -> Iterator[None]:
    """Columns are in order where they have no names."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "X does not have valid feature names")
        yield


@eqx.filter_jit
def _estimates(estimator: Estimator, x: Any) -> Array:
    return jax.vmap(lambda one: jnp.reshape(estimator(one), (-1,)))(x)


def _padded(values: np.ndarray, count: int) -> np.ndarray:
    missing = count - len(values)
    return np.pad(values, [(0, missing), *[(0, 0)] * (values.ndim - 1)]) if missing else values


def _cast(values: np.ndarray, dtype: Any) -> np.ndarray:
    """To the dtype that the estimator was made for, if nothing but digits is lost."""
    if values.dtype == dtype:
        return values
    if values.dtype.kind not in "biufc":
        raise TypeError(f"x must be numbers, got {values.dtype}")
    with np.errstate(all="ignore"):
        cast = values.astype(dtype) if dtype.kind == "c" or values.dtype.kind != "c" else None
    whole = dtype.kind in "biu" and (cast is None or (cast.astype(values.dtype) != values).any())
    if cast is None or whole:
        raise TypeError(f"x must be numbers of the kind {dtype}, got {values.dtype}")
    return cast
