"""A check of regularity: does the support of the data move with theta?

If it does, at an end where the density is not small, the Cramér-Rao bound does not hold, and
information from scores is meaningless. The mean score, which should be zero, need not show it,
because the contributions of two ends may cancel.
"""

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from .._core.keys import fold_in_each
from .._core.priors import element_support, support_ends
from .._core.problem import Problem, refusal
from .._core.theta import ThetaLayout, theta_rows
from .._core.types import Key, Theta
from .._runtime.jit import forgetful_jit, in_double_precision, on_host
from ..exceptions import BoundError, IrregularModelError
from .result import Informations

DRAWS = 4096
FEWEST_DRAWS = 512
NUMBERS = 2**21  # of x, for all draws at one value
MOST_DIRECTIONS = 16  # numbers in theta that are moved, one by one
FACTOR = 4.0  # between two moves of theta
MOVES = 14  # from the spread of the prior downwards
FEWEST_OUTSIDE = 100  # draws from which on the next smaller move is compared
RATIO_DRAWS = 2**14
RATIO_STEP = 0.5  # standard deviations: the ratios of larger ones have long tails
RATIO_LIMIT = 6.0  # standard errors from 1
SHARE_OF_ONE = 0.05  # of the squares of ratios, above which a mean has no error to go by
REGULAR = 8.0  # times fewer draws are outside then: 4 at a jump, 16 where information is finite


def outside_of_model(problem: Problem, theta: Theta) -> BoundError | None:
    """Why there is no bound at a theta that is no parameter of the likelihood."""
    reason = refusal(problem, theta)
    return BoundError(f"theta = {theta} is outside of the model: {reason}") if reason else None


def refuse_moving_support(
    problem: Problem, layout: ThetaLayout, flat: np.ndarray, found: Informations, key: Key
) -> None:
    """Replace information at values of theta, flat (K, p), from which the support moves away."""
    kept = [k for k, failure in enumerate(found.failure) if failure is None]
    if not kept:
        return
    spread = _spread(problem)
    if not _may_move(problem, layout, flat[kept[0]], spread):
        return
    x, _ = problem.shapes()
    size = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(x))
    draws = int(np.clip(NUMBERS // size, FEWEST_DRAWS, DRAWS))
    theta = jnp.asarray(flat[kept], jnp.result_type(float))
    moves = jnp.asarray(spread, theta.dtype)
    try:
        counts = np.asarray(_counts(problem, layout, theta, moves, key, draws))
    except Exception as error:
        raise cannot_tell(error) from error
    for k, count in zip(kept, counts, strict=True):
        for name, along in zip(layout.names, count, strict=False):
            enough = np.flatnonzero(along[:-1] >= FEWEST_OUTSIDE)
            if enough.size and along[enough[-1]] < REGULAR * (along[enough[-1] + 1] + 1):
                share = along[enough[-1]] / draws
                message = (
                    f"the support of the data depends on theta: if {name} changes a little, "
                    f"{share:.0%} of the measurements can no longer occur"
                )
                found.fail([k], IrregularModelError(message))
                break


def refuse_wrong_likelihood(
    problem: Problem,
    layout: ThetaLayout,
    flat: np.ndarray,
    found: Informations,
    key: Key,
) -> None:
    """Replace information from a log_likelihood that is not that of the simulator.

    It may be off by a factor, such as 2 or 1/n, or have another noise level: its score has mean
    zero all the same, and quadrature sees a density like any other. But the ratio of likelihoods at
    two values has mean one over simulations only if these have the density at the first. Values
    half a standard deviation away are compared, unless something may occur there that cannot at
    theta.
    """
    kept = [k for k, failure in enumerate(found.failure) if failure is None]
    if not kept or problem.likelihood is not None:
        return
    x, _ = problem.shapes()
    size = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(x))
    draws = int(np.clip(NUMBERS // size, FEWEST_DRAWS, RATIO_DRAWS))
    for k in kept:
        information = np.asarray(found.matrix[k], np.float64)
        away = 1 / np.sqrt(np.maximum(np.diag(information), np.finfo(float).tiny))
        square = away @ information @ away
        step = RATIO_STEP * away / np.sqrt(max(square, 1e-3))
        ends = [flat[k] + sign * step for sign in (-1, 1)]
        inside = [e for e in ends if not outside_of_model(problem, layout.to_theta(on_host(e)))]
        tried = [_ratios_at(problem, layout, flat[k], end, key, draws) for end in inside]
        seen = [one for one in tried if one is not None]
        if seen and all(abs(mean - 1) > RATIO_LIMIT * error for mean, error in seen):
            mean, error = seen[0]
            message = (
                "simulate and log_likelihood disagree: the ratio of the likelihood at a value "
                f"nearby to that at theta is {mean:.3g} ± {error:.1g} on average and not 1, as if "
                "log_likelihood were multiplied by a factor, or were that of another noise or of a "
                "part of the measurement"
            )
            found.fail([k], IrregularModelError(message))


def _ratios_at(
    problem: Problem,
    layout: ThetaLayout,
    here: np.ndarray,
    there: np.ndarray,
    key: Key,
    draws: int,
) -> tuple[float, float] | None:
    """The mean ratio of likelihoods and its standard error; None where it tells nothing."""
    try:
        ratios, possible = in_double_precision(
            lambda: jax.tree.map(
                np.asarray,
                _ratios(problem, layout, jnp.asarray(here), jnp.asarray(there), key, draws),
            )
        )
    except Exception:  # code that insists on single precision, in which ratios may be rounding
        return None
    squares = np.square(ratios, dtype=np.float64)
    if not (possible.all() and np.isfinite(squares).all()):
        return None
    if squares.max() > SHARE_OF_ONE * squares.sum():
        return None
    return float(ratios.mean()), float(ratios.std() / np.sqrt(draws))


def _spread(problem: Problem) -> np.ndarray:
    """Standard deviations of the numbers in theta under the prior."""
    drawn = jax.vmap(problem.sample_prior)(jr.split(jr.key(0), 256))
    return theta_rows(drawn).std(axis=0)[:MOST_DIRECTIONS]


def _may_move(problem: Problem, layout: ThetaLayout, flat: np.ndarray, spread: np.ndarray) -> bool:
    """Whether the ends of the support, as far as they are known, move with theta."""
    likelihood = problem.likelihood
    if likelihood is None:
        return True

    def ends(flat: np.ndarray) -> list[Any]:
        support = element_support(likelihood(layout.to_theta(on_host(flat))))
        return [np.asarray(end) for end in support_ends(support) or ()]

    moved = [flat + 1e-3 * spread[j] * np.eye(len(flat))[j] for j in range(len(spread))]
    try:
        here, there = ends(flat), [ends(other) for other in moved]
    except NotImplementedError:  # distributions that do not know their support
        return False
    except ValueError:  # numpyro refuses parameters a little beyond the model: draws decide
        return True
    except Exception as error:
        raise cannot_tell(error) from error
    pairs = [pair for other in there for pair in zip(here, other, strict=False)]
    return not all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)


def cannot_tell(error: Exception) -> BoundError:
    """Why there is no bound where the likelihood itself fails."""
    return BoundError(
        "whether the support of the data depends on theta cannot be told, because the likelihood "
        f"failed near theta: {type(error).__name__}: {error}"
    )


def _is_outside(problem: Problem, theta: Theta, x: Any) -> Array:
    """Whether one measurement cannot occur at theta."""
    if problem.likelihood is not None:
        return ~jnp.all(problem.likelihood(theta).support(x))
    assert problem.log_likelihood is not None
    return jnp.isneginf(jnp.reshape(problem.log_likelihood(theta, x), ()))


@forgetful_jit
def _ratios(
    problem: Problem, layout: ThetaLayout, here: Array, there: Array, key: Key, draws: int
) -> tuple[Array, Array]:
    """Likelihood ratios of draws at one value, and whether draws at the other can occur there."""

    def log_likelihood(flat: Array, x: Any) -> Array:
        assert problem.log_likelihood is not None
        return jnp.reshape(problem.log_likelihood(layout.to_theta(flat), x), ())

    def one(key: Key) -> tuple[Array, Array]:
        x = problem.simulate(key, layout.to_theta(here))
        other = problem.simulate(key, layout.to_theta(there))
        ratio = jnp.exp(log_likelihood(there, x) - log_likelihood(here, x))
        return ratio, jnp.isfinite(log_likelihood(here, other))

    return jax.vmap(one)(fold_in_each(key, jnp.arange(draws)))


@forgetful_jit
def _counts(
    problem: Problem,
    layout: ThetaLayout,
    flat: Array,
    spread: Array,
    key: Key,
    draws: int,
) -> Array:
    """Draws that cannot occur at theta ± moves, (K, directions, MOVES)."""
    sizes = FACTOR ** -jnp.arange(MOVES, dtype=flat.dtype)

    def at_value(value: tuple[Array, Key]) -> Array:
        centre, key = value
        keys = fold_in_each(key, jnp.arange(draws))
        x = jax.vmap(problem.simulate, in_axes=(0, None))(keys, layout.to_theta(centre))

        def count(move: tuple[Array, Array]) -> Array:
            direction, size = move
            step = jnp.where(jnp.arange(len(centre)) == direction, size * spread[direction], 0.0)

            def gone(x: Any) -> Array:
                below, above = (layout.to_theta(centre + sign * step) for sign in (-1.0, 1.0))
                return _is_outside(problem, below, x) | _is_outside(problem, above, x)

            return jnp.sum(jax.vmap(gone)(x))

        grid = jnp.meshgrid(jnp.arange(len(spread)), sizes, indexing="ij")
        found = jax.lax.map(count, (grid[0].ravel(), grid[1].ravel()))
        return found.reshape(len(spread), MOVES)

    return jax.lax.map(at_value, (flat, fold_in_each(key, jnp.arange(len(flat)))))
