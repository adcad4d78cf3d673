"""Bounds above that of Cramér and Rao: Bhattacharyya's and Barankin's.

Both are covariance inequalities. Functions ψ(x) of mean zero at theta have known covariances D with
every unbiased estimator of y, so that its covariance is at least D G⁻¹ Dᵀ, G = E[ψ ψᵀ]. Derivatives
of the likelihood divided by the likelihood give the bound of Bhattacharyya, scores and likelihood
ratios at test points that of Barankin (in the form of McAulay and Seidman).
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from .._core.checks import check_count
from .._core.keys import fold_in_each, key_for
from .._core.problem import Problem, check_problem
from .._core.theta import ThetaLayout, theta_rows
from .._core.types import Key, Theta
from .._runtime.jit import forget_constants, in_double_precision, in_either_precision, on_host
from ..exceptions import BoundError, IrregularModelError
from .covariance_inequality import (
    Exact,
    Halves,
    greedy,
    log_likelihood_at,
    refuse_irregular,
    simulated_function,
)
from .crb import Bound
from .fisher import informations
from .gaussian import base_of, moments_of_gaussian
from .monte_carlo import GROUPS, SCORE_LIMIT, SHARE_LIMIT
from .regularity import outside_of_model
from .result import layout_of, one_theta

DEFAULT_SAMPLES = 2**15
ROUNDING = 1e-9  # of a derivative, over the product of as many scores
MOST_FUNCTIONS = 64
CANDIDATES = 48  # on each side of theta, along each coordinate
JOINT_CANDIDATES = 128  # that differ from theta in all coordinates
RANGE_DRAWS = 1024
SUPPORT_DRAWS = 4096
LARGEST_EXPONENT = 500.0  # of expected products of likelihood ratios: points beyond add nothing


def bhattacharyya(
    problem: Problem,
    theta: Theta,
    *,
    order: int = 2,
    key: Key | None = None,
    samples: int = DEFAULT_SAMPLES,
) -> Bound:
    """Bhattacharyya bound on unbiased estimators of y = target(theta), by Monte Carlo.

    From derivatives of the likelihood up to an order; that of order 1 is the Cramér-Rao bound. In
    exponential families it reaches the smallest variance there is, if that belongs to a polynomial
    of this degree in the natural statistic.

    Args:
        problem: a problem with a `log_likelihood` that can be differentiated so often.
        theta: where; one value, as the prior draws it.
        order: the highest.
        key: decides the draws; by default ``jax.random.key(0)``.
        samples: draws. One half chooses the weights of the derivatives, the other measures what
            these prove, so that the bound is not too large by chance.

    Raises:
        IrregularModelError: if derivatives are not finite, or do not have mean zero.
        BoundError: as in `crb`.
    """
    check_count("order", order)
    check_count("samples", samples, least=4 * GROUPS)
    layout, flat = _checked(problem, theta)
    with _forgetting(problem, layout, flat):
        return _bhattacharyya(problem, layout, flat, order, key, samples)


def _bhattacharyya(
    problem: Problem,
    layout: ThetaLayout,
    flat: np.ndarray,
    order: int,
    key: Key | None,
    samples: int,
) -> Bound:
    key = key_for("bound", jr.key(0) if key is None else key)
    found = informations(problem, layout, flat[None], key=key)
    if found.failure[0]:
        raise found.failure[0]
    matrix, se = _LikelihoodDerivatives(problem, layout, len(flat), order).bound(flat, key, samples)
    return Bound(matrix, problem.names or (), f"Bhattacharyya of order {order}, Monte Carlo", se)


def second_order_variances(
    problem: Problem, thetas: Theta, key: Key, samples: int
) -> np.ndarray | None:
    """Bhattacharyya bounds of order 2 on the variance of each component at K values, (K, d).

    NaN where there is none, and None where there is none at all. That the model is regular is not
    looked at: the values have a Cramér-Rao bound.
    """
    try:
        layout, flats = layout_of(problem), theta_rows(thetas)
        derivatives = _LikelihoodDerivatives(problem, layout, flats.shape[1], 2)
    except BoundError:
        return None
    found = []
    with _forgetting(problem, layout, flats[0]):
        for flat in flats:
            try:
                variances = np.diag(derivatives.bound(flat, key, samples)[0])
                found.append(np.where(np.isfinite(variances), variances, np.nan))
            except Exception:  # a second derivative may fail in a user's function in any way
                found.append(np.nan)
    _, y = problem.shapes()
    return np.stack([np.broadcast_to(one, y.shape) for one in found])


class _LikelihoodDerivatives:
    """Derivatives of the likelihood of simulated measurements, divided by the likelihood."""

    def __init__(self, problem: Problem, layout: ThetaLayout, p: int, order: int) -> None:
        numbers = [
            i
            for k in range(1, order + 1)
            for i in itertools.combinations_with_replacement(range(p), k)
        ]
        if len(numbers) > MOST_FUNCTIONS:
            raise BoundError(
                f"{len(numbers)} derivatives of {p} numbers in theta up to order {order} are too "
                f"many, at most {MOST_FUNCTIONS}: give a smaller order"
            )

        def at_zero(function: Callable[[Array], Array]) -> Array:
            """All derivatives of a function of a step of theta, (..., functions)."""
            zero, parts = jnp.zeros(p), []
            for k in range(1, order + 1):
                function = jax.jacfwd(function)
                tensor = function(zero)
                wanted = [i for i in numbers if len(i) == k]
                parts.append(jnp.stack([tensor[(..., *i)] for i in wanted], axis=-1))
            return jnp.concatenate(parts, axis=-1)

        def of_measurement(flat: Array, x: Any) -> Array:
            here = log_likelihood_at(problem, layout, flat, x)
            return at_zero(
                lambda step: jnp.exp(log_likelihood_at(problem, layout, flat + step, x) - here)
            )

        self.numbers = numbers
        self._of_y = jax.jit(
            lambda flat: at_zero(lambda step: problem.y_of(layout.to_theta(flat + step)))
        )
        self._simulated = simulated_function(problem, layout, of_measurement)

    def bound(
        self, flat: np.ndarray, key: Key, samples: int
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """The bound and its standard error, (d, d)."""
        covariances = in_double_precision(
            lambda: np.asarray(self._of_y(jnp.asarray(flat)), np.float64)
        )
        values = self._without_rounding(self._simulated(flat, key, samples))
        refuse_irregular(values, [f"a derivative of order {len(i)}" for i in self.numbers])
        return Halves(values).bound(covariances, np.arange(len(self.numbers)))

    def _without_rounding(self, values: np.ndarray) -> np.ndarray:
        """Zero for derivatives that are: of a polynomial likelihood the higher ones vanish."""
        size = np.abs(values).max(axis=0)
        scores = {i: size[k] for k, i in enumerate(self.numbers) if len(i) == 1}
        with np.errstate(all="ignore"):  # what is not finite is refused
            usual = np.array([np.prod([scores[(j,)] for j in i]) for i in self.numbers])
        return np.where(size < ROUNDING * usual, 0.0, values)


def barankin(
    problem: Problem,
    theta: Theta,
    *,
    points: Any = None,
    key: Key | None = None,
    samples: int = DEFAULT_SAMPLES,
) -> Bound:
    """Barankin bound on unbiased estimators of y = target(theta), from test points.

    Scores and the ratios of the likelihood at some test points to that at theta: never below the
    Cramér-Rao bound, and far above it where the data confuse theta with distant values (below the
    threshold of a frequency or a delay). Each choice of test points gives a valid bound. Without
    scores, which a support that moves with theta forbids, it is the bound of Hammersley, Chapman
    and Robbins, for test points at which nothing can occur that cannot at theta.

    Exact for Gaussian likelihoods whose covariance does not depend on theta; else by Monte Carlo.

    Args:
        problem: a problem with a `log_likelihood`.
        theta: where; one value, as the prior draws it.
        points: test points, values of theta along a new leading axis; by default up to 8, chosen
            one by one within the prior such that the bound is largest.
        key: decides the draws; by default ``jax.random.key(0)``.
        samples: draws for Monte Carlo. One half chooses test points and weights, the other measures
            what these prove, so that the bound is not too large by chance.

    Raises:
        IrregularModelError: if measurements that can occur at a test point cannot at theta, or the
            ratios vary too much to be averaged.
        BoundError: as in `crb`; if a test point is outside of the model.
    """
    check_count("samples", samples, least=4 * GROUPS)
    layout, flat = _checked(problem, theta)
    with _forgetting(problem, layout, flat):
        return _barankin(problem, layout, flat, points, key, samples)


def _barankin(
    problem: Problem,
    layout: ThetaLayout,
    flat: np.ndarray,
    points: Any,
    key: Key | None,
    samples: int,
) -> Bound:
    key = key_for("bound", jr.key(0) if key is None else key)
    given = None if points is None else _given_points(problem, layout, flat, points)
    candidates = _candidates(problem, layout, flat) if given is None else given
    irregular = informations(problem, layout, flat[None], key=key).failure[0]
    if irregular and not isinstance(irregular, IrregularModelError):
        raise irregular
    scores = 0 if irregular else len(flat)
    covariances = _differences(problem, layout, flat, candidates)[:, len(flat) - scores :]
    half, usable, how = _ratio_moments(problem, layout, flat, candidates, scores, key, samples)
    if irregular:
        usable &= _can_occur(problem, layout, flat, candidates, key)
    if given is not None and not usable.all():
        raise _unusable(given[~usable][0])
    chosen = np.arange(scores)
    if given is not None:
        chosen = np.arange(scores + len(given))
    else:
        chosen = greedy(half, covariances, chosen, scores + np.flatnonzero(usable))
    if not len(chosen):
        raise irregular if irregular is not None else _unusable(candidates[0])
    matrix, se = half.bound(covariances, chosen)
    used = candidates[chosen[chosen >= scores] - scores]
    method = f"Barankin with {len(used)} test points{'' if scores else ', without scores'}, {how}"
    return Bound(matrix, problem.names or (), method, se, points=used)


def _checked(problem: Problem, theta: Theta) -> tuple[ThetaLayout, np.ndarray]:
    check_problem(problem)
    if problem.log_likelihood is None:
        raise BoundError("the problem has no log_likelihood: give one to Problem")
    layout = layout_of(problem)
    flat = theta_rows(one_theta(problem, theta))[0]
    failure = in_either_precision(lambda: outside_of_model(problem, layout.to_theta(on_host(flat))))
    if failure:
        raise failure
    return layout, flat


@contextmanager
def _forgetting(problem: Problem, layout: ThetaLayout, flat: np.ndarray) -> Iterator[None]:
    """Whatever was compiled in double precision does not stay in the way of single precision."""
    try:
        yield
    finally:
        forget_constants(problem.simulate, jr.key(0), layout.to_theta(on_host(flat)))


def _given_points(
    problem: Problem, layout: ThetaLayout, flat: np.ndarray, points: Any
) -> np.ndarray:
    """Test points that a user gives, flat (m, p)."""
    if not any(np.size(leaf) for leaf in jax.tree.leaves(points)):
        raise ValueError("points must hold at least one value of theta, got none")
    try:
        found = theta_rows(jax.tree.map(np.atleast_1d, points))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"points must hold values of theta along a leading axis: {error}"
        ) from None
    if found.shape[1] != len(flat) or not np.isfinite(found).all():
        raise ValueError(
            f"points must hold finite values of theta, {len(flat)} numbers each, along a leading "
            f"axis; got {found.tolist()}"
        )
    if (found == flat).all(axis=1).any():
        raise ValueError("points must differ from theta, got theta itself")
    for one in found:
        failure = outside_of_model(problem, layout.to_theta(on_host(one)))
        if failure:
            raise BoundError(f"points: {failure}")
    return found


def _candidates(problem: Problem, layout: ThetaLayout, flat: np.ndarray) -> np.ndarray:
    """Points along each coordinate of theta within what the prior draws, and some of its draws."""
    drawn = theta_rows(jax.vmap(problem.sample_prior)(jr.split(jr.key(0), RANGE_DRAWS)))
    steps = np.unique(
        np.concatenate([np.geomspace(1e-4, 1, CANDIDATES // 2), np.linspace(0, 1, CANDIDATES // 2)])
    )[1:]
    found = list(drawn[:JOINT_CANDIDATES]) if len(flat) > 1 else []
    for j in range(len(flat)):
        for end in (drawn[:, j].min(), drawn[:, j].max()):
            points = np.tile(flat, (len(steps), 1))
            points[:, j] += steps * (end - flat[j])
            outside = outside_of_model(problem, layout.to_theta(on_host(points[-1])))
            found += [] if outside or end == flat[j] else list(points)
    return np.array(found).reshape(-1, len(flat))


def _differences(
    problem: Problem, layout: ThetaLayout, flat: np.ndarray, points: np.ndarray
) -> np.ndarray:
    """Covariances of scores and ratios with unbiased estimators of y, (d, p + m)."""

    def y_of(flat: Array) -> Array:
        return problem.y_of(layout.to_theta(flat))

    def both() -> np.ndarray:
        here = jnp.asarray(flat)
        there = jax.vmap(y_of)(jnp.asarray(points)) - y_of(here)[None]
        return np.concatenate([np.asarray(jax.jacfwd(y_of)(here)), np.asarray(there).T], axis=1)

    return in_double_precision(both)


def _ratio_moments(
    problem: Problem,
    layout: ThetaLayout,
    flat: np.ndarray,
    points: np.ndarray,
    scores: int,
    key: Key,
    samples: int,
) -> tuple[Halves | Exact, np.ndarray, str]:
    """G of scores and likelihood ratios, which points can be used, and how it was found."""
    exact = _gaussian_moments(problem, layout, flat, points, scores)
    if exact is not None:
        return exact[0], exact[1], "Gaussian closed form"

    def of_measurement(here: Array, x: Any) -> Array:
        def at(point: Array) -> Array:
            return log_likelihood_at(problem, layout, point, x)

        ratios = jnp.exp(jax.vmap(at)(jnp.asarray(points)) - at(here)) - 1
        return jnp.concatenate([jax.grad(at)(here)[:scores], ratios])

    values = simulated_function(problem, layout, of_measurement)(flat, key, samples)
    if scores:
        refuse_irregular(values[:, :scores], ["the score"] * scores)
    ratios = values[:, scores:]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = ratios.std(axis=0) / np.sqrt(samples)
        share = ((ratios + 1) ** 2).max(axis=0) / ((ratios + 1) ** 2).sum(axis=0)
        usable = np.isfinite(ratios).all(axis=0) & (share < SHARE_LIMIT)
        usable &= np.abs(ratios.mean(axis=0)) <= SCORE_LIMIT * error
    return Halves(values), usable, "Monte Carlo"


def _can_occur(
    problem: Problem, layout: ThetaLayout, flat: np.ndarray, points: np.ndarray, key: Key
) -> np.ndarray:
    """Test points of which no simulated measurement is impossible at theta, (m,)."""

    def at(point: tuple[Array, Key]) -> Array:
        keys = jr.split(point[1], SUPPORT_DRAWS)
        x = jax.vmap(problem.simulate, in_axes=(0, None))(keys, layout.to_theta(point[0]))
        here = jnp.asarray(flat, float)
        return jnp.isfinite(
            jax.vmap(lambda x: log_likelihood_at(problem, layout, here, x))(x)
        ).all()

    def at_all() -> np.ndarray:
        keys = fold_in_each(key_for("bound", key), jnp.arange(len(points)))
        run = jax.jit(lambda *pair: jax.lax.map(at, pair))
        return np.asarray(run(jnp.asarray(points, float), keys))

    return in_either_precision(at_all)


def _gaussian_moments(
    problem: Problem, layout: ThetaLayout, flat: np.ndarray, points: np.ndarray, scores: int
) -> tuple[Exact, np.ndarray] | None:
    """G in closed form for a normal distribution whose covariance does not depend on theta."""
    if problem.likelihood is None or not scores:
        return None

    def whitened(flat: Array, root: Array) -> Array:
        """The mean in standard deviations of the noise."""
        assert problem.likelihood is not None
        whole = problem.likelihood(layout.to_theta(flat))
        mean, _ = moments_of_gaussian(base_of(whole))
        repeats = np.prod(whole.shape()) / mean.size
        solve = jax.vmap(lambda r, m: jax.scipy.linalg.solve_triangular(r, m, lower=True))
        return jnp.sqrt(repeats) * jnp.ravel(solve(root, mean))

    def closed() -> tuple[np.ndarray, np.ndarray] | None:
        assert problem.likelihood is not None
        here, there = jnp.asarray(flat), jnp.asarray(points)

        def covariance(flat: Array) -> Array:
            assert problem.likelihood is not None
            return moments_of_gaussian(base_of(problem.likelihood(layout.to_theta(flat))))[1]

        own, others = covariance(here), jax.lax.map(covariance, there)
        if not np.allclose(np.asarray(others), np.asarray(own)[None], rtol=1e-9):
            return None
        root = jnp.linalg.cholesky(own)
        slope = np.asarray(jax.jacfwd(whitened)(here, root))
        moved = np.asarray(jax.lax.map(lambda one: whitened(one, root), there))
        return slope, moved - np.asarray(whitened(here, root))[None]

    try:
        found = in_double_precision(closed)
    except BoundError:
        return None
    if found is None:
        return None
    slope, moved = found
    usable = (moved**2).sum(axis=1) < LARGEST_EXPONENT
    inner = np.where(usable[:, None] & usable, moved @ moved.T, 0.0)
    cross = slope.T @ moved.T
    matrix = np.block([[slope.T @ slope, cross], [cross.T, np.expm1(inner)]])
    return Exact(matrix), usable


def _unusable(point: np.ndarray) -> IrregularModelError:
    return IrregularModelError(
        f"the likelihood at the test point {point.tolist()} cannot be averaged over measurements "
        "at theta: some that can occur there cannot at theta, or it is too far away for Monte Carlo"
    )
