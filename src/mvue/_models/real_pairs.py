"""Functions of complex numbers in terms of real ones, for formats that have no others.

A traced function is gone through operation by operation. A complex value is a pair of real ones,
and each operation on it is written in terms of these.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr

from ..exceptions import ExportError

CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}
PART_BY_PART = {
    "add",
    "sub",
    "neg",
    "broadcast_in_dim",
    "concatenate",
    "copy",
    "dynamic_slice",
    "gather",
    "pad",
    "reduce_sum",
    "reshape",
    "rev",
    "select_n",
    "slice",
    "split",
    "squeeze",
    "transpose",
}
"""Operations that are the same for the real and the imaginary parts."""


class _Pair(NamedTuple):
    re: Any
    im: Any


def with_real_inputs(
    function: Callable[..., Any], specs: list[jax.ShapeDtypeStruct]
) -> tuple[Callable[..., Any], list[jax.ShapeDtypeStruct]]:
    """The function of real arrays alone, and their shapes.

    A complex array comes as a real one with another axis, the last: real and imaginary part. A
    function without complex arrays is left as it is.

    Args:
        function: of arrays, written in JAX.
        specs: shapes and dtypes of these arrays.
    """
    is_complex = [jnp.issubdtype(spec.dtype, jnp.complexfloating) for spec in specs]
    if not any(is_complex):
        return function, specs
    closed = jax.make_jaxpr(function)(*specs)
    real = [
        jax.ShapeDtypeStruct((*spec.shape, 2), jnp.float32) if pair else spec
        for spec, pair in zip(specs, is_complex, strict=True)
    ]

    def in_pairs(*arrays: Any) -> Any:
        values = [
            _Pair(array[..., 0], array[..., 1]) if pair else array
            for array, pair in zip(arrays, is_complex, strict=True)
        ]
        (found,) = _run(closed, values)
        if isinstance(found, _Pair):
            raise ExportError("the estimates are complex numbers, of which there are none in ONNX")
        return found

    return in_pairs, real


def _run(closed: ClosedJaxpr, args: list[Any]) -> list[Any]:
    jaxpr: Any = closed.jaxpr
    values = dict(zip(jaxpr.constvars, map(_split, closed.consts), strict=True))
    values |= dict(zip(jaxpr.invars, args, strict=True))

    def read(var: Any) -> Any:
        return _split(var.val) if hasattr(var, "val") else values[var]

    for eqn in jaxpr.eqns:
        outputs = _step(eqn, [read(var) for var in eqn.invars])
        values |= dict(zip(eqn.outvars, outputs, strict=True))
    return [read(var) for var in jaxpr.outvars]


def _split(value: Any) -> Any:
    """A constant, as a pair if it is complex."""
    if not np.iscomplexobj(value):
        return value
    return _Pair(*(np.asarray(part, np.float32) for part in (np.real(value), np.imag(value))))


def _step(eqn: Any, inputs: list[Any]) -> list[Any]:
    name, params = eqn.primitive.name, dict(eqn.params)
    if name in CALLS:
        return _run(params[CALLS[name]], inputs)
    if name == "platform_index":  # what is for any device, the plainest
        groups = params["platforms"]
        fits = [i for i, group in enumerate(groups) if group is None or "cpu" in group]
        return [np.int32(fits[-1])]
    if not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(inputs)):
        with jax.ensure_compile_time_eval():
            return _apply(eqn, name, params, inputs)
    return _apply(eqn, name, params, inputs)


def _apply(eqn: Any, name: str, params: dict[str, Any], inputs: list[Any]) -> list[Any]:
    if name == "cond" and not isinstance(inputs[0], Tracer):
        return _run(params["branches"][int(inputs[0])], inputs[1:])
    pairs = [value for value in inputs if isinstance(value, _Pair)]
    makes_complex = any(np.issubdtype(var.aval.dtype, np.complexfloating) for var in eqn.outvars)
    if not pairs and not makes_complex:
        found = eqn.primitive.bind(*inputs, **params)
        return list(found) if eqn.primitive.multiple_results else [found]
    if name in PART_BY_PART:
        parts = [eqn.primitive.bind(*(_part(v, i) for v in inputs), **params) for i in (0, 1)]
        if not eqn.primitive.multiple_results:
            return [_Pair(*parts)]
        return [_Pair(*both) for both in zip(*parts, strict=True)]
    if name not in _OPERATIONS:
        raise ExportError(
            f"the estimator uses the operation {name!r} of JAX on complex numbers, which has no "
            "counterpart in real ones here"
        )
    return [_OPERATIONS[name](params, *inputs)]


def _part(value: Any, which: int) -> Any:
    """The real or the imaginary part; what is not complex, such as an index, as it is."""
    return value[which] if isinstance(value, _Pair) else value


def _both(value: Any) -> _Pair:
    return value if isinstance(value, _Pair) else _Pair(value, jnp.zeros_like(value))


def _product(multiply: Callable[[Any, Any], Any], a: Any, b: Any) -> _Pair:
    a, b = _both(a), _both(b)
    return _Pair(
        multiply(a.re, b.re) - multiply(a.im, b.im), multiply(a.re, b.im) + multiply(a.im, b.re)
    )


def _quotient(a: Any, b: Any) -> _Pair:
    a, b = _both(a), _both(b)
    size = b.re**2 + b.im**2
    above = _product(lax.mul, a, _Pair(b.re, -b.im))
    return _Pair(above.re / size, above.im / size)


def _dot(params: dict[str, Any], a: Any, b: Any) -> _Pair:
    numbers = params["dimension_numbers"]
    return _product(lambda x, y: lax.dot_general(x, y, numbers), a, b)


def _converted(params: dict[str, Any], value: Any) -> Any:
    if np.issubdtype(params["new_dtype"], np.complexfloating):
        if isinstance(value, _Pair):
            return value
        return _both(lax.convert_element_type(value, np.float32))
    return lax.convert_element_type(_both(value).re, params["new_dtype"])


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "abs": lambda params, a: jnp.sqrt(a.re**2 + a.im**2),  # noqa: ARG005
    "complex": lambda params, re, im: _Pair(re, im),  # noqa: ARG005
    "conj": lambda params, a: _Pair(_both(a).re, -_both(a).im),  # noqa: ARG005
    "convert_element_type": _converted,
    "div": lambda params, a, b: _quotient(a, b),  # noqa: ARG005
    "dot_general": _dot,
    "imag": lambda params, a: a.im,  # noqa: ARG005
    "mul": lambda params, a, b: _product(lax.mul, a, b),  # noqa: ARG005
    "real": lambda params, a: a.re,  # noqa: ARG005
    "square": lambda params, a: _product(lax.mul, a, a),  # noqa: ARG005
}
