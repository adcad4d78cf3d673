"""Compilation for programs that run for seconds.

On a CPU, XLA's highest level of optimisation compiles up to five times longer than the one below,
for programs that were not seen to run faster. A fit compiles several programs.
"""

import os
from collections.abc import Callable
from typing import Any

import jax

LEVEL = "xla_backend_optimization_level"


def compiler_options() -> dict[str, Any] | None:
    """Options of the compiler for this machine. Asks for the devices: not before they are set."""
    chosen_by_user = LEVEL in os.environ.get("XLA_FLAGS", "")
    return {LEVEL: 2} if jax.default_backend() == "cpu" and not chosen_by_user else None


def jit(function: Callable[..., Any], **settings: Any) -> Any:
    """`jax.jit` with these options; not to be called in a function that is compiled itself."""
    return jax.jit(function, compiler_options=compiler_options(), **settings)
