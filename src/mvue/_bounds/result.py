"""Fisher information as a result: a matrix over the coordinates of theta, with standard errors."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from numpyro.distributions import constraints

from .._core.checks import describe_shapes, refuse_masked
from .._core.priors import element_support, prior_leaves
from .._core.problem import Problem
from .._core.theta import ThetaLayout
from .._core.types import Theta
from ..exceptions import BoundError

NULL = 1e-12  # eigenvalues, of a matrix scaled to unit diagonal, that count as zero
PART = 1e-6  # share of a gradient in the null space from which on y is not identifiable

TIED = tuple(
    type(constraint)
    for constraint in (
        constraints.simplex,
        constraints.positive_definite,
        constraints.corr_matrix,
        constraints.corr_cholesky,
    )
)


@dataclasses.dataclass(frozen=True)
class Information:
    """Fisher information about theta in one measurement.

    Rows and columns are the numbers in theta, one after the other: the entries of a dict in
    the order of their names, arrays row by row.
    """

    matrix: np.ndarray
    """The information, (p, p)."""
    names: tuple[str, ...]
    """The p numbers in theta, such as ``h`` or ``theta[0]``."""
    method: str
    """How it was found."""
    se: np.ndarray | None = None
    """Standard errors of the entries, (p, p); None where the answer is not random."""
    mean_score: np.ndarray | None = None
    """Mean of the score, which is 0 in a regular model, (p,): in standard errors for Monte Carlo,
    of its root mean square for quadrature, None for the Gaussian closed form."""
    samples: int | None = None
    """Simulated measurements, for Monte Carlo."""


@dataclasses.dataclass(frozen=True)
class Informations:
    """Information at K values, or why there is none; see `Information`."""

    matrix: np.ndarray  # (K, p, p)
    method: list[str]
    failure: list[BoundError | None]
    groups: list[np.ndarray | None]  # information from each of G equal parts of the draws
    mean_score: list[np.ndarray | None]
    samples: list[int | None]

    @classmethod
    def empty(cls, count: int, p: int) -> "Informations":
        """Nothing known yet."""
        none: list[Any] = [None] * count
        matrix = np.full((count, p, p), np.nan)
        return cls(matrix, [""] * count, none[:], none[:], none[:], none[:])

    def put(self, k: int, matrix: np.ndarray, method: str, **more: Any) -> None:
        """Enter what was found at value k."""
        self.matrix[k], self.method[k], self.failure[k] = matrix, method, None
        for name, value in more.items():
            getattr(self, name)[k] = value

    def replace(self, which: list[int], other: "Informations") -> None:
        """Enter what was found at some values."""
        self.matrix[which] = other.matrix
        for name in ("method", "failure", "groups", "mean_score", "samples"):
            for k, value in zip(which, getattr(other, name), strict=True):
                getattr(self, name)[k] = value

    def fail(self, which: Iterable[int], failure: BoundError) -> None:
        """Enter why nothing can be found at some values."""
        for k in which:
            self.failure[k] = failure


def layout_of(problem: Problem) -> ThetaLayout:
    """The layout of the problem's theta; refuses what cannot be differentiated."""
    one = jax.eval_shape(problem.sample_prior, jr.key(0))
    layout = ThetaLayout.of(one)
    discrete = [
        name
        for name, leaf in zip(layout.arrays, jax.tree.leaves(one), strict=True)
        if not jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    if discrete:
        raise BoundError(
            f"{', '.join(discrete)} is discrete: the Cramér-Rao bound is for parameters that vary "
            "continuously"
        )
    for prior in prior_leaves(problem.prior):
        if isinstance(element_support(prior), TIED):
            raise BoundError(
                f"the numbers that a {type(prior).__name__} prior draws are not free of each other "
                "(probabilities sum to 1, a matrix is symmetric), so that theta has no derivatives "
                "in each of them: write theta in free coordinates, such as all probabilities but "
                "the last, and the rest in target and likelihood; or give crb"
            )
    return layout


def one_theta(problem: Problem, theta: Theta) -> Theta:
    """Check one theta against the prior's; returned as float64 with a leading axis of 1."""
    one = jax.eval_shape(problem.sample_prior, jr.key(0))
    leaves, structure = jax.tree.flatten(one)
    try:
        parts = structure.flatten_up_to(theta)
        for part in parts:
            refuse_masked("theta", part)
        arrays = [np.asarray(part, np.float64) for part in parts]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"theta must hold numbers in the structure of the prior's samples, "
            f"{describe_shapes(one)}: {error}"
        ) from error
    for i, (array, leaf) in enumerate(zip(arrays, leaves, strict=True)):
        if array.shape == () and leaf.shape == (1,):
            arrays[i] = array[None]
        elif array.shape != leaf.shape:
            raise ValueError(
                f"theta must be ONE value of the prior's {describe_shapes(one)}; got shape "
                f"{array.shape} in place of {tuple(leaf.shape)}"
            )
        if not np.isfinite(array).all():
            raise ValueError(f"theta must be finite, got {array}")
    return jax.tree.unflatten(structure, [array[None] for array in arrays])


def scaled_axes(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues of a matrix scaled to unit diagonal, and its axes in units as they were."""
    diagonal = np.diag(matrix)
    unit = np.where(diagonal > 0, diagonal, 1.0) ** -0.5
    values, vectors = np.linalg.eigh(matrix * unit[:, None] * unit)
    return values, vectors * unit[:, None]


def lost_along(slopes: np.ndarray, null: np.ndarray, part: float = PART) -> np.ndarray:
    """Which components, whose slopes are (d, p), move along directions that tell nothing, (d,)."""
    largest = np.abs(slopes) @ np.linalg.norm(null, axis=1)
    return np.asarray(np.linalg.norm(slopes @ null, axis=1) > part * largest)


def with_infinite(matrix: np.ndarray, lost: np.ndarray, variance: float = np.inf) -> np.ndarray:
    """The matrix with this variance for components that are lost, and nan for covariances."""
    found = np.where(lost[:, None] | lost[None, :], np.nan, matrix)
    np.fill_diagonal(found, np.where(lost, variance, np.diag(matrix)))
    return found
