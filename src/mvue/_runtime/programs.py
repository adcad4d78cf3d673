"""A cache of compiled programs.

Training compiles for seconds what may then run for one second. The folds of a cross-validation, or
the same problem under other keys, are one program with other arrays. For other processes they are
kept in the folder that the environment variable `MVUE_CACHE_DIR` names, if there is one.
"""

import hashlib
import os
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from .devices import everywhere, replicated, same_everywhere
from .digest import arrays_digest, constants_of
from .jit import Recent, compiler_options

CACHE_DIR = "MVUE_CACHE_DIR"
KEPT = 16  # programs; each holds memory for as long as it may be asked for

_programs: Recent[Any] = Recent(KEPT)
_traced: Recent[tuple[Any, Any]] = Recent(KEPT)


def use_cache_folder() -> None:
    """Let JAX keep all that it compiles in the folder that is named, also what compiles fast."""
    folder = os.environ.get(CACHE_DIR)
    if folder:
        jax.config.update("jax_compilation_cache_dir", str(Path(folder).expanduser()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


use_cache_folder()


class Compiled(NamedTuple):
    """A program that is ready to run."""

    run: Callable[..., Any]
    traced: Any
    executable: Any


def compiled(
    function: Callable[..., Any],
    *args: Any,
    mesh: Mesh | None = None,
    same_as: Hashable | None = None,
) -> Compiled:
    """The compiled function, for arguments of these shapes.

    On several devices, it takes and gives arrays that are the same on all of them.

    Args:
        function: what to compile.
        args: arguments as they will be.
        mesh: the devices to run it.
        same_as: functions of one name and with this in common are the same, so that a second one
            need not even be traced. None if that is not known.
    """
    args = replicated(args, mesh)
    name = None if same_as is None else (same_as, function.__name__, mesh, _kind(args))

    def make() -> tuple[Any, Any]:
        # Arguments that are not used would leave the program: two could look the same without.
        traced = same_everywhere(function, mesh, keep_unused=True).trace(*args)
        return traced, _compiled_once(traced, args)

    traced, executable = make() if name is None else _traced.once(name, make)
    return Compiled(everywhere(executable, mesh), traced, executable)


def _kind(args: tuple[Any, ...]) -> Hashable:
    """All of the arguments, and of how functions are traced, but the numbers."""
    leaves, structure = jax.tree.flatten(args)
    kinds = tuple((jax.typeof(leaf), getattr(leaf, "sharding", None)) for leaf in leaves)
    config = jax.config
    return kinds, structure, config.jax_enable_x64, config.jax_default_device  # type: ignore[attr-defined]


def _compiled_once(traced: Any, args: tuple[Any, ...]) -> Any:
    lowered = traced.lower()
    text = lowered.as_text()
    if "callback" in text:  # functions of the host are only numbered in it
        return lowered.compile(compiler_options())
    leaves, structure = jax.tree.flatten(args)
    constants = [c for c in constants_of(traced.jaxpr) if isinstance(c, (np.ndarray, jax.Array))]
    places = tuple(str(getattr(leaf, "sharding", None)) for leaf in leaves)
    name = (
        hashlib.sha256(text.encode()).hexdigest(),
        arrays_digest(constants),  # large ones are not in the text
        str(jax.config.jax_default_device),  # type: ignore[attr-defined]
        places,
        structure,
    )
    try:
        return _programs.once(name, lambda: lowered.compile(compiler_options()))
    except (TypeError, ValueError):  # something in the arguments cannot be compared
        return lowered.compile(compiler_options())
