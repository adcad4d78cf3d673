"""Cramér-Rao bounds: from the Fisher information of theta to the target y by the chain rule."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from .._core.problem import Problem, check_problem
from .._core.theta import ThetaLayout, theta_rows
from .._core.types import Key, Theta
from .._runtime.jit import forget_constants, in_double_precision
from .._runtime.progress import SILENT, Progress, progress_for
from ..exceptions import BoundError
from .fisher import informations
from .monte_carlo import DEFAULT_SAMPLES, group_error
from .regularity import outside_of_model
from .result import NULL, PART, layout_of, lost_along, one_theta, scaled_axes, with_infinite

GIVEN = "given"
REPORT_NUMBERS = 2**26  # numbers of x that a report may simulate for its bound
REPORT_SAMPLES = (1024, DEFAULT_SAMPLES)  # the fewest and the most draws at each value


@dataclasses.dataclass(frozen=True)
class Bound:
    """Lower bound on the covariance of every unbiased estimator of y, from one measurement."""

    matrix: np.ndarray
    """The bound, (d, d). Where a component cannot be identified its variance is infinite and its
    covariances are nan."""
    names: tuple[str, ...]
    """Names of the components of y."""
    method: str
    """How the information was found; ``given`` for the problem's own bound."""
    se: np.ndarray | None = None
    """Standard errors, (d, d); None where the answer is not random."""
    unidentifiable: tuple[str, ...] = ()
    """Directions in which theta can move without any change of the data, such as ``a - b``."""
    points: np.ndarray | None = None
    """The test points of a Barankin bound, the numbers in theta along the last axis."""


def crb(
    problem: Problem,
    theta: Theta,
    *,
    method: str = "auto",
    key: Key | None = None,
    samples: int | None = None,
    relative_error: float | None = None,
    progress: bool | None = None,
) -> Bound:
    """Cramér-Rao bound on unbiased estimators of y = target(theta).

    J F⁻¹ Jᵀ, F the Fisher information of all of theta, nuisances included, and J the Jacobian of
    the target.

    Args:
        problem: a problem with a known bound, which ``method="auto"`` returns, or with a
            `log_likelihood`.
        theta: where; one value, as the prior draws it.
        method: as in `fisher_information`.
        key: as in `fisher_information`.
        samples: as in `fisher_information`.
        relative_error: as in `fisher_information`: of the information, not of the bound.
        progress: as in `fisher_information`.

    Raises:
        IrregularModelError: if the bound does not hold, because the support of the data depends
            on theta for example.
        BoundError: if the problem has neither bound nor likelihood, theta is discrete, tied
            (a simplex) or outside of the model, or the method does not apply.
    """
    check_problem(problem)
    found = bounds(
        problem,
        one_theta(problem, theta),
        method=method,
        key=key,
        samples=samples,
        relative_error=relative_error,
        progress=progress_for(progress),
    )
    if found.failure[0]:
        raise found.failure[0]
    return Bound(
        found.matrix[0],
        problem.names or (),
        found.method[0],
        None if np.isnan(found.se[0]).all() else found.se[0],
        found.unidentifiable[0],
    )


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Bounds at K values, or why there are none; see `Bound`."""

    matrix: np.ndarray  # (K, d, d)
    method: list[str]
    se: np.ndarray  # (K, d, d), nan where the answer is not random
    unidentifiable: list[tuple[str, ...]]
    failure: list[BoundError | None]


def bounds(
    problem: Problem,
    thetas: Theta,
    *,
    transform: Callable[[Any], Any] | None = None,
    method: str = "auto",
    key: Key | None = None,
    samples: int | None = None,
    relative_error: float | None = None,
    progress: Progress = SILENT,
) -> Bounds:
    """Bounds at K values of theta, leaves (K, ...), for transform(y) where one is given."""
    try:
        if method == "auto" and problem.crb is not None:
            return _given(problem, thetas, transform)
        return _computed(problem, thetas, transform, method, key, samples, relative_error, progress)
    finally:
        one = jax.tree.map(lambda leaf: leaf[0], thetas)
        forget_constants(problem.simulate, jr.key(0), one)


def _computed(
    problem: Problem,
    thetas: Theta,
    transform: Callable[[Any], Any] | None,
    method: str,
    key: Key | None,
    samples: int | None,
    relative_error: float | None,
    progress: Progress,
) -> Bounds:
    """Bounds from the Fisher information."""
    layout = layout_of(problem)
    flat = theta_rows(thetas)
    found = informations(
        problem,
        layout,
        flat,
        method=method,
        key=key,
        samples=samples,
        relative_error=relative_error,
        progress=progress,
    )
    jacobian = jacobians(problem, layout, flat, transform)
    count, d = jacobian.shape[:2]
    result = Bounds(
        np.full((count, d, d), np.nan),
        found.method,
        np.full((count, d, d), np.nan),
        [()] * count,
        found.failure[:],
    )
    for k in range(count):
        if found.failure[k]:
            continue
        if not np.isfinite(jacobian[k]).all():
            result.failure[k] = BoundError("the derivative of target(theta) is not finite")
            continue
        own = bound_from(found.matrix[k], jacobian[k], layout.names)
        result.matrix[k], result.unidentifiable[k] = own.matrix, own.unidentifiable
        groups, samples = found.groups[k], found.samples[k]
        if groups is not None and samples is not None:
            # The inverse of a mean of outer products is too large, by this factor if scores are
            # normal.
            result.matrix[k] *= 1 - (len(layout.names) + 1) / samples
            # The bound moves by -W dF Wᵀ, so that its error is that of W (score scoreᵀ) Wᵀ.
            error = group_error(own.weights @ groups @ own.weights.T)
            result.se[k] = np.where(np.isnan(own.matrix) | np.isinf(own.matrix), np.nan, error)
    return result


class NotedBounds(NamedTuple):
    """Bounds for a report: none, or nan, where there is none, and a note that says so."""

    matrix: np.ndarray | None  # (K, d, d)
    se: np.ndarray | None  # (K, d, d)
    note: str


def note_bounds(
    problem: Problem, thetas: Theta, transform: Callable[[Any], Any] | None, key: Key
) -> NotedBounds:
    """Bounds at K values by the best method; whatever goes wrong becomes a note."""
    if problem.crb is None and problem.log_likelihood is None:
        return NotedBounds(None, None, "no bound: the problem has neither crb nor log_likelihood")
    x, _ = problem.shapes()
    numbers = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(x))
    values = len(jax.tree.leaves(thetas)[0])
    samples = int(np.clip(REPORT_NUMBERS // (values * numbers), *REPORT_SAMPLES))
    try:
        found = bounds(problem, thetas, transform=transform, key=key, samples=samples)
    except Exception as error:
        kind = "" if isinstance(error, BoundError) else f"{type(error).__name__}: "
        return NotedBounds(None, None, f"no bound: {kind}{first_line(error)}")
    count = len(found.matrix)
    failures = [failure for failure in found.failure if failure]
    if len(failures) == count:
        return NotedBounds(None, None, f"no bound: {first_line(failures[0])}")
    methods = [m for m, f in zip(found.method, found.failure, strict=True) if not f]
    notes = [] if GIVEN in methods else [f"CRB: {', '.join(dict.fromkeys(methods))}"]
    if failures:
        notes.append(f"none at {len(failures)} of {count} values: {first_line(failures[0])}")
    free = dict.fromkeys(d for directions in found.unidentifiable for d in directions)
    if free:
        listed = ", ".join([*free][:3]) + (", ..." if len(free) > 3 else "")
        notes.append(f"the data say nothing about {listed}")
    se = None if np.isnan(found.se).all() else found.se
    return NotedBounds(found.matrix, se, "; ".join(notes))


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _given(problem: Problem, thetas: Theta, transform: Callable[[Any], Any] | None) -> Bounds:
    """The problem's own bound."""

    def bound() -> tuple[Theta, np.ndarray]:
        exact = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, np.float64)), thetas)
        matrix = np.asarray(jax.vmap(problem.crb)(exact), np.float64)  # type: ignore[arg-type]
        if transform is None:
            return exact, matrix
        y = jax.vmap(problem.y_of)(exact)
        jacobian = np.asarray(jax.vmap(jax.jacobian(transform))(y), np.float64)
        return exact, jacobian @ matrix @ jacobian.swapaxes(1, 2)

    exact, matrix = in_double_precision(bound)
    count = len(matrix)
    none = np.full(matrix.shape, np.nan)
    each = [jax.tree.map(lambda leaf, k=k: leaf[k], exact) for k in range(count)]
    failure = [outside_of_model(problem, theta) for theta in each]
    return Bounds(matrix, [GIVEN] * count, none, [()] * count, failure)


def jacobians(
    problem: Problem, layout: ThetaLayout, flat: np.ndarray, transform: Callable[[Any], Any] | None
) -> np.ndarray:
    """Derivatives of y, or of transform(y), with respect to theta, (K, d, p)."""

    def y_of(flat: Array) -> Array:
        y = problem.y_of(layout.to_theta(flat))
        return y if transform is None else transform(y)

    try:
        return in_double_precision(
            lambda: np.asarray(jax.jit(jax.vmap(jax.jacfwd(y_of)))(jnp.asarray(flat)))
        )
    except Exception as error:
        raise BoundError(
            f"target(theta) cannot be differentiated: {type(error).__name__}: {error}"
        ) from error


class BoundFrom(NamedTuple):
    """A bound on y from one information matrix."""

    matrix: np.ndarray
    """(d, d); infinite variances and nan covariances where y moves and the data do not."""
    weights: np.ndarray
    """J F⁻¹, (d, p)."""
    unidentifiable: tuple[str, ...]
    """Directions in which theta can move without any change of the data."""


def bound_from(
    information: np.ndarray, jacobian: np.ndarray, names: tuple[str, ...], part: float = PART
) -> BoundFrom:
    """J F⁻¹ Jᵀ on the directions that the data inform about.

    Args:
        information: F, (p, p).
        jacobian: of y with respect to theta, (d, p).
        names: of the numbers in theta.
        part: share of a gradient in the null space from which on y is not identifiable.
    """
    inverse, null = _pseudo_inverse(information)
    lost = lost_along(jacobian, null, part)
    weights = jacobian @ inverse
    bound = weights @ jacobian.T
    return BoundFrom(with_infinite(bound, lost), weights, tuple(_directions(null, names)))


def _pseudo_inverse(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inverse on the directions that the data inform about, and a basis (p, q) of the others."""
    values, vectors = scaled_axes(matrix)
    good = values > NULL * len(values)
    return (vectors[:, good] / values[good]) @ vectors[:, good].T, vectors[:, ~good]


def _directions(null: np.ndarray, names: tuple[str, ...]) -> list[str]:
    """A basis of the null space in words, by Gauss-Jordan elimination."""
    rows = null.T.copy()
    for done in range(len(rows)):
        rest = np.abs(rows[done:])
        i, j = np.unravel_index(rest.argmax(), rest.shape)
        rows[[done, done + i]] = rows[[done + i, done]]
        rows[done] /= rows[done, j]
        others = np.arange(len(rows)) != done
        rows[others] -= np.outer(rows[others, j], rows[done])
    return [_combination(row, names) for row in rows]


def _combination(row: np.ndarray, names: tuple[str, ...]) -> str:
    row = row / row[np.flatnonzero(np.abs(row) > 1e-6)[0]]
    text = ""
    for value, name in zip(row, names, strict=True):
        if abs(value) > 1e-6:
            size = "" if abs(abs(value) - 1) < 1e-6 else f"{abs(value):.4g} "
            text += f" {'-' if value < 0 else '+'} {size}{name}"
    return text.removeprefix(" + ")
