"""Dense networks and their initial weights."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
from jaxtyping import Array

from .._core.checks import check_count
from .._core.types import Key
from .._runtime.jit import as_array


def perceptron(
    in_size: int,
    hidden: Sequence[int],
    out_size: int,
    activation: Callable[[Array], Array],
    *,
    key: Key,
) -> eqx.nn.Sequential:
    """A network of dense layers whose sizes may differ."""
    for size in hidden:
        check_count("hidden", size)
    sizes = [in_size, *hidden, out_size]
    keys = jr.split(key, len(sizes) - 1)
    layers: list[Any] = []
    for i, (before, after) in enumerate(itertools.pairwise(sizes)):
        layers.append(eqx.nn.Linear(before, after, key=keys[i]))
        layers.append(eqx.nn.Lambda(activation))
    return eqx.nn.Sequential(layers[:-1])


def mlp(
    in_size: int, out_size: int, width: int, depth: int, rng: np.random.Generator
) -> eqx.nn.MLP:
    """Dense layers of one width; their weights are drawn on the host, so that nothing compiles."""
    make = lambda key: eqx.nn.MLP(in_size, out_size, width, depth, jax.nn.gelu, key=key)  # noqa: E731
    return _drawn(eqx.filter_eval_shape(make, jr.key(0)), rng)


def linear(in_size: int, out_size: int, rng: np.random.Generator) -> eqx.nn.Linear:
    """One dense layer, the same."""
    make = lambda key: eqx.nn.Linear(in_size, out_size, key=key)  # noqa: E731
    return _drawn(eqx.filter_eval_shape(make, jr.key(0)), rng)


def _drawn(shapes: Any, rng: np.random.Generator) -> Any:
    """Dense layers with weights as those that Equinox draws."""

    def draw(layer: Any) -> Any:
        if not isinstance(layer, eqx.nn.Linear):
            return layer
        size = 1 / np.sqrt(float(layer.weight.shape[1]))
        values = lambda leaf: as_array(rng.uniform(-size, size, leaf.shape), leaf.dtype)  # noqa: E731
        return jax.tree.map(values, layer)

    return jax.tree.map(draw, shapes, is_leaf=lambda node: isinstance(node, eqx.nn.Linear))


def nearly_zero(network: eqx.nn.MLP) -> eqx.nn.MLP:
    """The network with a small last layer: what it corrects is nearly the first estimate."""
    last = lambda mlp: (mlp.layers[-1].weight, mlp.layers[-1].bias)  # noqa: E731
    weight, bias = last(network)
    small = 0.1 * np.asarray(weight), np.zeros_like(bias)
    return eqx.tree_at(last, network, tuple(as_array(part, part.dtype) for part in small))
