"""Compilation for programs that run for seconds.

On a CPU, XLA's highest level of optimisation compiles up to five times longer than the one below,
for programs that were not seen to run faster. A fit compiles several programs.
"""

import functools
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

LEVEL = "xla_backend_optimization_level"
KEPT = 8  # programs of one function, each with what it closes over


def compiler_options() -> dict[str, Any] | None:
    """Options of the compiler for this machine. Asks for the devices: not before they are set."""
    chosen_by_user = LEVEL in os.environ.get("XLA_FLAGS", "")
    return {LEVEL: 2} if jax.default_backend() == "cpu" and not chosen_by_user else None


def jit(function: Callable[..., Any], **settings: Any) -> Any:
    """`jax.jit` with these options; not to be called in a function that is compiled itself."""
    return jax.jit(function, compiler_options=compiler_options(), **settings)


def forgetful_jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """`equinox.filter_jit` that keeps the programs of a few problems only.

    A program holds on to the problem that it was traced with. The cache of JAX has no limit, so
    that no problem would ever be freed.
    """
    programs: OrderedDict[Any, Callable[..., Any]] = OrderedDict()

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        arrays, static = eqx.partition(args, eqx.is_array)
        leaves, structure = jax.tree.flatten(static)
        name = tuple(leaves), structure
        program = programs.pop(name, None)
        if program is None:
            program = jax.jit(lambda arrays: function(*eqx.combine(arrays, static)))
        programs[name] = program
        while len(programs) > KEPT:
            programs.popitem(last=False)
        return program(arrays)

    return call
