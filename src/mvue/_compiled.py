"""Compiled programs that are used again.

Training compiles for seconds what may then run for one: the folds of a cross-validation, or the
same problem under other keys, are one program with other arrays.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from ._checkpoint import arrays_digest, constants_of
from ._devices import everywhere, replicated, same_everywhere
from ._jit import compiler_options

KEPT = 16  # programs; each holds memory for as long as it may be asked for

_programs: OrderedDict[Any, Any] = OrderedDict()


class Compiled(NamedTuple):
    """A program that is ready to run."""

    run: Callable[..., Any]
    traced: Any
    executable: Any


def compiled(function: Callable[..., Any], *args: Any, mesh: Mesh | None = None) -> Compiled:
    """The compiled function, for arguments of these shapes.

    On several devices, it takes and gives arrays that are the same on all of them.
    """
    args = replicated(args, mesh)
    # Arguments that are not used would leave the program: two could look the same without them.
    traced = same_everywhere(function, mesh, keep_unused=True).trace(*args)
    executable = _compiled_once(traced, args)
    return Compiled(everywhere(executable, mesh), traced, executable)


def _compiled_once(traced: Any, args: tuple[Any, ...]) -> Any:
    lowered = traced.lower()
    text = lowered.as_text()
    if "callback" in text:  # functions of the host are only numbered in it
        return lowered.compile(compiler_options())
    leaves, structure = jax.tree.flatten(args)
    places = tuple(str(getattr(leaf, "sharding", None)) for leaf in leaves)
    name = (
        hashlib.sha256(text.encode()).hexdigest(),
        arrays_digest(list(constants_of(traced.jaxpr))),  # large ones are not in the text
        str(jax.config.jax_default_device),  # type: ignore[attr-defined]
        places,
        structure,
    )
    try:
        found = _programs.pop(name, None)
    except (TypeError, ValueError):  # something in the arguments cannot be compared
        return lowered.compile(compiler_options())
    _programs[name] = found = found or lowered.compile(compiler_options())
    while len(_programs) > KEPT:
        _programs.popitem(last=False)
    return found
