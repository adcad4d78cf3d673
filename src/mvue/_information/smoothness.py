"""Whether densities change smoothly with theta, by simulations alone.

The squared Hellinger distance between simulations at theta - δ and theta + δ shrinks like δ² where
there is a Fisher information, and like δ where the density has a jump that moves with theta, as at
the end of its support. So does it for one statistic of the data, in bins that are refined as δ
shrinks: information in it per squared step, which stays what it is in the one case, grows without
limit in the other.
"""

from itertools import pairwise
from typing import NamedTuple

import jax.random as jr
import numpy as np

from .._core.types import Key
from ..exceptions import IrregularModelError
from .features import Bends, Features
from .score import Learned
from .simulated import Around, Unit

STEPS = 0.4 * 3.0 ** -np.arange(3)  # units of theta
BINS = (16, 48, 144)  # at each of them
PAIRS = (2**13, 2**14)  # at each step: with fewer, weak jumps are not seen
GROUPS = 16
MOST_STATISTICS = 24  # of those that move most with each coordinate, besides the ends of the data
GROWTH = 1.7  # from one step to the next: 3 at a jump, 1 where all is smooth
LEAST = 2.0  # information in units of what was seen in all of the data: more is none
SURELY = 4.5  # standard errors


class _Found(NamedTuple):
    information: np.ndarray  # (p, t)
    error: np.ndarray  # (p, t)


def refuse_jumps(
    around: Around,
    bends: Bends,
    flat: np.ndarray,
    unit: Unit,
    learned: Learned,
    pairs: int,
    key: Key,
) -> IrregularModelError | None:
    """Why there is no bound where the density has jumps that move with theta."""
    p, share = around.p, unit.step
    calls = -(-int(np.clip(pairs, *PAIRS)) // around.pairs)
    which: np.ndarray | None = None
    levels: list[_Found] = []
    for level, (step, bins) in enumerate(zip(STEPS * min(share, 1.0), BINS, strict=True)):
        signs, values = [], []
        for i in range(calls):
            of_call = jr.fold_in(jr.fold_in(key, level), i)
            sign, found = around.seen(bends, flat, unit.root, float(step), of_call)
            if which is None:
                which = _watched(around, sign, found)
            scores = learned(found)[:, :, p:]
            signs.append(sign)
            values.append(np.concatenate([found[:, :, which], scores], axis=2))
        levels.append(
            _information(np.concatenate(signs), np.concatenate(values, axis=1), bins, float(step))
        )
    # How much faster it grows than where all is smooth, at each of the steps.
    away = np.stack([_more(*pair) for pair in pairwise(levels)])
    last = levels[-1]
    surely = np.sqrt(len(away)) * away.mean(axis=0)
    wrong = (away > 0).all(axis=0) & (surely > SURELY)
    wrong &= last.information - last.error > LEAST
    if not wrong.any():
        return None
    k, t = np.unravel_index(int(np.where(wrong, surely, 0).argmax()), wrong.shape)
    values = np.array([max(level.information[k, t], 1e-9) for level in levels])
    errors = np.array([level.error[k, t] for level in levels]) / values
    span = np.log(STEPS[0] / STEPS[-1])
    power = 2 - np.log(values[-1] / values[0]) / span
    power_error = np.hypot(errors[0], errors[-1]) / span
    return IrregularModelError(
        "the density of the data has a jump that moves with theta, for example at the end of its "
        "support: the squared Hellinger distance between simulations at theta - δ and theta + δ "
        f"shrinks like δ to the power {power:.2f} ± {power_error:.1g}, not 2, so that there is no "
        "Fisher information and no Cramér-Rao bound"
    )


def _more(before: _Found, after: _Found) -> np.ndarray:
    """How surely there is more information than GROWTH times that before, in standard errors."""
    error = np.sqrt(after.error**2 + (GROWTH * before.error) ** 2)
    more = after.information - GROWTH * np.maximum(before.information, 0)
    return more / np.maximum(error, 1e-300)


def _watched(around: Around, signs: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Ends of the data, and the statistics that move most."""
    ends, raw = Features.ends(around.problem), around.sizes()[0]
    change = signs.T @ ((found[0] - found[1]) / 2)[:, :raw] / len(signs)
    spread = np.maximum(found[0][:, :raw].std(axis=0), 1e-9)
    size = np.abs(change / spread).max(axis=0)
    size[:ends] = np.inf
    return np.argsort(-size, kind="stable")[: ends + MOST_STATISTICS]


def _information(signs: np.ndarray, values: np.ndarray, bins: int, step: float) -> _Found:
    """In each statistic (2, n, t), by how often it falls into bins at either sign, (p, t)."""
    p, t = signs.shape[1], values.shape[2]
    size = len(signs) // GROUPS
    group = np.repeat(np.arange(GROUPS), size)
    signs, values = signs[: len(group)], values[:, : len(group)]
    information, error = np.zeros((p, t)), np.zeros((p, t))
    for j in range(t):
        column = values[:, :, j]
        edges = np.unique(np.quantile(column, np.arange(1, bins) / bins))
        place = np.searchsorted(edges, column, side="right")
        count = len(edges) + 1
        cells = group[None, :] * count + place
        every = np.bincount(place.ravel(), minlength=count) / column.size
        for k in range(p):
            up = np.stack([signs[:, k], -signs[:, k]])
            change = np.bincount(cells.ravel(), up.ravel(), GROUPS * count)
            # Half the difference of the two densities, twice the share of each of them.
            change = change.reshape(GROUPS, count) / (2 * size)
            scaled = change / np.sqrt(np.maximum(every, 1e-12))
            together = scaled.sum(axis=0)
            # Products of different groups have no noise in their mean.
            own = (scaled**2).sum(axis=1)
            total = (together @ together - own.sum()) / (GROUPS * (GROUPS - 1))
            left = together - scaled
            n = GROUPS - 1
            each = ((left**2).sum(axis=1) - (own.sum() - own)) / (n * (n - 1))
            spread = np.sqrt(n * np.mean((each - each.mean()) ** 2))
            information[k, j], error[k, j] = total / step**2, spread / step**2
    return _Found(information, error)
