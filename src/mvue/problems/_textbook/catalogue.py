"""The textbook problems by name."""

import difflib
import functools
from collections.abc import Callable
from typing import overload

from . import beyond as _beyond
from . import controls as _controls
from . import counts as _counts
from . import lifetimes as _lifetimes
from . import multivariate as _multivariate
from . import normal as _normal
from .problem import Textbook

_MODULES = (_normal, _lifetimes, _counts, _multivariate, _beyond, _controls)
_BUILDERS: dict[str, Callable[..., Textbook]] = {
    builder.__name__.replace("_", "-"): builder for module in _MODULES for builder in module.ENTRIES
}


@overload
def textbook() -> dict[str, Textbook]: ...
@overload
def textbook(name: str, *, n: int | None = None) -> Textbook: ...
def textbook(name: str | None = None, *, n: int | None = None) -> Textbook | dict[str, Textbook]:
    """A textbook problem by its name, or all of them in a dict.

    Args:
        name: for example "exponential-rate"; by default all.
        n: observations in one measurement, if not the problem's own choice, mostly 8.
    """
    if name is None:
        if n is not None:
            raise ValueError(f"n needs the name of a problem, got n={n!r} without one")
        return {known: _build(known) for known in _BUILDERS}
    if name not in _BUILDERS:
        close = difflib.get_close_matches(str(name), _BUILDERS, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
        raise ValueError(
            f"name must be that of a textbook problem, got {name!r}: {hint}There are "
            f"{', '.join(_BUILDERS)}"
        )
    return _build(name) if n is None else _BUILDERS[name](n)


@functools.cache
def _build(name: str) -> Textbook:
    return _BUILDERS[name]()
