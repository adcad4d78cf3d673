"""Unbias a trained network without retraining: a new last layer in closed form."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from ._fit import Fit
from ._grouped_moments import GroupedMoments
from ._losses import check_bias_weight
from ._noise_spectrum import fit_moments
from ._problem import Draw, Problem, check_count, finite_units, key_for, nonfinite_error
from ._types import Estimator, Key, Measurement

PIECE_NUMBERS = 2**22  # numbers of x held at a time, 16 MB in float32


class LinearReadout(eqx.Module):
    """The estimate ``weight @ features(x) + bias``."""

    features: Callable[[Measurement], Array]
    weight: Float[Array, "d p"]
    bias: Float[Array, " d"]

    def __call__(self, x: Measurement) -> Float[Array, " d"]:
        """The estimate from one measurement."""
        return self.weight @ self.features(x) + self.bias


class LastLayerFeatures(eqx.Module):
    """What the last linear layer of a network sees, in the form in which it reaches the output.

    A network that ends in a linear layer z = W h + b, scaled or shifted by amounts that may depend
    on x, is linear in W and b: its output is o(x) + s(x) z. The features are s ⊗ h, s and o, of
    which the outputs are sums with constant coefficients.
    """

    network: Callable[[Measurement], Array]

    def __call__(self, x: Measurement) -> Float[Array, " p"]:
        """The features of one measurement."""
        seen: list[Array] = []
        zero = self._zero()
        offset = self._output(x, zero, seen)
        slope = jax.jacfwd(lambda z: self._output(x, z, []))(zero)
        hidden = jnp.append(seen[0], 1.0)
        return jnp.concatenate([jnp.ravel(jnp.outer(slope, hidden)), offset])

    def is_linear(self, x: Measurement) -> bool:
        """Whether the output is a shift and a multiple of what the last layer returns."""
        zero = self._zero()
        z = 1.0 + jnp.arange(zero.size, dtype=zero.dtype).reshape(zero.shape)
        outputs = jnp.stack([self._output(x, c * z, []) for c in (0.0, 1.0, 2.0)])
        bend = jnp.abs(outputs[2] - 2 * outputs[1] + outputs[0])
        return bool((bend <= 1e-4 * jnp.abs(outputs).max()).all())

    def _zero(self) -> Array:
        size = _last_linear(self.network).out_features
        return jnp.zeros(() if isinstance(size, str) else size)

    def _output(self, x: Measurement, z: Array, seen: list[Array]) -> Array:
        """What the network returns when its last layer returns z; the layer's input is noted."""
        probed = eqx.tree_at(_last_linear, self.network, _probe(z, seen))
        return jnp.reshape(probed(x), (-1,))


def _probe(output: Array, seen: list[Array]) -> Callable[..., Array]:
    """A last layer that returns a given output and notes its input."""

    def layer(h: Array, **_: Any) -> Array:
        seen.append(h)
        return output

    return layer


def refit_last_layer(
    estimator: Estimator | Fit | None,
    problem_or_data: Problem | Draw,
    bias_weight: float = 100.0,
    *,
    key: Key | None = None,
    weight: Callable[[Any], Any] | None = None,
    features: Callable[[Measurement], Array] | None = None,
    units: int = 20_000,
    replicates: int = 8,
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
        units: unknowns to simulate.
        replicates: measurements of each.
    """
    check_bias_weight(bias_weight, finite=False)
    estimator = estimator.estimator if isinstance(estimator, Fit) else estimator
    if features is None:
        features = last_layer_features(estimator, _example(problem_or_data))

    @jax.jit
    def rows(draw: Draw) -> tuple[Array, Array]:
        """Features with a constant one, and y, of every measurement; both scaled by √weight."""
        values = jax.vmap(jax.vmap(lambda x: jnp.append(features(x), 1.0)))(draw.x)
        root = jnp.sqrt(_weights(weight, draw))
        return values * root[:, None, None], draw.y * root[:, None]

    moments = GroupedMoments()
    if isinstance(problem_or_data, Draw):
        if jax.tree.leaves(problem_or_data.x)[0].shape[1] < 2:
            raise ValueError("data must have at least 2 measurements of each unknown, got 1")
        _add(moments, rows, problem_or_data)
    else:
        _stream(moments, rows, problem_or_data, key, units, replicates)
    fit = fit_moments(moments.summary(), float(bias_weight), fit_intercept=False, stacklevel=3)
    coefficients = jnp.asarray(fit.coefficients, jnp.result_type(float))
    return LinearReadout(features, coefficients[:, :-1], coefficients[:, -1])


def last_layer_features(estimator: Any, example: Measurement) -> LastLayerFeatures:
    """The features in front of the last linear layer of an Equinox module."""
    hint = "for another network give features=, the function of x whose outputs the last layer sees"
    if not _linear_layers(estimator):
        raise ValueError(
            "estimator must be an Equinox module with a last layer of equinox.nn.Linear, got "
            f"{type(estimator).__name__}: {hint}"
        )
    features = LastLayerFeatures(estimator)
    if not features.is_linear(example):
        raise ValueError(
            "estimator must end in its last equinox.nn.Linear layer, followed by shifts and "
            f"factors only; this one goes on with something that is not linear: {hint}"
        )
    return features


def _example(problem_or_data: Problem | Draw) -> Measurement:
    """One measurement."""
    if isinstance(problem_or_data, Problem):
        problem_or_data = problem_or_data.draw(jr.key(0), 1, 1)
    return jax.tree.map(lambda leaf: leaf[0, 0], problem_or_data.x)


def _weights(weight: Callable[[Any], Any] | None, draw: Draw) -> Array:
    if weight is None:
        return jnp.ones(len(draw.y))
    weights = jax.vmap(weight)(draw.y)
    if weights.shape != (len(draw.y),):
        raise ValueError(f"weight(y) must be a scalar, got shape {weights.shape[1:]}")
    return weights


def _linear_layers(network: Any) -> list[eqx.nn.Linear]:
    is_linear = lambda node: isinstance(node, eqx.nn.Linear)  # noqa: E731
    return [node for node in jax.tree.leaves(network, is_leaf=is_linear) if is_linear(node)]


def _last_linear(network: Any) -> eqx.nn.Linear:
    return _linear_layers(network)[-1]


def _stream(
    moments: GroupedMoments,
    rows: Callable[[Draw], tuple[Array, Array]],
    problem: Problem,
    key: Key | None,
    units: int,
    replicates: int,
) -> None:
    if key is None:
        raise ValueError("key must be given to simulate a problem, got None")
    check_count("units", units, least=2)
    check_count("replicates", replicates, least=2)
    x, _ = problem.shapes()
    numbers = replicates * sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(x))
    size = int(np.clip(PIECE_NUMBERS // numbers, 1, units))
    draw = jax.jit(problem.draw, static_argnums=(1, 2))
    key = key_for("refit", key)
    bad = 0
    for i in range(-(-units // size)):
        piece = draw(jr.fold_in(key, i), size, replicates)
        bad += _add(moments, rows, piece)
        failing = nonfinite_error(bad, (i + 1) * size)
        if failing:
            raise failing


def _add(moments: GroupedMoments, rows: Callable[[Draw], tuple[Array, Array]], draw: Draw) -> int:
    """Add the units whose measurements and features are finite; returns how many are not."""
    values, y = (np.asarray(part, np.float64) for part in rows(draw))
    finite = np.asarray(finite_units(draw)) & np.isfinite(values).all(axis=(1, 2))
    moments.add_units(values[finite], y[finite])
    return int((~finite).sum())
