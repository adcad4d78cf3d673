"""What is left of summaries when theta is accounted for.

Theta is estimated from the very measurement that is judged. A discrepancy has a valid p-value all
the same if its mean does not depend on theta: then it does not matter much at which theta it is
simulated (Robins, van der Vaart and Ventura, 2000). Here that is achieved by instrumental
variables. Of each summary S, a polynomial A φ(û) of the estimates û of theta is subtracted, with A
such that the difference has no correlation with any polynomial ψ(theta) of the true theta. A
least-squares fit would not do: its mean at one theta depends on how far û is drawn to the prior.
"""

import dataclasses
import itertools

import numpy as np
from numpy.polynomial import legendre

SEEN = 0.02  # of the variance of a coordinate: less, and a measurement does not tell it
MOST_COORDINATES = 12
MOST_TERMS = 36  # of a polynomial
HIGHEST = 6  # its degree
LEAST_CORRELATION = 0.1  # canonical, of estimates with theta: less is noise
LEAST_SHARE = 0.15  # of the noise of a summary, for what is left of it to count
RIDGE = 1e-4
GRID = 257
LARGEST = 1.2  # estimates beyond are taken as this, in units of half the range of theta
TINY = 1e-12


@dataclasses.dataclass(frozen=True, eq=False)
class Scores:
    """Places of numbers among those of the prior, -1 … 1, and on in a straight line beyond."""

    tables: np.ndarray
    """Quantiles at equal steps, (p, GRID)."""

    @classmethod
    def of(cls, values: np.ndarray) -> "Scores":
        """From draws, (n, p)."""
        return cls(np.quantile(values, np.linspace(0, 1, GRID), axis=0).T)

    def places(self, values: np.ndarray) -> np.ndarray:
        """Of numbers (n, p)."""
        grid = np.linspace(-1, 1, GRID)
        found = np.empty(values.shape)
        for k, table in enumerate(self.tables):
            found[:, k] = np.interp(values[:, k], table, grid)
            width = table[-1] - table[0]
            away = values[:, k] - np.clip(values[:, k], table[0], table[-1])
            found[:, k] += 2 * away / width if width > 0 else 0.0
        return np.clip(found, -3.0, 3.0)

    def values(self, places: np.ndarray) -> np.ndarray:
        """The numbers at places (n, p); ends where they are beyond."""
        grid = np.linspace(-1, 1, GRID)
        pairs = zip(places.T, self.tables, strict=True)
        return np.stack([np.interp(place, grid, table) for place, table in pairs], axis=1)


@dataclasses.dataclass(frozen=True, eq=False)
class Residuals:
    """A fixed function of one measurement's estimates and summaries, learned from simulations."""

    estimates: Scores
    """Of y."""
    centre: np.ndarray
    spread: np.ndarray
    """Of summaries (q,)."""
    slopes: np.ndarray
    """Of the places of theta in features, (f, p)."""
    seen: np.ndarray
    """Which coordinates of theta a measurement tells at all, (p,)."""
    used: np.ndarray
    """Numbers of those that residuals account for."""
    degree: int
    trend: np.ndarray
    """Of summaries in polynomials of û, (terms, q)."""
    log_scale: np.ndarray
    """The same for logarithms of the squares of what is left."""
    corrections: tuple[np.ndarray, np.ndarray]
    """What instrumental variables subtract, of summaries and of the sizes of families."""
    unit: tuple[np.ndarray, np.ndarray]
    """Standard deviations of both."""
    floor: np.ndarray
    """Deviations of residuals that mean nothing, (q + families,): what is all but determined by û
    shows no more than that a polynomial has errors. So much noise is added to all alike."""
    groups: tuple[np.ndarray, ...]
    """Numbers of the columns of each family."""

    def __call__(self, t: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Residuals (n, q + families) and estimates of the places of theta (n, p).

        Args:
            t: estimates of y, (n, d).
            s: summaries, (n, q).
        """
        tame = _tame(s, self.centre, self.spread)
        places = _features(self.estimates.places(_filled(t)), tame) @ self.slopes
        terms = _terms(places[:, self.used], self.degree)
        left = _scaled(tame - terms @ self.trend, terms @ self.log_scale)
        one = (left - terms @ self.corrections[0]) / self.unit[0]
        sizes = (_sizes(one, self.groups) - terms @ self.corrections[1]) / self.unit[1]
        return np.concatenate([one, sizes], axis=1), places


def learn(
    theta: np.ndarray,
    y: np.ndarray,
    t: np.ndarray,
    s: np.ndarray,
    again: np.ndarray,
    groups: tuple[np.ndarray, ...],
) -> tuple[Residuals, Scores]:
    """Learn residuals from simulations; the first half is for û, the second for the rest.

    Args:
        theta: coordinates of theta, (n, p).
        y: what was estimated, (n, d).
        t: estimates of it, (n, d).
        s: summaries of the same measurements, (n, q).
        again: those of second measurements at the theta of the last ones, (m, q).
        groups: numbers of the columns of each family.

    Returns:
        The residuals, and the places of theta.
    """
    half = len(theta) // 2
    scores = Scores.of(theta)
    v = scores.places(theta)
    centre, spread, is_rare = _scale(s)
    estimates = Scores.of(y)
    tame = _tame(s, centre, spread)
    features = _features(estimates.places(_filled(t)), tame)
    slopes = _least_squares(features[:half], v[:half])
    places = features[half:] @ slopes
    v, tame = v[half:], tame[half:]
    variance = np.maximum(v.var(axis=0), TINY)
    explained = 1 - np.mean((v - places) ** 2, axis=0) / variance
    seen = explained > SEEN
    used = np.argsort(-explained)[:MOST_COORDINATES]
    used = np.sort(used[seen[used]])
    degree = _degree(len(used))
    terms, truth = _terms(places[:, used], degree), _terms(v[:, used], degree)
    # What is constant but for rare events, such as ties, shows how often these are.
    trend = np.where(is_rare, 0.0, _least_squares(terms, tame))
    left = tame - terms @ trend
    log_scale = np.where(is_rare, 0.0, _least_squares(terms, np.log(left**2 + 1e-8)))
    left = _scaled(left, terms @ log_scale)
    again = again[-len(tame) :]
    last = slice(len(tame) - len(again), None)
    noise = _scaled(tame[last] - _tame(again, centre, spread), (terms @ log_scale)[last])
    noise = np.sqrt(np.mean(noise**2, axis=0) / 2)
    instruments = _Instruments.of(terms, truth)
    first = np.where(is_rare, 0.0, instruments.slopes(left))
    one = left - terms @ first
    unit = np.hypot(one.std(axis=0), LEAST_SHARE * noise)
    unit = np.where(unit > TINY, unit, 1.0)
    floor = LEAST_SHARE * noise / unit
    sizes = _sizes(one / unit, groups)
    all_rare = np.array([is_rare[group].all() for group in groups])
    second = np.where(all_rare, 0.0, instruments.slopes(sizes))
    unclear = np.array([np.mean(floor[group] ** 2) for group in groups])
    rest = np.hypot((sizes - terms @ second).std(axis=0), unclear)
    rest = np.where(rest > TINY, rest, 1.0)
    floor = np.concatenate([floor, unclear / rest])
    parts = estimates, centre, spread, slopes, seen, used, degree, trend, log_scale
    return Residuals(*parts, (first, second), (unit, rest), floor, groups), scores


@dataclasses.dataclass(frozen=True, eq=False)
class _Instruments:
    """Solves E[ψ (h - φ A)] = 0, along directions in which φ and ψ go together."""

    inverse: np.ndarray
    truth: np.ndarray

    @classmethod
    def of(cls, terms: np.ndarray, truth: np.ndarray) -> "_Instruments":
        roots = [_root(part.T @ part / len(part)) for part in (terms, truth)]
        together = roots[1].T @ (truth.T @ terms / len(terms)) @ roots[0]
        left, size, right = np.linalg.svd(together)
        inverse = size / (size**2 + LEAST_CORRELATION**2)
        whole = roots[0] @ right.T @ (inverse[:, None] * left.T) @ roots[1].T
        return cls(whole, truth)

    def slopes(self, h: np.ndarray) -> np.ndarray:
        return self.inverse @ (self.truth.T @ h / len(h))


def _root(gram: np.ndarray) -> np.ndarray:
    """W with Wᵀ gram W = 1, for a matrix that may be nearly singular."""
    values, vectors = np.linalg.eigh(gram)
    return vectors / np.sqrt(np.maximum(values, 1e-8 * values.max()))


def _scale(s: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Centres and spreads of columns, and which are constant but for rare events."""
    low, centre, high = np.quantile(s, [0.1587, 0.5, 0.8413], axis=0)
    spread = (high - low) / 2
    is_rare = spread <= 1e-6 * np.abs(centre)
    spread = np.where(is_rare, s.std(axis=0), spread)
    return centre, np.maximum(spread, 1e-4 * np.abs(centre) + 1e-6), is_rare


def _tame(s: np.ndarray, centre: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """In standard units, with far values brought closer."""
    return np.arcsinh((_filled(s, centre) - centre) / spread)


def _filled(values: np.ndarray, by: np.ndarray | float = 0.0) -> np.ndarray:
    return np.where(np.isfinite(values), values, by)


def _features(places: np.ndarray, tame: np.ndarray) -> np.ndarray:
    one = np.ones((len(tame), 1))
    return np.concatenate([one, places, places**2, places**3, tame], axis=1)


def _least_squares(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    gram = rows.T @ rows / len(rows)
    gram += RIDGE * np.diag(np.diagonal(gram) + TINY)
    return np.linalg.solve(gram, rows.T @ values / len(rows))


def _scaled(left: np.ndarray, log_square: np.ndarray) -> np.ndarray:
    return left * np.exp(-0.5 * np.clip(log_square, -20.0, 20.0))


def _degree(p: int) -> int:
    """The highest whose polynomials of p variables have few terms."""
    counts = [len(_powers(p, degree)) for degree in range(1, HIGHEST + 1)]
    return 1 + max((k for k, count in enumerate(counts) if count <= MOST_TERMS), default=0)


def _powers(p: int, degree: int) -> list[tuple[int, ...]]:
    """Degrees of each variable in products of Legendre polynomials up to a total degree."""
    found: list[tuple[int, ...]] = []
    for total in range(degree + 1):
        for chosen in itertools.combinations_with_replacement(range(p), total):
            found.append(tuple(chosen.count(k) for k in range(p)))
    return found


def _terms(places: np.ndarray, degree: int) -> np.ndarray:
    """Products of Legendre polynomials of places (n, p)."""
    inside = np.clip(places, -LARGEST, LARGEST)
    powers = _powers(places.shape[1], degree)
    alone = legendre.legvander(inside, degree)
    columns = [
        np.prod([alone[:, k, power] for k, power in enumerate(one)], axis=0)
        if one
        else np.ones(len(inside))
        for one in powers
    ]
    return np.stack([np.broadcast_to(column, len(inside)) for column in columns], axis=1)


def _sizes(one: np.ndarray, groups: tuple[np.ndarray, ...]) -> np.ndarray:
    """Of the residuals of each family of one measurement."""
    return np.stack([np.sqrt(np.mean(one[:, group] ** 2, axis=1)) for group in groups], axis=1)
