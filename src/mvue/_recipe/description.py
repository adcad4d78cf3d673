"""An estimator in words: what it sees, where it starts from, what is trained."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from ..nn._frozen import count_weights
from ..nn._measurements import flatten
from ..nn._staged import WithBaseline
from ..nn._standardize import Standardized
from .network import Corrected
from .summaries import JointStatistics, Statistics


def describe_estimator(network: Any, x: Any) -> dict[str, str]:
    """Its summaries, its start in closed form, its network and its calibration, with sizes.

    `x` is a measurement, or its shapes.
    """
    inner, trained = network, network
    start = "none: the network alone"
    if isinstance(network, WithBaseline):
        inner, start = network.network, "the baseline that was given, corrected by the network"
    if isinstance(inner, Corrected):
        summaries, trained = _summaries(inner, x), (inner.network, inner.inner)
        start = start if inner.baseline is None else _closed_form(inner)
        layers = _layers(inner.network)
        if inner.inner is not None:
            layers += f", and {_layers(inner.inner)} averaged over the elements"
    elif isinstance(inner, Standardized):
        plain = inner.features is flatten
        what = "the numbers of x" if plain else f"{_name(inner.features)} of x"
        summaries = f"{what}, standardised: {inner.inputs.shift.size:,} numbers"
        layers = _layers(inner.network)
    else:
        summaries, layers = "none: the network sees x itself", _layers(inner)
    return {
        "summaries": summaries,
        "start": start,
        "network": f"{layers}; {count_weights(trained):,} weights",
        "calibration": "none",
    }


def _summaries(network: Corrected, x: Any) -> str:
    statistics, leaves = network.statistics, jax.tree.leaves(x)
    parts = [(statistics, leaves)]
    if isinstance(statistics, JointStatistics):
        groups = [[leaves[i] for i in group] for group in statistics.leaves]
        parts = list(zip(statistics.parts, groups, strict=True))
    words = [_words(part, group) for part, group in parts if isinstance(part, Statistics)]
    if len(parts) > 1 and statistics.settings.natural:
        words.append("differences of means over noise")
    return f"{network.plug_in.scaling.shift.shape[0]:,} numbers, of {'; '.join(words)}"


def _words(statistics: Statistics, leaves: list[Any]) -> str:
    """What is measured, and the families of its statistics."""
    settings = statistics.settings
    size = sum(math.prod(leaf.shape) * (1 + jnp.iscomplexobj(leaf)) for leaf in leaves)
    if statistics.kind == "flat":
        families = ["themselves", "their mean square"]
        families += ["logarithms"] if statistics.positive else []
        families += ["products"] if size <= settings.largest_quadratic else []
        return f"{size:,} numbers ({', '.join(families)})"
    n = leaves[0].shape[0] if leaves[0].shape else 1
    if statistics.kind == "scalars":
        most = settings.largest_sorted
        order = "sorted values" if n <= most else f"{most} quantiles"
        families = ["moments", "logarithms", *([order] if n > 1 else [])]
        return f"a set of {n:,} scalars ({', '.join(families)})"
    families = ["means", "second moments", "log scales", "correlations", "regressions"]
    families += ["powers along principal axes"] if statistics.axes is not None else []
    if statistics.whitening is not None and settings.natural:
        families.append("mean over noise")
    return f"a set of {n:,} vectors of {size // n:,} ({', '.join(families)})"


def _closed_form(network: Corrected) -> str:
    plug_in, baseline = network.plug_in, network.baseline
    assert baseline is not None
    features = plug_in.hidden.shape[1]
    natural, terms = baseline.natural.shift.shape[0], baseline.weights.shape[1]
    return (
        f"closed form: regression on the summaries and {features:,} random features, then linear "
        f"BCE in {terms:,} terms, {natural:,} of them natural statistics"
    )


def _layers(network: Any) -> str:
    """The sizes of dense layers, or the class of what is not made of them."""
    if not isinstance(network, (eqx.nn.MLP, eqx.nn.Sequential)):
        return _name(type(network)) if isinstance(network, eqx.Module) else _name(network)
    nodes = jax.tree.leaves(network, is_leaf=lambda node: isinstance(node, eqx.nn.Linear))
    dense = [node for node in nodes if isinstance(node, eqx.nn.Linear)]
    others = [layer for layer in network.layers if isinstance(layer, eqx.Module)]
    known = all(isinstance(layer, (eqx.nn.Linear, eqx.nn.Lambda)) for layer in others)
    if not dense or not known:
        return type(network).__name__
    sizes = [dense[0].in_features, *(layer.out_features for layer in dense)]
    return "dense layers " + " → ".join(map(str, sizes))


def _name(target: Any) -> str:
    return getattr(target, "__name__", type(target).__name__)
