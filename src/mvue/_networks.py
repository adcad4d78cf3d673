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

from ._problem import Draw, Problem, key_for, pilot_draw
from ._types import Key, Measurement

PILOT_UNITS = 1024


class Affine(eqx.Module):
    """A fixed map ``(value - shift) @ matrix``, measured once and never trained.

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


class Standardized(eqx.Module):
    """An estimator in natural units around a network in standard units.

    ``x -> features -> inputs -> network -> head``. Only the network is trained.
    """

    features: Callable[[Measurement], Array]
    inputs: Affine
    network: Callable[[Array], Array]
    head: Callable[[Measurement, Array], Array]

    def __call__(self, x: Measurement) -> Float[Array, " d"]:
        """The estimate from one measurement."""
        return self.head(x, self.network(self.inputs(self.features(x))))


class ScaleBack(eqx.Module):
    """The head that turns standard units into those of y."""

    outputs: Affine

    def __call__(self, x: Measurement, z: Float[Array, " d"]) -> Float[Array, " d"]:
        """The estimate from the network's output."""
        del x
        return self.outputs(z)


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
    head: Callable[[Measurement, Array], Array] | None = None,
    whiten: bool = False,
    key: Key,
) -> Standardized:
    """Put a network into the problem's own units, measured on a pilot draw.

    Args:
        network: a function of the standardised features, trained by `fit`.
        problem: the problem.
        features: ``features(x) -> (p,)``, what the network sees of one measurement; by default
            all numbers of x in one vector. They are given mean 0 and standard deviation 1 over
            the prior.
        head: ``head(x, z) -> y``, how the network's output z becomes an estimate; by default z is
            y in standard units. For example ``lambda x, z: crude(x) * (1 + z)`` refines a crude
            estimate.
        whiten: make the features uncorrelated, too; for a few features that say nearly the same.
        key: for the pilot draw.
    """
    pilot = pilot_draw(problem, key_for("standardize", key), PILOT_UNITS, 1)
    values = _pilot_features(pilot, features or flatten)
    inputs = _whitening(values) if whiten else _scaling(values)
    return Standardized(features or flatten, inputs, network, head or _scale_back(pilot))


def default_network(problem: Problem, pilot: Draw, *, key: Key) -> Standardized:
    """The network that `fit` builds when it is given none.

    For exchangeable scalars: their order statistics, raw and in their own scale, with mean and
    log standard deviation, into a perceptron with two hidden layers. For exchangeable vectors: a
    `DeepSet`. Otherwise a perceptron on all numbers of x.
    """
    d = pilot.y.shape[1]
    features = flatten
    if problem.exchangeable:
        rows = _pilot_features(pilot, stack_elements)
        p = rows.shape[-1]
        if p > 1:
            # The elements of a set are alike: one scale for all rows.
            inputs = _scaling(rows.reshape(-1, 1, p))
            return Standardized(stack_elements, inputs, DeepSet(p, d, key=key), _scale_back(pilot))
        features = order_statistics
    values = _pilot_features(pilot, features)
    network = eqx.nn.MLP(values.shape[1], d, 64, 2, jax.nn.gelu, key=key)
    return Standardized(features, _scaling(values), network, _scale_back(pilot))


def flatten(x: Measurement) -> Float[Array, " p"]:
    """All numbers of one measurement in one vector."""
    return jnp.concatenate([jnp.ravel(leaf) for leaf in _real_leaves(x)])


def stack_elements(x: Measurement) -> Float[Array, "n p"]:
    """The elements of one exchangeable measurement as rows."""
    leaves = [leaf.reshape(leaf.shape[0], -1) for leaf in _real_leaves(x)]
    return jnp.concatenate(leaves, axis=1)


def _real_leaves(x: Measurement) -> list[Array]:
    """All arrays as real numbers, complex ones as two."""
    leaves = []
    for leaf in jax.tree.leaves(x):
        is_complex = jnp.issubdtype(leaf.dtype, jnp.complexfloating)
        leaves += [leaf.real, leaf.imag] if is_complex else [leaf.astype(float)]
    return leaves


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


def _pilot_features(pilot: Draw, features: Callable[[Measurement], Array]) -> Array:
    return jax.jit(jax.vmap(features))(jax.tree.map(lambda leaf: leaf[:, 0], pilot.x))


def _scale_back(pilot: Draw) -> ScaleBack:
    forward = _scaling(pilot.y)
    return ScaleBack(Affine(-forward.shift * forward.matrix, 1 / forward.matrix))


def _scaling(values: Float[Array, "n ..."]) -> Affine:
    mean, deviation = jnp.mean(values, axis=0), jnp.std(values, axis=0)
    # An entry that never varies carries no information; leave its scale alone.
    constant = deviation <= 1e-6 * jnp.abs(mean) + jnp.finfo(values.dtype).tiny
    return Affine(mean, jnp.where(constant, 1.0, 1 / deviation))


def _whitening(values: Float[Array, "n p"]) -> Affine:
    scaling = _scaling(values)
    standard = jax.vmap(scaling)(values)
    eigenvalues, vectors = jnp.linalg.eigh(standard.T @ standard / len(values))
    # Directions that hardly vary would be made of rounding errors.
    floored = jnp.maximum(eigenvalues, 1e-5 * eigenvalues[-1])
    matrix = scaling.matrix[:, None] * vectors / jnp.sqrt(floored)[None, :]
    return Affine(scaling.shift, matrix)
