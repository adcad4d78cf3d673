"""The problems of the field by name."""

import difflib
import functools
from collections.abc import Callable
from typing import overload

from . import counts as _counts
from . import curves as _curves
from . import images as _images
from . import samples as _samples
from . import series as _series
from . import signals as _signals
from .problem import FieldProblem

_MODULES = (_signals, _curves, _series, _images, _counts, _samples)
_BUILDERS: dict[str, Callable[[], FieldProblem]] = {
    name: builder for module in _MODULES for name, builder in module.ENTRIES.items()
}


@overload
def field() -> dict[str, FieldProblem]: ...
@overload
def field(name: str) -> FieldProblem: ...
def field(name: str | None = None) -> FieldProblem | dict[str, FieldProblem]:
    """A problem of signals, curves, series, images, counts or samples by its name, or all of them.

    Each is a simulator as users bring it, with bound, likelihood and classical estimators apart.

    Args:
        name: for example "tone"; by default all, in a dict.
    """
    if name is None:
        return {known: _build(known) for known in _BUILDERS}
    if name not in _BUILDERS:
        close = difflib.get_close_matches(str(name), _BUILDERS, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
        raise ValueError(
            f"name must be that of a problem of the field, got {name!r}: {hint}There are "
            f"{', '.join(_BUILDERS)}"
        )
    return _build(name)


@functools.cache
def _build(name: str) -> FieldProblem:
    return _BUILDERS[name]()
