"""What estimates: called with one measurement or with a batch, or streamed over many."""

import abc
import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from .._serialise.registry import register
from ..exceptions import NonFiniteWarning, OutsideTrainingWarning
from .checks import all_as_numbers, native, refuse_masked, refuse_other_than_numbers
from .types import Estimator, Measurement

AT_ONCE = 1024  # measurements that are estimated from at a time
AT_ONCE_NUMBERS = 2**22  # and their numbers
ANY_LENGTH = ("m", "k")  # in messages, axes whose length is not fixed


def as_estimator(value: Any, name: str = "estimator") -> Estimator:
    """A function of one measurement: what a `Fit` or a `Model` carries, or the value itself."""
    if isinstance(value, Carrier):
        return value.function
    if not callable(value):
        raise TypeError(f"{name} must be callable, a Fit or a Model, got {type(value).__name__}")
    return value


def is_traced(*trees: Any) -> bool:
    """Whether any of the arrays is inside of a compiled or transformed function."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees))


def _check_spec(spec: Any) -> None:
    leaves = jax.tree.leaves(spec.x)
    if not leaves or not all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
        raise ValueError("the shape of a measurement is missing")
    if type(spec.free) is not int or not 0 <= spec.free <= min(len(leaf.shape) for leaf in leaves):
        raise ValueError("a measurement has fewer axes than may be of any length")
    names = spec.columns
    if names is not None and not (type(names) is tuple and all(type(n) is str for n in names)):
        raise ValueError("names of columns are not texts")


@register(name="mvue.MeasurementSpec", check=_check_spec)
@dataclasses.dataclass(frozen=True, eq=False)
class MeasurementSpec:
    """What one measurement looks like, which tells it from a batch."""

    x: Any
    """Shapes and dtypes of its arrays."""
    free: int = 0
    """How many leading axes of its arrays may be of any length, as that of a set."""
    columns: tuple[str, ...] | None = None
    """Names of its numbers, where tables with names are taken."""

    def __eq__(self, other: object) -> bool:
        """The same arrays in the same structure."""
        return isinstance(other, MeasurementSpec) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> Any:
        leaves, structure = jax.tree.flatten(self.x)
        return structure, tuple(leaves), self.free

    def set_of(self) -> "MeasurementSpec":
        """Of a set of such measurements, of any number, as one measurement."""
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), self.x)
        return MeasurementSpec(one, self.free + 1, self.columns)

    def arrays(self, x: Measurement) -> Any:
        """One measurement or a batch, with arrays for whatever holds numbers."""
        structure = jax.tree.structure(self.x)
        self.check_columns(x)
        for leaf in jax.tree.leaves(x):
            refuse_masked("x", leaf)
        try:
            given = [_array(leaf) for leaf in structure.flatten_up_to(x)]
        except (ValueError, TypeError):
            got = str(jax.tree.structure(x)).removeprefix("PyTreeDef")
            raise ValueError(
                f"x must be {self._expected()}, got arrays that are arranged in another way, "
                f"{got[:200]}"
            ) from None
        return jax.tree.unflatten(structure, given)

    def check_columns(self, x: Any) -> None:
        """Refuse a table whose columns are others, or in another order."""
        if self.columns is None or not hasattr(x, "columns"):
            return
        found = tuple(map(str, x.columns))
        if found != self.columns:
            raise ValueError(
                f"x must have the columns {', '.join(self.columns)}, in this order, got "
                f"{', '.join(found)}"
            )

    def is_batch(self, x: Any) -> bool:
        """Whether arrays are a batch, with one axis more in front, or one measurement."""
        shapes = [leaf.shape for leaf in jax.tree.leaves(x)]
        pairs = list(zip(shapes, jax.tree.leaves(self.x), strict=True))
        for more in (0, 1):
            fits = all(
                len(shape) == len(want.shape) + more
                and shape[self.free + more :] == want.shape[self.free :]
                for shape, want in pairs
            )
            if fits and (not more or len({shape[0] for shape in shapes}) == 1):
                return bool(more)
        raise ValueError(f"x must be {self._expected()}, got {_described(x)}")

    def batch(self, x: Measurement) -> Any:
        """A batch, with arrays for whatever holds numbers."""
        x = self.arrays(x)
        if not self.is_batch(x):
            raise ValueError(
                "x must be a batch of measurements, with one more axis in front, got one "
                f"measurement, {_described(x)}: for that, call the estimator itself"
            )
        return x

    def cast(self, x: Any, *, xp: Any) -> Any:
        """Arrays as those of NumPy or JAX, of the dtypes expected."""
        return jax.tree.map(lambda leaf, want: _cast(leaf, want.dtype, xp), x, self.x)

    def _expected(self) -> str:
        kind = "shape" if jax.tree.structure(self.x).num_leaves == 1 else "shapes"
        one, batch = (_described(self.x, self.free, more) for more in ((), ("n",)))
        return f"one measurement of {kind} {one} or a batch of {kind} {batch}"


def _are_finite(x: Any) -> np.ndarray:
    """Which of many measurements are finite in all of their numbers."""
    leaves = jax.tree.leaves(x)
    finite = [np.isfinite(leaf).all(axis=tuple(range(1, np.ndim(leaf)))) for leaf in leaves]
    return np.logical_and.reduce(finite)


def _described(tree: Any, free: int = 0, more: tuple[str, ...] = ()) -> str:
    """The shapes in a pytree, with letters for axes of any length."""
    parts = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        sizes = [*more, *ANY_LENGTH[:free], *map(str, leaf.shape[free:])]
        shape = f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
        parts.append(" ".join(filter(None, (jax.tree_util.keystr(path), shape))))
    return ", ".join(parts)


def _array(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        return leaf
    array = jnp.asarray(leaf) if is_traced(leaf) else np.asarray(leaf)
    if array.dtype == object and array.ndim == 0:
        raise TypeError("not an array")
    return native(array) if isinstance(array, np.ndarray) else array


def _cast(values: Any, dtype: Any, xp: Any) -> Any:
    """To the dtype that the estimator was made for, if nothing but digits is lost."""
    if xp is jnp:
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    if values.dtype == dtype:
        return xp.asarray(values)
    refuse_other_than_numbers("x", values.dtype)
    is_complex = jnp.issubdtype(values.dtype, np.complexfloating)
    inexact = np.complexfloating if is_complex else np.floating
    wider = jnp.promote_types(values.dtype, dtype) == values.dtype
    if isinstance(values, Tracer) and wider and jnp.issubdtype(dtype, inexact):
        return values  # double precision, where a compiled function asks for it
    if is_complex and not jnp.issubdtype(dtype, np.complexfloating):
        raise TypeError(f"x must be numbers of the kind {dtype}, got {values.dtype}")
    if jnp.issubdtype(dtype, np.complexfloating) and not is_complex:
        raise TypeError(
            f"x must be complex numbers of the kind {dtype}, got {values.dtype}: if their "
            "imaginary part is zero, say so, x + 0j"
        )
    if not jnp.issubdtype(dtype, np.inexact):
        if isinstance(values, Tracer):
            return values  # whether they are whole cannot be seen, and derivatives need them so
        whole = np.asarray(values)
        finite = np.isfinite(whole)
        with np.errstate(all="ignore"):
            lossy = whole.astype(dtype).astype(whole.dtype) != whole
        # Of many measurements those that are not finite are left out later: they stay as they are.
        wrong = lossy & finite if xp is np else lossy
        if wrong.any():
            raise TypeError(
                f"x must be whole numbers of the kind {dtype}, got {whole[wrong].flat[0]}"
                f"{_place_of(wrong)}"
            )
        if not finite.all():
            return whole
    with np.errstate(all="ignore"):
        return xp.asarray(values.astype(dtype))


def _place_of(wrong: np.ndarray) -> str:
    """Where the first of some numbers is, in words."""
    return f" at x[{', '.join(map(str, np.argwhere(wrong)[0]))}]" if wrong.ndim else ""


def spec_of(value: Any) -> MeasurementSpec | None:
    """What one measurement looks like to an estimator, where it knows that."""
    return value._spec if isinstance(value, Predictor) else None


class Predictor(abc.ABC):
    """Something that estimates: callable with one measurement or a batch, or streamed."""

    @property
    @abc.abstractmethod
    def function(self) -> Estimator:
        """The estimator as a function of one measurement in JAX, which checks nothing."""

    @property
    @abc.abstractmethod
    def _spec(self) -> MeasurementSpec | None:
        """What one measurement looks like, where that is known."""

    @property
    def _numbers_held(self) -> int:
        """How many arrays like one measurement an estimate needs at a time, about."""
        return 1

    def __call__(self, x: Measurement) -> Array:
        """The estimate from one measurement, (d,), or those from a batch, (n, d).

        A batch has one axis more in front; `jax.jit`, `jax.vmap` and `jax.grad` may be used.
        Where the shape of a measurement is not known, x is one measurement.
        """
        if self._spec is None:
            return _from_one(self.function, jax.tree.map(jnp.asarray, all_as_numbers("x", x)))
        x = self._spec.arrays(x)
        is_batch = self._spec.is_batch(x)
        x = self._spec.cast(x, xp=jnp)
        if is_traced(x, self.function):
            return (_from_batch if is_batch else _from_one)(self.function, x)
        return (_compiled_batch if is_batch else _compiled_one)(self.function, x)

    def predict(self, x: Measurement, *, warn: bool = True) -> np.ndarray:
        """Estimates from many measurements, shape (n, d), in NumPy.

        They are taken a piece at a time, so that memory does not grow with their number.

        Args:
            x: measurements with a leading axis.
            warn: look for measurements that the estimator is not made for.
        """
        strange, parts = 0, []
        for piece in self._pieces(x):
            strange += int(self._strange(piece).sum()) if warn else 0
            parts.append(self._predicted(piece))
        estimates = np.concatenate(parts)
        self._warn_of(strange, len(estimates), stacklevel=3)
        return estimates

    def _warn_of(self, strange: int, count: int, *, stacklevel: int) -> None:
        """Say how many of some measurements the estimator is not made for, if any."""
        if strange:
            text, category = self._warning
            warnings.warn(
                f"{strange:,} of {count:,} measurements are {text}: do not rely on its "
                "estimates there",
                category,
                stacklevel=stacklevel,
            )

    def _strange(self, piece: Measurement) -> np.ndarray:
        """Which of some measurements the estimator is not made for, (n,) booleans."""
        return ~_are_finite(piece)

    @property
    def _warning(self) -> tuple[str, type[Warning]]:
        """What strange measurements are, in words, and the kind of warning for them."""
        return "not finite", NonFiniteWarning

    def _predicted(self, piece: Measurement) -> np.ndarray:
        """Estimates from a piece of measurements; NaN from those that are not finite."""
        finite = _are_finite(piece)
        return np.where(finite[:, None], self._estimated(self._with_whole(piece)), np.nan)

    def _with_whole(self, piece: Measurement) -> Measurement:
        """The same, with whole numbers where the estimator takes these, which have no NaN."""
        if self._spec is None:
            return piece

        def whole(leaf: Any, want: Any) -> Any:
            if leaf.dtype == want.dtype or jnp.issubdtype(want.dtype, np.inexact):
                return leaf
            return np.where(np.isfinite(leaf), leaf, 0).astype(want.dtype)

        return jax.tree.map(whole, piece, self._spec.x)

    def _estimated(self, piece: Measurement) -> np.ndarray:
        """Estimates from a piece of measurements; anything from those that are not finite."""
        # Always of one size: one program, and no rounding that depends on the other rows.
        count, full = len(jax.tree.leaves(piece)[0]), self._at_once(piece)
        padded = jax.tree.map(lambda leaf: _padded(leaf, full), piece)
        return np.asarray(_compiled_batch(self.function, padded))[:count]

    def _pieces(self, x: Measurement) -> Iterator[Any]:
        """Many measurements, checked, in pieces; one that is empty if there are none."""
        x = all_as_numbers("x", x) if self._spec is None else self._spec.batch(x)
        at_once = self._at_once(x)
        for start in range(0, max(len(jax.tree.leaves(x)[0]), 1), at_once):
            piece = jax.tree.map(lambda leaf, s=start: leaf[s : s + at_once], x)
            yield self._as_expected(piece)

    def _as_expected(self, piece: Any) -> Any:
        """NumPy arrays of the dtypes that the estimator takes."""
        return piece if self._spec is None else self._spec.cast(piece, xp=np)

    def _at_once(self, x: Measurement) -> int:
        """How many measurements to estimate from at a time."""
        size = sum(int(np.prod(leaf.shape[1:])) for leaf in jax.tree.leaves(x))
        return int(np.clip(AT_ONCE_NUMBERS // max(size * self._numbers_held, 1), 1, AT_ONCE))


class Carrier(Predictor):
    """Something with a trained estimator in it, and with what is known about the training."""

    @property
    @abc.abstractmethod
    def y_range(self) -> np.ndarray | None:
        """The smallest and the largest y of training, (2, d), where known."""

    def outside(self, x: Measurement) -> np.ndarray:
        """Which of many measurements are far outside of those of training, (n,) booleans.

        Of measurements like those of training, fewer than one in a thousand are. Where training
        is not known, only those are that are not finite.

        Args:
            x: measurements with a leading axis.
        """
        return np.concatenate([self._strange(piece) for piece in self._pieces(x)])

    @property
    def _warning(self) -> tuple[str, type[Warning]]:
        text = "far outside of those that the estimator was trained on, or not finite"
        return text, OutsideTrainingWarning


def _from_one(function: Estimator, x: Any) -> Array:
    return jnp.reshape(function(x), (-1,))


def _from_batch(function: Estimator, x: Any) -> Array:
    return jax.vmap(lambda one: _from_one(function, one))(x)


_compiled_one = eqx.filter_jit(_from_one)
_compiled_batch = eqx.filter_jit(_from_batch)


def _padded(values: np.ndarray, count: int) -> np.ndarray:
    missing = [(0, count - len(values)), *[(0, 0)] * (values.ndim - 1)]
    return np.pad(values, missing, mode="edge" if len(values) else "constant")
