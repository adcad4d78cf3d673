"""Theta of many units as columns, one array for each number or array in it."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from ..exceptions import SimulatorError

Columns: TypeAlias = dict[tuple[str, ...], np.ndarray]
"""Arrays of shape (units, ...) by the keys that lead to them; ``()`` where theta is one array."""


def flatten_theta(theta: Any) -> Columns:
    """The numbers and arrays in one theta, in the order of their keys."""
    if isinstance(theta, Mapping):
        if not all(isinstance(key, str) for key in theta):
            raise SimulatorError(f"the keys of theta must be strings, got {list(theta)}")
        return {
            (key, *path): leaf
            for key in sorted(theta)
            for path, leaf in flatten_theta(theta[key]).items()
        }
    try:
        leaf = np.asarray(theta)
    except Exception:
        leaf = np.asarray(None)
    if leaf.dtype.kind not in "biufc":
        raise SimulatorError(
            "theta must be a number, an array of numbers or a dict of these, got "
            f"{type(theta).__name__}"
        )
    return {(): leaf}


def theta_tree(columns: dict[tuple[str, ...], Any]) -> Any:
    """Theta with the columns in place of its numbers."""
    if () in columns:
        return columns[()]
    tree: dict[str, Any] = {}
    for path, column in columns.items():
        node = tree
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = column
    return tree


def theta_of_unit(columns: Columns, index: int) -> Any:
    """The theta of one unit; a copy, which a simulator may change."""
    return theta_tree({path: column[index].copy() for path, column in columns.items()})


def describe_theta(theta: Any) -> str:
    """Theta on one line, for a message."""
    with np.printoptions(threshold=20, precision=6):
        text = " ".join(str(theta).split())
    return text if len(text) <= 300 else text[:300] + " …"
