"""Export to ONNX, for devices and languages without JAX."""

import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr

from .._core.problem import Problem
from .._serialise.files import write_bytes
from ..exceptions import ExportError
from .model import Model
from .real_pairs import with_real_inputs
from .save import model_of

TOLERANCE = 1e-5
BATCHES = (1, 3, 64)
LONGEST_LOOP = 1024


class Exported(NamedTuple):
    """What was written."""

    path: Path
    inputs: dict[str, tuple[int, ...]]
    """Names and shapes of the inputs, all of float32, without the leading axis of any length."""
    difference: float
    """The largest difference to JAX that was seen, relative to the largest estimate."""


def export_onnx(estimator: Any, path: str | Path, *, problem: Problem | None = None) -> Exported:
    """Write an estimator as an ONNX file, and check that it gives the same estimates.

    The file takes any number of measurements at once, in single precision, and returns their
    estimates, shape (n, d). Before it is written, onnxruntime and JAX are compared on measurements
    like those of training; they must agree to 1e-5 of the largest estimate. ONNX has no complex
    numbers: a complex array of x becomes a real one with another axis, the last, of real and
    imaginary part.

    Args:
        estimator: a `Fit`, what `load` returned, or whatever else `save` takes.
        path: where to; written whole or not at all.
        problem: what a bare estimator was made for, as in `save`.

    Raises:
        ExportError: ONNX has no counterpart for a step of the estimator, which is named, or the
            estimates differ.
    """
    try:
        import onnx
        import onnxruntime
        from jax2onnx import to_onnx
    except ImportError as error:
        raise ImportError(
            f"export needs jax2onnx and onnxruntime: pip install 'mvue[export]' ({error})"
        ) from error
    model = model_of(estimator, problem)
    if model.x is None:
        raise ExportError(
            "the shape of a measurement is not known: give problem=, here or to mvue.save"
        )
    leaves, structure = jax.tree.flatten(model.x)
    names = ["x"] if len(leaves) == 1 else [f"x{i + 1}" for i in range(len(leaves))]

    def of_arrays(*parts: jax.Array) -> jax.Array:
        cast = [part.astype(_single(leaf.dtype)) for part, leaf in zip(parts, leaves, strict=True)]
        return jnp.reshape(model.function(jax.tree.unflatten(structure, cast)), (-1,))

    given = [jnp.complex64 if leaf.dtype.kind == "c" else jnp.float32 for leaf in leaves]
    specs = [
        jax.ShapeDtypeStruct(leaf.shape, dtype) for leaf, dtype in zip(leaves, given, strict=True)
    ]
    one, specs = with_real_inputs(of_arrays, specs)
    function = _in_primitives(jax.make_jaxpr(one)(*specs))
    with _quiet():
        try:
            proto: Any = to_onnx(
                lambda *x: jax.vmap(function)(*x),
                [("n", *spec.shape) for spec in specs],
                model_name="mvue",
                input_names=names,
                output_names=["estimates"],
            )
            onnx.helper.set_model_props(
                proto, {"mvue": json.dumps({"names": model.names, "versions": model.versions})}
            )
            data = proto.SerializeToString()
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4
            session = onnxruntime.InferenceSession(data, options, ["CPUExecutionProvider"])
            difference = max(_difference(model, one, session, names, n) for n in BATCHES)
        except ExportError:
            raise
        except Exception as error:
            raise ExportError(_reason(error)) from error
    if not difference <= TOLERANCE:
        raise ExportError(
            f"the exported estimates differ from those of JAX by {difference:.2g} of the largest, "
            f"more than {TOLERANCE:g}: nothing was written"
        )
    write_bytes(path, data)
    shapes = {name: tuple(spec.shape) for name, spec in zip(names, specs, strict=True)}
    return Exported(Path(path), shapes, difference)


def _difference(
    model: Model, one: Callable[..., Any], session: Any, names: list[str], n: int
) -> float:
    """The largest difference on some measurements, relative to the largest estimate."""
    rng = np.random.default_rng(n)
    leaves = jax.tree.leaves(model.x)
    seen = None if model.trained_on is None else model.trained_on.inputs
    x = []
    for leaf in leaves:
        # Complex numbers come as two real ones along a last axis.
        pair = (2,) if leaf.dtype.kind == "c" else ()
        values = rng.standard_normal((n, *leaf.shape, *pair))
        if model.front is not None:
            values = model.front.typical_rows(rng, n, seen)
        elif seen is not None and len(leaves) == 1:
            # As usual as those of training, entry by entry.
            shape = leaf.shape[1:] if seen.is_set else leaf.shape
            usual, spread = (
                np.moveaxis(v.reshape(*pair, *shape), 0, -1) if pair else v.reshape(shape)
                for v in (seen.usual.centre, seen.usual.spread)
            )
            values = usual + spread * values
        if leaf.dtype.kind in "iu":
            values = np.clip(np.round(values), np.iinfo(leaf.dtype).min, np.iinfo(leaf.dtype).max)
        x.append(values.astype(np.float32))
    expected = np.asarray(jax.jit(jax.vmap(one))(*x))
    (given,) = session.run(None, dict(zip(names, x, strict=True)))
    if given.shape != expected.shape:
        raise ExportError(
            f"the exported estimates have the shape {given.shape}: nothing was written"
        )
    finite = np.isfinite(expected)
    if not finite.any() or not np.array_equal(finite, np.isfinite(given)):
        raise ExportError("the estimates are not finite where they were compared")
    scale = np.abs(expected[finite]).max()
    return float(np.abs(given - expected)[finite].max() / max(scale, np.finfo(np.float32).tiny))


def _single(dtype: Any) -> Any:
    return jnp.float32 if dtype == np.float64 else jax.dtypes.canonicalize_dtype(dtype)


class _Value(NamedTuple):
    """A value in a traced function."""

    array: Any
    varies: bool
    """Whether it depends on the measurement."""
    known: int | None = None
    """What it is, for the number of a branch."""


_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
}
_PICKS = ("gather", "dynamic_slice")
_IN_TOTAL_ORDER = {"lt_to": lax.lt, "le_to": lax.le, "eq_to": lax.eq}


def _in_primitives(closed: ClosedJaxpr) -> Callable[..., Any]:
    """A traced function with nothing but primitive operations, for a converter of these.

    Nested calls are inlined, loops of known length written out, and what depends on the platform
    is decided. The converter does not repeat constants along the batch where they are joined with
    what is measured, so they are made to depend on it.
    """

    def function(*args: Any) -> Any:
        # Zero for every measurement, also for one that is not finite. Functions of jax.numpy are
        # others while the converter is at work.
        first = lax.reshape(lax.slice(args[0], [0] * args[0].ndim, [1] * args[0].ndim), ())
        zero = lax.convert_element_type(lax.gt(first, np.float32(np.inf)), jnp.float32)
        inputs = [_Value(arg, True) for arg in args]
        return _Inlined(zero).run(closed, inputs)[0].array

    return function


class _Inlined:
    def __init__(self, zero: jax.Array) -> None:
        self.zero = zero

    def run(self, closed: ClosedJaxpr, args: list[_Value]) -> list[_Value]:
        jaxpr: Any = closed.jaxpr
        values = dict(zip(jaxpr.constvars, (_Value(c, False) for c in closed.consts), strict=True))
        values |= dict(zip(jaxpr.invars, args, strict=True))

        def read(var: Any) -> _Value:
            return _Value(var.val, False) if hasattr(var, "val") else values[var]

        for eqn in jaxpr.eqns:
            outputs = self.step(eqn, [read(var) for var in eqn.invars])
            values |= dict(zip(eqn.outvars, outputs, strict=True))
        return [read(var) for var in jaxpr.outvars]

    def step(self, eqn: Any, inputs: list[_Value]) -> list[_Value]:
        name, params = eqn.primitive.name, eqn.params
        if name == "platform_index":
            # What is for any device, if there is such a thing: the plainest.
            groups = params["platforms"]
            fits = [i for i, group in enumerate(groups) if group is None or "cpu" in group]
            return [_Value(np.int32(fits[-1]), False, fits[-1])]
        if name == "cond" and inputs[0].known is not None:
            return self.run(params["branches"][inputs[0].known], inputs[1:])
        if name in _CALLS:
            return self.run(params[_CALLS[name]], inputs)
        if name == "scan" and params["length"] <= LONGEST_LOOP:
            return self.scan(params, inputs)
        arrays = [value.array for value in inputs]
        varies = any(value.varies for value in inputs)
        place = {"convert_element_type": 0, "clamp": 1}.get(name)
        known = None if place is None else inputs[place].known
        if not varies:
            with jax.ensure_compile_time_eval():
                found = eqn.primitive.bind(*arrays, **params)
        elif name in _IN_TOTAL_ORDER:
            found = _IN_TOTAL_ORDER[name](*arrays)
        elif name == "clamp":
            found = _clamped(*arrays)
        elif name == "concatenate":
            found = eqn.primitive.bind(*(self.varying(value) for value in inputs), **params)
        elif name == "dynamic_slice" and not any(value.varies for value in inputs[1:]):
            found = _fixed_slice(arrays[0], arrays[1:], params["slice_sizes"])
        elif name in _PICKS and inputs[1].varies and _picks_a_row(eqn, inputs):
            found = lax.reshape(_row_picked(arrays[0], arrays[1]), eqn.outvars[0].aval.shape)
        elif name == "gather" and inputs[1].varies and _picks_elements(params, arrays[0].ndim):
            found = lax.reshape(_picked(arrays[0], arrays[1]), eqn.outvars[0].aval.shape)
        else:
            found = eqn.primitive.bind(*arrays, **params)
        found = found if eqn.primitive.multiple_results else [found]
        return [_Value(array, varies, known) for array in found]

    def scan(self, params: Any, inputs: list[_Value]) -> list[_Value]:
        inner, fixed, carried = params["jaxpr"], params["num_consts"], params["num_carry"]
        consts, carry, xs = inputs[:fixed], inputs[fixed:][:carried], inputs[fixed + carried :]
        order = range(params["length"])
        found = []
        for i in reversed(order) if params["reverse"] else order:
            slices = [_Value(_row(x, i), x.varies) for x in xs]
            outputs = self.run(inner, [*consts, *carry, *slices])
            carry = outputs[:carried]
            found.append(outputs[carried:])
        if params["reverse"]:
            found.reverse()
        stacked = []
        for part in zip(*found, strict=True):
            varies = any(value.varies for value in part)
            arrays = [self.varying(value) if varies else value.array for value in part]
            with nullcontext() if varies else jax.ensure_compile_time_eval():
                rows = [lax.expand_dims(array, (0,)) for array in arrays]
                stacked.append(_Value(lax.concatenate(rows, 0), varies))
        return [*carry, *stacked]

    def varying(self, value: _Value) -> Any:
        if value.varies:
            return value.array
        zero = lax.convert_element_type(self.zero, value.array.dtype)
        return lax.add(value.array, lax.broadcast(zero, value.array.shape))


def _row(x: _Value, i: int) -> Any:
    with nullcontext() if x.varies else jax.ensure_compile_time_eval():
        return lax.index_in_dim(x.array, i, 0, keepdims=False)


def _clamped(low: Any, values: Any, high: Any) -> Any:
    low, high = (
        end if np.ndim(end) == np.ndim(values) else lax.broadcast(end, values.shape)
        for end in (low, high)
    )
    return lax.max(lax.min(values, high), low)


def _fixed_slice(operand: Any, starts: list[Any], sizes: tuple[int, ...]) -> Any:
    limits = [int(full) - size for full, size in zip(operand.shape, sizes, strict=True)]
    begin = [min(max(int(s), 0), limit) for s, limit in zip(starts, limits, strict=True)]
    return lax.slice(operand, begin, [b + size for b, size in zip(begin, sizes, strict=True)])


def _picks_a_row(eqn: Any, inputs: list[_Value]) -> bool:
    """Whether one row of a constant is picked, whole."""
    operand, params = inputs[0], eqn.params
    shape = np.shape(operand.array)
    if operand.varies or len(shape) < 2 or tuple(params["slice_sizes"]) != (1, *shape[1:]):
        return False
    if eqn.primitive.name == "dynamic_slice":
        return True
    numbers = params["dimension_numbers"]
    return tuple(numbers.start_index_map) == (0,) and not numbers.operand_batching_dims


def _row_picked(rows: Any, index: Any) -> Any:
    """A row of a constant as a product, without the gathers that the converter does not know."""
    count = rows.shape[0]
    place = lax.convert_element_type(lax.reshape(index, (1,)), np.int32)
    place = _clamped(np.int32(0), place, np.int32(count - 1))
    place = lax.broadcast_in_dim(place, (1, count), (0,))
    here = lax.eq(place, lax.broadcasted_iota(np.int32, (1, count), 1))
    flat = np.asarray(rows).reshape(count, -1)
    return lax.dot(lax.convert_element_type(here, flat.dtype), flat)


def _picks_elements(params: Any, ndim: int) -> bool:
    """Whether a gather picks single elements along the last axis."""
    numbers = params["dimension_numbers"]
    batched = tuple(range(ndim - 1))
    return (
        set(params["slice_sizes"]) == {1}
        and tuple(numbers.offset_dims) in ((), (ndim - 1,))
        and tuple(numbers.start_index_map) == (ndim - 1,)
        and numbers.operand_batching_dims == batched == numbers.start_indices_batching_dims
    )


def _picked(operand: Any, indices: Any) -> Any:
    """Elements along the last axis, without the gathers that the converter does not know."""
    shape, size = indices.shape[:-1], operand.shape[-1]
    place = lax.convert_element_type(indices, np.int32)
    place = _clamped(np.int32(0), place, np.int32(size - 1))
    place = lax.broadcast_in_dim(place, (*shape, size), tuple(range(len(shape) + 1)))
    axes = tuple(range(len(shape) + 1))[-operand.ndim :]
    values = lax.broadcast_in_dim(operand, (*shape, size), axes)
    here = lax.eq(place, lax.broadcasted_iota(np.int32, (*shape, size), len(shape)))
    kept = lax.select(here, values, lax.full_like(values, 0))
    return lax.reduce(kept, np.zeros((), kept.dtype), lax.add, (len(shape),))


def _reason(error: Exception) -> str:
    text = str(error)
    primitive = re.search(r"primitive[: ]+'?([\w.]+)'?", text)
    if primitive:
        return (
            f"the estimator uses the operation {primitive[1]!r} of JAX, which cannot be exported "
            f"to ONNX: {text.splitlines()[0][:200]}"
        )
    return f"the estimator cannot be exported: {type(error).__name__}: {text[:300]}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the notes of the converter, which are for its own developers."""
    logger = logging.getLogger("onnx_ir")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
