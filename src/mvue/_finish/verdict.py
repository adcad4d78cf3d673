"""The verdict: what a trained estimator is worth, by simulations that it has not seen.

It is assessed at values spread over the range of interest, ends included. Its bias is compared with
its standard deviation, and its error with what can be expected: the Cramér-Rao bound where there is
a likelihood, or Bhattacharyya's where errors are far from that, else the estimated bound that the
survey has from the linear information in the summaries.
"""

import dataclasses
import enum
import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PyTree

from .._bounds.crb import note_bounds
from .._bounds.larger import second_order_variances
from .._core.keys import host_random, several
from .._core.problem import Problem
from .._core.sampling import Batches, Simulations
from .._core.types import Estimator, Key, Theta
from .._information.bound import ESTIMATED
from .._numerics.moments import ErrorMoments, merge, moments_of, summarize
from .._recipe.cost import affordable
from .._recipe.settings import VerdictSettings
from .._recipe.survey import Survey
from .._recipe.training_prior import TrainingPrior
from .._runtime.jit import as_array, held, jit
from .._serialise.registry import register
from ..nn._staged import finish

SURE = 3.0  # standard errors
MOST_CORNERED = 3  # coordinates: of more, corners are too many and too unlikely
LARGER = 1.02  # times the Cramér-Rao bound: another bound that is no larger tells nothing new
CHANCE = 5.0  # standard errors that the largest of many differences may have by chance


@register(name="mvue.Judgement")
class Judgement(enum.StrEnum):
    """What the verdict comes to."""

    GOOD = "good"
    FAIR = "fair"
    POOR = "poor"


@register(name="mvue.Verdict")
@dataclasses.dataclass(frozen=True, eq=False)
class Verdict:
    """An independent assessment of an estimator at the end of its training."""

    judgement: Judgement
    """Good, fair or poor."""
    y: np.ndarray
    """The values that it was assessed at, (K, d)."""
    bias_over_sd: np.ndarray
    """Bias over the estimator's own standard deviation at each of them, (K, d)."""
    bias_over_sd_se: np.ndarray
    """Standard errors."""
    mse_over_expected: np.ndarray
    """Mean squared error over the expected one, (K, d)."""
    mse_over_expected_se: np.ndarray
    """Standard errors."""
    expected: str
    """What error was expected, in words."""
    repeats: int
    """Simulations at each value."""
    failures: int
    """Estimates that were not finite."""
    reasons: tuple[str, ...]
    """What is wrong, in words; empty for a good estimator."""
    advice: tuple[str, ...]
    """What to try."""

    @property
    def max_bias_over_sd(self) -> float:
        """The largest |bias| over the standard deviation, which noise enlarges, too."""
        return float(np.nanmax(np.abs(self.bias_over_sd)))

    def headline(self) -> str:
        """Bias and error in one sentence."""
        size = np.abs(self.bias_over_sd)
        worst = np.unravel_index(np.nanargmax(size), size.shape)
        ratio = self.mse_over_expected
        middle, most = np.nanmedian(ratio), np.nanmax(ratio)
        return (
            f"{self.judgement}: max |bias|/sd {size[worst]:.2g} ± "
            f"{self.bias_over_sd_se[worst]:.1g}, MSE over {self.expected} {middle:.3g} in the "
            f"middle, {most:.3g} at most, at {len(self.y)} values with {self.repeats:,} "
            "simulations each"
        )

    def __str__(self) -> str:
        lines = [self.headline(), *self.reasons]
        if self.advice:
            lines.append(f"try: {'; '.join(self.advice)}")
        return "\n".join(lines)

    __repr__ = __str__


def judge(
    estimator: Estimator,
    problem: Problem,
    survey: Survey,
    settings: VerdictSettings,
    simulations: Simulations,
    *,
    key: Key,
) -> Verdict:
    """Assess an estimator over the range of interest.

    Args:
        estimator: a function of one measurement.
        problem: what it was trained for; its prior says what is of interest.
        survey: of this problem.
        settings: how many values and simulations, and what counts as good.
        simulations: with what the first stage of the estimator makes of them.
        key: for the simulations.
    """
    at_key, draw_key, bound_key, circle_key, larger_key = several(key, 5)
    theta = _values(survey, settings.values, at_key)
    # Of as many values of the prior, too, so that one program serves both.
    some = jax.tree.map(lambda leaf: np.asarray(leaf)[: settings.values], survey.pilot.theta)
    of_theta = jit(jax.vmap(lambda theta: (problem.y_of(theta), survey.log_sd(theta))))
    (y, log_sd), (_, usual) = (map(_float64, of_theta(at)) for at in (theta, some))
    words = f"the {ESTIMATED}" if survey.expects_bound else "expected"
    expected, words = _expected(problem, np.exp(2 * log_sd), words, theta, bound_key)
    unit = np.sqrt(expected)
    share = affordable(settings.values * settings.repeats, survey.seconds, settings.seconds)
    wanted = int(share * settings.repeats)
    moments, repeats = _errors(estimator, simulations, theta, y, unit, wanted, settings, draw_key)
    found = summarize(moments)
    failures = int(np.sum(repeats - moments.number))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = found.bias / found.sd
    # Without a spread, or without a number, nothing speaks for an estimator.
    ratio, mse = (np.where(np.isnan(part), np.inf, part) for part in (ratio, found.mse))
    ratio_se, mse_se = (
        np.where(np.isnan(part), 0.0, part) for part in (found.bias_over_sd_se, found.mse_se)
    )
    verdict = Verdict(
        Judgement.GOOD,
        y,
        ratio,
        ratio_se,
        mse,
        mse_se,
        words,
        repeats,
        failures,
        (),
        (),
    )
    verdict = _against_larger_bound(verdict, expected, problem, theta, settings, larger_key)
    hidden = _unidentified(problem, survey, np.exp(usual), settings)
    return _judged(verdict, found.bias * unit, hidden, problem, survey, settings, circle_key)


def _values(survey: Survey, count: int, key: Key) -> Theta:
    """Values of theta over the range of interest, (K, ...); each coordinate reaches its ends.

    Of a few coordinates, all of them do so at once, too: at the corners.
    """
    prior = survey.training_prior
    if not isinstance(prior, TrainingPrior):
        y = np.asarray(survey.pilot.y, np.float64)
        order = np.argsort(y[:, 0], kind="stable") if y.shape[1] == 1 else np.arange(len(y))
        chosen = order[np.linspace(0, len(order) - 1, count).round().astype(int)]
        return jax.tree.map(lambda leaf: np.asarray(leaf)[chosen], survey.pilot.theta)
    rng = host_random(key)
    tables = np.asarray(prior.tables, np.float64)
    ends = [along.interest for along in survey.ranges]
    corners = np.zeros((0, len(ends)))
    if 1 < len(ends) <= MOST_CORNERED and count >= 2 * 2 ** len(ends):
        corners = np.array(list(itertools.product(*ends)))
    columns = []
    for k, (table, (low, high)) in enumerate(zip(tables, ends, strict=True)):
        grid = np.linspace(0, 1, len(table))
        first, last = np.interp((low, high), table, grid)
        places = np.linspace(first, last, count - len(corners))
        values = np.clip(np.interp(places, grid, table), low, high)
        columns.append(values if k == 0 else rng.permutation(values))
    rows = as_array(np.concatenate([np.stack(columns, axis=1), corners]))
    return jit(jax.vmap(prior.coordinates.to_theta))(rows)


def _float64(values: Array) -> np.ndarray:
    return np.asarray(values, np.float64)


def _expected(
    problem: Problem, seen: np.ndarray, words: str, theta: Theta, key: Key
) -> tuple[np.ndarray, str]:
    """The variance to expect of each component, (K, d), and where it comes from.

    The bound, or where there is none what the survey has `seen`, in its words.
    """
    bound = note_bounds(problem, theta, None, key)
    if bound.matrix is None:
        return seen, words
    variance = np.einsum("kii->ki", np.asarray(bound.matrix, np.float64))
    known = np.isfinite(variance) & (variance > 0)
    return np.where(known, variance, seen), "CRB" if known.all() else f"CRB (or {words})"


def _against_larger_bound(
    verdict: Verdict,
    crb: np.ndarray,
    problem: Problem,
    theta: Theta,
    settings: VerdictSettings,
    key: Key,
) -> Verdict:
    """Where errors are far from the Cramér-Rao bound, whether any unbiased estimator comes near it.

    It tells too little where y is curved on the scale of the errors, or nuisance parameters take
    degrees of freedom. Bhattacharyya's bound of second order knows both.
    """
    if problem.log_likelihood is None or not verdict.expected.startswith("CRB"):
        return verdict
    if not _wide(verdict, settings).any():
        return verdict
    larger = second_order_variances(problem, theta, key, settings.second_order_draws)
    if larger is None:
        return verdict
    factor = np.fmax(larger / crb, 1.0)
    if not (factor > LARGER).any():
        return verdict
    return dataclasses.replace(
        verdict,
        mse_over_expected=verdict.mse_over_expected / factor,
        mse_over_expected_se=verdict.mse_over_expected_se / factor,
        expected="Bhattacharyya's bound" + (" or the CRB" if np.isnan(larger).any() else ""),
    )


def _wide(verdict: Verdict, settings: VerdictSettings) -> np.ndarray:
    """Components, (d,), whose errors are far from the expected ones."""
    error = verdict.mse_over_expected
    above = error - SURE * verdict.mse_over_expected_se
    middle = np.nanmedian(error, axis=0)
    return (middle > settings.poor_error) | (above > settings.worst_error).any(axis=0)


def _errors(
    estimator: Estimator,
    simulations: Simulations,
    theta: Theta,
    y: np.ndarray,
    unit: np.ndarray,
    wanted: int,
    settings: VerdictSettings,
    key: Key,
) -> tuple[ErrorMoments, int]:
    """Moments of errors in units of the expected one, (K, d), and how many repeats there were."""
    problem, values = simulations.problem, len(unit)
    x, _ = problem.shapes()
    numbers = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(x))
    most = max(settings.fewest, wanted)
    wanted = int(np.clip(settings.budget // (values * numbers), settings.fewest, most))
    arrays, static = eqx.partition(estimator, eqx.is_array)
    truth, scale = (as_array(part) for part in (y, 1 / unit))
    theta = jax.tree.map(np.asarray, theta)
    count, units, repeats = simulations.count, simulations.units, simulations.repeats
    # Several calls, where there are more values than units in one.
    calls = -(-values // (count * units))
    each = count * units * calls // values

    @jit
    def estimates(batches: Batches, arrays: PyTree) -> Array:
        function = eqx.combine(arrays, static)
        each = jax.vmap(jax.vmap(lambda one: finish(function, one)))
        return jnp.where(batches.finite[:, :, None, None], jax.lax.map(each, batches.seen), jnp.nan)

    @jit
    def moments(estimates: Array, truth: Array, scale: Array) -> ErrorMoments:
        """Unit number u of all calls is one of value number u modulo K."""
        rows = estimates.reshape(-1, repeats, truth.shape[1])[: each * values]
        rows = rows.reshape(each, values, repeats, -1).transpose(1, 0, 2, 3)
        errors = rows.reshape(values, each * repeats, -1) - truth[:, None, :]
        errors *= scale[:, None, :]
        return moments_of(errors, jnp.isfinite(errors).all(axis=-1))

    place = np.arange(calls * count * units) % values
    total: Any = None
    rounds = -(-wanted // (each * repeats))
    for i in range(rounds):
        parts = []
        for call in range(calls):
            some = place.reshape(calls, count, units)[call]
            at = jax.tree.map(lambda leaf, some=some: as_array(leaf[some], leaf.dtype), theta)
            batches = simulations.at(key, (i * calls + call) * count, at)
            parts.append(estimates(batches, arrays))
        together = parts[0] if calls == 1 else jnp.concatenate(parts)
        part = moments(together, truth, scale).on_host()
        total = part if total is None else merge(total, part)
    return total, rounds * each * repeats


def _judged(
    verdict: Verdict,
    found_bias: np.ndarray,
    hidden: list[str],
    problem: Problem,
    survey: Survey,
    settings: VerdictSettings,
    key: Key,
) -> Verdict:
    """The verdict with its words."""
    names = problem.names or tuple(f"y[{j}]" for j in range(verdict.y.shape[1]))
    size, se = np.abs(verdict.bias_over_sd), verdict.bias_over_sd_se
    error = verdict.mse_over_expected
    reasons: list[str] = []
    advice: list[str] = []
    share = verdict.failures / (len(verdict.y) * verdict.repeats)
    if share > settings.failures:
        reasons.append(f"{share:.1%} of the estimates are not finite")
    if hidden:
        reasons.append(
            f"the data tell next to nothing about {', '.join(hidden)} within the range of interest"
        )
    lost = _not_followed(verdict, found_bias, settings)
    if lost.any():
        reasons.append(
            f"estimates do not follow {', '.join(names[j] for j in np.flatnonzero(lost))}: the "
            "data may not tell it apart from other parameters"
        )
    sure = size - SURE * se
    biased = sure > settings.poor_bias
    for j in np.flatnonzero(biased.any(axis=0)):
        k = int(np.nanargmax(sure[:, j]))
        reasons.append(
            f"{names[j]} is biased: |bias|/sd is {size[k, j]:.2g} ± {se[k, j]:.1g} at "
            f"{names[j]} = {verdict.y[k, j]:.4g}"
        )
    middle, wide = np.nanmedian(error, axis=0), _wide(verdict, settings)
    for j in np.flatnonzero(wide):
        k = int(np.nanargmax(error[:, j]))
        reasons.append(
            f"the error of {names[j]} is far from {verdict.expected}: its MSE is {middle[j]:.3g} "
            f"times that in the middle, {error[k, j]:.3g} times at {names[j]} = "
            f"{verdict.y[k, j]:.4g}"
        )
    if wide.any():
        advice += [
            "more steps",
            "layout= in the problem, if x was seen as something that it is not",
            "summaries= of your own",
            "a network of your own",
        ]
    closed = _closed(problem, survey, settings, key) if biased.any() else []
    if closed:
        reasons.insert(  # first, for what else is wrong follows from it
            0,
            f"the data are alike at both ends of {', '.join(closed)}, as those of an angle: where "
            "such a range is cut, no estimate of the value itself can be unbiased",
        )
        advice += ["sine and cosine as the target", "a range that is no full circle"]
    elif biased.any():
        advice += ["more steps", "a narrower prior"]
        below = biased & (error < settings.fair_error)
        if below.any() and not wide.any():
            reasons.append(
                "the error is no larger than expected: perhaps no unbiased estimator of bounded "
                "variance exists there, and this bias is what is left"
            )
    if hidden or lost.any():
        advice += ["a target that the data identify", "a prior that fixes the rest"]
    far = error - SURE * verdict.mse_over_expected_se > settings.fair_worst
    fair = (size - SURE * se > settings.fair_bias).any() or (middle > settings.fair_error).any()
    fair = fair or far.any()
    judgement = Judgement.POOR if reasons else Judgement.FAIR if fair else Judgement.GOOD
    return dataclasses.replace(
        verdict,
        judgement=judgement,
        reasons=tuple(reasons),
        advice=tuple(dict.fromkeys(advice)) if reasons else (),
    )


def _not_followed(verdict: Verdict, bias: np.ndarray, settings: VerdictSettings) -> np.ndarray:
    """Components whose bias, (K, d), is a good part of their range: of chance, or no signal."""
    spread = verdict.y.std(axis=0)
    beyond_chance = np.abs(verdict.bias_over_sd) > SURE * verdict.bias_over_sd_se
    size = np.sqrt(np.nanmean(np.where(beyond_chance & np.isfinite(bias), bias, 0.0) ** 2, axis=0))
    return size > settings.not_followed * spread


def _closed(problem: Problem, survey: Survey, settings: VerdictSettings, key: Key) -> list[str]:
    """Coordinates of theta at whose ends the data look the same, and in between they do not."""
    prior = survey.training_prior
    if not isinstance(prior, TrainingPrior):
        return []
    some = jax.tree.map(lambda leaf: leaf[: settings.alike], survey.pilot.theta)
    rows = jax.vmap(prior.coordinates.from_theta)(some)

    @jit
    def moments(key: Key, rows: Array) -> tuple[Array, Array]:
        theta = jax.vmap(prior.coordinates.to_theta)(rows)
        x = held(lambda key: jax.vmap(problem.simulate)(jr.split(key, len(rows)), theta), key)
        seen = jax.vmap(survey.statistics.inputs)(x)
        return seen.mean(axis=0), seen.var(axis=0) / len(rows)

    def distance(one: tuple[Array, Array], other: tuple[Array, Array]) -> float:
        means, variances = zip(one, other, strict=True)
        noise = np.sqrt(np.asarray(sum(variances), np.float64))
        gap = np.abs(np.asarray(means[0] - means[1], np.float64))
        return float(np.max(gap[noise > 0] / noise[noise > 0], initial=0.0))

    found = []
    for k, along in enumerate(survey.ranges[: settings.looked_at]):
        low, high = along.interest
        keys = jr.split(jr.fold_in(key, k), 3)
        first, middle, last = (
            moments(one, rows.at[:, k].set(at))
            for one, at in zip(keys, (low, (low + high) / 2, high), strict=True)
        )
        if distance(first, last) < CHANCE < CHANCE**2 / 2 < distance(first, middle):
            found.append(along.name)
    return found


def _unidentified(
    problem: Problem, survey: Survey, sd: np.ndarray, settings: VerdictSettings
) -> list[str]:
    """Components of y whose range of interest is but a few standard deviations wide."""
    rows = np.asarray(survey.pilot.y, np.float64)
    span = np.quantile(rows, 0.95, axis=0) - np.quantile(rows, 0.05, axis=0)
    wide = np.median(sd, axis=0) > settings.unidentified * span
    names = problem.names or tuple(f"y[{j}]" for j in range(rows.shape[1]))
    return [names[j] for j in np.flatnonzero(wide)]
