"""The survey: simulations before training that decide where to draw parameters and weight errors.

The unit of everything is the standard deviation with which theta can be estimated. It comes from
simulations alone: the linear Fisher information of some summary statistics, which never exceeds the
true information, needs no likelihood, and exists for irregular models, too. Parameters are drawn
evenly in this unit (Jeffreys' prior, coordinate by coordinate), and beyond the ends of the range of
interest by a few units, because data that look like the end also come from beyond it.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.checks import describe_shapes
from .._core.keys import host_random, key_for, several
from .._core.problem import Draw, Problem
from .._core.ranges import ranges_of
from .._core.sampling import compiled_draw, pilot_draw
from .._core.types import Key, Measurement, Theta
from .._display.tables import html_of
from .._runtime.jit import as_array, jit
from .._runtime.memory import vmap_in_pieces
from .._summaries.joint import Summaries, choose_statistics
from .._summaries.layout import Layout, layout_of
from .._summaries.ordered import signal_subspace
from ..exceptions import SimulatorError
from ..nn._measurements import flatten
from .cost import processor_seconds
from .efficient import EfficientError, efficient_error
from .expected_error import ErrorAlong, ErrorByY, ExpectedError, raised
from .margins import training_range
from .sensitivity import Look
from .settings import ErrorModelSettings, Recipe, SurveySettings, checked_recipe
from .smooth import smooth
from .training_prior import TrainingPrior

LARGEST_PILOT = 2**26  # numbers simulated at first
FEWEST_STEPS = 1000  # numbers in a range, below which rounding hides what is measured
RESOLUTION = 1e-6  # of a number: what is left of it is rounding


@dataclasses.dataclass(frozen=True)
class Range:
    """One coordinate of theta: what the prior asks for and what training covers."""

    name: str
    interest: tuple[float, float]
    training: tuple[float, float]
    width: float
    """The training range in standard deviations."""


@dataclasses.dataclass(frozen=True, eq=False)
class Survey:
    """What a look at a problem decided about training; see `survey`."""

    training_prior: Any
    """Where to draw parameters: an object with ``sample(key)``, or the prior of the problem."""
    log_sd: ExpectedError
    """Logarithm of the standard deviation to expect of an estimate of y, at one theta."""
    ranges: tuple[Range, ...]
    """The coordinates of theta; empty if the prior was left as it is."""
    statistics: Summaries
    """What the default network sees of a measurement."""
    pilot: Draw
    """Some draws from the prior of the problem."""
    layout: Layout
    """Which arrays of x are sets, series, images or vectors, as the problem says or simulations
    show."""
    recipe: Recipe
    """By which it was made."""
    note: str
    seconds: float
    """Of processor time that one measurement takes, simulated and summarised."""
    efficient_error: EfficientError | None = None
    """The error of an efficient estimator of y for one theta and measurement, where there is a
    likelihood: what is left of the errors of others has less noise."""

    def with_errors(self, factors: Sequence[float]) -> "Survey":
        """The same with these factors to the variances to expect, (d,)."""
        more = as_array(np.log(factors) / 2)
        return dataclasses.replace(self, log_sd=raised(self.log_sd, more))

    @property
    def expects_bound(self) -> bool:
        """Whether the error to expect is what the linear information in the summaries allows.

        Elsewhere it is that of an estimate which nothing was seen to improve.
        """
        of_theta = isinstance(self.log_sd, ErrorAlong)
        return of_theta and (self.log_sd.more is None or not bool((self.log_sd.more > 0).any()))

    def weight(self, theta: Theta) -> Float[Array, " d"]:
        """One over the variance to expect of an estimate of y: makes errors comparable."""
        return jnp.exp(-2 * self.log_sd(theta))

    def __str__(self) -> str:
        lines = [
            f"{r.name} {r.training[0]:.3g} … {r.training[1]:.3g} (of interest: "
            f"{r.interest[0]:.3g} … {r.interest[1]:.3g}), {r.width:.1f} standard deviations wide"
            for r in self.ranges
        ]
        return "\n".join([*lines, self.note])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        header = ["parameter", "training range", "range of interest", "standard deviations wide"]
        rows = [
            [
                r.name,
                f"{r.training[0]:.3g} … {r.training[1]:.3g}",
                f"{r.interest[0]:.3g} … {r.interest[1]:.3g}",
                f"{r.width:.1f}",
            ]
            for r in self.ranges
        ]
        return html_of(*([[header, *rows]] if rows else []), self.note)


def survey(
    problem: Problem,
    *,
    key: Key,
    recipe: Recipe | None = None,
    summaries: Any = None,
) -> Survey:
    """Look at a problem by simulation and decide where to train and how to weight errors.

    `fit` does this by itself; call it to see or use its decisions elsewhere. The range of interest
    is the support of the prior, or all but its tails. Training goes beyond it, where the simulator
    is defined: not below zero if the prior is positive, unless the data go on changing there as
    they do above; not where the simulator returns non-finite numbers or the same ones always; not
    where a numpyro likelihood refuses its parameters.

    Args:
        problem: the problem.
        key: for the simulations.
        recipe: settings of the survey; `Recipe()` by default.
        summaries: a function of one measurement, or several, whose values are statistics besides
            those that the layout of x suggests.
    """
    recipe = checked_recipe(recipe)
    settings = recipe.survey
    keys = _survey_keys(key)
    x, _ = problem.shapes()
    pilot = survey_pilot(problem, settings, key)
    layout = layout_of(problem, pilot, recipe.exchangeability, recipe.summaries)
    about_layout = f"; {layout.describe(x)}"
    own = checked_summaries(summaries)
    _check_own(problem, pilot, own)
    statistics = choose_statistics(pilot.x, layout, recipe.summaries, own)
    summary, seconds = _compressed(statistics, pilot, settings.most_summaries)
    seconds += _seconds_of_simulation(problem, settings, keys[0])
    found = ranges_of(problem, keys[1])
    if isinstance(found, str):
        log_sd = _error_by_y(problem, pilot, statistics, recipe.error_model)
        note = f"drawn from the prior itself: {found}{about_layout}"
        return Survey(problem.prior, log_sd, (), statistics, pilot, layout, recipe, note, seconds)
    look = Look(problem, found, summary, keys[2], recipe, seconds)
    inside = look.inside()
    prior, widths = training_range(
        problem, found, inside, look.outside(inside), settings, key=keys[3]
    )
    tables = np.asarray(prior.tables, np.float64)
    log_sd = _expected_error(problem, look, prior, keys[4], widths)
    ranges = tuple(
        Range(
            name, (found.low[k], found.high[k]), (tables[k, 0].item(), tables[k, -1].item()), width
        )
        for k, (name, width) in enumerate(
            zip(found.coordinates.names, widths.tolist(), strict=True)
        )
    )
    use = efficient_error(look, prior, widths, log_sd, keys[5])
    about_likelihood = f"; the likelihood is not used: {use.note}" if use.note else ""
    note = f"drawn evenly in standard deviations{about_layout}{about_likelihood}"
    parts = prior, log_sd, ranges, statistics, pilot, layout, recipe, note, seconds, use.error
    return Survey(*parts)


def survey_pilot(problem: Problem, settings: SurveySettings, key: Key) -> Draw:
    """The draws that a survey begins with; its key is that of the survey."""
    units = _pilot_units(problem, settings)
    return pilot_draw(problem, _survey_keys(key)[0], units, settings.pilot_repeats)


def _pilot_units(problem: Problem, settings: SurveySettings) -> int:
    x, _ = problem.shapes()
    numbers = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(x))
    return int(np.clip(LARGEST_PILOT // (numbers * settings.pilot_repeats), 64, settings.pilot))


def _seconds_of_simulation(problem: Problem, settings: SurveySettings, key: Key) -> float:
    """Of processor time, for one measurement: the pilot once more, whose program is compiled."""
    sizes = _pilot_units(problem, settings), settings.pilot_repeats
    _, seconds = processor_seconds(lambda: compiled_draw(problem, key, *sizes))
    return seconds / math.prod(sizes)


def _survey_keys(key: Key) -> list[Key]:
    return several(key_for("survey", key), 6)


def _compressed(
    statistics: Summaries, pilot: Draw, most: int
) -> tuple[Callable[[Measurement], Float[Array, " p"]], float]:
    """The statistics, or of many so many combinations that differ between units.

    And how many seconds of processor time those of one measurement take.
    """
    see = jit(lambda x: vmap_in_pieces(jax.vmap(statistics.inputs), x))
    program = see.lower(pilot.x).compile()
    seen, seconds = processor_seconds(lambda: program(pilot.x))
    values = np.asarray(seen, np.float64)
    seconds /= math.prod(values.shape[:2])
    if values.shape[2] <= most:
        return statistics.inputs, seconds
    values = values[np.isfinite(values).all(axis=(1, 2))]
    low, centre, high = np.quantile(values.reshape(-1, values.shape[2]), [0.1, 0.5, 0.9], axis=0)
    unit = np.where(high > low, 1 / np.where(high > low, high - low, 1.0), 0.0)
    # Far values are brought closer, lest a few of them decide what is seen.
    mean, axes = signal_subspace(np.arcsinh((values - centre) * unit), most)
    centre, unit, mean, axes = (as_array(part) for part in (centre, unit, mean, axes))

    def summary(x: Measurement) -> Float[Array, " p"]:
        return (jnp.arcsinh((statistics.inputs(x) - centre) * unit) - mean) @ axes

    return summary, seconds


def checked_summaries(summaries: Any) -> tuple[Callable[[Measurement], Any], ...]:
    """The functions that a user gave as a tuple."""
    given = () if summaries is None else (summaries,) if callable(summaries) else summaries
    wrong = [] if isinstance(given, Iterable) else [given]
    found = () if wrong else tuple(given)
    wrong += [function for function in found if not callable(function)]
    if wrong:
        raise TypeError(
            f"summaries must be a function of one measurement, or several, got {wrong[0]!r}"
        )
    return found


def _check_own(
    problem: Problem, pilot: Draw, own: tuple[Callable[[Measurement], Any], ...]
) -> None:
    """Refuse summaries that fail, or are not finite on some simulations."""
    for number, function in enumerate(own):
        name = getattr(function, "__name__", repr(function))
        try:
            values = jit(jax.vmap(jax.vmap(lambda x, f=function: flatten(f(x)))))(pilot.x)
        except Exception as error:
            raise ValueError(
                f"summaries[{number}] ({name}) failed on a measurement of "
                f"{describe_shapes(problem.shapes()[0])}; it must be written in JAX and return "
                f"arrays of one shape: {type(error).__name__}: {error}"
            ) from error
        bad = ~np.isfinite(np.asarray(values)).all(axis=2)
        if bad.any():
            unit = int(np.argmax(bad.sum(axis=1)))
            raise ValueError(
                f"summaries[{number}] ({name}) is not finite on {bad.mean():.2%} of the "
                f"simulations, for example at y = {np.asarray(pilot.y)[unit]}: it must be finite "
                "wherever the simulator is"
            )


def _expected_error(
    problem: Problem, look: Look, prior: TrainingPrior, key: Key, widths: np.ndarray
) -> ErrorAlong:
    """Logarithm of the standard deviation of y that the one of theta causes, smooth in theta."""
    tables = np.asarray(prior.tables, np.float64)
    p, coordinates = look.p, look.ranges.coordinates
    model = look.recipe.error_model
    step, last = look.recipe.survey.step, tables.shape[1] - 1
    place = host_random(key).uniform(size=(look.points, p)) * last
    grid = np.arange(last + 1)
    theta = np.stack([np.interp(place[:, k], grid, tables[k]) for k in range(p)], axis=1)
    slopes = np.gradient(tables, axis=1) / (widths / last)[:, None]
    local = np.stack([np.interp(place[:, k], grid, slopes[k]) for k in range(p)], axis=1)
    covariance, good = look.covariance(theta, step * np.abs(local), tables[:, 0], tables[:, -1])
    if not good.any():
        raise _nothing_seen(coordinates.names, tables)
    theta, covariance, place = theta[good], covariance[good], place[good]
    noise = look.rng.normal(size=(model.spread // 2, p))
    noise = np.concatenate([noise, -noise])
    noise /= np.sqrt(np.mean(noise**2, axis=0))
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0))[:, None, :]
    around = theta[:, None, :] + np.einsum("bij,ej->bei", root, noise)
    around = np.clip(around, tables[:, 0], tables[:, -1])

    @jit
    def y_at(values: Array) -> Array:
        flat = jax.vmap(lambda one: problem.y_of(coordinates.to_theta(one)))(values.reshape(-1, p))
        return flat.reshape(*values.shape[:-1], -1)

    both = np.concatenate([theta[:, None, :], around], axis=1)
    y = np.asarray(y_at(as_array(both)), np.float64)
    centre, varied = y[:, 0], y[:, 1:]
    sd = np.sqrt(np.mean((varied - centre[:, None, :]) ** 2, axis=1))
    log_sds = np.log(sd + _least_error(sd, centre))
    points = place / last * widths
    of_theta = smooth(points, log_sds, model)
    spans = as_array(widths)
    along_theta = ErrorAlong(problem, prior, spans, of_theta)
    if p == 1:
        return along_theta
    # Of several unknowns y may be the better guide, where it varies within a small part of them.
    pairs = [unit_scale(*columns, last + 1) for columns in zip(centre.T, log_sds.T, strict=True)]
    scale, table = (np.stack(parts) for parts in zip(*pairs, strict=True))
    along = np.stack([np.interp(*parts) for parts in zip(centre.T, table, scale, strict=True)], 1)
    of_both = smooth(np.concatenate([points, along], axis=1), log_sds, model)
    if of_both.left_out > model.much_better * of_theta.left_out:
        return along_theta
    scale, table = (as_array(part) for part in (scale, table))
    return ErrorAlong(problem, prior, spans, of_both, (table, scale))


def _nothing_seen(names: Iterable[str], tables: np.ndarray) -> SimulatorError:
    """The error for a simulator whose data the survey cannot tell apart anywhere."""
    low, high = tables[:, 0], tables[:, -1]
    steps = (high - low) / (np.spacing(np.abs(tables).max(axis=1).astype(jnp.result_type(float))))
    coarse = [name for name, count in zip(names, steps, strict=True) if count < FEWEST_STEPS]
    if coarse:
        return SimulatorError(
            f"the range of {', '.join(coarse)} has but {steps.min():.0f} different numbers in "
            "single precision: subtract an offset from theta and from x, or use double precision "
            "(jax.config.update('jax_enable_x64', True))"
        )
    return SimulatorError(
        "measurements were not seen to change with theta anywhere: simulate must use theta, and "
        "return finite numbers with noise"
    )


def unit_scale(y: np.ndarray, log_sd: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """A scale in which the standard deviation of y is about one, as a table of so many entries."""
    order = np.argsort(y)
    y, log_sd = y[order], log_sd[order]
    cuts = np.linspace(0, len(y) - 1, size + 1).astype(int)
    edges = y[cuts]
    sizes = [np.exp(log_sd[a : b + 1].mean()) for a, b in pairwise(cuts)]
    grows = np.diff(edges) > RESOLUTION * np.maximum(np.abs(edges[1:]), np.abs(edges[:-1]))
    edges = edges[np.concatenate([[True], grows])]
    distance = np.concatenate([[0.0], np.cumsum(np.diff(edges) / np.array(sizes)[grows])])
    scale = np.linspace(0, distance[-1], size)
    return scale, np.interp(scale, distance, edges)


def _least_error(sd: np.ndarray, y: np.ndarray) -> np.ndarray:
    """What to add to deviations (n, d) of y: much less than all that are not zero or rounding.

    y may span many decades, and its deviations with it.
    """
    rounding = RESOLUTION * np.abs(y)
    seen = np.where(sd > rounding, sd, np.nan)
    few = [np.nanquantile(part, 0.05) if np.isfinite(part).any() else 1.0 for part in seen.T]
    return rounding + 1e-3 * np.array(few)


def _error_by_y(
    problem: Problem,
    pilot: Draw,
    statistics: Summaries,
    settings: ErrorModelSettings,
) -> ErrorByY:
    """The size of errors where the coordinates of theta are not known: a smooth function of y.

    It is that of a least-squares fit.
    """
    seen = jit(lambda x: vmap_in_pieces(jax.vmap(statistics.inputs), x))(pilot.x)
    values, y = np.asarray(seen, np.float64), np.asarray(pilot.y, np.float64)
    deviation = values.std(axis=(0, 1))
    deviation = np.where(deviation > 0, deviation, np.inf)
    rows = (values - values.mean(axis=(0, 1))) / deviation
    rows = np.concatenate([rows, np.ones((*rows.shape[:2], 1))], axis=2)
    flat = rows.reshape(-1, rows.shape[2])
    gram = flat.T @ flat / len(flat) + 1e-3 * np.eye(flat.shape[1])
    coefficients = np.linalg.solve(gram, np.einsum("nmf,nd->fd", rows, y) / len(flat))
    estimates = rows @ coefficients
    sd = estimates.std(axis=1, ddof=1)
    centre, unit = y.mean(axis=0), y.std(axis=0) + np.finfo(float).tiny
    half = slice(0, settings.points)
    floor = _least_error(sd, y)[half]
    model = smooth(3 * (y[half] - centre) / unit, np.log(sd[half] + floor), settings)
    centre, unit = (as_array(part) for part in (centre, unit))
    return ErrorByY(problem, centre, unit, model)
