"""Parts of an estimator that are measured once and never trained."""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, PyTree

from .._serialise.registry import register


class Frozen(eqx.Module):
    """A part of a network whose arrays are measured or known, and never trained.

    Derive modules from it, as from `equinox.Module`.
    """


@register(name="mvue.Affine")
class Affine(Frozen):
    """A fixed map ``(value - shift) @ matrix``.

    A vector for a matrix stands for a diagonal one.
    """

    shift: Array
    matrix: Array

    def __call__(self, value: Array) -> Array:
        """Apply the map."""
        centred = value - self.shift
        if self.matrix.ndim > self.shift.ndim:
            return centred @ self.matrix
        return centred * self.matrix


def trainable(estimator: PyTree) -> PyTree:
    """A tree of booleans: which leaves of an estimator are trained."""

    def mark(node: Any) -> Any:
        if isinstance(node, Frozen):
            return jax.tree.map(lambda _: False, node)
        return eqx.is_inexact_array(node)

    return jax.tree.map(mark, estimator, is_leaf=lambda node: isinstance(node, Frozen))


def count_weights(estimator: PyTree) -> int:
    """How many numbers of an estimator are trained."""
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(estimator, trainable(estimator))))
