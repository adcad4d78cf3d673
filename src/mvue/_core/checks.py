"""Checks of arguments that many functions share, and words for shapes."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree

from .._runtime.digest import constants_of

NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,  # float(tracer), `if tracer`
    jax.errors.TracerArrayConversionError,  # np.asarray(tracer)
    jax.errors.TracerIntegerConversionError,  # range(tracer)
    jax.errors.NonConcreteBooleanIndexError,
)
NUMPY_SIGNS = (  # in messages of other errors
    "SeedSequence expects",  # np.random.default_rng(tracer)
    "unsupported format string passed to DynamicJaxprTracer",
    "JAX arrays are immutable",
)


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def refuse_masked(name: str, value: Any) -> None:
    """Refuse arrays with masked numbers: below the mask are numbers that nobody means."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ValueError(
            f"{name} has {np.ma.count_masked(value)} masked numbers, and a mask is not used: leave "
            f"these measurements out, or fill them, for example by {name}.filled(np.nan)"
        )


def as_numbers(name: str, value: Any) -> Any:
    """An array as JAX takes it, and with the numbers that were given, or an error.

    Swapped bytes and more digits than double become double; whole numbers that JAX would cut are
    refused.
    """
    refuse_masked(name, value)
    if isinstance(value, jax.Array):
        return value
    array = np.asarray(value)
    refuse_other_than_numbers(name, array.dtype)
    array = native(array)
    single = jax.dtypes.canonicalize_dtype(array.dtype)
    if array.dtype.kind in "iu" and (array.astype(single) != array).any():
        raise ValueError(
            f"{name} must hold whole numbers that {single} can hold, got {array.min()} to "
            f"{array.max()}: give floats"
        )
    return array


def all_as_numbers(name: str, tree: Any) -> Any:
    """The same for each array of a pytree."""
    return jax.tree.map(lambda leaf: as_numbers(name, leaf), tree)


def refuse_other_than_numbers(name: str, dtype: Any) -> None:
    """Refuse texts, dates, spans of time and what Python alone knows."""
    # NumPy takes spans of time for integers.
    is_number = jnp.issubdtype(dtype, np.number) and not jnp.issubdtype(dtype, np.timedelta64)
    if not (is_number or jnp.issubdtype(dtype, np.bool_)):
        hint = ""
        if jnp.issubdtype(dtype, np.object_):
            hint = ": give floats, with NaN for what is missing"
        raise TypeError(f"{name} must be numbers, got {dtype}{hint}")


def native(array: np.ndarray) -> np.ndarray:
    """The same numbers in a format that JAX knows: not swapped bytes, nor more than double."""
    wide = {"f": np.float64, "c": np.complex128}.get(array.dtype.kind)
    if wide is not None and array.dtype.itemsize > np.dtype(wide).itemsize:
        return array.astype(wide)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def checked_names(names: Sequence[str] | None, d: int) -> tuple[str, ...]:
    """One name for each component of y; the default ones where none are given."""
    if names is None:
        return ("y",) if d == 1 else tuple(f"y{i + 1}" for i in range(d))
    if isinstance(names, str):
        raise TypeError(f"names must be a sequence of names, got the string {names!r}")
    names = tuple(names)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"names must be strings, got {names}")
    if len(names) != d:
        raise ValueError(
            f"names must have one entry for each of the {d} components of y, got {len(names)}: "
            f"{names}"
        )
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise ValueError(f"names must differ, got {twice[0]!r} twice: {names}")
    return names


def check_estimator(
    name: str,
    estimator: Any,
    x: Any,
    d: int,
    *,
    may_be_complex: bool = False,
    is_fixed: bool = False,
) -> None:
    """Refuse what does not map one measurement, given by its shapes, to y.

    Args:
        name: in messages.
        estimator: what is checked.
        x: shapes of one measurement.
        d: of y.
        may_be_complex: whether estimates may be complex.
        is_fixed: whether it is known to draw no random numbers; else it is traced twice more.
    """
    if not callable(estimator):
        raise TypeError(f"{name} must be callable, got {type(estimator).__name__}")
    if not is_fixed:
        refuse_frozen_draws(name, estimator, x)
    try:
        output = eqx.filter_eval_shape(estimator, x)
    except Exception as error:
        raise ValueError(
            f"{name} failed on one measurement of {describe_shapes(x)}: {type(error).__name__}: "
            f"{error}"
        ) from error
    check_output(name, output, d, may_be_complex=may_be_complex)


def refuse_frozen_draws(name: str, function: Any, x: Any) -> None:
    """Refuse a function of one measurement that draws random numbers which JAX does not know.

    Such numbers are drawn while a program is traced, and are then the same in all of its calls.
    To be called before it is traced elsewhere: what is compiled is traced once. What cannot be
    traced is left to others.
    """
    before = _drawn_so_far()
    try:
        first = _constants_of(function, x)
    except Exception:
        return
    after = _drawn_so_far()
    if before != after:  # a function that seeds the generator leaves it as it left it before
        np.random.random()  # noqa: NPY002
    second = _constants_of(function, x)
    is_seeded = _drawn_so_far() == after
    if is_seeded and _are_same(first, second):
        return
    # Once more: what JAX or a function keeps from its first call may look different there.
    if before == after and _are_same(second, _constants_of(function, x)):
        return
    raise ValueError(
        f"{name} must return the same for the same x, but draws random numbers of NumPy or Python, "
        "which are drawn once, when JAX traces it, and are constants from then on: leave them out, "
        "or fix them with a seed before"
    )


def _drawn_so_far() -> tuple[Any, ...]:
    """The state of NumPy's shared generator. Others, as beartype, draw from that of Python."""
    _, words, *rest = np.random.get_state(legacy=True)  # noqa: NPY002
    return np.asarray(words).tobytes(), *rest


def _constants_of(function: Any, x: Any) -> list[Any]:
    """What a traced function has of constants, in the order of its operations."""
    dynamic, static = eqx.partition(x, lambda leaf: hasattr(leaf, "shape"))
    traced = jax.make_jaxpr(lambda one: jnp.asarray(function(eqx.combine(one, static))))
    return list(constants_of(traced(dynamic)))


def _are_same(some: list[Any], others: list[Any]) -> bool:
    def same(one: Any, other: Any) -> bool:
        if one is other or isinstance(one, Tracer) or isinstance(other, Tracer):
            return True
        if any(jnp.issubdtype(jnp.result_type(v), jax.dtypes.prng_key) for v in (one, other)):
            return True  # of JAX, which are no numbers
        a, b = np.asarray(one), np.asarray(other)
        return a.shape == b.shape and a.tobytes() == b.tobytes()

    return len(some) == len(others) and all(map(same, some, others))


def check_output(name: str, output: Any, d: int, *, may_be_complex: bool = False) -> None:
    """Refuse an estimate whose shape is not that of y; a scalar will do for one component."""
    shape = getattr(output, "shape", None)
    is_complex = (
        not may_be_complex
        and shape is not None
        and jnp.issubdtype(output.dtype, jnp.complexfloating)
    )
    is_number = shape is None or any(
        jnp.issubdtype(output.dtype, kind) for kind in (np.number, np.bool_)
    )
    if is_complex or not is_number or (shape != (d,) and not (d == 1 and shape == ())):
        got = type(output).__name__ if shape is None else f"shape {shape}"
        if not is_number:
            got = f"{output.item()!r:.80}" if shape == () else f"an array of {output.dtype}"
        got += " of complex numbers" if is_complex else ""
        raise ValueError(
            f"{name} must return an array of the shape of y, ({d},), for one measurement; it "
            f"returned {got}"
        )


def is_not_jax(error: BaseException | None) -> bool:
    """Whether a function failed because it treats the tracers of JAX as numbers."""
    while error is not None:
        message = str(error)
        if isinstance(error, NEEDS_VALUES) or any(sign in message for sign in NUMPY_SIGNS):
            return True
        if isinstance(error, AttributeError) and "Tracer has no attribute" in message:
            return hasattr(np.random.Generator, message.split()[-1])  # a key taken for an rng
        error = error.__cause__ or error.__context__
    return False


def describe_shapes(tree: PyTree) -> str:
    """The shapes in a pytree, for a message."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    if len(leaves) == 1 and not leaves[0][0]:
        return f"shape {tuple(leaves[0][1].shape)}"
    parts = (f"{jax.tree_util.keystr(path)} {tuple(leaf.shape)}" for path, leaf in leaves)
    return "shapes " + ", ".join(parts)


LAYOUTS = {"set": (1, 9), "series": (1, 2), "image": (2, 3), "vector": (0, 9)}
"""What an array of x may be called, and how many axes it then has."""


def layout_words(layout: Any, x: Any) -> list[str] | None:
    """The word for each array of x; None if nothing is said."""
    if layout is None:
        return None
    count = len(jax.tree.leaves(x))
    return [layout] * count if isinstance(layout, str) else list(jax.tree.leaves(layout))


def check_layout(layout: Any, x: Any) -> None:
    """Refuse words that are none, or that the shapes of x contradict."""
    words = layout_words(layout, x)
    if words is None:
        return
    known = ", ".join(map(repr, LAYOUTS))
    if not isinstance(layout, str) and jax.tree.structure(layout) != jax.tree.structure(x):
        raise ValueError(
            f"layout must be one of {known}, or such a word for each array of x, in the structure "
            f"of x, {describe_shapes(x)}; got {layout!r}"
        )
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(x)]
    for path, word, leaf in zip(paths, words, jax.tree.leaves(x), strict=True):
        if word not in LAYOUTS:
            raise ValueError(f"layout must be one of {known}, got {word!r} for x{path}")
        least, most = LAYOUTS[word]
        if not least <= leaf.ndim <= most:
            raise ValueError(
                f"layout {word!r} needs an array of {least} to {most} axes, got x{path} of shape "
                f"{leaf.shape}"
            )
