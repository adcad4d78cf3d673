"""Linear structures of covariance matrices, and what makes one usable."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from ..._core.checks import check_count
from ..._core.priors import element_support, support_ends
from ..._runtime.threads import on_one_thread

PAIRS = ((0, 3), (1, 3), (2, 4), (3, 4))
"""Which entries beside the diagonal are not zero in the pattern of the paper, counted from 0."""

DRAWS = 64  # from the prior, to look for matrices that are not positive definite
ROUNDS = 20  # of moving each of them to a worse corner of the prior's box
DEFINITE = 1e-6  # smallest eigenvalue, relative to the largest, that single precision can factor


def sparse_basis(
    p: int = 5, pairs: Iterable[tuple[int, int]] = PAIRS, *, scale: float = 0.5
) -> np.ndarray:
    """A variance for each of p variables, and a covariance for some pairs of them.

    Args:
        p: the size of the matrix.
        pairs: which variables are correlated, counted from 0.
        scale: the entries of a pair are `scale` times the parameter.

    Returns:
        Shape (p + number of pairs, p, p): the diagonal first, then the pairs in their order.
    """
    check_count("p", p)
    chosen = [tuple(pair) for pair in pairs]
    for pair in chosen:
        if len(pair) != 2 or pair[0] == pair[1] or not all(i in range(p) for i in pair):
            raise ValueError(
                f"pairs must hold two different numbers from 0 to {p - 1} each, got {pair}"
            )
    basis = np.zeros((p + len(chosen), p, p))
    basis[np.arange(p), np.arange(p), np.arange(p)] = 1.0
    for matrix, (i, j) in zip(basis[p:], chosen, strict=True):
        matrix[i, j] = matrix[j, i] = scale
    return basis


def toeplitz_basis(p: int, bands: int, *, decay: float = 1.0) -> np.ndarray:
    """A banded Toeplitz matrix: the covariance of a stationary series of short memory.

    Matrix 0 is the identity; matrix k has the weight w_k on its k-th diagonals, above and below.
    The weights beside the diagonal add to 1/2, so that with the identity as the offset Σ is
    positive definite for y_0 ≥ 0 and |y_k| ≤ 1.

    Args:
        p: the size of the matrix.
        bands: d, how many covariances are unknown, the variance among them.
        decay: each band's weight is that of the one before times this number.
    """
    check_count("p", p)
    check_count("bands", bands)
    if bands > p:
        raise ValueError(f"bands must be at most p = {p}, got {bands}")
    if not 0 < decay <= 1:
        raise ValueError(f"decay must be above 0 and at most 1, got {decay!r}")
    weights = decay ** np.arange(1, bands, dtype=float)
    basis = [np.eye(p)]
    for k, weight in enumerate(0.5 * weights / weights.sum() if bands > 1 else (), start=1):
        basis.append(weight * (np.eye(p, k=k) + np.eye(p, k=-k)))
    return np.stack(basis)


def check_basis(basis: Any) -> np.ndarray:
    """The basis as (d, p, p) in double precision, or an error that says what is wrong."""
    basis = _real("basis", basis)
    if basis.ndim != 3 or basis.shape[1] != basis.shape[2] or not basis.size:
        raise ValueError(
            f"basis must have shape (d, p, p), one matrix for each parameter, got {basis.shape}"
        )
    _check_symmetric("basis", basis)
    d = len(basis)
    rank = int(np.linalg.matrix_rank(basis.reshape(d, -1)))
    if rank < d:
        raise ValueError(
            f"basis must be linearly independent, but its {d} matrices span only {rank} "
            "dimensions: the parameters cannot be told apart; leave some matrices out"
        )
    return basis


def check_offset(offset: Any, p: int) -> np.ndarray:
    """The offset as (p, p) in double precision; the identity for None."""
    offset = np.eye(p) if offset is None else _real("offset", offset)
    if offset.shape != (p, p):
        raise ValueError(
            f"offset must have shape ({p}, {p}), as the matrices of basis, got {offset.shape}"
        )
    _check_symmetric("offset", offset)
    return offset


def prior_draws(prior: Any, d: int) -> np.ndarray:
    """Values of y from the prior, (DRAWS, d)."""
    try:
        draws = jax.vmap(lambda key: jnp.asarray(prior.sample(key)))(jr.split(jr.key(0), DRAWS))
    except Exception as error:
        raise ValueError(
            f"prior.sample(key) failed; it must return one vector of shape ({d},): "
            f"{type(error).__name__}: {error}"
        ) from error
    if draws.shape != (DRAWS, d):
        raise ValueError(
            f"prior must draw one vector of shape ({d},), an entry for each matrix of basis, got "
            f"shape {draws.shape[1:]}: for example dist.Uniform(0, 1).expand(({d},)).to_event(1)"
        )
    return np.asarray(draws, np.float64)


@on_one_thread
def check_positive(basis: np.ndarray, offset: np.ndarray, prior: Any, draws: np.ndarray) -> None:
    """Refuse a prior under which Σ need not be positive definite.

    The smallest eigenvalue is a concave function of y: it is lowest at a corner of the prior's
    box. Each draw is moved to the corner that is worst for its own eigenvector, again and again.
    """
    low, high = _box(prior, draws)
    y = draws
    for _ in range(ROUNDS):
        values, vectors = np.linalg.eigh(offset + np.tensordot(y, basis, 1))
        worst = np.argmin(values[:, 0] - DEFINITE * values[:, -1])
        if values[worst, 0] <= DEFINITE * values[worst, -1]:
            raise ValueError(
                "the covariance must be positive definite for every y of the prior, but at y = "
                f"{np.array2string(y[worst], precision=3, threshold=10)} its smallest eigenvalue "
                f"is {values[worst, 0]:.3g}: narrow the prior, scale the basis down or enlarge "
                "the offset"
            )
        weakest = vectors[:, :, 0]
        slope = np.einsum("ma,kab,mb->mk", weakest, basis, weakest, optimize=True)
        corner = np.where(slope > 0, low, high)
        corner = np.where(np.isfinite(corner), corner, y)
        if (corner == y).all():
            return
        y = corner


def _box(prior: Any, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the prior's support for each component; infinite where it does not tell."""
    ends = support_ends(element_support(prior)) or (-np.inf, np.inf)
    low, high = (np.broadcast_to(np.asarray(b, float), draws.shape) for b in ends)
    return low, high


def _real(name: str, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} must be an array of real numbers, got {array.dtype}")
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity in it")
    return array


def _check_symmetric(name: str, array: np.ndarray) -> None:
    difference = np.abs(array - array.swapaxes(-1, -2)).max()
    if difference > 1e-6 * np.abs(array).max():
        raise ValueError(
            f"{name} must be symmetric, but entries above and below the diagonal differ by up to "
            f"{difference:.3g}: use (B + B.T) / 2"
        )
