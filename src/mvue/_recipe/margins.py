"""How far beyond the range of interest to train: as far as the simulator is defined there.

Coordinates of theta that each could go further may together leave the domain of the simulator, as
the coefficients of an autoregression leave the region where it is stationary. A few such values are
rejected in training; where there are many, the margin in which simulations fail most is made
shorter.
"""

from typing import NamedTuple

import jax
import jax.random as jr
import numpy as np
from jaxtyping import Array

from .._core.keys import host_random, several
from .._core.problem import Draw, Problem
from .._core.ranges import Ranges
from .._core.sampling import finite_units
from .._core.types import Key
from .._runtime.jit import as_array, jit
from .sensitivity import Inside, SdProfile, distance_along, refined
from .settings import SurveySettings
from .training_prior import TrainingPrior

SHORTEST = 1 / 8  # share of a margin below which there is none
FAILING = 0.05  # share of training values at which the simulator may be undefined


class TrainingRange(NamedTuple):
    """What to train on."""

    prior: TrainingPrior
    widths: np.ndarray
    """Lengths of its coordinates in standard deviations, (p,)."""


def training_range(
    problem: Problem,
    ranges: Ranges,
    inside: Inside,
    outside: tuple[list[SdProfile], list[SdProfile]],
    settings: SurveySettings,
    *,
    key: Key,
) -> TrainingRange:
    """The range of interest and margins around it.

    Args:
        problem: what to simulate.
        ranges: of interest, and where coordinates come from.
        inside: deviations within these.
        outside: deviations on the way out, below and above.
        settings: sizes of tables and of the trial.
        key: for the trial.
    """
    place_key, simulate_key = several(key, 2)
    rng, p, units = host_random(place_key), len(inside.lines), settings.pilot

    @jit
    def finite(key: Key, rows: Array) -> Array:
        theta = jax.vmap(ranges.coordinates.to_theta)(rows)
        x = jax.vmap(problem.simulate)(jr.split(key, units), theta)
        return finite_units(Draw(theta, jax.vmap(problem.y_of)(theta), x))

    shares = np.ones((2, p))
    while True:
        tables, widths = _tables(inside.lines, outside, shares, settings)
        grid, place = np.linspace(0, 1, settings.table), rng.uniform(size=(units, p))
        rows = np.stack([np.interp(place[:, k], grid, tables[k]) for k in range(p)], axis=1)
        failed = ~np.asarray(finite(simulate_key, as_array(rows)))
        beyond = np.stack([rows < inside.ends[0], rows > inside.ends[1]])
        failing = (beyond & failed[:, None]).sum(axis=1) / np.maximum(beyond.sum(axis=1), 1)
        failing = np.where(shares > 0, failing, 0.0)
        if failed.mean() < FAILING or not failing.any():
            undefined = float(failed.mean()) if failing.any() else 0.0
            return TrainingRange(TrainingPrior.of(ranges.coordinates, tables, undefined), widths)
        worst = np.unravel_index(np.argmax(failing), shares.shape)
        shares[worst] = shares[worst] / 2 if shares[worst] > SHORTEST else 0.0


def _tables(
    inside: list[SdProfile],
    outside: tuple[list[SdProfile], list[SdProfile]],
    shares: np.ndarray,
    settings: SurveySettings,
) -> tuple[np.ndarray, np.ndarray]:
    """The tables with shares of the margins, (2, p), below and above.

    Values beyond the range of interest are as likely as those within: a density that falls towards
    the ends would draw estimates inwards by its slope.
    """
    tables, widths = [], []
    finer = [refined(line, settings.between) for line in inside]
    for inner, low, high, (below, above) in zip(finer, *outside, shares.T, strict=True):
        low, high = _part(low, below, inner, 0), _part(high, above, inner, -1)
        line = SdProfile(
            np.concatenate([low.values[::-1], inner.values, high.values]),
            np.concatenate([low.sd[::-1], inner.sd, high.sd]),
        )
        distance = distance_along(line)
        even = np.linspace(0, distance[-1], settings.table)
        tables.append(np.interp(even, distance, line.values))
        widths.append(distance[-1])
    return np.stack(tables), np.array(widths)


def _part(margin: SdProfile, share: float, inner: SdProfile, end: int) -> SdProfile:
    """A share of a margin that begins at an end of the inner part."""
    count = share * len(margin.values)
    whole = int(count)
    values, sd = margin.values[:whole], margin.sd[:whole]
    rest = count - whole
    if rest > 0 and whole < len(margin.values):
        last = values[-1] if whole else inner.values[end]
        values = np.append(values, last + rest * (margin.values[whole] - last))
        sd = np.append(sd, margin.sd[whole])
    return SdProfile(values, sd)
