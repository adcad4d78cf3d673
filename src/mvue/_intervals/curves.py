"""Curves: the quantiles of an estimate as smooth functions of the parameter, and their inverse.

The statistic is Wald's, W = (T_j - y_j) / sd_j(y_j, T_k), with the other components at their
estimates. An estimator with little bias makes it nearly pivotal, so that its quantiles are smooth
functions of y_j. Those y_j whose quantiles have the observed W between them are the interval.
"""

import dataclasses
import math

import numpy as np
from scipy.interpolate import BSpline
from scipy.special import ndtr, ndtri

from .._serialise.registry import check_shapes, register

NODES = 257  # of a curve, at equal steps of the rank of y
FEWEST_BINS, MOST_BINS, BIN = 16, 128, 1024
FEWEST_BEYOND = 4  # draws of a bin beyond its outermost quantile
PROBABILITIES = 41
DEGREE, OTHERS_DEGREE = 6, 3  # of the logarithm of the variance
BEYOND = 0.15  # of a range: so far the variance is continued for estimates outside of it
WINSORIZED = 25.0  # squared errors beyond, in units of the variance, count as this
SPLINES = (1, 2, 3, 4, 6, 8, 11, 15, 20, 28, 40)  # terms of which quantiles are made
MOST_VALUES = 4096  # of an estimate that counts as discrete
SHORT, SURE = 0.03, 5.0  # of coverage, and standard errors of it, that are worth a warning
SAME = 1e-6  # of the range: estimates that differ by rounding


def _check(curves: "IntervalCurves") -> None:
    """Refuse what a file cannot mean."""
    d = len(curves.y) if isinstance(curves.y, np.ndarray) and curves.y.ndim == 2 else 0
    p = len(curves.z) if isinstance(curves.z, np.ndarray) and curves.z.ndim == 1 else 0
    if d < 1 or p < 2 or type(curves.draws) is not int or type(curves.failures) is not int:
        raise ValueError("the curves of intervals are not complete")
    nodes = curves.y.shape[1]
    check_shapes(
        curves,
        y=(d, nodes),
        log_sd=(d, nodes),
        others=(d, d * OTHERS_DEGREE),
        quantiles=(d, p, nodes),
        correlation=(d, d),
        radii=(p,),
    )
    if nodes < 2 or not (np.diff(curves.y) >= 0).all() or not (np.diff(curves.z) > 0).all():
        raise ValueError("the curves of intervals are not in order")
    if not isinstance(curves.values, tuple) or len(curves.values) != d:
        raise ValueError("the values of estimates are not one array for each component")
    if not all(isinstance(one, np.ndarray) and one.ndim == 1 for one in curves.values):
        raise ValueError("the values of estimates are not one array for each component")


@register(name="mvue.IntervalCurves", check=_check)
@dataclasses.dataclass(frozen=True, eq=False)
class IntervalCurves:
    """What intervals need to know of an estimator, learned from simulations."""

    y: np.ndarray
    """Nodes of each component, (d, g)."""
    log_sd: np.ndarray
    """Logarithm of the standard deviation there, the others at the middle of their ranges."""
    others: np.ndarray
    """What polynomials of the other estimates add to it, (d, q)."""
    z: np.ndarray
    """Normal quantiles of the probabilities below, (p,)."""
    quantiles: np.ndarray
    """Of the statistic, (d, p, g)."""
    correlation: np.ndarray
    """Of the errors of the components."""
    radii: np.ndarray
    """Quantiles of the squared distance between estimate and truth, (p,)."""
    values: tuple[np.ndarray, ...]
    """The values that each component of the estimate takes, if it is discrete; else none."""
    draws: int
    """Simulations that they were learned from."""
    failures: int
    """Simulations that were left out, because the estimate was not finite."""

    @property
    def most_level(self) -> float:
        """The highest level that the simulations resolve."""
        return float(1 - 2 * ndtr(-self.z[-1]))

    def ends(
        self, estimates: np.ndarray, level: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Lower and upper ends, (n, d), and which intervals have both within the simulated range.

        An end beyond that range is infinite; where all of the interval is beyond, its near end is
        the end of the range.
        """
        self.check(level)
        z = float(-ndtri((1 - level) / 2))
        larger = np.exp(self._of_others(estimates))
        found = []
        for j, t in enumerate(estimates.T):
            below, above = self._steps(j, t)
            sd = np.exp(self.log_sd[j])
            factor = larger[:, j] if self.others[j].any() else None
            lower, low_in = _crossing(below, self.y[j], sd * self._quantile(j, z), factor, True)
            upper, high_in = _crossing(above, self.y[j], sd * self._quantile(j, -z), factor, False)
            found.append((lower, upper, low_in & high_in))
        lower, upper, inside = (np.stack(parts, axis=1) for parts in zip(*found, strict=True))
        bad = ~np.isfinite(estimates).all(axis=1)
        lower[bad], upper[bad], inside[bad] = np.nan, np.nan, False
        return lower, upper, inside

    def plug_in_ends(
        self, estimates: np.ndarray, level: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ends z standard deviations away, as that is at the estimate."""
        self.check(level)
        away = float(-ndtri((1 - level) / 2)) * self.sd(estimates)
        inside = (estimates >= self.y[:, 0]) & (estimates <= self.y[:, -1])
        return estimates - away, estimates + away, inside

    def matrices(self, estimates: np.ndarray, level: float) -> np.ndarray:
        """Of ellipses around estimates: y within where (y - T)ᵀ matrix⁻¹ (y - T) ≤ 1, (n, d, d)."""
        self.check(level)
        radius = np.interp(ndtri(level), self.z, self.radii)
        sd = self.sd(estimates)
        return radius * sd[:, :, None] * self.correlation * sd[:, None, :]

    def sd(self, estimates: np.ndarray) -> np.ndarray:
        """The standard deviation if the parameter is what was estimated, (n, d)."""
        own = [
            np.interp(t, self.y[j], self.log_sd[j]) for j, t in enumerate(np.asarray(estimates).T)
        ]
        return np.exp(np.stack(own, axis=1) + self._of_others(estimates))

    def check(self, level: float) -> None:
        """Refuse a level that the simulations do not resolve."""
        if level > self.most_level + 1e-9:
            raise ValueError(
                f"level {level:g} needs about {draws_for(level):,} simulations, and there are "
                f"{self.draws:,}, enough for {self.most_level:.4g}: make intervals with "
                f"mvue.interval(..., simulations={draws_for(level)})"
            )

    def _quantile(self, j: int, z: float) -> np.ndarray:
        """The quantile of the statistic at the nodes, (g,)."""
        k = int(np.clip(np.searchsorted(self.z, z), 1, len(self.z) - 1))
        share = (z - self.z[k - 1]) / (self.z[k] - self.z[k - 1])
        return (1 - share) * self.quantiles[j, k - 1] + share * self.quantiles[j, k]

    def _steps(self, j: int, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """An estimate and, if it is discrete, the next larger value that it takes."""
        return (t, t) if not self.values[j].size else _step(t, self.values[j])

    def _of_others(self, estimates: np.ndarray) -> np.ndarray:
        if not self.others.any():
            return np.zeros(estimates.shape)
        return _other_features(estimates, self.y) @ self.others.T


def draws_for(level: float) -> int:
    """How many simulations a level needs."""
    fewest = FEWEST_BINS * math.ceil(FEWEST_BEYOND / ((1 - level) / 2))
    return 1000 * math.ceil(1.05 * fewest / 1000)


def learn(y: np.ndarray, t: np.ndarray, failures: int, level: float) -> IntervalCurves:
    """The curves of an estimator.

    Args:
        y: parameters that were simulated, (N, d).
        t: their estimates, (N, d).
        failures: how many simulations were left out.
        level: the highest that is asked for, which may need larger bins.
    """
    wanted = FEWEST_BEYOND / ((1 - level) / 2)
    bins = int(np.clip(len(y) / max(BIN, wanted), FEWEST_BINS, MOST_BINS))
    size = len(y) // bins
    y, t = y[: bins * size], t[: bins * size]
    z_most = float(-ndtri(FEWEST_BEYOND / size)) if size > 2 * FEWEST_BEYOND else 0.0
    if len(y) < 1 or size <= 2 * FEWEST_BEYOND or 1 - 2 * ndtr(-z_most) < level - 1e-9:
        raise ValueError(
            f"level {level:g} needs about {draws_for(level):,} simulations, and there are "
            f"{bins * size:,} with a finite estimate: raise simulations"
        )
    z = np.linspace(-z_most, z_most, PROBABILITIES)
    d, rng = y.shape[1], np.random.default_rng(0)
    rank = np.linspace(0, 1, NODES - 2)
    nodes = np.quantile(y, rank, axis=0).T
    values = tuple(_values(one) for one in t.T)
    none = np.zeros((len(t), d * OTHERS_DEGREE))
    # The variance is a function of the parameters; where it is used, only estimates are known.
    true, others = (_other_features(one, nodes) if d > 1 else none for one in (y, t))
    log_sd, added, quantiles, tables = [], [], [], []
    for j in range(d):
        errors = t[:, j] - y[:, j]
        if values[j].size:
            # Spread evenly over the steps, an estimate has a quantile for each probability.
            low, high = _step(t[:, j], values[j])
            errors = low + rng.random(len(low)) * (high - low) - y[:, j]
        at = np.interp(y[:, j], nodes[j], rank)
        from_others = np.ones(d, bool)
        from_others[j] = False
        columns = np.flatnonzero(np.repeat(from_others, OTHERS_DEGREE))
        terms = _legendre(at, DEGREE)
        own, other = _log_variance(errors, terms, true[:, columns])
        standard = errors * np.exp(-(terms @ own + others[:, columns] @ other) / 2)
        order = np.argsort(y[:, j], kind="stable")
        at_nodes = _legendre(rank, DEGREE) @ own / 2
        coefficients = np.zeros(d * OTHERS_DEGREE)
        coefficients[columns] = other / 2
        curves = _smooth_quantiles(standard[order].reshape(bins, size), z, rank)
        table, at_nodes, curves = _extended(nodes[j], at_nodes, curves)
        tables.append(table)
        log_sd.append(at_nodes)
        added.append(coefficients)
        quantiles.append(curves)
    found = IntervalCurves(
        y=np.stack(tables),
        log_sd=np.stack(log_sd),
        others=np.stack(added),
        z=z,
        quantiles=np.stack(quantiles),
        correlation=np.eye(d),
        radii=np.ones(len(z)),
        values=values,
        draws=bins * size,
        failures=failures,
    )
    return dataclasses.replace(found, **_ellipse(found, y, t))


def missed(
    curves: IntervalCurves, y: np.ndarray, t: np.ndarray, level: float
) -> list[tuple[int, float, float]]:
    """Components that intervals cover too rarely somewhere, where that is, and how often they do.

    Smooth curves do not follow errors that change abruptly with the parameter.
    """
    lower, upper, _ = curves.ends(t, level)
    found = []
    for j in range(y.shape[1]):
        order = np.argsort(y[:, j], kind="stable")
        covered = ((lower[:, j] <= y[:, j]) & (y[:, j] <= upper[:, j]))[order]
        bins = max(1, len(order) // BIN)
        shares = np.array([part.mean() for part in np.array_split(covered, bins)])
        places = np.array([part.mean() for part in np.array_split(y[order, j], bins)])
        error = math.sqrt(level * (1 - level) * bins / len(order))
        worst = int(shares.argmin())
        if level - shares[worst] > max(SHORT, SURE * error):
            found.append((j, float(places[worst]), float(shares[worst])))
    return found


def _ellipse(curves: IntervalCurves, y: np.ndarray, t: np.ndarray) -> dict[str, np.ndarray]:
    """The correlation of errors, and quantiles of their squared length in its metric."""
    standard = (t - y) / curves.sd(t)
    most = math.sqrt(WINSORIZED)
    kept = np.clip(standard, -most, most)
    scatter = kept.T @ kept
    scale = np.sqrt(np.diag(scatter))
    correlation = scatter / scale[:, None] / scale
    squares = np.einsum("nj,jk,nk->n", standard, np.linalg.pinv(correlation), standard)
    radii = np.quantile(squares, ndtr(curves.z), method="weibull")
    return {"correlation": correlation, "radii": radii}


def _crossing(
    t: np.ndarray, y: np.ndarray, away: np.ndarray, factor: np.ndarray | None, is_lower: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Where the curve y + factor · away has the height t, and whether it has it anywhere."""
    if factor is None:
        away, factor = np.maximum.accumulate(y + away) - y, np.ones(1)
    first, last = np.zeros(len(t), int), np.full(len(t), len(y) - 1)
    for _ in range(math.ceil(math.log2(len(y) - 1))):
        middle = (first + last) // 2
        height = y[middle] + factor * away[middle]
        # Of a level stretch, the end that makes the interval longer.
        passed = height < t if is_lower else height <= t
        first, last = np.where(passed, middle, first), np.where(passed, last, middle)
    low, high = (y[at] + factor * away[at] for at in (first, last))
    gap = high - low
    with np.errstate(invalid="ignore"):
        share = np.clip((t - low) / np.where(gap > 0, gap, 1.0), 0.0, 1.0)
    found = y[first] + share * (y[last] - y[first])
    under, over = t < y[0] + factor * away[0], t > y[-1] + factor * away[-1]
    if is_lower:
        found = np.where(under, -np.inf, np.where(over, y[-1], found))
    else:
        found = np.where(over, np.inf, np.where(under, y[0], found))
    return found, ~(under | over)


def _extended(
    nodes: np.ndarray, log_sd: np.ndarray, curves: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One node more at each end: the ends of a range are never drawn, and must be inside."""
    steps = nodes[1] - nodes[0], nodes[-1] - nodes[-2]
    near = [min(step, 0.25 * math.exp(s)) for step, s in zip(steps, log_sd[[0, -1]], strict=True)]
    extended = np.concatenate([[nodes[0] - near[0]], nodes, [nodes[-1] + near[1]]])
    return extended, np.pad(log_sd, 1, "edge"), np.pad(curves, ((0, 0), (1, 1)), "edge")


def _log_variance(
    errors: np.ndarray, own: np.ndarray, others: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients of the logarithm of the variance: a log-linear model, fitted by scoring."""
    squares = errors**2
    squares = np.maximum(squares, 1e-12 * squares.mean() + np.finfo(float).tiny)
    features = np.concatenate([own, others], axis=1)
    gram = features.T @ features
    inverse = np.linalg.pinv(gram, hermitian=True)
    # The logarithm of a squared normal error is 1.27 too low on average.
    coefficients = inverse @ (features.T @ (np.log(squares) + 1.27))
    for _ in range(20):
        ratio = np.minimum(squares * np.exp(-(features @ coefficients)), WINSORIZED)
        step = inverse @ (features.T @ (ratio - 1))
        coefficients = coefficients + step
        if np.abs(step).max() < 1e-3:
            break
    return coefficients[: own.shape[1]], coefficients[own.shape[1] :]


def _smooth_quantiles(rows: np.ndarray, z: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """Quantiles as smooth functions of the rank, (p, nodes), from those of bins in order of it.

    As many terms as Mallows' criterion asks for, with the noise that quantiles of a bin have; the
    same for all probabilities.
    """
    bins, size = rows.shape
    probabilities = ndtr(z)
    found = np.quantile(rows, probabilities, axis=1, method="weibull")  # (p, bins)
    half = np.sqrt(probabilities * (1 - probabilities) / size)
    ends = [np.clip(probabilities + sign * half, 0.0, 1.0) for sign in (-1, 1)]
    low, high = (np.quantile(rows.ravel(), end) for end in ends)
    noise = np.maximum((high - low) / 2, 1e-9)
    centres = (np.arange(bins) + 0.5) / bins
    best, chosen = np.inf, found
    for terms in SPLINES:
        if terms > bins // 2:
            break
        design = _spline(centres, terms)
        hat = np.linalg.lstsq(design, found.T, rcond=None)[0]
        misfit = float((((found.T - design @ hat) / noise) ** 2).sum())
        score = misfit + 2 * terms * len(z)
        if score < best:
            best, chosen = score, (_spline(rank, terms) @ hat).T
    return np.maximum.accumulate(chosen, axis=0)


def _spline(at: np.ndarray, terms: int) -> np.ndarray:
    """Polynomials or, of more than four terms, cubic splines, (n, terms)."""
    if terms <= 4:
        return _legendre(at, terms - 1)
    knots = np.concatenate([np.zeros(3), np.linspace(0, 1, terms - 2), np.ones(3)])
    return BSpline.design_matrix(at, knots, 3).toarray()


def _legendre(at: np.ndarray, degree: int) -> np.ndarray:
    return np.polynomial.legendre.legvander(2 * at - 1, degree)


def _other_features(estimates: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Polynomials of where each component lies in its range, (n, d q)."""
    inner = nodes if nodes.shape[1] == NODES - 2 else nodes[:, 1:-1]
    rank = np.linspace(0, 1, inner.shape[1])
    parts = []
    for t, one in zip(estimates.T, inner, strict=True):
        place = np.interp(t, one, rank)
        first, last = (max(step, np.finfo(float).tiny) for step in np.diff(one)[[0, -1]])
        beyond = np.maximum(t - one[-1], 0) / last - np.maximum(one[0] - t, 0) / first
        place = place + np.clip(beyond * rank[1], -BEYOND, BEYOND)
        parts.append(_legendre(place, OTHERS_DEGREE)[:, 1:])
    return np.concatenate(parts, axis=1)


def _values(t: np.ndarray) -> np.ndarray:
    """The values of a discrete estimate, in order; none of a continuous one."""
    found = np.unique(t)
    near = np.diff(found, prepend=-np.inf) > SAME * (found[-1] - found[0])
    found = found[near]
    few = min(MOST_VALUES, len(t) // 16)
    return found if 1 < len(found) <= few else np.zeros(0)


def _step(t: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which of the values an estimate has, and the next larger one."""
    near = SAME * (values[-1] - values[0])
    longer = np.concatenate([values, [2 * values[-1] - values[-2]]])
    at = np.searchsorted(values, t + near, side="right") - 1
    known = longer[np.clip(at, 0, len(values) - 1)]
    following = longer[np.clip(at + 1, 0, len(values))]
    low = np.where(at < 0, t, known)
    return np.where(t > longer[-1], t, low), np.maximum(following, np.where(t > longer[-1], t, low))
