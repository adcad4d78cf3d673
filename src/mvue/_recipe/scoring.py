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
from .._core.theta import theta_rows
from .._core.types import Key, Measurement, Theta
from .._serialise.registry import register
from .._summaries.joint import Summaries
from ..nn._layers import mlp
from ..nn._scoring import ScoringStage, waves
from ..nn._staged import Staged
from .baseline import PlugIn, extended_interp
from .excess import ExcessModel, excess_model
from .settings import NetworkSettings, ScheduleSettings
from .survey import Survey, TrainingPrior


@register(name="mvue.Scored")
class Scored(Staged):
    """A first estimate from the summaries, and stages of learned Fisher scoring."""

    statistics: Summaries
    plug_in: PlugIn
    first: eqx.nn.MLP
    stages: tuple[ScoringStage, ...]
    octaves: tuple[int, ...] = eqx.field(static=True)
    """Of the waves of each estimate: y first, then nuisance parameters."""
    unit: tuple[float, ...] = eqx.field(static=True)
    """The standard deviation of each estimate, in shares of half its range."""

    def prepare(self, x: Measurement) -> Float[Array, " s"]:
        """Standardised summaries and the plug-in estimate."""
        statistics = self.statistics.inputs(x)
        _, _, places = self.plug_in(statistics)
        return jnp.concatenate([self.plug_in.inputs(statistics), places])

    def states(self, prepared: Float[Array, " s"]) -> Float[Array, "k q"]:
        """The estimates after the first network and after each stage, within about -1 … 1."""
        count = len(self.octaves)
        state = self.first(prepared)
        unit = jnp.concatenate([jnp.asarray(self.unit), jnp.ones(state.shape[0] - count)])
        found = [state[:count]]
        for stage in self.stages:
            features = jnp.concatenate([state, waves(state[:count], self.octaves)])
            state = state + unit * stage(prepared, features)
            found.append(state[:count])
        return jnp.stack(found)

    def finish(self, prepared: Float[Array, " s"]) -> Float[Array, " d"]:
        """The estimate of the last stage."""
        return self.in_units(self.states(prepared)[-1])

    def in_units(self, state: Float[Array, " q"]) -> Float[Array, " d"]:
        """The y of a state."""
        scale, table = self.plug_in.scale, self.plug_in.table
        low, high = scale[:, 0], scale[:, -1]
        place = (low + high) / 2 + state[: scale.shape[0]] * (high - low) / 2
        return jax.vmap(extended_interp)(place, scale, table)


class Places(NamedTuple):
    """Where a parameter lies in the ranges of the state: what the states are to be."""

    of: Callable[[Theta, Float[Array, " d"]], Float[Array, " q"]]
    unit: tuple[float, ...]
    """The standard deviation of each, in these units."""
    excess: ExcessModel
    """Of errors, as a function of these places."""


def places_of(survey: Survey, plug_in: PlugIn, settings: NetworkSettings) -> Places:
    """y, and nuisance parameters that are no function of one of its components."""
    low, high = plug_in.scale[:, 0], plug_in.scale[:, -1]
    widths = np.asarray(high - low, np.float64)
    prior, pilot = survey.training_prior, survey.pilot
    chosen: list[int] = []
    if isinstance(prior, TrainingPrior):
        rows, y = theta_rows(pilot.theta), np.asarray(pilot.y, np.float64)
        if rows.shape[1] == len(survey.ranges):
            known = [_order(column) for column in y.T]
            chosen = [
                k
                for k in range(rows.shape[1])
                if not any(_same(_order(rows[:, k]), one) for one in known)
            ]
        chosen = sorted(chosen, key=lambda k: -survey.ranges[k].width)
        chosen = chosen[: settings.most_nuisances]

    def of(theta: Theta, y: Float[Array, " d"]) -> Float[Array, " q"]:
        at = jax.vmap(jnp.interp)(y, plug_in.table, plug_in.scale)
        parts = [(at - (low + high) / 2) / ((high - low) / 2)]
        if chosen:
            values = prior.coordinates.from_theta(theta)[np.array(chosen)]
            tables = prior.tables[np.array(chosen)]
            grid = jnp.linspace(-1.0, 1.0, tables.shape[1])
            place = jax.vmap(lambda value, table: jnp.interp(value, table, grid))
            parts.append(place(values, tables))
        return jnp.concatenate(parts)

    all_widths = [*widths, *(survey.ranges[k].width for k in chosen)]
    units = tuple(2 / max(float(width), 1.0) for width in all_widths)
    return Places(of, units, excess_model(units, settings.excess_degree, settings.excess_layers))


def scored_network(
    statistics: Summaries,
    plug_in: PlugIn,
    units: tuple[float, ...],
    settings: NetworkSettings,
    *,
    key: Key,
) -> Scored:
    """The network with sizes that fit the problem; `units` are those of `Places`."""
    size = plug_in.scaling.shift.shape[0] + 2 * plug_in.scale.shape[0]
    octaves = tuple(
        int(np.clip(math.log2(1 / (unit * settings.finest_wave)), 0, settings.most_octaves))
        for unit in units
    )
    state = len(octaves) + settings.hidden_state
    rng = host_random(key)
    stages = tuple(
        ScoringStage(size, state, octaves, rank=settings.rank, width=settings.width, rng=rng)
        for _ in range(settings.stages)
    )
    first = mlp(size, state, settings.first_width, 2, rng)
    return Scored(statistics, plug_in, first, stages, octaves, units)


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
