"""Functions of a measurement among which the score is sought: summaries, and what bends them.

The summaries that the layout suggests, the ends of the data, and functions of a user; then smooth
steps of single elements (of a set, or of neighbours in a series), summed over all of them, because
the score of independent elements is such a sum; and smooth steps of combinations of the summaries.
Whatever they are, information in them does not exceed the true one: they need not be chosen well
for that, only for the bound to be sharp.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.problem import Draw, Problem
from .._core.types import Measurement
from .._runtime.jit import as_array
from .._summaries.joint import Summaries, choose_statistics
from .._summaries.layout import layout_of
from .._summaries.settings import ExchangeabilitySettings, SummariesSettings
from ..nn._measurements import stack_elements

STEPS = 64  # of elements, and as many of combinations
WIDTH = 0.3  # of a step, to the distance of its neighbours
MOST_OF_ELEMENT = 8  # numbers of an element whose steps are taken
TAME = 6.0  # standard deviations beyond which a number is that far away: tails decide nothing
INNER = (0.1, 0.5, 0.9)  # quantiles: centre and size of what may have no variance
OF_NORMAL = 2.563  # standard deviations between the outer two


class Bends(eqx.Module):
    """What is particular to one theta: scales, and where the steps lie."""

    centre: Float[Array, " r"]
    unit: Float[Array, " r"]
    element_centre: Float[Array, " q"]
    element_unit: Float[Array, " q"]
    element_turn: Float[Array, "q k"]
    element_place: Float[Array, " k"]
    turn: Float[Array, "r k"]
    place: Float[Array, " k"]


class Features:
    """The functions, for measurements of one problem."""

    def __init__(
        self,
        problem: Problem,
        pilot: Draw,
        own: tuple[Callable[[Measurement], Any], ...],
    ) -> None:
        settings = SummariesSettings()
        layout = layout_of(problem, pilot, ExchangeabilitySettings(), settings)
        self.statistics: Summaries = choose_statistics(pilot.x, layout, settings, own)
        self.kind, self.axis = None, 0
        leaves = jax.tree.leaves(problem.shapes()[0])
        (part, *others) = layout.parts
        in_rows = all(len(leaf.shape) > (part.axis or 0) for leaf in leaves)
        if part.kind in ("set", "series") and not others and in_rows:
            self.kind, self.axis = part.kind, (part.axis or 0)
            if part.kind == "series":  # the axis of time, where there are channels
                sizes = leaves[0].shape
                self.axis = 0 if part.axis is None else len(sizes) - 1 - part.axis
        if self.kind and self._of_element(leaves) > MOST_OF_ELEMENT:
            self.kind = None

    def _of_element(self, leaves: list[Any]) -> int:
        """Numbers of an element."""
        numbers = sum(int(np.prod(leaf.shape)) // leaf.shape[self.axis] for leaf in leaves)
        return numbers * (2 if self.kind == "series" else 1)

    def raw(self, x: Measurement) -> Float[Array, " r"]:
        """What does not depend on theta: ends of the data, then statistics."""
        ends = [part for leaf in jax.tree.leaves(x) for part in _ends(leaf)]
        return jnp.concatenate([jnp.stack(ends), self.statistics.inputs(x)])

    @staticmethod
    def ends(problem: Problem) -> int:
        """How many of the first are ends of the data."""
        return 2 * len(jax.tree.leaves(problem.shapes()[0]))

    def families(self, every: int) -> list[np.ndarray]:
        """Which of all functions to choose from: statistics; then those with steps besides."""
        numbers = np.arange(every)
        sums = STEPS if self.kind else 0
        raw, bent = every - sums - STEPS, numbers[every - sums - STEPS : every - sums]
        statistics, steps = numbers[:raw], numbers[every - sums :]
        if not self.kind:
            return [statistics, numbers]
        return [statistics, steps, np.append(statistics, steps), np.append(statistics, bent)]

    def elements(self, x: Measurement) -> Float[Array, "n q"]:
        """The elements of a set; of a series, neighbours."""
        if self.kind is None:
            return jnp.zeros((1, 0))
        rows = stack_elements(jax.tree.map(lambda leaf: jnp.moveaxis(leaf, self.axis, 0), x))
        return jnp.concatenate([rows[:-1], rows[1:]], axis=1) if self.kind == "series" else rows

    def bends(self, raw: np.ndarray, elements: np.ndarray, rng: np.random.Generator) -> Bends:
        """Chosen by simulations at one theta, (n, r) and (n, e, q)."""
        centre, unit = _scale(raw)
        q = elements.shape[2]
        rows = elements.reshape(int(np.prod(elements.shape[:2])), q)
        element_centre, element_unit = _scale(rows)
        turn = rng.normal(size=(q, STEPS)) if q != 1 else np.ones((1, STEPS))
        turn /= np.maximum(np.linalg.norm(turn, axis=0), 1e-9)
        along = ((rows - element_centre) * element_unit)[:4096] @ turn
        levels = (rng.permutation(STEPS) + 0.5) / STEPS if q != 1 else _levels(STEPS)
        place = np.array([np.quantile(a, level) for a, level in zip(along.T, levels, strict=True)])
        # Sharp enough for kinks, and as close to each other as there are elements.
        width = np.ones(STEPS)
        if q == 1:
            width = np.maximum(WIDTH * np.gradient(place), 1e-3)
        elif q:
            width = np.exp(rng.uniform(np.log(0.1), 0, STEPS))
        whole = rng.normal(size=(len(centre), STEPS)) / np.sqrt(len(centre))
        moved = np.clip((raw - centre) * unit, -TAME, TAME)[:4096]
        seen = moved @ whole
        spread = np.maximum(seen.std(axis=0), 1e-9)
        whole /= spread
        seen = seen / spread
        levels = (rng.permutation(STEPS) + 0.5) / STEPS
        places = np.array([np.quantile(a, level) for a, level in zip(seen.T, levels, strict=True)])
        parts = centre, unit, element_centre, element_unit
        parts += (turn / width, place / width, whole, places)
        return Bends(*(as_array(part) for part in parts))

    def __call__(self, bends: Bends, x: Measurement) -> Float[Array, " m"]:
        """All functions of one measurement."""
        raw = jnp.clip((self.raw(x) - bends.centre) * bends.unit, -TAME, TAME)
        bent = jnp.tanh(raw @ bends.turn - bends.place)
        if self.kind is None:
            return jnp.concatenate([raw, bent])
        rows = (self.elements(x) - bends.element_centre[None, :]) * bends.element_unit[None, :]
        sums = jnp.tanh(rows @ bends.element_turn - bends.element_place[None, :]).mean(axis=0)
        return jnp.concatenate([raw, bent, sums])


def _ends(leaf: Array) -> list[Array]:
    values = jnp.abs(leaf) if jnp.iscomplexobj(leaf) else leaf
    values = values.astype(jnp.result_type(float))
    return [jnp.min(values), jnp.max(values)]


def _levels(count: int) -> np.ndarray:
    return (np.arange(count) + 0.5) / count


def _scale(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A centre and one over a size of each column, whatever its tails are."""
    if not values.shape[1]:
        return np.zeros(0), np.zeros(0)
    low, centre, high = np.quantile(values, INNER, axis=0)
    size = (high - low) / OF_NORMAL
    size = np.where(size > 0, size, values.std(axis=0))
    rounding = 1e-6 * np.abs(centre) + np.finfo(np.float32).tiny
    return centre, np.where(size > rounding, 1 / np.where(size > rounding, size, 1.0), 0.0)
