"""Networks that are not tied to one experiment, and the scaling of what goes in and out.

A network is any function of ONE measurement whose arrays are trained; Equinox modules are.
No network here bounds its output: the unbiased estimator of a positive number may have to be
negative now and then.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PyTree

from ._problem import Draw, Problem, pilot_draw
from ._types import Key, Measurement

PILOT_UNITS = 1024


class Affine(eqx.Module):
    """A fixed shift and scale, measured once and never trained."""

    shift: Array
    scale: Array

    def apply(self, value: Array) -> Array:
        """From natural units to standard ones."""
        return (value - self.shift) / self.scale

    def invert(self, value: Array) -> Array:
        """From standard units to natural ones."""
        return value * self.scale + self.shift


class Standardized(eqx.Module):
    """An estimator in natural units around a network in standard units.

    ``x -> features -> standardise -> network -> scale back to y``.
    """

    features: Callable[[Measurement], Array]
    inputs: Affine
    network: Callable[[Array], Array]
    outputs: Affine

    def __call__(self, x: Measurement) -> Float[Array, " d"]:
        """The estimate from one measurement."""
        return self.outputs.invert(self.network(self.inputs.apply(self.features(x))))


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


def standardize(
    network: Callable[[Array], Array],
    problem: Problem,
    *,
    features: Callable[[Measurement], Array] | None = None,
    key: Key,
) -> Standardized:
    """Put a network into the problem's own units, measured on a pilot draw.

    Args:
        network: a function of the standardised features that returns y in standard units, shape
            (d,).
        problem: the problem.
        features: ``features(x) -> array``, what the network sees of one measurement; by default
            all numbers of x in one vector. Each entry of the result gets a mean of 0 and a
            standard deviation of 1 over the prior.
        key: for the pilot draw.
    """
    pilot = pilot_draw(problem, key, PILOT_UNITS, 1)
    return _standardized(network, pilot, features or flatten)


def default_network(problem: Problem, pilot: Draw, *, key: Key) -> Standardized:
    """The network that `fit` builds when it is given none.

    For exchangeable scalars: their order statistics, raw and in their own scale, with mean and
    log standard deviation, into a perceptron with two hidden layers. For exchangeable vectors: a
    `DeepSet`. Otherwise a perceptron on all numbers of x.
    """
    d = pilot.y.shape[1]
    one = jax.tree.map(lambda leaf: leaf[0, 0], pilot.x)
    if problem.exchangeable:
        p = jax.eval_shape(stack_elements, one).shape[1]
        if p > 1:
            return _standardized(DeepSet(p, d, key=key), pilot, stack_elements, per_entry=False)
        features = order_statistics
    else:
        features = flatten
    size = jax.eval_shape(features, one).shape[0]
    network = eqx.nn.MLP(size, d, 64, 2, jax.nn.gelu, key=key)
    return _standardized(network, pilot, features)


def flatten(x: Measurement) -> Float[Array, " p"]:
    """All numbers of one measurement in one vector."""
    return jnp.concatenate([jnp.ravel(leaf).astype(float) for leaf in jax.tree.leaves(x)])


def stack_elements(x: Measurement) -> Float[Array, "n p"]:
    """The elements of one exchangeable measurement as rows."""
    leaves = [leaf.reshape(leaf.shape[0], -1).astype(float) for leaf in jax.tree.leaves(x)]
    return jnp.concatenate(leaves, axis=1)


def order_statistics(x: Measurement) -> Float[Array, " p"]:
    """Sorted values, raw and in units of their own mean and deviation, with both."""
    values = jnp.sort(stack_elements(x)[:, 0])
    mean = jnp.mean(values)
    centred = values - mean
    tiny = jnp.finfo(values.dtype).tiny
    deviation = jnp.sqrt(jnp.mean(centred**2) + tiny)
    return jnp.concatenate([values, centred / deviation, mean[None], jnp.log(deviation)[None]])


def is_frozen(node: Any) -> bool:
    """Whether a node of an estimator is measured rather than trained."""
    return isinstance(node, Affine)


def trainable(estimator: PyTree) -> PyTree:
    """A tree of booleans: which leaves of an estimator are trained."""

    def mark(node: Any) -> Any:
        if is_frozen(node):
            return jax.tree.map(lambda _: False, node)
        return eqx.is_inexact_array(node)

    return jax.tree.map(mark, estimator, is_leaf=is_frozen)


def _standardized(
    network: Callable[[Array], Array],
    pilot: Draw,
    features: Callable[[Measurement], Array],
    *,
    per_entry: bool = True,
) -> Standardized:
    values = jax.vmap(features)(jax.tree.map(lambda leaf: leaf[:, 0], pilot.x))
    if not per_entry:  # the elements of a set are alike: one scale for all rows
        values = values.reshape(-1, 1, values.shape[-1])
    return Standardized(features, _measure(values), network, _measure(pilot.y))


def _measure(values: Float[Array, "n ..."]) -> Affine:
    mean, deviation = jnp.mean(values, axis=0), jnp.std(values, axis=0)
    # An entry that never varies carries no information; leave its scale alone.
    constant = deviation <= 1e-6 * jnp.abs(mean) + jnp.finfo(values.dtype).tiny
    return Affine(mean, jnp.where(constant, 1.0, deviation))
