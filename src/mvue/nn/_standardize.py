"""Networks in standard units: scaling of what goes in and out, measured on a pilot draw."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.keys import key_for
from .._core.problem import Draw, Problem
from .._core.sampling import pilot_draw
from .._core.types import Key, Measurement
from .._runtime.jit import jit
from .._serialise.registry import register
from ._frozen import Affine
from ._measurements import flatten

PILOT_UNITS = 1024
SINGLE, DOUBLE = 1e-6, 1e-12  # relative deviations that are rounding in these precisions


@register(name="mvue.Standardized")
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


@register(name="mvue.ScaleBack")
class ScaleBack(eqx.Module):
    """The head that turns standard units into those of y."""

    outputs: Affine

    def __call__(self, x: Measurement, z: Float[Array, " d"]) -> Float[Array, " d"]:
        """The estimate from the network's output."""
        del x
        return self.outputs(z)


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


def _pilot_features(pilot: Draw, features: Callable[[Measurement], Array]) -> Array:
    return jit(jax.vmap(features))(jax.tree.map(lambda leaf: leaf[:, 0], pilot.x))


def scale_back(y: Float[Array, "n d"]) -> ScaleBack:
    """From standard units to those of some y."""
    forward = scaling(y)
    return ScaleBack(Affine(-forward.shift * forward.matrix, 1 / forward.matrix))


def scaling(values: Float[Array, "n ..."]) -> Affine:
    """To mean 0 and standard deviation 1; what does not vary keeps its scale."""
    mean, deviation = mean_and_deviation(values)
    return Affine(mean, 1 / jnp.where(deviation == 0, 1.0, deviation))


def mean_and_deviation(values: Any, resolution: float = SINGLE) -> tuple[Any, Any]:
    """Means and standard deviations along the first axis, of NumPy or JAX arrays.

    A deviation that is no more than the rounding of the mean is zero: it carries no information.
    Squares are those of numbers about one, lest they overflow or vanish: a power of two is taken
    out first, which changes no digit.
    """
    xp = jnp if isinstance(values, jax.Array) else np
    power = xp.frexp(xp.max(xp.abs(values), axis=0, initial=0.0))[1]
    small = xp.ldexp(values, -power[None])
    mean, deviation = xp.mean(small, axis=0), xp.std(small, axis=0)
    rounding = resolution * xp.abs(mean) + xp.finfo(values.dtype).tiny
    deviation = xp.where(deviation > rounding, deviation, 0.0)
    return xp.ldexp(mean, power), xp.ldexp(deviation, power)


def _whitening(values: Float[Array, "n p"]) -> Affine:
    affine = scaling(values)
    standard = jax.vmap(affine)(values)
    eigenvalues, vectors = jnp.linalg.eigh(standard.T @ standard / len(values))
    # Directions that hardly vary would be made of rounding errors.
    floored = jnp.maximum(eigenvalues, 1e-5 * eigenvalues[-1])
    matrix = affine.matrix[:, None] * vectors / jnp.sqrt(floored)[None, :]
    return Affine(affine.shift, matrix)
