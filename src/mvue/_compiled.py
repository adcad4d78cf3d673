"""Compiled programs that are used again.

Training compiles for seconds what may then run for one: the folds of a cross-validation, or the
same problem under other keys, are one program with other arrays.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax

from ._checkpoint import arrays_digest, constants_of

KEPT = 16  # programs; each holds memory for as long as it may be asked for

_programs: OrderedDict[Any, Any] = OrderedDict()


def compiled(function: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """The compiled function, for arguments of these shapes, and what it was traced to."""
    traced = jax.jit(function).trace(*args)
    lowered = traced.lower()
    # Both: large constants may be in either. Callbacks are told apart by their addresses.
    text = hashlib.sha256(lowered.as_text().encode()).hexdigest()
    name = (text, arrays_digest(list(constants_of(traced.jaxpr))), jax.tree.structure(args))
    try:
        found = _programs.pop(name, None)
    except TypeError:  # something in the arguments cannot be compared
        return lowered.compile(), traced
    _programs[name] = found = found or lowered.compile()
    while len(_programs) > KEPT:
        _programs.popitem(last=False)
    return found, traced
