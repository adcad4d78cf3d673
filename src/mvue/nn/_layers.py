"""Dense networks and their initial weights."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax.random as jr
from jaxtyping import Array

from .._core.checks import check_count
from .._core.types import Key


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


def nearly_zero(network: eqx.nn.MLP) -> eqx.nn.MLP:
    """The network with a small last layer: what it corrects is nearly the first estimate."""
    last = lambda mlp: (mlp.layers[-1].weight, mlp.layers[-1].bias)  # noqa: E731
    weight, bias = last(network)
    return eqx.tree_at(last, network, (0.1 * weight, 0.0 * bias))
