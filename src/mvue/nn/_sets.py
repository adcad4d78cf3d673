"""A network for sets: the order of the elements does not matter."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from .._core.types import Key
from .._serialise.registry import register


@register(name="mvue.DeepSet")
class DeepSet(eqx.Module):
    """A network for a set of vectors, shape (n, p): the order of the n does not matter.

    Each element passes the inner network, the results are averaged, and the outer network
    reads the averages.
    """

    inner: eqx.nn.MLP
    outer: eqx.nn.MLP

    def __init__(self, in_size: int, out_size: int, *, width: int = 64, key: Key) -> None:
        """A set network.

        Args:
            in_size: p, the size of one element.
            out_size: d, the size of the output.
            width: size of the hidden layers and of the average.
            key: for the initial weights.
        """
        inner_key, outer_key = jr.split(key)
        self.inner = eqx.nn.MLP(in_size, width, width, 1, jax.nn.gelu, key=inner_key)
        self.outer = eqx.nn.MLP(width, out_size, width, 1, jax.nn.gelu, key=outer_key)

    def __call__(self, x: Float[Array, "n p"]) -> Float[Array, " d"]:
        """The output for one set."""
        return self.outer(jnp.mean(jax.vmap(self.inner)(x), axis=0))
