"""An estimator in words: what it sees, where it starts from, what is trained."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .._summaries.joint import JointStatistics
from .._summaries.ordered import OrderedStatistics
from .._summaries.sets import Statistics
from ..nn._frozen import count_weights
from ..nn._measurements import flatten
from ..nn._staged import WithBaseline
from ..nn._standardize import Standardized
from .network import Corrected
from .scoring import FirstState, Scored


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
    elif isinstance(inner, Scored):
        summaries, trained = _summaries(inner, x), (inner.first, inner.stages)
        start = _first(inner.first)
        rank = inner.stages[0].mix.out_features
        waves = inner.stages[0].waves.out_features if inner.stages else 0
        layers = (
            f"{len(inner.stages)} stages of learned Fisher scoring for {len(inner.unit)} "
            f"parameters, each with {rank} products of a summary and a coefficient, coefficients "
            f"from the state and {waves} waves of it"
        )
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


def _summaries(network: Corrected | Scored, x: Any) -> str:
    statistics, leaves = network.statistics, jax.tree.leaves(x)
    parts: list[tuple[Any, list[Any]]] = [(statistics, leaves)]
    between = False
    if isinstance(statistics, JointStatistics):
        groups = [[leaves[i] for i in group] for group in statistics.leaves]
        parts = list(zip(statistics.parts, groups, strict=True))
        sets = [part for part in statistics.parts if isinstance(part, Statistics)]
        between = len(sets) > 1 and statistics.settings.natural
    words = [_words(part, group) for part, group in parts]
    words += ["differences of means over noise"] if between else []
    if isinstance(statistics, JointStatistics) and statistics.own is not None:
        words.append(f"{len(statistics.own.functions)} given functions of x")
    return f"{network.plug_in.scaling.shift.shape[0]:,} numbers, of {'; '.join(words)}"


def _words(statistics: Statistics | OrderedStatistics, leaves: list[Any]) -> str:
    """What is measured, and the families of its statistics."""
    settings = statistics.settings
    size = sum(math.prod(leaf.shape) * (1 + jnp.iscomplexobj(leaf)) for leaf in leaves)
    if isinstance(statistics, OrderedStatistics):
        return _words_of_ordered(statistics, leaves[0].shape, size)
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


def _words_of_ordered(statistics: OrderedStatistics, shape: tuple[int, ...], size: int) -> str:
    settings = statistics.settings
    families = ["the numbers themselves", "mean square"]
    if statistics.subspace is not None:
        families[0] = f"{statistics.subspace.matrix.shape[1]} components of them"
    families += ["logarithms"] if statistics.positive and statistics.subspace is None else []
    families += ["products"] if size <= settings.largest_quadratic else []
    if statistics.kind == "vector":
        return f"a vector of {size:,} numbers ({', '.join(families)})"
    families += ["products and correlations at lags", "moments"]
    if statistics.kind == "image":
        return f"an image of {' x '.join(map(str, shape))} ({', '.join(families)})"
    families.append("sizes at lags")
    families += ["spectrum"] if max(shape) >= settings.fewest_spectrum else []
    return f"a series of {' x '.join(map(str, shape))} ({', '.join(families)})"


def _first(first: eqx.nn.MLP | FirstState) -> str:
    if not isinstance(first, FirstState):
        return f"learned: {_layers(first)}"
    distance = first.distance
    waves, q = distance.emulator.frequencies.shape
    return (
        f"minimum distance: {distance.whitening.shape[1]} combinations of summaries, whose mean is "
        f"emulated by polynomials and {waves} plane waves of {q} parameters; the nearest of "
        f"{len(distance.codes):,} values, and three Gauss-Newton steps"
    )


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
