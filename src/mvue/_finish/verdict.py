"""The verdict: what a trained estimator is worth, by simulations that it has not seen.

It is assessed at values spread over the range of interest, ends included. Its bias is compared with
its standard deviation, and its error with what can be expected: the Cramér-Rao bound where there is
a likelihood, else the error that the information in the summaries allows.
"""

import dataclasses
import enum
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PyTree

from .._bounds.crb import note_bounds
from .._core.keys import fold_in_each
from .._core.problem import Problem
from .._core.types import Estimator, Key, Theta
from .._numerics.moments import ErrorMoments, merge, moments_of, summarize
from .._recipe.settings import VerdictSettings
from .._recipe.survey import Survey, TrainingPrior
from .._runtime.jit import held, in_either_precision, jit
from .._serialise.registry import register

PIECE_NUMBERS = 2**23  # of x, simulated at a time
SURE = 3.0  # standard errors
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
    *,
    key: Key,
) -> Verdict:
    """Assess an estimator over the range of interest.

    Args:
        estimator: a function of one measurement.
        problem: what it was trained for; its prior says what is of interest.
        survey: of this problem.
        settings: how many values and simulations, and what counts as good.
        key: for the simulations.
    """
    at_key, draw_key, bound_key, circle_key = jr.split(key, 4)
    theta = _values(survey, settings.values, at_key)
    y = np.asarray(jax.vmap(problem.y_of)(theta), np.float64)
    expected, words = _expected(problem, survey, theta, bound_key)
    unit = np.sqrt(expected)
    moments, repeats = _errors(estimator, problem, theta, unit, settings, draw_key)
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
    return _judged(verdict, found.bias * unit, problem, survey, settings, circle_key)


def _values(survey: Survey, count: int, key: Key) -> Theta:
    """Values of theta over the range of interest, (K, ...); each coordinate reaches its ends."""
    prior = survey.training_prior
    if not isinstance(prior, TrainingPrior):
        y = np.asarray(survey.pilot.y, np.float64)
        order = np.argsort(y[:, 0], kind="stable") if y.shape[1] == 1 else np.arange(len(y))
        chosen = order[np.linspace(0, len(order) - 1, count).round().astype(int)]
        return jax.tree.map(lambda leaf: leaf[chosen], survey.pilot.theta)
    rng = np.random.default_rng(np.asarray(jr.key_data(key)).ravel().tolist())
    tables = np.asarray(prior.tables, np.float64)
    columns = []
    for k, (table, along) in enumerate(zip(tables, survey.ranges, strict=True)):
        grid = np.linspace(0, 1, len(table))
        ends = np.interp(along.interest, table, grid)
        values = np.interp(np.linspace(ends[0], ends[1], count), grid, table)
        values = np.clip(values, *along.interest)
        columns.append(values if k == 0 else rng.permutation(values))
    rows = jnp.asarray(np.stack(columns, axis=1), jnp.result_type(float))
    return jax.vmap(prior.coordinates.to_theta)(rows)


def _expected(problem: Problem, survey: Survey, theta: Theta, key: Key) -> tuple[np.ndarray, str]:
    """The variance to expect of each component, (K, d), and where it comes from."""
    seen = np.exp(2 * np.asarray(jax.vmap(survey.log_sd)(theta), np.float64))
    bound = note_bounds(problem, theta, None, key)
    if bound.matrix is None:
        return seen, "expected"
    variance = np.einsum("kii->ki", np.asarray(bound.matrix, np.float64))
    known = np.isfinite(variance) & (variance > 0)
    return np.where(known, variance, seen), "CRB" if known.all() else "CRB (or expected)"


def _errors(
    estimator: Estimator,
    problem: Problem,
    theta: Theta,
    unit: np.ndarray,
    settings: VerdictSettings,
    key: Key,
) -> tuple[ErrorMoments, int]:
    """Moments of errors in units of the expected one, (K, d), and how many repeats there were."""
    x, _ = problem.shapes()
    numbers = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(x))
    values = len(unit)
    wanted = int(np.clip(settings.budget // (values * numbers), settings.fewest, settings.repeats))
    size = int(np.clip(PIECE_NUMBERS // (values * numbers), 1, wanted))
    arrays, static = eqx.partition(estimator, eqx.is_array)
    truth = jax.vmap(problem.y_of)(theta)
    scale = jnp.asarray(1 / unit, truth.dtype)

    @jit
    def piece(key: Key, arrays: PyTree, theta: Theta, truth: Array, scale: Array) -> ErrorMoments:
        function = eqx.combine(arrays, static)
        keys = jax.vmap(lambda k: fold_in_each(k, jnp.arange(size)))(
            fold_in_each(key, jnp.arange(values))
        )

        simulate = jax.vmap(jax.vmap(problem.simulate, in_axes=(0, None)))
        x = held(lambda _: simulate(keys, theta), key)
        estimates = jax.vmap(jax.vmap(lambda one: jnp.reshape(function(one), (-1,))))(x)
        errors = (estimates - truth[:, None, :]) * scale[:, None, :]
        return moments_of(errors, jnp.isfinite(errors).all(axis=-1))

    count = -(-wanted // size)
    total: Any = None
    for i in range(count):
        inputs = jr.fold_in(key, i), arrays, theta, truth, scale
        part = in_either_precision(lambda inputs=inputs: piece(*inputs)).on_host()
        total = part if total is None else merge(total, part)
    return total, count * size


def _judged(
    verdict: Verdict,
    found_bias: np.ndarray,
    problem: Problem,
    survey: Survey,
    settings: VerdictSettings,
    key: Key,
) -> Verdict:
    """The verdict with its words."""
    names = problem.names or tuple(f"y[{j}]" for j in range(verdict.y.shape[1]))
    size, se = np.abs(verdict.bias_over_sd), verdict.bias_over_sd_se
    error, error_se = verdict.mse_over_expected, verdict.mse_over_expected_se
    reasons: list[str] = []
    advice: list[str] = []
    share = verdict.failures / (len(verdict.y) * verdict.repeats)
    if share > settings.failures:
        reasons.append(f"{share:.1%} of the estimates are not finite")
    hidden = _unidentified(problem, survey, settings)
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
    above = error - SURE * error_se
    middle = np.nanmedian(error, axis=0)
    wide = (middle > settings.poor_error) | (above > settings.worst_error).any(axis=0)
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
    fair = (size - SURE * se > settings.fair_bias).any() or (middle > settings.fair_error).any()
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


def _unidentified(problem: Problem, survey: Survey, settings: VerdictSettings) -> list[str]:
    """Components of y whose range of interest is but a few standard deviations wide."""
    rows = np.asarray(survey.pilot.y, np.float64)
    span = np.quantile(rows, 0.95, axis=0) - np.quantile(rows, 0.05, axis=0)
    some = jax.tree.map(lambda leaf: leaf[: settings.looked_at], survey.pilot.theta)
    sd = np.exp(np.asarray(jax.vmap(survey.log_sd)(some), np.float64))
    wide = np.median(sd, axis=0) > settings.unidentified * span
    names = problem.names or tuple(f"y[{j}]" for j in range(rows.shape[1]))
    return [names[j] for j in np.flatnonzero(wide)]
