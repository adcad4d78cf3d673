"""The default network for signals, arrays, series and images: learned Fisher scoring.

Its state holds estimates of y and of the nuisance parameters, each in a scale in which its standard
deviation is about one, and some numbers of its own. A perceptron makes the first state from the
summaries, stages update it, and the state of the last is the estimate.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.keys import host_random
from .._core.problem import Problem
from .._core.theta import theta_rows
from .._core.types import Key, Measurement, Theta
from .._recipe.settings import NetworkSettings, ScheduleSettings
from .._recipe.survey import Survey
from .._recipe.training_prior import TrainingPrior
from .._runtime.jit import as_array, jit
from .._serialise.registry import register
from .._start.minimum_distance import MinimumDistance
from .._start.plug_in import PlugIn, extended_interp
from .._summaries.joint import Summaries
from ..nn._frozen import Frozen
from ..nn._layers import mlp
from ..nn._scoring import ScoringStage
from ..nn._staged import Staged
from .excess import ExcessModel, excess_model

TABLE = 257  # entries of the tables from a coordinate of theta to y
SCATTERED = 8192  # values of theta at which a y of several coordinates is fitted


@register(name="mvue.FirstState")
class FirstState(Frozen):
    """A first state by minimum distance: y and nuisance parameters of the nearest theta."""

    distance: MinimumDistance
    tables: Float[Array, "d t"]
    """The place of each y along the coordinate that it is a function of."""
    coefficients: Float[Array, "p d"]
    """The place of each y that is a function of several coordinates."""
    tied: tuple[int | None, ...] = eqx.field(static=True)
    """For each y, that coordinate; None for several."""
    nuisances: tuple[int, ...] = eqx.field(static=True)
    """Coordinates that are parts of the state."""

    def __call__(self, place: Float[Array, " p"]) -> Float[Array, " q"]:
        """The estimates of a state at a place of theta."""
        grid = jnp.linspace(-1.0, 1.0, self.tables.shape[1])
        terms = self.distance.emulator.terms(place)
        y = [
            terms @ self.coefficients[:, j] if k is None else extended_interp(place[k], grid, table)
            for j, (k, table) in enumerate(zip(self.tied, self.tables, strict=True))
        ]
        return jnp.stack([*y, *(place[k] for k in self.nuisances)])


@register(name="mvue.Scored")
class Scored(Staged):
    """A first estimate from the summaries, and stages of learned Fisher scoring."""

    statistics: Summaries
    plug_in: PlugIn
    first: eqx.nn.MLP | FirstState
    """Learned, or by minimum distance."""
    stages: tuple[ScoringStage, ...]
    unit: tuple[float, ...] = eqx.field(static=True)
    """The standard deviation of each estimate, in shares of half its range: y first, then nuisance
    parameters."""

    def prepare(self, x: Measurement) -> Float[Array, " s"]:
        """Standardised summaries and the plug-in estimate."""
        statistics = self.statistics.inputs(x)
        _, _, places = self.plug_in(statistics)
        inputs = self.plug_in.inputs(statistics)
        if not isinstance(self.first, FirstState):
            return jnp.concatenate([inputs, places])
        nearest = self.first.distance(inputs)
        return jnp.concatenate([inputs, places, nearest.rest, self.first(nearest.place)])

    def states(self, prepared: Float[Array, " s"]) -> Float[Array, "k q"]:
        """The estimates after the first network and after each stage, within about -1 … 1."""
        count = len(self.unit)
        by_distance = isinstance(self.first, FirstState)
        state = prepared[-count:] if by_distance else self.first(prepared)
        unit = jnp.concatenate([jnp.asarray(self.unit), jnp.ones(state.shape[0] - count)])
        found = [state[:count]]
        for stage in self.stages:
            state = state + unit * stage(prepared, state)
            found.append(state[:count])
        return jnp.stack(found)

    def finish(self, prepared: Float[Array, " s"]) -> Float[Array, " d"]:
        """The estimate of the last stage."""
        return self.in_units(self.states(prepared)[-1])

    def in_units(self, state: Float[Array, " q"]) -> Float[Array, " d"]:
        """The y of a state."""
        return y_of_state(self.plug_in, state)


def y_of_state(plug_in: PlugIn, state: Float[Array, " q"]) -> Float[Array, " d"]:
    """The y that the first numbers of a state stand for."""
    scale, table = plug_in.scale, plug_in.table
    low, high = scale[:, 0], scale[:, -1]
    place = (low + high) / 2 + state[: scale.shape[0]] * (high - low) / 2
    return plug_in.held(jax.vmap(extended_interp)(place, scale, table))


class Places(NamedTuple):
    """Where a parameter lies in the ranges of the state: what the states are to be."""

    of: Callable[[Theta, Float[Array, " d"]], Float[Array, " q"]]
    unit: tuple[float, ...]
    """The standard deviation of each, in these units."""
    excess: ExcessModel
    """Of errors, as a function of these places."""
    tied: tuple[int | None, ...] = ()
    """For each y, the coordinate of theta that it is a function of; None for several."""
    nuisances: tuple[int, ...] = ()
    """Coordinates of theta that are parts of the states."""


class Parts(NamedTuple):
    """What the states of a problem have: decided by the order of some draws."""

    tied: tuple[int | None, ...]
    """For each y, the coordinate of theta that it is a function of; None for several."""
    nuisances: tuple[int, ...] = ()
    """Coordinates of theta that are parts of the states."""


def parts_of(survey: Survey, d: int, settings: NetworkSettings) -> Parts:
    """y, and nuisance parameters that are no function of one of its components."""
    prior, pilot = survey.training_prior, survey.pilot
    chosen: list[int] = []
    tied: list[int | None] = [None] * d
    if isinstance(prior, TrainingPrior):
        rows, y = theta_rows(pilot.theta), np.asarray(pilot.y, np.float64)
        if rows.shape[1] == len(survey.ranges):
            orders = [_order(column) for column in rows.T]
            for j, column in enumerate(y.T):
                same = [k for k, order in enumerate(orders) if _same(order, _order(column))]
                tied[j] = same[0] if same else None
            chosen = [k for k in range(rows.shape[1]) if k not in tied]
        chosen = sorted(chosen, key=lambda k: -survey.ranges[k].width)
        chosen = chosen[: settings.most_nuisances]
    return Parts(tuple(tied), tuple(chosen))


def places_of(
    survey: Survey, plug_in: PlugIn, settings: NetworkSettings, parts: Parts | None = None
) -> Places:
    """Where the parts of a state lie; they are those of `parts_of` unless they are known."""
    low, high = plug_in.scale[:, 0], plug_in.scale[:, -1]
    widths = np.asarray(high - low, np.float64)
    prior = survey.training_prior
    tied, chosen = parts or parts_of(survey, len(widths), settings)

    def of(theta: Theta, y: Float[Array, " d"]) -> Float[Array, " q"]:
        at = jax.vmap(jnp.interp)(y, plug_in.table, plug_in.scale)
        found = [(at - (low + high) / 2) / ((high - low) / 2)]
        if chosen:
            found.append(prior.places(theta)[np.array(chosen)])
        return jnp.concatenate(found)

    all_widths = [*widths, *(survey.ranges[k].width for k in chosen)]
    units = tuple(2 / max(float(width), 1.0) for width in all_widths)
    excess = excess_model(units, settings.excess_degree, settings.excess_layers)
    return Places(of, units, excess, tied, chosen)


def first_state(
    distance: MinimumDistance, problem: Problem, places: Places, *, key: Key
) -> FirstState:
    """What takes the nearest theta to a first state of these places."""
    prior, q = problem.prior, len(distance.unit)

    @jit
    @jax.vmap
    def y_at(place: Array) -> Array:
        theta = prior.theta_at(place)
        return places.of(theta, problem.y_of(theta))[: len(places.tied)]

    grid = np.linspace(-1, 1, TABLE)
    tables = np.zeros((len(places.tied), TABLE))
    for j, k in enumerate(places.tied):
        if k is not None:
            along = np.where(np.arange(q) == k, grid[:, None], 0.0)
            tables[j] = np.asarray(y_at(as_array(along)))[:, j]
    coefficients = jnp.zeros((distance.emulator.coefficients.shape[0], len(places.tied)))
    if None in places.tied:
        scattered = as_array(host_random(key).uniform(-1, 1, size=(SCATTERED, q)))
        terms = np.asarray(jit(jax.vmap(distance.emulator.terms))(scattered), np.float64)
        coefficients = as_array(np.linalg.lstsq(terms, np.asarray(y_at(scattered)), rcond=1e-6)[0])
    return FirstState(distance, as_array(tables), coefficients, places.tied, places.nuisances)


def scored_network(
    statistics: Summaries,
    plug_in: PlugIn,
    units: tuple[float, ...],
    settings: NetworkSettings,
    first: FirstState | None = None,
    *,
    key: Key,
) -> Scored:
    """The network with sizes that fit the problem; `units` are those of `Places`.

    Its first state is learned, unless minimum distance makes it.
    """
    size = plug_in.scaling.shift.shape[0] + 2 * plug_in.scale.shape[0]
    if first is not None:
        size += first.distance.whitening.shape[1] + len(units)
    finest = tuple(math.pi / 2 / (unit * settings.finest_wave) for unit in units)
    state = len(units) + (settings.hidden_state if first is None else 0)
    rng = host_random(key)
    stages = tuple(
        ScoringStage(
            size,
            state,
            finest,
            waves=settings.waves,
            rank=settings.rank,
            width=settings.width,
            rng=rng,
        )
        for _ in range(settings.stages if first is None else settings.later_stages)
    )
    start = mlp(size, state, settings.first_width, 2, rng) if first is None else first
    return Scored(statistics, plug_in, start, stages, units)


def _order(values: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(values, kind="stable"), kind="stable")


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two orders are the same, up or down."""
    return bool((one == other).all() or (one == len(other) - 1 - other).all())


def robust_share(progress: Array, settings: ScheduleSettings) -> Array:
    """Of the robust loss, at a fraction of training."""
    return jnp.clip((settings.robust - progress) / settings.robust_fades + 1, 0.0, 1.0)


def _robust_scale(progress: Array, settings: ScheduleSettings) -> Array:
    """Of the robust loss, at a fraction of training; grows by equal factors."""
    first, last = settings.robust_scales
    share = jnp.clip(progress / max(settings.robust, 1e-6), 0.0, 1.0)
    return first * (last / first) ** share


def robust_loss(
    errors: Float[Array, "n m k q"], d: int, progress: Array, settings: ScheduleSettings
) -> Array:
    """c² log(1 + error² / c²) of all states, of nuisance parameters after the first d, too."""
    scale = _robust_scale(progress, settings)
    mean = jnp.mean(scale**2 * jnp.log1p((errors / scale) ** 2), axis=(0, 1, 2))
    value = jnp.mean(mean[:d])
    if mean.shape[0] > d:
        value += settings.nuisance_weight * jnp.mean(mean[d:])
    return value
