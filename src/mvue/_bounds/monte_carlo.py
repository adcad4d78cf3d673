"""Fisher information by Monte Carlo: the mean outer product of simulated scores."""

import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._core.keys import fold_in_each
from .._core.problem import Problem
from .._core.theta import ThetaLayout
from .._core.types import Key
from .._runtime.jit import forgetful_jit, in_double_precision
from .._runtime.progress import SILENT, Progress
from ..exceptions import BoundError, IrregularModelError, UnreachedPrecisionWarning
from .result import Informations

METHOD = "Monte Carlo"
GROUPS = 64  # parts of the draws between which the standard errors are measured
DEFAULT_SAMPLES = 2**14
LEAST_SAMPLES = 4  # for each number in theta: with fewer, nothing is left of the inverse
MOST_SAMPLES = 2**23  # where a relative error was asked for
PIECE_NUMBERS = 2**21  # numbers of x and of its derivatives held at a time, 16 MB
SCORE_LIMIT = 6.0  # standard errors that the mean score may be away from zero
ROUNDING = 1e-10  # of second moments: scores that differ by less are the same
SHARE_LIMIT = 0.05  # of the information that one draw may make up
SHARE_FROM = 5_000  # draws from which on that is judged


class _ScoreSums(NamedTuple):
    number: Any  # (K, G)
    score: Any  # (K, G, p)
    outer: Any  # (K, G, p, p)
    largest: Any  # (K, p), of the squared scores
    bad: Any  # (K,), draws whose score is not finite


def sampled_informations(
    problem: Problem,
    layout: ThetaLayout,
    flat: np.ndarray,
    *,
    key: Key,
    samples: int | None = None,
    relative_error: float | None = None,
    progress: Progress = SILENT,
) -> Informations:
    """Information at K values of theta, flat (K, p); draws at value k depend on key and k.

    Memory does not grow with the samples.
    """
    try:
        sums = in_double_precision(
            lambda: _all_pieces(problem, layout, flat, key, samples, relative_error, progress)
        )
    except Exception:
        # Code that insists on single precision, in the carry of a loop for example, does run.
        try:
            sums = _all_pieces(problem, layout, flat, key, samples, relative_error, progress)
        except Exception as error:
            raise BoundError(
                "the score, the derivative of log_likelihood(theta, x) with respect to theta, "
                f"cannot be computed: {type(error).__name__}: {error}"
            ) from error
    reached = _relative_error(sums)
    if relative_error is not None and reached > relative_error:
        warnings.warn(
            f"{sums.number[0].sum():,.0f} draws bring the relative standard error of the "
            f"information to {reached:.2g}, not to the {relative_error:.2g} that was asked for: "
            "give more samples",
            UnreachedPrecisionWarning,
            stacklevel=4,
        )
    return _judged(layout, sums)


def _all_pieces(
    problem: Problem,
    layout: ThetaLayout,
    flat: np.ndarray,
    key: Key,
    samples: int | None,
    relative_error: float | None,
    progress: Progress,
) -> _ScoreSums:
    count, p = flat.shape
    x, _ = problem.shapes()
    x_size = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(x))
    most = samples or (DEFAULT_SAMPLES if relative_error is None else MOST_SAMPLES)
    most = max(most, LEAST_SAMPLES * p)
    room = PIECE_NUMBERS // (x_size * 4 + p)
    first = DEFAULT_SAMPLES if relative_error is None else DEFAULT_SAMPLES // 4
    size = GROUPS * max(1, min(room, most, first) // GROUPS)
    theta = jnp.asarray(flat, jnp.result_type(float))
    keys = fold_in_each(key, jnp.arange(count))
    total: _ScoreSums | None = None
    with progress.stage("simulating scores", most if most > size else None) as advance:
        for start in range(0, most, size):
            part = _piece(problem, layout, theta, keys, jnp.asarray(start), jnp.asarray(most), size)
            part = _ScoreSums(*(np.asarray(leaf, np.float64) for leaf in part))
            total = part if total is None else _added(total, part)
            reached = _relative_error(total)
            advance(min(start + size, most), f"relative error {reached:.2g}")
            if relative_error is not None and reached <= relative_error:
                break
    assert total is not None
    return total


@forgetful_jit
def _piece(
    problem: Problem,
    layout: ThetaLayout,
    theta: Array,
    keys: Key,
    start: Array,
    most: Array,
    size: int,
) -> _ScoreSums:
    index = start + jnp.arange(size)

    def log_likelihood(flat: Array, x: Any) -> Array:
        assert problem.log_likelihood is not None
        return jnp.reshape(problem.log_likelihood(layout.to_theta(flat), x), ())

    def at_value(value: tuple[Array, Key]) -> _ScoreSums:
        flat, key = value
        measure = jax.vmap(problem.simulate, in_axes=(0, None))
        x = measure(fold_in_each(key, index), layout.to_theta(flat))
        score = jax.vmap(jax.grad(log_likelihood), in_axes=(None, 0))(flat, x)
        finite = jnp.isfinite(score).all(axis=1)
        keep = finite & (index < most)
        score = jnp.where(keep[:, None], score, 0.0)
        # Draw i belongs to group i mod G, however the draws are cut into pieces.
        grouped = score.reshape(-1, GROUPS, score.shape[1])
        return _ScoreSums(
            keep.reshape(-1, GROUPS).sum(axis=0),
            grouped.sum(axis=0),
            jnp.einsum("bgi,bgj->gij", grouped, grouped),
            (score**2).max(axis=0),
            (~finite & (index < most)).sum(),
        )

    return jax.lax.map(at_value, (theta, keys))


def _added(a: _ScoreSums, b: _ScoreSums) -> _ScoreSums:
    return _ScoreSums(
        a.number + b.number,
        a.score + b.score,
        a.outer + b.outer,
        np.maximum(a.largest, b.largest),
        a.bad + b.bad,
    )


def group_error(groups: np.ndarray) -> np.ndarray:
    """Standard error of the mean of equal groups, along the leading axis."""
    return groups.std(axis=0, ddof=1) / np.sqrt(len(groups))


def _relative_error(sums: _ScoreSums) -> float:
    """The largest relative standard error on the diagonals."""
    groups = np.einsum("kgii->gki", sums.outer) / np.maximum(sums.number.T, 1)[..., None]
    mean = groups.mean(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.nan_to_num(group_error(groups) / mean).max())


def _judged(layout: ThetaLayout, sums: _ScoreSums) -> Informations:
    """Information where the scores behave, reasons where they do not."""
    found = Informations.empty(len(sums.number), len(layout.names))
    for k, per_group in enumerate(sums.number):
        n = per_group.sum()
        if sums.bad[k]:
            message = (
                f"{sums.bad[k]:,.0f} of {n + sums.bad[k]:,.0f} simulated measurements have a score "
                "that is not finite"
            )
            found.fail([k], IrregularModelError(message))
            continue
        groups = sums.outer[k] / per_group[:, None, None]
        matrix = sums.outer[k].sum(axis=0) / n
        second = np.diag(matrix)
        mean = sums.score[k].sum(axis=0) / n
        with np.errstate(invalid="ignore", divide="ignore"):
            in_errors = mean / np.sqrt(np.maximum(second - mean**2, 0) / n)
            in_errors = np.where(mean == 0, 0.0, in_errors)
            share = np.nan_to_num(sums.largest[k] / (n * second))
        worst, ruled = np.abs(in_errors).argmax(), share.argmax()
        same = (second - mean**2 <= ROUNDING * second) & (mean != 0)
        if same.any():
            message = (
                "the support of the data depends on theta, or simulate and log_likelihood "
                f"disagree, or {n:,.0f} samples are too few: all have the same score of "
                f"{layout.names[same.argmax()]}, and it is not 0"
            )
            found.fail([k], IrregularModelError(message))
        elif abs(in_errors[worst]) > SCORE_LIMIT:
            message = (
                "the support of the data depends on theta, or simulate and log_likelihood "
                f"disagree: the mean score of {layout.names[worst]} is not 0 but "
                f"{abs(in_errors[worst]):.3g} standard errors away"
            )
            found.fail([k], IrregularModelError(message))
        elif n >= SHARE_FROM and share[ruled] > SHARE_LIMIT:
            message = (
                f"one draw in {n:,.0f} makes up {share[ruled]:.0%} of the information about "
                f"{layout.names[ruled]}, which may be infinite"
            )
            found.fail([k], IrregularModelError(message))
        else:
            found.put(k, matrix, METHOD, groups=groups, mean_score=in_errors, samples=int(n))
    return found
