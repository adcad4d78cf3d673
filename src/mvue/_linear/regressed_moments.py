"""Moments of rows without repeats: the noise of x is what smooth functions of theta leave of it.

Where no theta was measured twice, E[x | theta] is a regression of x on functions b(theta). With x̂
the prediction of a row from all *other* rows, in which its own noise is not,
E[x x̂ᵀ] = E[E[x | theta] E[x | theta]ᵀ] = R. The noise covariance is W = S - R.
"""

from typing import NamedTuple

import numpy as np

from .._data.theta_basis import ThetaBasis, is_bank
from .._data.units import group_rows
from .grouped_moments import MomentSummary

LEAST_ROWS = 8  # fewer show no regression
LEAST_OF_OTHERS = 0.2  # share of a row's own prediction that must come from other rows


class Pairs(NamedTuple):
    """Rows of which none is a repeat of another, with functions of their theta."""

    functions: np.ndarray  # (n, q)
    basis: ThetaBasis
    note: str
    """What was assumed without being told."""

    def moments(self, x: np.ndarray, y: np.ndarray, rows: np.ndarray | slice) -> MomentSummary:
        """The moments of some of the rows."""
        x, y = np.asarray(x[rows], np.float64), np.asarray(y[rows], np.float64)
        n, functions = len(x), self.functions[rows]
        mean_x, mean_y = x.mean(axis=0), y.mean(axis=0)
        x, y = x - mean_x, y - mean_y
        scatter = x.T @ x
        known = scatter, np.zeros_like(scatter)
        found = MomentSummary(float(n), n, mean_x, mean_y, *known, x.T @ y, y.T @ y)
        if n < functions.shape[1] + 2:
            return found._replace(between_xx=scatter)
        axes, _ = np.linalg.qr(functions)
        kept = 1 - np.einsum("nq,nq->n", axes, axes)
        # A row that nearly alone decides about a function, as one whose theta is like no other, is
        # predicted by the others as badly as can be. Which rows these are depends on theta alone.
        alone = kept < LEAST_OF_OTHERS
        rest = (x - axes @ (axes.T @ x)) / np.where(alone, np.inf, kept)[:, None]
        noise = x.T @ rest / max(n - alone.sum(), 1)
        noise = (noise + noise.T) / 2
        means = functions.shape[1]
        return found._replace(
            between_xx=scatter - (n - means) * noise, functions=means, note=self.note
        )


def pairs_of(
    x: np.ndarray, y: np.ndarray, unit_ids: np.ndarray | None, theta: np.ndarray | None
) -> Pairs | None:
    """Functions of theta for rows without repeats; None where there are repeats, or too few rows.

    Args:
        x: shape (n, p).
        y: shape (n, d).
        unit_ids: the unit of each row, if that is not its y.
        theta: all that rows depend on, shape (n, k), if that is not y.
    """
    if not is_bank(np.diff(group_rows(y, unit_ids).starts)) or len(x) < LEAST_ROWS:
        return None
    basis = ThetaBasis.of(y, theta)
    note = ""
    if theta is None:
        note = (
            f"no unit was measured twice: noise is what {basis.size} smooth functions of y leave "
            "of x. Give theta=, all that x depends on, or theta=y if that is y; rows of the same "
            "unit need equal y or equal unit_ids"
        )
    elif basis.left_out:
        note = (
            f"theta has {len(basis.coordinates)} coordinates, and {len(x):,} rows are enough for "
            f"{basis.size} functions: what x owes to the last {basis.left_out} of them counts as "
            "noise. Simulate more, measure units several times, or give fewer coordinates"
        )
    return Pairs(basis(y, theta), basis, note)


def units_of_theta(y: np.ndarray, unit_ids: np.ndarray | None, theta: np.ndarray) -> np.ndarray:
    """The unit of each row, where rows of one unit share all of theta."""
    return group_rows(np.concatenate([y, theta], axis=1), unit_ids).unit_of_row()


def without_copies(x: np.ndarray, y: np.ndarray, unit_ids: np.ndarray | None) -> np.ndarray | None:
    """Which rows to keep where all repeats are copies; None to keep all."""
    rows = group_rows(y, unit_ids)
    sizes = np.diff(rows.starts)
    if sizes.max() == 1:
        return None
    order = np.arange(len(x)) if rows.order is None else rows.order
    for unit in np.flatnonzero(sizes > 1):
        same = x[order[rows.starts[unit] : rows.starts[unit + 1]]]
        # Whole numbers are often equal by themselves.
        if (same != same[:1]).any() or (same == np.rint(same)).all():
            return None
    return np.sort(order[rows.starts[:-1]])
