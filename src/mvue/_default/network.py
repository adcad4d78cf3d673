"""The default network: a perceptron that corrects a closed-form start, in units of its error."""

from itertools import pairwise
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.keys import host_random, several
from .._core.problem import Problem
from .._core.types import Key, Measurement
from .._recipe.settings import ScheduleSettings
from .._recipe.survey import Survey
from .._runtime.jit import jit
from .._serialise.registry import register
from .._start.baseline import Baseline, fit_baseline
from .._start.minimum_distance import (
    MinimumDistance,
    fit_minimum_distance,
    mean_summaries,
    with_codes,
)
from .._start.pieces import Pieces, trimmed
from .._start.plug_in import PlugIn
from .._summaries.joint import Summaries, moment_orders
from .._summaries.sets import Statistics
from ..nn._layers import mlp, nearly_zero
from ..nn._staged import Staged
from .scoring import FirstState, Places, Scored, first_state, places_of, scored_network, y_of_state


class ToCorrect(NamedTuple):
    """What the first stage of `Corrected` makes: what the network sees, and what it corrects."""

    inputs: Float[Array, " p"]
    elements: Float[Array, "n q"] | None
    """Of a set of vectors."""
    estimate: Float[Array, " d"]
    """Of the baseline; zero without one."""
    sd: Float[Array, " d"]
    """The error to expect, which is the unit of the correction."""


@register(name="mvue.Corrected")
class Corrected(Staged):
    """A baseline in closed form and a network that corrects it, in units of the expected error.

    The network sees the statistics of the baseline and, for sets of vectors, averages over the
    elements that an inner network learns. Without a baseline it is the correction alone.
    """

    statistics: Summaries
    plug_in: PlugIn
    baseline: Baseline | None
    inner: eqx.nn.MLP | None
    network: eqx.nn.MLP

    def prepare(self, x: Measurement) -> ToCorrect:
        """Statistics and the estimate in closed form."""
        statistics = self.statistics.inputs(x)
        first, log_sd, places = self.plug_in(statistics)
        inputs = self.plug_in.inputs(statistics)
        estimate, elements = jnp.zeros_like(first), None
        if self.baseline is not None:
            estimate = self.baseline(first, log_sd, inputs, self.statistics.natural(x))
        if self.inner is not None and isinstance(self.statistics, Statistics):
            elements = self.statistics.elements(x)
        return ToCorrect(jnp.concatenate([inputs, places]), elements, estimate, jnp.exp(log_sd))

    def finish(self, prepared: ToCorrect) -> Float[Array, " d"]:
        """The corrected estimate."""
        inputs = prepared.inputs
        if self.inner is not None and prepared.elements is not None:
            averages = jnp.mean(jax.vmap(self.inner)(prepared.elements), axis=0)
            inputs = jnp.concatenate([inputs, averages])
        estimate = prepared.estimate + prepared.sd * self.network(inputs)
        # Without a baseline it corrects an estimate that is not known here.
        return estimate if self.baseline is None else self.plug_in.held(estimate)


class DefaultNetwork(NamedTuple):
    """The network that `fit` builds when it is given none."""

    network: Corrected | Scored
    places: Places | None
    """What the states of stages are to be; None without stages."""
    start: tuple[float, ...]
    """Squared errors of the start in closed form over the expected ones, one for each component;
    empty where there is none."""
    improvable: bool = True
    """Whether a larger error than expected was seen to leave something to be gained."""

    @property
    def is_nearest(self) -> bool:
        """Whether minimum distance comes so near that stages have little left to learn."""
        return isinstance(self.network, Scored) and self.places is None

    def steps(self, settings: ScheduleSettings) -> int:
        """Of training, by how much is left to learn."""
        if isinstance(self.network, Corrected):
            return settings.corrected_steps
        if self.is_nearest:
            return settings.nearest_steps
        started = isinstance(self.network.first, FirstState)
        return settings.started_steps if started else settings.steps


def default_network(
    problem: Problem, survey: Survey, *, correction: bool = False, key: Key
) -> DefaultNetwork:
    """The network that `fit` builds when it is given none.

    Where a start in closed form comes near the error to expect, or a richer regression on the
    summaries does not come nearer, a perceptron corrects it; else the estimate is learned in
    stages.

    Args:
        problem: what to train on.
        survey: of the problem, which tells the expected size of errors, and its recipe.
        correction: leave the baseline out, for the correction of another one.
        key: for simulations and for the initial weights.
    """
    baseline_key, inner_key, network_key, distance_key = several(key, 4)
    pieces_of = Pieces(problem, survey)
    start = fit_baseline(pieces_of, survey, only_plug_in=correction, key=baseline_key)
    plug_in, sizes = start.plug_in, survey.recipe.network
    improvable = max(start.explained, default=1.0) > survey.recipe.baseline.improvable
    if improvable and max(start.error, default=0.0) > sizes.good_start:
        places = places_of(survey, plug_in, sizes)
        nearest = _nearest(problem, survey, pieces_of, plug_in, places, key=distance_key)
        if nearest is not None:
            return nearest
        network = scored_network(survey.statistics, plug_in, places.unit, sizes, key=network_key)
        return DefaultNetwork(network, places, start.error)
    x, y = problem.shapes()
    d = y.shape[0]
    size, inner = plug_in.scaling.shift.shape[0] + 2 * d, None
    statistics = survey.statistics
    if isinstance(statistics, Statistics) and statistics.kind == "vectors":
        elements = jax.eval_shape(statistics.elements, x).shape[1]
        shape = elements, sizes.inner_out, sizes.inner_width, sizes.inner_depth
        inner = mlp(*shape, host_random(inner_key))
        size += sizes.inner_out
    network = mlp(size, d, sizes.width, sizes.depth, host_random(network_key))
    corrected = Corrected(statistics, plug_in, start.baseline, inner, nearly_zero(network))
    return DefaultNetwork(corrected, None, start.error, improvable)


def _nearest(
    problem: Problem,
    survey: Survey,
    pieces_of: Pieces,
    plug_in: PlugIn,
    places: Places,
    *,
    key: Key,
) -> DefaultNetwork | None:
    """Stages that start from minimum distance, where that comes near enough to the truth.

    By first moments alone, then by first and second moments, then by all summaries: the mean of a
    signal in noise is far simpler than those of its products, and tells as much; that of a
    covariance is simpler than those of correlations and logarithms.
    """
    settings, sizes = survey.recipe.minimum_distance, survey.recipe.network
    widths = [along.width for along in survey.ranges]
    if not settings.used or not 0 < len(widths) <= settings.most_coordinates:
        return None
    fit_key, state_key, network_key, fresh_key = several(key, 4)
    simulate_key, wave_key = several(fit_key, 2)
    seen = mean_summaries(pieces_of(simulate_key, settings.pieces), plug_in)
    (fresh,) = pieces_of(fresh_key, 1)

    @jit
    def estimates(plug_in: PlugIn, first: FirstState, inputs: Array) -> Array:
        def one(inputs: Array) -> Array:
            return y_of_state(plug_in, first(first.distance(plug_in.inputs(inputs)).place))

        return jax.vmap(jax.vmap(one))(inputs)

    def tried(distance: MinimumDistance) -> tuple[FirstState, tuple[float, ...], float]:
        """With its squared error, over the expected one, and the share of estimates far off."""
        first = first_state(distance, problem, places, key=state_key)
        found = np.asarray(estimates(plug_in, first, fresh.inputs), np.float64)
        errors = (found - fresh.y[:, None, :]) * np.exp(-fresh.log_sd)[:, None, :]
        far = float(np.mean(~(np.abs(errors) < settings.far)))
        return first, trimmed(np.mean(errors**2, axis=1)), far

    best: FirstState | None = None
    error = (settings.usable,)
    for among in _families(moment_orders(survey.statistics, problem.shapes()[0])):
        distance = fit_minimum_distance(seen, widths, settings, among, key=wave_key)
        if distance is None:
            continue
        first, squares, far = tried(distance)
        if far > 0 and settings.most_codes > settings.codes:
            more = tried(with_codes(distance, settings.most_codes, key=wave_key))
            if more[2] < far / 2:
                first, squares, _ = more
        if max(squares) <= max(error):
            best, error = first, squares
        if max(error) <= settings.good:
            break
    if best is None:
        return None
    network = scored_network(survey.statistics, plug_in, places.unit, sizes, best, key=network_key)
    return DefaultNetwork(network, None if max(error) <= settings.good else places, error)


def _families(orders: list[int | None]) -> list[np.ndarray]:
    """Summaries up to each order, and all of them; each family once."""
    found = [[i for i, k in enumerate(orders) if k is not None and k <= most] for most in (1, 2)]
    families = [*found, list(range(len(orders)))]
    longer = [b for a, b in pairwise([[], *families]) if len(b) > len(a)]
    return [np.array(family) for family in longer]
