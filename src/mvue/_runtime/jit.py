"""Compilation for programs that run for seconds.

On a CPU, XLA's highest level of optimisation compiles up to five times longer than the one below,
and its emitters of fused loops twice as long as the older ones, for programs that were not seen to
run faster. A fit compiles several programs.
"""

import functools
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.core import Tracer
from jax.extend.core import jaxpr_as_fun

OPTIONS = {"xla_backend_optimization_level": 2, "xla_cpu_use_fusion_emitters": False}
T = TypeVar("T")
PRECISIONS_CLASH = "requires compatible", "incompatible size"  # in messages of the compiler
KEPT = 8  # programs of one function, each with what it closes over


class Recent(OrderedDict[Any, T]):
    """The values of the few names that were last asked for.

    Args:
        most: how many are kept.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def once(self, name: Hashable, make: Callable[[], T]) -> T:
        """The value of a name, made where it is not kept."""
        value = self.pop(name, None)  # in one go: another thread may be dropping it
        self[name] = value = make() if value is None else value
        while len(self) > self.most:
            self.popitem(last=False)
        return value


def compiler_options() -> dict[str, Any] | None:
    """Options of the compiler for this machine. Asks for the devices: not before they are set."""
    if jax.default_backend() != "cpu":
        return None
    chosen_by_user = os.environ.get("XLA_FLAGS", "")
    return {name: value for name, value in OPTIONS.items() if name not in chosen_by_user}


def jit(function: Callable[..., Any], **settings: Any) -> Any:
    """`jax.jit` with these options; not to be called in a function that is compiled itself."""
    return jax.jit(function, compiler_options=compiler_options(), **settings)


def as_array(values: Any, dtype: Any = None) -> jax.Array:
    """Numbers of the host for JAX; `jnp.asarray` compiles a program for each shape."""
    return jax.device_put(on_host(values, dtype))


def on_host(values: Any, dtype: Any = None) -> np.ndarray:
    """Numbers in the precision of JAX that stay with NumPy, where arithmetic is not compiled."""
    return np.array(values, jnp.result_type(float) if dtype is None else dtype)


def is_tracing() -> bool:
    """Whether a function is being traced at this moment, whatever its arguments are."""
    return isinstance(jax.device_put(0.0), Tracer)


def held(function: Callable[..., Any], key: Any, *args: Any) -> Any:
    """``function(key, *args)``, computed once for all that uses it in a compiled program.

    XLA on a CPU computes what is cheap to write anew for each of its uses, so that the random
    numbers of a simulator would be drawn once for each summary of a measurement. The branches of a
    condition that is known at run time only are computed once. Not under `jax.vmap` of the key,
    which turns conditions into selections.
    """
    traced, shapes = jax.make_jaxpr(function, return_shape=True)(key, *args)
    shapes, structure = jax.tree.flatten(shapes)
    always = jr.key_data(key).ravel()[0] | 1 != 0

    def never(*_: Any) -> Any:
        return [jnp.zeros(leaf.shape, leaf.dtype) for leaf in shapes]

    leaves = jax.tree.leaves((key, *args))
    found = jax.lax.cond(always, jaxpr_as_fun(traced), never, *leaves)
    return jax.tree.unflatten(structure, found)


def in_double_precision(function: Callable[[], T]) -> T:
    """What a function returns when JAX computes in double precision."""
    with jax.enable_x64(True):
        return in_either_precision(function)


def in_either_precision(function: Callable[[], T]) -> T:
    """What a function returns whose parts may have been compiled in the other precision before.

    JAX remembers the types of NumPy arrays that a function uses, such as the times of samples in a
    simulator, regardless of the precision: what was traced in one may not compile in the other. In
    that case all that was traced is forgotten, and it is done once more.
    """
    try:
        return function()
    except Exception as error:
        if not any(sign in str(error) for sign in PRECISIONS_CLASH):
            raise
    jax.clear_caches()
    return function()


def forget_constants(function: Callable[..., Any], *args: Any) -> None:
    """After a function was compiled in double precision: let others compile it in single.

    Nothing is done where it uses no arrays but its arguments, which are given or their shapes.
    """
    if jax.make_jaxpr(function)(*args).consts:
        jax.clear_caches()


def forgetful_jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """`equinox.filter_jit` that keeps the programs of a few problems only.

    A program holds on to the problem that it was traced with. The cache of JAX has no limit, so
    that no problem would ever be freed.
    """
    # By what is known before tracing. `programs.compiled` goes by what was traced: other problems
    # may share its programs, which cannot be called in functions that are traced themselves.
    programs: Recent[Callable[..., Any]] = Recent(KEPT)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        arrays, static = eqx.partition(args, eqx.is_array)
        leaves, structure = jax.tree.flatten(static)
        # A part of another program is compiled as that one is.
        is_part = is_tracing()

        def make() -> Callable[..., Any]:
            options = None if is_part else compiler_options()
            call = lambda arrays: function(*eqx.combine(arrays, static))  # noqa: E731
            return jax.jit(call, compiler_options=options)

        return programs.once((tuple(leaves), structure, is_part), make)(arrays)

    return call
