"""Simulations that starts in closed form are fitted to, piece by piece."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from .._core.problem import Problem
from .._core.sampling import finite_units
from .._core.types import Key
from .._recipe.cost import affordable
from .._recipe.survey import Survey
from .._recipe.training_prior import TrainingPrior
from .._runtime.jit import jit
from .._runtime.memory import vmap_in_pieces


class Piece(NamedTuple):
    """What is seen of some units; arrays with leading axes (N, M) or (N,)."""

    inputs: np.ndarray
    natural: np.ndarray
    y: np.ndarray
    log_sd: np.ndarray
    efficient: np.ndarray
    """Errors of an efficient estimator; zero where they are not known."""
    places: np.ndarray
    """Where theta lies in the ranges that are trained on, -1 … 1; empty without ranges."""


class Pieces:
    """Pieces of simulations of what is trained on; one compiled program serves all of them."""

    def __init__(self, problem: Problem, survey: Survey) -> None:
        self.settings = settings = survey.recipe.baseline
        self.repeats, prior = settings.repeats, problem.prior
        wanted = settings.pieces * settings.units * settings.repeats
        share = affordable(wanted, survey.seconds, settings.seconds)
        # Slow simulations: fewer pieces, then smaller ones.
        self.share = max(share, min(1.0, settings.fewest_pieces / settings.pieces))
        fewest = min(settings.fewest_units, settings.units)
        self.units = max(fewest, round(settings.units * share / self.share))

        @jit
        def simulate(key: Key) -> tuple[Array, ...]:
            draw = problem.draw(key, self.units, self.repeats)
            inputs = vmap_in_pieces(jax.vmap(survey.statistics.inputs), draw.x)
            natural = vmap_in_pieces(jax.vmap(survey.statistics.natural), draw.x)
            finite = finite_units(draw)
            for part in (inputs, natural):
                finite &= jnp.isfinite(part).all(axis=(1, 2))
            efficient = jnp.zeros((*inputs.shape[:2], draw.y.shape[1]))
            if survey.efficient_error is not None:
                of_unit = jax.vmap(survey.efficient_error, in_axes=(None, 0))
                efficient = vmap_in_pieces(of_unit, draw.theta, draw.x)
                efficient = jnp.where(jnp.isfinite(efficient), efficient, 0.0)
            log_sd = jax.vmap(survey.log_sd)(draw.theta)
            places = jnp.zeros((log_sd.shape[0], 0))
            if isinstance(prior, TrainingPrior):
                places = jax.vmap(prior.places)(draw.theta)
            return inputs, natural, draw.y, log_sd, efficient, places, finite

        self._simulate = simulate

    def __call__(self, key: Key, count: int) -> Iterator[Piece]:
        """At most `count` pieces, as many as time and memory allow."""
        made, count = 0, math.ceil(count * self.share)
        while made < count:
            *parts, finite = map(np.asarray, self._simulate(jr.fold_in(key, made)))
            made += 1
            yield Piece(*(part[finite] for part in parts))
            if made == 1:
                inputs, natural, y, *_ = parts
                numbers = sum(part.size for part in parts)
                terms = 2 + inputs.shape[2] + natural.shape[2]
                work = 2 * y.shape[1] * inputs.shape[0] * inputs.shape[1] * terms**2
                most = min(self.settings.largest_total // numbers, self.settings.operations // work)
                count = int(np.clip(most, 2, count))


def trimmed(squares: np.ndarray) -> tuple[float, ...]:
    """Means of squared errors (N, d) over units; the few largest do not count."""
    squares = np.where(np.isfinite(squares), squares, np.inf)
    largest = np.quantile(squares, 0.98, axis=0)
    return tuple(np.minimum(squares, largest).mean(axis=0).tolist())
