"""A covariance matrix that is linear in its parameters: sufficient statistics and information."""

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..._serialise.registry import check_shapes, register
from .mle import covariance


def _check(loaded: "LinearCovariance") -> None:
    d, p = len(loaded.basis), len(loaded.offset)
    check_shapes(loaded, basis=(d, p, p), offset=(p, p))
    if d > p * (p + 1) // 2:
        raise ValueError("basis has more matrices than can be independent")


@register(name="mvue.problems.LinearCovariance", check=_check, methods=("masked", "distinct"))
@dataclasses.dataclass(frozen=True, eq=False)
class LinearCovariance:
    """Matrices Σ(y) = offset + Σ_k y_k basis_k, and how to read y off a sample covariance."""

    basis: np.ndarray
    """Symmetric matrices, (d, p, p)."""
    offset: np.ndarray
    """A symmetric matrix, (p, p)."""
    n: int
    """Samples in one measurement."""
    statistic: bool
    """Whether a measurement is the sample covariance, or the samples themselves."""

    def without_prior(self) -> "LinearCovariance":
        """The structure alone: all that an estimator needs."""
        return LinearCovariance(self.basis, self.offset, self.n, self.statistic)

    @property
    def d(self) -> int:
        """How many parameters."""
        return len(self.basis)

    @property
    def p(self) -> int:
        """The size of the matrix."""
        return len(self.offset)

    def covariance(self, y: Float[ArrayLike, " d"]) -> Float[Array, "p p"]:
        """Σ(y)."""
        y = floating(y)
        return covariance(y, *self._matrices(y.dtype))

    def sample_covariance(self, x: Float[Array, "rows p"]) -> Float[Array, "p p"]:
        """The sample covariance in one measurement, whichever of the two kinds it is."""
        n, p = self.n, self.p
        if x.shape == (p, p) and (self.statistic or n != p):
            return x
        if x.shape == (n, p) and (not self.statistic or n != p):
            return x.T @ x / n
        raise ValueError(
            f"x must be a sample covariance of shape ({p}, {p}) or samples of shape ({n}, {p}), "
            f"got shape {x.shape}"
        )

    def masked(self, x: Float[Array, "rows p"]) -> Float[Array, " d"]:
        """The parameters read off the sample covariance, by least squares: exactly unbiased.

        Where each parameter has entries of its own, this is their average.
        """
        return self._read(self.sample_covariance(x))

    def distinct(self, x: Float[Array, "rows p"]) -> Float[Array, " q"]:
        """The p(p+1)/2 distinct entries of the sample covariance: all that x tells about y."""
        return self.sample_covariance(x)[np.triu_indices(self.p)]

    def _read(self, sample: Float[Array, "p p"]) -> Float[Array, " d"]:
        difference = sample - jnp.asarray(self.offset, sample.dtype)
        return jnp.sum(jnp.asarray(self._reader, sample.dtype) * difference[None], axis=(1, 2))

    def _matrices(self, dtype: Any) -> tuple[Array, Array]:
        return jnp.asarray(self.basis, dtype), jnp.asarray(self.offset, dtype)

    @functools.cached_property
    def _gram(self) -> np.ndarray:
        """tr(B_k B_l)."""
        flat = self.basis.reshape(self.d, -1)
        return flat @ flat.T

    @functools.cached_property
    def _reader(self) -> np.ndarray:
        """The dual basis: its products with S - offset are the parameters."""
        flat = self.basis.reshape(self.d, -1)
        return np.linalg.solve(self._gram, flat).reshape(self.basis.shape)


def floating(y: Any) -> Array:
    """As an array of real numbers."""
    return jnp.asarray(y, jnp.result_type(y, float))
