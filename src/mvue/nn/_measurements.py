"""One measurement as a vector, or as the rows of a set."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core.types import Measurement
from .._serialise.registry import register


@register(name="mvue.flatten")
def flatten(x: Measurement) -> Float[Array, " p"]:
    """All numbers of one measurement in one vector."""
    return jnp.concatenate([jnp.ravel(leaf) for leaf in _real_leaves(x)])


@register(name="mvue.stack_elements")
def stack_elements(x: Measurement) -> Float[Array, "n p"]:
    """The elements of one exchangeable measurement as rows."""
    leaves = [jnp.atleast_1d(leaf) for leaf in _real_leaves(x)]
    leaves = [leaf.reshape(leaf.shape[0], -1) for leaf in leaves]
    return jnp.concatenate(leaves, axis=1)


def _real_leaves(x: Measurement) -> list[Array]:
    """All arrays as real numbers, complex ones as two."""
    leaves = []
    for leaf in jax.tree.leaves(x):
        is_complex = jnp.issubdtype(leaf.dtype, jnp.complexfloating)
        leaves += [leaf.real, leaf.imag] if is_complex else [leaf.astype(float)]
    return leaves
