"""A permutation test of exchangeability on simulations: does the order of the elements matter?

If it does not, the ranks of the elements are a random permutation at every theta: none is larger
than another on average, nor further out, nor correlated with a third more than others are. The
statistics add up over elements and draws. An effect that thousands of draws do not show carries
next to no information about theta.
"""

import math

import jax
import numpy as np

from .._core.problem import Draw
from .._core.theta import theta_rows
from .settings import ExchangeabilitySettings

FEW_DIRECTIONS = 4  # of theta; so many times more are looked at in so many times fewer draws


def sets_in(draw: Draw, settings: ExchangeabilitySettings) -> list[tuple[int, ...]]:
    """Leaves of x that are sets, each by itself or several row by row: groups of their numbers.

    Leaves that are not mentioned have an order. An array of one number is a set of one.
    """
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(draw.x)]
    if len(leaves) == 1 and leaves[0][0, 0].size == 1:
        return [(0,)]
    theta = _mixed(theta_rows(draw.theta), settings.coordinates)
    theta = _ranks(np.repeat(theta, leaves[0].shape[1], axis=0))

    def is_set(group: tuple[int, ...]) -> bool:
        size = sum(leaves[i][0, 0].size * (1 + np.iscomplexobj(leaves[i])) for i in group)
        n = _length(leaves[group[0]])
        if n < 2 or size > n * settings.largest_element:
            return False
        rows = np.concatenate([_numbers(leaves[i]).reshape(len(theta), n, -1) for i in group], 2)
        if not _neighbours_are_strangers(rows, theta, settings):
            return False
        rows = rows[:, _some_elements(n, settings.most_elements)]
        most = settings.companions
        others = [_numbers(leaf, most) for i, leaf in enumerate(leaves) if i not in group]
        beside = np.concatenate([*others, np.zeros((len(rows), 0))], axis=1)[:, :most]
        return _order_is_noise(rows, theta, _ranks(beside), settings)

    alone = [(i,) for i in range(len(leaves)) if is_set((i,))]
    left = [i for i in range(len(leaves)) if (i,) not in alone]
    lengths = sorted({_length(leaves[i]) for i in left})
    same = [tuple(i for i in left if _length(leaves[i]) == n) for n in lengths]
    return alone + [group for group in same if len(group) > 1 and is_set(group)]


def _order_is_noise(
    rows: np.ndarray, theta: np.ndarray, beside: np.ndarray, settings: ExchangeabilitySettings
) -> bool:
    """Whether no order is to be seen in rows (R, n, q)."""
    n, q = rows.shape[1:]
    along = _ranks(_mixed(theta, settings.directions))
    work = (2 * n * q) ** 2 * max(1, along.shape[1] // FEW_DIRECTIONS)
    few = max(settings.fewest_draws, settings.operations // work)
    rows, theta, along, beside = rows[:few], theta[:few], along[:few], beside[:few]
    place = _ranks_within(rows)
    outwards = np.abs(place) - np.mean(np.abs(place), axis=1, keepdims=True)
    seen = [part[:, :, j] for part in (place, outwards) for j in range(q)]
    one = np.ones((len(rows), 1))
    beside = np.concatenate([beside, 1.5 * beside**2 - 0.5], axis=1)
    together = [beside * t[:, None] for t in along.T]
    changing = np.concatenate([one, theta, 1.5 * theta**2 - 0.5, beside, *together], axis=1)
    if any(_too_large(*_element_scores(part, changing), settings.tail) for part in seen):
        return False
    if len(seen) > settings.most_parts:  # of long elements, some components
        chosen = np.random.default_rng(0).choice(len(seen), settings.most_parts, replace=False)
        seen = [seen[i] for i in sorted(chosen)]
    pairs = [(a, b) for i, a in enumerate(seen) for b in seen[i:]]
    return not any(
        _too_large(_pair_scores(a, b, t), n * (n - 1), settings.tail, 4.0)
        for a, b in pairs
        for t in np.concatenate([one, along], axis=1).T
    )


def _some_elements(n: int, most: int) -> np.ndarray:
    """Which elements of large sets are compared: a run of neighbours, and others far apart."""
    if n <= most:
        return np.arange(n)
    run = np.arange(most // 2) + (n - most // 2) // 2
    apart = np.linspace(0, n - 1, most - len(run)).astype(int)
    return np.unique(np.concatenate([run, apart]))


def _neighbours_are_strangers(
    rows: np.ndarray, theta: np.ndarray, settings: ExchangeabilitySettings
) -> bool:
    """Whether elements next to each other in rows (R, n, q) are no more alike than any two.

    Products of neighbours add up along a long series, where those of each pair tell too little.
    """
    n, q = rows.shape[1:]
    if n <= 2 * settings.lags:
        return True  # the pairs themselves tell enough
    few = max(settings.fewest_draws, settings.numbers // (n * q))
    place = _ranks_within(rows[:few])
    along = np.concatenate([np.ones((len(place), 1)), theta[:few]], axis=1)
    along = along / np.sqrt(np.sum(along**2, axis=0))
    limit = math.sqrt(2 * settings.tail)
    for part in (place, np.abs(place)):
        centred = part - part.mean(axis=1, keepdims=True)
        power = np.mean(centred**2, axis=1)
        for lag in range(1, min(settings.lags, n - 1) + 1):
            total = np.sum(centred[:, lag:] * centred[:, :-lag], axis=1)
            scores = (total + (n - lag) / (n - 1) * power) / (power * math.sqrt(n - lag))
            if np.abs(scores.T @ along).max() > limit:
                return False
    return True


def _mixed(theta: np.ndarray, most: int) -> np.ndarray:
    """Coordinates of theta (R, p) or, of more than so many, random mixtures that have all alike."""
    p = theta.shape[1]
    if p <= most:
        return theta
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (p, most))
    return _ranks(theta) @ signs


def _element_scores(part: np.ndarray, changing: np.ndarray) -> tuple[np.ndarray, int]:
    """Sums of squared scores of n elements (R, n), for each column of (R, g); and n."""
    total = part.T @ changing
    variance = (part**2).T @ changing**2
    return _scores(total, variance).sum(axis=0), part.shape[1]


def _pair_scores(a: np.ndarray, b: np.ndarray, along: np.ndarray) -> float:
    """The sum of squared scores over all pairs of elements."""
    n = a.shape[1]
    typical = -np.mean(a * b, axis=1) / (n - 1)
    total = (a * along[:, None]).T @ b - along @ typical
    squares = along**2
    variance = (a**2 * squares[:, None]).T @ b**2
    variance += squares @ typical**2 - 2 * (a * (squares * typical)[:, None]).T @ b
    return float(_scores(total, variance)[~np.eye(n, dtype=bool)].sum())


def _scores(total: np.ndarray, variance: np.ndarray) -> np.ndarray:
    tiny = 1e-9 * variance.max(initial=0.0)
    return np.where(variance > tiny, total**2 / np.maximum(variance, tiny + 1e-300), 0.0)


def _too_large(scores: np.ndarray | float, count: int, tail: float, inflation: float = 1.0) -> bool:
    """Whether sums of squares of so many standard scores are no chance.

    Inflation allows for scores that depend on each other.
    """
    chance = 2 * math.sqrt(inflation * count * tail) + 2 * inflation * tail
    return bool(np.any(scores > count + chance))


def _length(leaf: np.ndarray) -> int:
    """The number of elements of an array (N, M, n, ...)."""
    return leaf.shape[2] if leaf.ndim > 2 else 1


def _numbers(leaf: np.ndarray, most: int | None = None) -> np.ndarray:
    """At most so many numbers of each measurement, (N M, size), complex ones as two."""
    values = leaf.reshape(leaf.shape[0] * leaf.shape[1], -1)[:, :most]
    if np.iscomplexobj(values):
        values = np.stack([np.real(values), np.imag(values)], axis=-1)
    return values.reshape(len(values), -1).astype(np.float64)


def _ranks_within(rows: np.ndarray) -> np.ndarray:
    """Ranks of the elements of each measurement, evenly over -1 … 1, ties in random order."""
    ties = np.random.default_rng(0).random(rows.shape)
    order = np.argsort(np.lexsort((ties, rows), axis=1), axis=1)
    return 2 * (order + 0.5) / rows.shape[1] - 1


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks of each column, evenly over -1 … 1."""
    order = np.argsort(np.argsort(values, axis=0, kind="stable"), axis=0, kind="stable")
    return 2 * (order + 0.5) / max(len(values), 1) - 1
