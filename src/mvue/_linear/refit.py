"""Unbias a trained network without retraining: linear BCE on its last-layer features."""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from .._core.checks import check_count
from .._core.estimators import Carrier, MeasurementSpec, Predictor, as_estimator
from .._core.keys import key_for
from .._core.problem import Draw, Problem
from .._core.sampling import finite_units, nonfinite_error
from .._core.types import Estimator, Key, Measurement
from .._runtime.devices import agreed, divided, mesh_for, own_rows, replicated, whole_shares
from .._runtime.processes import from_each
from .._serialise.registry import register
from ..exceptions import NonFiniteWarning
from ..losses._functions import check_bias_weight
from .grouped_moments import GroupedMoments
from .spectrum import fit_moments

PIECE_NUMBERS = 2**22  # numbers held at a time, 32 MB in float64
EXAMPLES = 4


@register(name="mvue.LinearReadout")
class LinearReadout(Predictor, eqx.Module):
    """The estimate ``weight @ features(x) + bias``."""

    features: Callable[[Measurement], Array]
    weight: Float[Array, "d p"]
    bias: Float[Array, " d"]
    measurement: MeasurementSpec | None = eqx.field(static=True, default=None)
    """What one measurement looks like, where that is known."""

    @property
    def function(self) -> Estimator:
        """The estimate from one measurement, which is not checked."""
        return self._estimate

    @property
    def _spec(self) -> MeasurementSpec | None:
        return self.measurement

    def _estimate(self, x: Measurement) -> Float[Array, " d"]:
        return self.weight @ self.features(x) + self.bias


@register(name="mvue.LastLayerFeatures")
class LastLayerFeatures(eqx.Module):
    """What the last linear layer of a network sees, in the form in which it reaches the output.

    A network that ends in a linear layer z = W h + b, scaled or shifted by amounts that may depend
    on x, is linear in W and b: its output is o(x) + s(x) z. The features are s ⊗ h, s and o, of
    which the outputs are sums with constant coefficients.
    """

    network: Callable[[Measurement], Array]
    layer: int = eqx.field(static=True)
    """Which of the linear layers of the network is called last."""

    def __call__(self, x: Measurement) -> Float[Array, " p"]:
        """The features of one measurement."""
        hidden, offset, slope = self._parts(x)
        return jnp.concatenate([jnp.ravel(jnp.outer(slope, jnp.append(hidden, 1.0))), offset])

    def is_linear(self, x: Measurement) -> bool:
        """Whether the output is a shift and a multiple of whatever the last layer returns."""
        _, offset, slope = self._parts(x)
        zero = self._zero()
        for i, size in enumerate((0.01, 1.0, 100.0)):
            for sign in (1.0, -1.0):
                z = sign * size * jr.normal(jr.key(i), zero.shape)
                output, expected = self._output(x, z, []), offset + jnp.tensordot(slope, z, z.ndim)
                scale = jnp.abs(output).max() + jnp.abs(offset).max()
                if not bool((jnp.abs(output - expected) <= 1e-3 * scale).all()):
                    return False
        return True

    def _parts(self, x: Measurement) -> tuple[Array, Array, Array]:
        """What the last layer sees, and the output at zero with its slope in what it returns."""
        seen: list[Array] = []
        zero = self._zero()
        offset = self._output(x, zero, seen)
        return seen[0], offset, jax.jacfwd(lambda z: self._output(x, z, []))(zero)

    def _zero(self) -> Array:
        size = _linear_layers(self.network)[self.layer].out_features
        return jnp.zeros(() if isinstance(size, str) else size)

    def _output(self, x: Measurement, z: Array, seen: list[Array]) -> Array:
        """What the network returns when its last layer returns z; the layer's input is noted."""
        layer = lambda network: _linear_layers(network)[self.layer]  # noqa: E731
        probed = eqx.tree_at(layer, self.network, _probe(z, seen))
        return jnp.reshape(probed(x), (-1,))


def _probe(output: Array, seen: list[Array]) -> Callable[..., Array]:
    """A last layer that returns a given output and notes its input."""

    def layer(h: Array, **_: Any) -> Array:
        seen.append(h)
        return output

    return layer


def refit_last_layer(
    estimator: Estimator | Carrier | None,
    problem_or_data: Problem | Draw,
    bias_weight: float = 100.0,
    *,
    key: Key | None = None,
    weight: Callable[[Any], Any] | None = None,
    features: Callable[[Measurement], Array] | None = None,
    units: int = 20_000,
    repeats: int = 8,
) -> LinearReadout:
    """Replace the last linear layer by the bias constrained one, in closed form.

    The network is left as it is up to its last layer; what that layer sees are the features of a
    linear bias constrained estimator, fitted to fresh simulations that are streamed in float64.
    Typically turns a network trained for mean squared error into a nearly unbiased one.

    Directions of the features whose signal cannot be told from noise are left to the mean squared
    error, with a warning; see `mvue.sklearn.LinearBCE`.

    Args:
        estimator: an Equinox module that ends in an `equinox.nn.Linear` layer, followed by
            nothing but shifts and factors (which may depend on x); or a `Fit` of one. With
            `features` it is not used and may be None.
        problem_or_data: a problem to simulate, or a `Draw` of fixed data.
        bias_weight: λ from 0 to infinity.
        key: for the simulations; needed with a problem.
        weight: as in `bce`, a scalar: makes errors comparable where their size depends on y.
        features: ``features(x) -> (p,)``, for networks of another form: what the last layer
            is to see.
        units: units to simulate.
        repeats: measurements of each.
    """
    check_bias_weight(bias_weight, finite=False)
    estimator = None if estimator is None else as_estimator(estimator)
    if features is None:
        features = last_layer_features(estimator, _examples(problem_or_data))

    def rows(draw: Draw) -> tuple[Array, Array]:
        """Features with a constant one, and y, of a unit; both scaled by √weight."""
        values = jax.vmap(lambda x: jnp.append(features(x), 1.0))(draw.x)
        root = jnp.sqrt(_weight(weight, draw.y))
        return values * root, draw.y * root

    example = _examples(problem_or_data)[0]
    width = _width(features, example)
    if isinstance(problem_or_data, Draw):
        source = _fixed(problem_or_data, width)
    else:
        source = _simulated(problem_or_data, key, units, repeats, width)
    moments, weighed, bad, seen, vary = _moments(source, rows)
    if bad:
        warnings.warn(
            f"{bad:,} of {seen:,} units have measurements or features that are not finite, or a "
            "weight that is negative; they were left out",
            NonFiniteWarning,
            stacklevel=2,
        )
    if not weighed:
        raise ValueError(
            f"features(x), weight(y) and measurements must be finite and weights positive in some "
            f"units, got none in all {seen:,}"
        )
    if not vary:
        raise ValueError(
            "features(x) must vary with x, got the same numbers for all measurements, from which "
            "nothing can be estimated: a network whose last layer sees no x must be trained anew"
        )
    fit = fit_moments(moments.summary(), float(bias_weight), fit_intercept=False, stacklevel=3)
    coefficients = jnp.asarray(fit.coefficients, jnp.result_type(float))
    measurement = MeasurementSpec(
        jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), example)
    )
    return LinearReadout(features, coefficients[:, :-1], coefficients[:, -1], measurement)


def _width(features: Callable[[Measurement], Array], x: Measurement) -> int:
    """How many features there are; refuses what is no vector of real numbers."""
    found = eqx.filter_eval_shape(features, x)
    shape = getattr(found, "shape", None)
    if shape is None or len(shape) != 1 or jnp.issubdtype(found.dtype, jnp.complexfloating):
        got = type(found).__name__ if shape is None else f"{found.dtype} of shape {shape}"
        raise ValueError(
            f"features(x) must return a vector of real numbers for one measurement, got {got}"
        )
    return shape[0]


def last_layer_features(estimator: Any, examples: Sequence[Measurement]) -> LastLayerFeatures:
    """The features in front of the last linear layer of an Equinox module."""
    hint = "for another network give features=, the function of x whose outputs the last layer sees"
    if not _linear_layers(estimator):
        raise ValueError(
            "estimator must be an Equinox module with a last layer of equinox.nn.Linear, got "
            f"{type(estimator).__name__}: {hint}"
        )
    network = eqx.nn.inference_mode(estimator)
    calls: list[int] = []
    _noting_calls(network, calls)(examples[0])
    if not calls or calls.count(calls[-1]) > 1:
        raise ValueError(f"estimator must call its last linear layer exactly once: {hint}")
    features = LastLayerFeatures(network, calls[-1])
    if not all(map(features.is_linear, examples)):
        raise ValueError(
            "estimator must end in its last equinox.nn.Linear layer, followed by shifts and "
            f"factors only; this one goes on with something that is not linear: {hint}"
        )
    return features


def _noting_calls(network: Any, calls: list[int]) -> Any:
    """The network with linear layers that note when they are called."""

    def noting(index: int, layer: eqx.nn.Linear) -> Callable[..., Array]:
        def call(h: Array, **options: Any) -> Array:
            calls.append(index)
            return layer(h, **options)

        return call

    layers = _linear_layers(network)
    return eqx.tree_at(_linear_layers, network, [noting(i, one) for i, one in enumerate(layers)])


def _examples(problem_or_data: Problem | Draw) -> list[Measurement]:
    """A few measurements."""
    if isinstance(problem_or_data, Problem):
        problem_or_data = problem_or_data.draw(jr.key(0), EXAMPLES, 1)
    count = min(EXAMPLES, len(problem_or_data.y))
    return [jax.tree.map(lambda leaf, i=i: leaf[i, 0], problem_or_data.x) for i in range(count)]


def _weight(weight: Callable[[Any], Any] | None, y: Array) -> Array:
    value = jnp.ones(()) if weight is None else jnp.asarray(weight(y))
    if value.shape != ():
        raise ValueError(f"weight(y) must be a scalar, got shape {value.shape}")
    return value


def _linear_layers(network: Any) -> list[eqx.nn.Linear]:
    is_linear = lambda node: isinstance(node, eqx.nn.Linear)  # noqa: E731
    return [node for node in jax.tree.leaves(network, is_leaf=is_linear) if is_linear(node)]


class _UnitPieces(NamedTuple):
    """Units and their measurements, in pieces as large as memory allows."""

    unit: Callable[[Array, Any], Draw]
    """Of the number of a unit within its piece, and what the piece has in common."""
    pieces: list[tuple[int, Callable[[], Any]]]
    """How many units each has, and what they have in common."""


def _simulated(
    problem: Problem, key: Key | None, units: int, repeats: int, width: int
) -> _UnitPieces:
    """Fresh simulations."""
    if key is None:
        raise ValueError("key must be given to simulate a problem, got None")
    check_count("units", units, least=2)
    check_count("repeats", repeats, least=2)
    x, _ = problem.shapes()
    numbers = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(x))
    size = int(np.clip(PIECE_NUMBERS // (repeats * max(numbers, width)), 1, units))
    key = key_for("refit", key)
    pieces = [(size, functools.partial(jr.fold_in, key, i)) for i in range(-(-units // size))]
    return _UnitPieces(lambda number, key: problem.draw_unit(key, number, repeats), pieces)


def _fixed(data: Draw, width: int) -> _UnitPieces:
    """Data that are there."""
    n, repeats = jax.tree.leaves(data.x)[0].shape[:2]
    if repeats < 2:
        raise ValueError("data must have at least 2 measurements of each unit, got 1")
    size = max(1, PIECE_NUMBERS // (repeats * width))

    def piece(start: int) -> Draw:
        return jax.tree.map(lambda leaf: leaf[start : start + size], data)

    def unit(number: Array, piece: Draw) -> Draw:
        return jax.tree.map(lambda leaf: leaf[number], piece)

    starts = range(0, n, size)
    return _UnitPieces(unit, [(min(size, n - i), functools.partial(piece, i)) for i in starts])


def _moments(
    source: _UnitPieces, rows: Callable[[Draw], tuple[Array, Array]]
) -> tuple[GroupedMoments, int, int, int, bool]:
    """Moments of the rows of all units that are finite, counts of units, whether features vary.

    The units are those that have a weight, those that are not finite, and all.

    All devices of all processes share the units of a piece. Each process adds up the rows of
    its own in float64, and in the end these sums are merged.
    """

    @functools.partial(jax.jit, static_argnums=0)
    def divided_rows(count: int, common: Any) -> tuple[Array, Array, Array, Array]:
        def unit(number: Array, common: Any) -> tuple[Array, Array, Array, Array]:
            draw = source.unit(number, common)
            finite = finite_units(jax.tree.map(lambda leaf: leaf[None], draw))[0]
            return *rows(draw), finite, number < count

        shares = whole_shares(count)
        return divided(unit, mesh_for(shares), shares, common)

    moments = GroupedMoments()
    weighed = bad = seen = unusable = unweighable = 0
    ends = np.full((2, 1), np.nan)  # of the features
    for count, common in source.pieces:
        given = replicated(common(), mesh_for(whole_shares(count)))
        values, y, finite, wanted = own_rows(divided_rows(count, given))
        good = wanted & finite & np.isfinite(values).all(axis=(1, 2))
        if good.any():
            moments.add_units(values[good].astype(np.float64), y[good].astype(np.float64))
        # The last column is the root of the weight.
        has_weight = good & (values[:, 0, -1] > 0)
        weighed += int(agreed(float(np.sum(has_weight))).sum())
        bad += int(agreed(float(np.sum(wanted & ~good))).sum())
        seen += count
        made = wanted & finite & ~good
        without = made & ~np.isfinite(values[:, 0, -1])
        unusable += int(agreed(float(np.sum(made & ~without))).sum())
        unweighable += int(agreed(float(np.sum(without))).sum())
        _check_share(bad, unusable, unweighable, seen)
        if has_weight.any():
            found = values[has_weight].astype(np.float64)
            found = (found[..., :-1] / found[..., -1:]).reshape(-1, found.shape[-1] - 1)
            both = np.stack([found.min(axis=0), found.max(axis=0)])
            ends = np.stack([np.fmin(ends[0], both[0]), np.fmax(ends[1], both[1])])
    rounding = 8 * float(jnp.finfo(jnp.result_type(float)).eps) * np.abs(ends).max(axis=0)
    vary = bool(agreed(float((np.ptp(ends, axis=0) > rounding).any())).any())
    merged = functools.reduce(GroupedMoments.merge, from_each(moments))
    return merged, weighed, bad, seen, vary


def _check_share(bad: int, unusable: int, unweighable: int, seen: int) -> None:
    """Refuse too many units that cannot be used, by the name of what is to blame."""
    if nonfinite_error(unweighable, seen):
        raise ValueError(
            "weight(y) must be a finite number of at least 0, got NaN, infinity or less for "
            f"{unweighable:,} of {seen:,} units"
        )
    if nonfinite_error(unusable, seen):
        raise ValueError(
            "features(x), what the last layer sees, must be finite, got NaN or infinity for "
            f"{unusable:,} of {seen:,} units"
        )
    failing = nonfinite_error(bad, seen)
    if failing:
        raise failing
