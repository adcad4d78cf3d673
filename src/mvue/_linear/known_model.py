"""Linear estimators for a known linear model x = H y + n."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._core.checks import refuse_masked, refuse_other_than_numbers
from .._core.estimators import MeasurementSpec, Predictor
from .._core.types import Estimator
from .._serialise.registry import register
from ..losses._functions import check_bias_weight


@register(name="mvue.LinearEstimator")
class LinearEstimator(Predictor, eqx.Module):
    """The estimate ``weight @ x`` of y from one measurement x = H y + n.

    Weights are float64 NumPy arrays unless the estimator was made under a JAX transformation; in
    JAX programs they are cast to the precision in use. From NumPy arrays, estimates are those of
    NumPy, too.
    """

    weight: Any
    """A, shape (d, m)."""
    covariance: Any
    """Covariance of the estimate for a fixed y, A Σ Aᴴ, shape (d, d)."""
    bias_matrix: Any
    """A H − I, shape (d, d): the bias at y is ``bias_matrix @ y``."""

    def __call__(self, x: Any) -> Any:
        """The estimate, (d,), from one measurement, (m,), or those from a batch, (n, m)."""
        x = self._spec.arrays(x)
        refuse_other_than_numbers("x", x.dtype)
        return x @ self.weight.T if self._spec.is_batch(x) else self.weight @ x

    @property
    def function(self) -> Estimator:
        """The estimate from one measurement, which is not checked."""
        return self._estimate

    @property
    def _spec(self) -> MeasurementSpec:
        m, dtype = self.weight.shape[1], jax.dtypes.canonicalize_dtype(self.weight.dtype)
        return MeasurementSpec(jax.ShapeDtypeStruct((m,), dtype))

    def _estimate(self, x: Any) -> Any:
        return self.weight @ x

    def _as_expected(self, piece: Any) -> Any:
        dtype = np.result_type(self.weight, np.float64)  # NumPy keeps what JAX may not
        one = jax.ShapeDtypeStruct(self.weight.shape[1:], dtype)
        return MeasurementSpec(one).cast(piece, xp=np)

    def _estimated(self, piece: Any) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            return np.asarray(self(piece))


def linear_bce(H: Any, noise_cov: Any, prior_cov: Any, bias_weight: Any) -> LinearEstimator:
    """The linear estimator of least mean squared error + λ · squared bias, for x = H y + n.

    A = (Hᴴ Σn⁻¹ H + Σy⁻¹ / (λ + 1))⁻¹ Hᴴ Σn⁻¹. λ = 0 is the LMMSE estimator (Bayesian linear
    regression), λ = ∞ weighted least squares, which is unbiased, and needs an H of full column
    rank; without that, a large λ comes near the least-squares estimate that is smallest in units of
    the prior. y and n have mean zero and are
    uncorrelated. Works in float64 where the arguments are concrete; under a JAX transformation, as
    in ``jax.vmap(lambda H: mvue.linear_bce(H, 1.0, 1.0, 10.0))(many_H)``, in the precision in
    use, and values are then not checked.

    Args:
        H: shape (m, d), real or complex.
        noise_cov: covariance of n: a number, a vector of m variances, or an (m, m) matrix.
        prior_cov: covariance of y: a number, a vector of d variances, or a (d, d) matrix.
        bias_weight: λ from 0 to infinity.
    """
    if any(isinstance(value, Tracer) for value in (H, noise_cov, prior_cov, bias_weight)):
        return _solve(
            jnp, jnp.asarray(H), jnp.asarray(noise_cov), jnp.asarray(prior_cov), bias_weight
        )
    check_bias_weight(bias_weight, finite=False)
    bias_weight = float(bias_weight)
    H = _finite("H", H)
    if H.ndim != 2 or 0 in H.shape:
        raise ValueError(
            f"H must be a matrix of shape (m, d), got shape {H.shape}: for a batch of them use "
            "jax.vmap"
        )
    noise = _checked_covariance("noise_cov", noise_cov, H.shape[0])
    prior = _checked_covariance("prior_cov", prior_cov, H.shape[1])
    with np.errstate(all="ignore"):
        factors = _low_rank(_whitened(np, H, noise))
        if factors is None:
            found = _solve(np, H, noise, prior, bias_weight)
        elif math.isinf(bias_weight):
            raise ValueError(
                f"H must have full column rank for an unbiased estimator (bias_weight=inf), got "
                f"rank {factors[1].shape[0]} for {H.shape[1]} parameters: measure more, or use a "
                "finite bias_weight"
            )
        else:
            found = _solve_low_rank(H, noise, prior, bias_weight, *factors)
    if not all(np.isfinite(part).all() for part in (found.weight, found.covariance)):
        raise _out_of_range(H, noise, prior)
    return found


def lmmse(H: Any, noise_cov: Any, prior_cov: Any) -> LinearEstimator:
    """The linear estimator of least mean squared error: `linear_bce` with λ = 0.

    Args:
        H: as in `linear_bce`.
        noise_cov: as in `linear_bce`.
        prior_cov: as in `linear_bce`.
    """
    return linear_bce(H, noise_cov, prior_cov, 0.0)


def wls(H: Any, noise_cov: Any) -> LinearEstimator:
    """Weighted least squares, the best linear unbiased estimator: `linear_bce` with λ = ∞.

    Args:
        H: as in `linear_bce`, with full column rank.
        noise_cov: as in `linear_bce`.
    """
    return linear_bce(H, noise_cov, 1.0, math.inf)


def _solve(xp: Any, H: Any, noise: Any, prior: Any, bias_weight: Any) -> LinearEstimator:
    """A by a QR factorisation, in NumPy or JAX.

    In units in which noise and prior are white, A solves the least-squares problem with the
    matrix [H; I/√(λ+1)], whose condition is the square root of that of the normal equations.
    """
    m, d = H.shape
    prior_root = _root(xp, prior, d)
    whitened = _whitened(xp, H, noise) @ prior_root
    shrinkage = 1 / (1 + bias_weight)
    rows = xp.concatenate([whitened, xp.sqrt(shrinkage) * xp.eye(d, dtype=whitened.dtype)])
    q, r = xp.linalg.qr(rows)
    on_white = prior_root @ xp.linalg.solve(r, q[:m].conj().T)
    return _estimator(xp, H, noise, on_white)


def _solve_low_rank(
    H: np.ndarray,
    noise: np.ndarray,
    prior: np.ndarray,
    bias_weight: float,
    left: np.ndarray,
    right: np.ndarray,
) -> LinearEstimator:
    """The same where H in white noise is ``left @ right`` of rank r, in the r directions alone.

    In the others the matrix of the least-squares problem has only I/√(λ+1), and for large λ what
    rounding left of H were taken for a signal there. A = Bᴴ (B Bᴴ + I/(λ+1))⁻¹ leftᴴ in white
    units, B = right @ root of the prior.
    """
    prior_root = _root(np, prior, H.shape[1])
    inner = (right @ prior_root).conj().T
    shrinkage = 1 / (1 + bias_weight)
    q, r = np.linalg.qr(np.concatenate([inner, np.sqrt(shrinkage) * np.eye(inner.shape[1])]))
    gains = np.linalg.solve(r, q[: len(inner)].conj().T).conj().T
    return _estimator(np, H, noise, prior_root @ gains @ left.conj().T)


def _estimator(xp: Any, H: Any, noise: Any, on_white: Any) -> LinearEstimator:
    """What it is in the units of x, from its weights in white noise."""
    noise_root = _root(xp, noise, H.shape[0])
    weight = xp.linalg.solve(noise_root.conj().T, on_white.conj().T).conj().T
    covariance = on_white @ on_white.conj().T
    return LinearEstimator(weight, covariance, weight @ H - xp.eye(H.shape[1]))


def _whitened(xp: Any, H: Any, noise: Any) -> Any:
    """H in units in which the noise is white."""
    return xp.linalg.solve(_root(xp, noise, H.shape[0]), H)


def _root(xp: Any, covariance: Any, size: int) -> Any:
    """The lower Cholesky factor of a covariance in any of its three forms."""
    if covariance.ndim == 2:
        return xp.linalg.cholesky(covariance)
    return xp.sqrt(covariance) * xp.eye(size)


def _finite(name: str, value: Any) -> np.ndarray:
    refuse_masked(name, value)
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise TypeError(f"{name} must be an array of numbers, got {array.dtype}")
    array = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity")
    return array


def _checked_covariance(name: str, value: Any, size: int) -> np.ndarray:
    given = np.asarray(value)
    covariance = _finite(name, value)
    if covariance.shape not in ((), (size,), (size, size)):
        raise ValueError(
            f"{name} must be a number, a vector of {size} variances or a matrix of shape ({size}, "
            f"{size}), got shape {covariance.shape}"
        )
    if covariance.ndim < 2:
        if np.imag(covariance).any() or not (np.real(covariance) > 0).all():
            raise ValueError(f"{name} must have positive variances, got {covariance}")
        return np.real(covariance)
    precision = np.finfo(given.dtype if given.dtype.kind in "fc" else np.float64).eps
    mirrored = covariance.conj().T
    if np.abs(covariance - mirrored).max() > 100 * precision * np.abs(covariance).max():
        raise ValueError(
            f"{name} must be Hermitian (symmetric where real), got a matrix that differs from its "
            f"conjugate transpose by up to {np.abs(covariance - mirrored).max():.3g}"
        )
    covariance = (covariance + mirrored) / 2
    variances = np.diagonal(covariance).real
    try:
        pivots = np.diagonal(np.linalg.cholesky(covariance)).real ** 2
    except np.linalg.LinAlgError:
        pivots = np.zeros(size)
    if not (pivots > size * np.finfo(float).eps * np.maximum(variances, 0)).all():
        raise ValueError(
            f"{name} must be positive definite, got a matrix whose smallest eigenvalue is "
            f"{np.linalg.eigvalsh(covariance)[0]:.3g}: drop entries that the others determine, or "
            "add a small variance to its diagonal"
        )
    return covariance


def _low_rank(whitened: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """H in white noise as a product of orthonormal columns and rows of full rank.

    None where its columns are independent as far as rounding allows to tell, whatever their sizes.
    """
    sizes = np.abs(whitened).max(axis=0)
    lengths = sizes * np.linalg.norm(whitened / np.where(sizes > 0, sizes, 1), axis=0)
    if not np.isfinite(lengths).all():
        return None
    left, values, right = np.linalg.svd(
        whitened / np.where(lengths > 0, lengths, 1), full_matrices=False
    )
    rank = int((values > values[0] * max(whitened.shape) * np.finfo(float).eps).sum())
    if rank == whitened.shape[1]:
        return None
    return left[:, :rank], values[:rank, None] * right[:rank] * lengths


def _out_of_range(H: np.ndarray, noise: np.ndarray, prior: np.ndarray) -> ValueError:
    sizes = [float(np.abs(part).max()) for part in (H, noise, prior)]
    return ValueError(
        "H, noise_cov and prior_cov must be of sizes that double precision can combine, got up to "
        f"{sizes[0]:.3g}, {sizes[1]:.3g} and {sizes[2]:.3g}: give x, y or both in other units"
    )
