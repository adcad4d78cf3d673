"""Covariance matrices with a linear structure, from samples of mean zero."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, ArrayLike, Float

from ..._core.checks import check_count
from ..._core.problem import Problem
from ..._core.types import Key
from ..._numerics.small_matrices import cholesky, invert, multiply
from .basis import check_basis, check_offset, check_positive, prior_draws, sparse_basis
from .mle import covariance, inward, maximise, newton_step, traces
from .structure import LinearCovariance, floating


@dataclasses.dataclass(frozen=True, eq=False)
class StructuredCovariance(LinearCovariance):
    """Samples from N(0, Σ(y)) with Σ(y) = offset + Σ_k y_k basis_k; see `structured_covariance`.

    Its estimators are functions of one measurement: of the sample covariance (p, p) or of the
    samples (n, p), whatever the problem simulates. Where n = p, only what it simulates will do.
    """

    prior: Any
    """Of y, (d,)."""
    centre: np.ndarray = dataclasses.field(init=False)
    """A y where Σ is positive definite: the mean of the prior, nearly."""
    problem: Problem = dataclasses.field(init=False)
    """The estimation problem."""

    def __post_init__(self) -> None:
        check_count("n", self.n)
        draws = prior_draws(self.prior, len(self.basis))
        check_positive(self.basis, self.offset, self.prior, draws)
        object.__setattr__(self, "centre", draws.mean(axis=0))
        problem = Problem(
            prior=self.prior,
            simulate=self._simulate_statistic if self.statistic else self._simulate_samples,
            log_likelihood=self._log_likelihood,
            exchangeable=not self.statistic,
            crb=self.crb,
        )
        object.__setattr__(self, "problem", problem)

    def fisher(self, y: Float[ArrayLike, " d"]) -> Float[Array, "d d"]:
        """Fisher information about y in one measurement: n/2 tr(Σ⁻¹ B_k Σ⁻¹ B_l)."""
        y = floating(y)
        basis, offset = self._matrices(y.dtype)
        precision, _ = invert(covariance(y, basis, offset))
        return 0.5 * self.n * traces(precision, precision, basis)

    def crb(self, y: Float[ArrayLike, " d"]) -> Float[Array, "d d"]:
        """Cramér-Rao bound on the covariance of unbiased estimators of y."""
        return invert(self.fisher(y))[0]

    def frobenius_crb(self, y: Float[ArrayLike, " d"]) -> Float[Array, ""]:
        """The bound on E‖Σ(estimate) − Σ(y)‖², in Frobenius' norm."""
        bound = self.crb(y)
        return jnp.sum(jnp.asarray(self._gram, bound.dtype) * bound)

    def masked_covariance(self, y: Float[ArrayLike, " d"]) -> Float[Array, "d d"]:
        """The covariance of the masked estimate, exactly."""
        sigma = self.covariance(y)
        return 2 / self.n * traces(sigma, sigma, jnp.asarray(self._reader, sigma.dtype))

    def maximum_likelihood(
        self, x: Float[Array, "rows p"], *, tolerance: float = 1e-3, max_steps: int = 50
    ) -> Float[Array, " d"]:
        """The maximum of the likelihood where Σ is positive definite; the prior plays no role.

        One search, from the masked estimate. NaN where it does not end at a maximum. May be
        compiled, batched with `jax.vmap`, and differentiated once.

        Args:
            x: one measurement.
            tolerance: how near to the maximum to come, in units of the standard error.
            max_steps: stop at the latest after so many steps.
        """
        sample = self.sample_covariance(x)
        still = jax.lax.stop_gradient(sample)
        basis, offset = self._matrices(sample.dtype)
        centre = jnp.asarray(self.centre, sample.dtype)
        start = inward(self._read(still), centre, basis, offset)
        y, found = maximise(
            still, start, basis, offset, self.n, tolerance=tolerance, max_steps=max_steps
        )
        y = newton_step(jax.lax.stop_gradient(y), sample, basis, offset)
        return jnp.where(found, y, jnp.nan)

    def _simulate_samples(self, key: Key, y: Float[Array, " d"]) -> Float[Array, "n p"]:
        factor = cholesky(self.covariance(y))
        return jr.normal(key, (self.n, self.p), factor.dtype) @ factor.T

    def _simulate_statistic(self, key: Key, y: Float[Array, " d"]) -> Float[Array, "p p"]:
        """By Bartlett: for p by n white samples, the triangular factor of an LQ decomposition."""
        factor = cholesky(self.covariance(y))
        squares_key, below_key = jr.split(key)
        freedom, place, below = self._bartlett
        squares = jr.chisquare(squares_key, jnp.asarray(freedom, factor.dtype))
        normals = jr.normal(below_key, (below,), factor.dtype)
        zero = jnp.zeros((1,), factor.dtype)
        white = jnp.concatenate([zero, jnp.sqrt(squares), normals])[place]
        root = multiply(factor, white)
        return multiply(root, root.T) / self.n

    def _log_likelihood(self, y: Float[Array, " d"], x: Float[Array, "rows p"]) -> Float[Array, ""]:
        """Of the samples; that of the sample covariance differs by what does not depend on y."""
        sample = self.sample_covariance(x)
        precision, pivots = invert(self.covariance(y))
        constant = self.p * jnp.log(2 * jnp.pi)
        return -0.5 * self.n * (constant + jnp.sum(jnp.log(pivots)) + jnp.sum(precision * sample))

    @functools.cached_property
    def _bartlett(self) -> tuple[np.ndarray, np.ndarray, int]:
        """Degrees of freedom on the diagonal, where each random number goes, how many are normal.

        With fewer samples than variables the factor has only n columns.
        """
        rank = min(self.n, self.p)
        rows, columns = np.tril_indices(self.p, -1, rank)
        place = np.zeros((self.p, rank), int)
        place[np.arange(rank), np.arange(rank)] = 1 + np.arange(rank)
        place[rows, columns] = 1 + rank + np.arange(len(rows))
        return self.n - np.arange(rank), place, len(rows)

    def __repr__(self) -> str:
        kind = "their covariance" if self.statistic else "the samples"
        return (
            f"StructuredCovariance({self.d} parameters, {self.p} x {self.p}; {self.n} samples, "
            f"of which {kind} is measured)"
        )


def structured_covariance(
    basis: Any = None,
    n: int = 200,
    *,
    offset: Any = None,
    prior: Any = None,
    statistic: bool = True,
) -> StructuredCovariance:
    """Independent samples from N(0, Σ(y)) with Σ(y) = offset + Σ_k y_k basis_k.

    By default the 5 by 5 pattern of the paper with 9 parameters: the diagonal is 1 + y1 ... 1 + y5,
    and y6/2 ... y9/2 are the entries (1, 4), (2, 4), (3, 5) and (4, 5).

    Args:
        basis: symmetric and linearly independent matrices, (d, p, p); see `sparse_basis` and
            `toeplitz_basis`.
        n: samples in one measurement.
        offset: a symmetric matrix, (p, p), by default the identity.
        prior: of y, one vector of shape (d,), by default uniform on [0, 1]. All of its Σ must be
            positive definite.
        statistic: simulate the sample covariance (1/n) Σ x xᵀ, a matrix of shape (p, p), which is
            sufficient; otherwise the samples themselves, (n, p). The sample covariance is drawn
            from its own distribution, Wishart's, at the cost of p(p+1)/2 random numbers.
    """
    basis = sparse_basis() if basis is None else check_basis(basis)
    offset = check_offset(offset, basis.shape[1])
    if prior is None:
        prior = dist.Uniform(0.0, 1.0).expand((len(basis),)).to_event(1)
    return StructuredCovariance(basis, offset, n, bool(statistic), prior)
