"""The excess of errors over what was expected, as a smooth function of the parameter.

The information at one value promises more than any estimator can keep where it changes within the
reach of errors: next to the unit root of an autoregression, or below the threshold of a tone.
Weighted by that promise, a few such values would decide about all others. So the errors of a first
estimator are looked at, and weights are lowered where they are larger than expected.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._numerics.polynomials import Layer, layer_values, layers_of, legendre
from .._runtime.jit import as_array

FLOOR = 0.1  # of a squared error over the expected one: logarithms see nothing smaller
LARGEST = 10.0  # logarithm of an excess
RIDGE = 1e-4


class ExcessSums(NamedTuple):
    """Moments from which the model is fitted, summed over units."""

    gram: Any  # (f, f)
    cross: Any  # (f, d)


class ExcessModel(NamedTuple):
    """An additive model of the logarithm, in coordinates that lie within about -1 … 1."""

    layers: tuple[Layer, ...]
    degree: int

    def features(self, at: Float[Array, " q"]) -> Float[Array, " f"]:
        """Polynomials of each coordinate, and layers at its ends."""
        at = jnp.clip(at, -1.0, 1.0)
        powers = legendre(at, self.degree)[1:].ravel()
        return jnp.concatenate([jnp.ones(1, at.dtype), powers, layer_values(at, self.layers)])

    def size(self, coordinates: int) -> int:
        """The number of features."""
        return 1 + coordinates * self.degree + len(self.layers)

    def sums(self, at: Float[Array, "n q"], errors: Float[Array, "n m d"]) -> ExcessSums:
        """Of a batch; errors are in units of the expected ones."""
        logs = jnp.log(errors**2 + FLOOR).mean(axis=1) - _of_normal_errors()
        features = jax.vmap(self.features)(at)
        good = jnp.isfinite(logs).all(axis=1, keepdims=True)
        features, logs = jnp.where(good, features, 0.0), jnp.where(good, logs, 0.0)
        return ExcessSums(features.T @ features, features.T @ logs)

    def solve(self, sums: ExcessSums) -> Float[Array, "f d"]:
        """The coefficients; in double precision."""
        gram, cross = (np.asarray(part, np.float64) for part in sums)
        ridge = RIDGE * np.trace(gram) / len(gram)
        found = np.linalg.solve(gram + ridge * np.eye(len(gram)), cross)
        return as_array(found)

    def of(self, coefficients: Float[Array, "f d"], at: Float[Array, " q"]) -> Float[Array, " d"]:
        """The logarithm of measured over expected squared errors, where that is above one."""
        return jnp.clip(self.features(at) @ coefficients, 0.0, LARGEST)


def excess_model(units: tuple[float, ...], degree: int, most_layers: int) -> ExcessModel:
    """The model for coordinates with these standard deviations, in half ranges."""
    return ExcessModel(layers_of([2 / unit for unit in units], most_layers), degree)


def _of_normal_errors() -> float:
    """The mean logarithm of the squares of standard normal errors, with the floor."""
    at, weights = np.polynomial.hermite_e.hermegauss(80)
    return float(weights @ np.log(at**2 + FLOOR) / weights.sum())
