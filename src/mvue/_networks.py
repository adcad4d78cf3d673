"""Networks that are not tied to one experiment, and the scaling of what goes in and out.

A network is any function of ONE measurement whose arrays are trained; Equinox modules are.
No network here bounds its output: the unbiased estimator of a positive number may have to be
negative now and then.
"""

import abc
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PyTree

from ._baseline import Baseline, PlugIn, fit_baseline
from ._frozen import Affine, Frozen
from ._jit import jit
from ._problem import Draw, Problem, key_for, pilot_draw
from ._registry import register
from ._statistics import Parts, Statistics, flatten
from ._survey import Survey
from ._types import Estimator, Key, Measurement

PILOT_UNITS = 1024
WIDTH = 64
INNER_WIDTH, INNER_OUT = 16, 8


@register
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


@register
class ScaleBack(eqx.Module):
    """The head that turns standard units into those of y."""

    outputs: Affine

    def __call__(self, x: Measurement, z: Float[Array, " d"]) -> Float[Array, " d"]:
        """The estimate from the network's output."""
        del x
        return self.outputs(z)


@register
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
    inputs = _whitening(values) if whiten else scaling(values)
    return Standardized(features or flatten, inputs, network, head or scale_back(pilot.y))


@register
class Given(Frozen):
    """An estimator that somebody brings; it is not trained."""

    estimator: Estimator

    def __call__(self, x: Measurement) -> Float[Array, " d"]:
        """The estimate from one measurement."""
        return jnp.reshape(self.estimator(x), (-1,))


class Staged(eqx.Module):
    """A network whose first stage is not trained.

    What the first stage makes of a measurement serves every state of the weights.
    """

    @abc.abstractmethod
    def prepare(self, x: Measurement) -> PyTree:
        """The first stage, without anything that is trained."""

    @abc.abstractmethod
    def finish(self, prepared: PyTree) -> Float[Array, " d"]:
        """The estimate from what the first stage made."""

    def __call__(self, x: Measurement) -> Float[Array, " d"]:
        """The estimate from one measurement."""
        return self.finish(self.prepare(x))


def prepare(network: Estimator, x: Measurement) -> PyTree:
    """The first stage of any network: nothing is done, if it has none."""
    return network.prepare(x) if isinstance(network, Staged) else x


def finish(network: Estimator, prepared: PyTree) -> Float[Array, " d"]:
    """All but the first stage of a network."""
    whole = network.finish if isinstance(network, Staged) else network
    return jnp.reshape(whole(prepared), (-1,))


class OnBaseline(NamedTuple):
    """What the first stage of `WithBaseline` makes."""

    baseline: Float[Array, " d"]
    network: PyTree


@register
class WithBaseline(Staged):
    """The sum of an estimator that is known to be unbiased and of a network that corrects it."""

    baseline: Given
    network: Estimator

    def prepare(self, x: Measurement) -> OnBaseline:
        """The estimate of the baseline, and the first stage of the network."""
        return OnBaseline(self.baseline(x), prepare(self.network, x))

    def finish(self, prepared: OnBaseline) -> Float[Array, " d"]:
        """The sum."""
        return prepared.baseline + finish(self.network, prepared.network)


class ToCorrect(NamedTuple):
    """What the first stage of `Corrected` makes: what the network sees, and what it corrects."""

    inputs: Float[Array, " p"]
    elements: Float[Array, "n q"] | None
    """Of a set of vectors."""
    estimate: Float[Array, " d"]
    """Of the baseline; zero without one."""
    sd: Float[Array, " d"]
    """The error to expect, which is the unit of the correction."""


@register
class Corrected(Staged):
    """A baseline in closed form and a network that corrects it, in units of the expected error.

    The network sees the statistics of the baseline and, for sets of vectors, averages over the
    elements that an inner network learns. Without a baseline it is the correction alone.
    """

    statistics: Statistics | Parts
    plug_in: PlugIn
    baseline: Baseline | None
    inner: eqx.nn.MLP | None
    network: eqx.nn.MLP

    def prepare(self, x: Measurement) -> ToCorrect:
        """Statistics and the estimate in closed form."""
        statistics = self.statistics.inputs(x)
        first, log_sd, places = self.plug_in(statistics)
        inputs = self.plug_in.inputs(statistics)
        estimate, elements = jnp.zeros_like(first), None
        if self.baseline is not None:
            estimate = self.baseline(first, log_sd, inputs, self.statistics.natural(x))
        if self.inner is not None and isinstance(self.statistics, Statistics):
            elements = self.statistics.elements(x)
        return ToCorrect(jnp.concatenate([inputs, places]), elements, estimate, jnp.exp(log_sd))

    def finish(self, prepared: ToCorrect) -> Float[Array, " d"]:
        """The corrected estimate."""
        inputs = prepared.inputs
        if self.inner is not None and prepared.elements is not None:
            averages = jnp.mean(jax.vmap(self.inner)(prepared.elements), axis=0)
            inputs = jnp.concatenate([inputs, averages])
        return prepared.estimate + prepared.sd * self.network(inputs)


def default_network(
    problem: Problem, survey: Survey, *, correction: bool = False, key: Key
) -> Corrected:
    """The network that `fit` builds when it is given none.

    Args:
        problem: what to train on.
        survey: of the problem, which tells the expected size of errors.
        correction: leave the baseline out, for the correction of another one.
        key: for simulations and for the initial weights.
    """
    baseline_key, inner_key, network_key = jr.split(key, 3)
    plug_in, baseline = fit_baseline(problem, survey, only_plug_in=correction, key=baseline_key)
    x, y = problem.shapes()
    d = y.shape[0]
    size, inner = plug_in.scaling.shift.shape[0] + 2 * d, None
    statistics = survey.statistics
    if isinstance(statistics, Statistics) and statistics.kind == "vectors":
        elements = jax.eval_shape(statistics.elements, x).shape[1]
        inner = eqx.nn.MLP(elements, INNER_OUT, INNER_WIDTH, 1, jax.nn.gelu, key=inner_key)
        size += INNER_OUT
    network = eqx.nn.MLP(size, d, WIDTH, 2, jax.nn.gelu, key=network_key)
    return Corrected(statistics, plug_in, baseline, inner, nearly_zero(network))


def perceptron(
    in_size: int,
    hidden: Sequence[int],
    out_size: int,
    activation: Callable[[Array], Array],
    *,
    key: Key,
) -> eqx.nn.Sequential:
    """A network of dense layers whose sizes may differ."""
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


def _pilot_features(pilot: Draw, features: Callable[[Measurement], Array]) -> Array:
    return jit(jax.vmap(features))(jax.tree.map(lambda leaf: leaf[:, 0], pilot.x))


def scale_back(y: Float[Array, "n d"]) -> ScaleBack:
    """From standard units to those of some y."""
    forward = scaling(y)
    return ScaleBack(Affine(-forward.shift * forward.matrix, 1 / forward.matrix))


def scaling(values: Float[Array, "n ..."]) -> Affine:
    """To mean 0 and standard deviation 1."""
    mean, deviation = jnp.mean(values, axis=0), jnp.std(values, axis=0)
    # An entry that never varies carries no information; leave its scale alone.
    constant = deviation <= 1e-6 * jnp.abs(mean) + jnp.finfo(values.dtype).tiny
    return Affine(mean, jnp.where(constant, 1.0, 1 / deviation))


def _whitening(values: Float[Array, "n p"]) -> Affine:
    affine = scaling(values)
    standard = jax.vmap(affine)(values)
    eigenvalues, vectors = jnp.linalg.eigh(standard.T @ standard / len(values))
    # Directions that hardly vary would be made of rounding errors.
    floored = jnp.maximum(eigenvalues, 1e-5 * eigenvalues[-1])
    matrix = affine.matrix[:, None] * vectors / jnp.sqrt(floored)[None, :]
    return Affine(affine.shift, matrix)
