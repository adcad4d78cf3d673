"""Theta in one flat form: the names of its numbers, vectors of them, columns of many units.

The order is everywhere the same: the entries of a dict by their names, arrays row by row.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..exceptions import SimulatorError
from .checks import refuse_masked
from .types import Theta

Columns: TypeAlias = dict[tuple[str, ...], np.ndarray]
"""Arrays of shape (units, ...) by the keys that lead to them; ``()`` where theta is one array."""


@dataclasses.dataclass(frozen=True)
class ThetaLayout:
    """How the numbers in theta lie in a vector."""

    structure: Any
    arrays: tuple[str, ...]
    """Names of the arrays in theta, such as ``h``; ``theta`` where it is one."""
    shapes: tuple[tuple[int, ...], ...]
    """Their shapes."""

    @classmethod
    def of(cls, theta: Theta) -> "ThetaLayout":
        """The layout of one theta, arrays or their shapes."""
        paths, structure = jax.tree_util.tree_flatten_with_path(theta)
        arrays = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]
        shapes = tuple(tuple(leaf.shape) for _, leaf in paths)
        return cls(structure, tuple(name or "theta" for name in arrays), shapes)

    @property
    def names(self) -> tuple[str, ...]:
        """The numbers in theta, such as ``h`` or ``theta[0]``."""
        pairs = zip(self.arrays, self.shapes, strict=True)
        return tuple(name for pair in pairs for name in element_names(*pair))

    def to_theta(self, vector: Float[Array | np.ndarray, " p"]) -> Theta:
        """One theta from its vector."""
        sizes = [int(np.prod(shape)) for shape in self.shapes]
        ends = np.cumsum(sizes)
        parts = [vector[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        arrays = [part.reshape(s) for part, s in zip(parts, self.shapes, strict=True)]
        return jax.tree.unflatten(self.structure, arrays)


def element_names(name: str, shape: tuple[int, ...]) -> list[str]:
    """What the numbers of an array are called."""
    return [f"{name}[{', '.join(map(str, i))}]" if i else name for i in np.ndindex(*shape)]


def theta_vector(theta: Theta) -> Float[Array, " p"]:
    """The numbers in one theta, for JAX."""
    return jnp.concatenate([jnp.ravel(leaf).astype(float) for leaf in jax.tree.leaves(theta)])


def theta_rows(thetas: Theta) -> np.ndarray:
    """The numbers in K values of theta, arrays of shape (K, ...), in double precision: (K, p)."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(thetas)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def theta_columns(theta: Any) -> Columns:
    """The numbers and arrays in the theta of a black-box simulator."""
    if isinstance(theta, Mapping):
        if not all(isinstance(key, str) for key in theta):
            raise SimulatorError(f"the keys of theta must be strings, got {list(theta)}")
        if not theta:
            raise SimulatorError("theta must hold at least one number, got an empty dict")
        return {
            (key, *path): leaf
            for key in sorted(theta)
            for path, leaf in theta_columns(theta[key]).items()
        }
    refuse_masked("theta", theta)
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


def column_name(path: tuple[str, ...]) -> str:
    """What a column is called, as in `ThetaLayout`."""
    return ".".join(path) or "theta"


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
