"""The layout of a measurement: which of its arrays are sets, series, images or plain vectors.

The layout decides which statistics there are: the order of a set says nothing, neighbours in a
series or an image go together, and of a plain vector nothing is known but its numbers. What the
problem does not say, simulations tell: `exchangeable_sets` finds the sets, and the shape decides
about the rest.
"""

from typing import Literal, NamedTuple

import jax
import numpy as np

from .._core.checks import layout_words
from .._core.problem import Draw, Problem
from .._core.types import Measurement
from .exchangeability import sets_in
from .settings import ExchangeabilitySettings, SummariesSettings

Kind = Literal["set", "series", "image", "vector"]


class Part(NamedTuple):
    """Arrays of a measurement that are summarised together."""

    kind: Kind
    leaves: tuple[int, ...]
    """Which arrays of x, by their numbers."""
    axis: int | None = None
    """Of a set, the axis that counts the elements, None for a single number; of a series or image,
    that of the channels, None if it has but one."""


class Layout(NamedTuple):
    """The parts of a measurement."""

    parts: tuple[Part, ...]
    told: bool
    """Whether the problem says so; otherwise simulations and shapes do."""

    @property
    def is_one_set(self) -> bool:
        """Whether one leading axis of all of x indexes the elements of a set."""
        return len(self.parts) == 1 and self.parts[0].kind == "set" and self.parts[0].axis == 0

    def describe(self, x: Measurement) -> str:
        """In words; x has the structure of a measurement."""
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(x)]
        why = {True: "as the problem says", False: "simulations show no order"}
        words = []
        for part in self.parts:
            names = ", ".join(f"x{paths[i]}" for i in part.leaves)
            along = f" along axis {part.axis}" if part.kind == "set" and part.axis else ""
            reason = why[self.told] if part.kind == "set" or self.told else "its order matters"
            article = "an" if part.kind == "image" else "a"
            words.append(f"{names} seen as {article} {part.kind}{along} ({reason})")
        return "; ".join(words)


def layout_of(
    problem: Problem, pilot: Draw, tests: ExchangeabilitySettings, settings: SummariesSettings
) -> Layout:
    """The layout of the measurements of a problem, of which a few are given."""
    leaves = jax.tree.leaves(pilot.x)
    shapes = [leaf.shape[2:] for leaf in leaves]
    if problem.exchangeable:
        return Layout((Part("set", tuple(range(len(leaves))), 0),), True)
    words = layout_words(problem.layout, pilot.x)
    if words is not None:
        kinds = [
            Part("set", (i,), 0) if word == "set" else _ordered(i, shape, settings, word)
            for i, (word, shape) in enumerate(zip(words, shapes, strict=True))
        ]
        return Layout(_joined(kinds), True)
    found = [] if problem.exchangeable is False else sets_in(pilot, tests)
    # A single number is a set of one, but has no axis that counts it.
    parts = [Part("set", group, 0 if shapes[group[0]] else None) for group in found]
    seen = {i for group in found for i in group}
    for i, shape in enumerate(shapes):
        if i in seen:
            continue
        axis = None
        if problem.exchangeable is None and len(shape) == 2:
            turned = _turned(pilot, i)
            axis = 1 if sets_in(turned, tests) else None
        parts.append(_ordered(i, shape, settings) if axis is None else Part("set", (i,), axis))
    return Layout(_joined(parts), False)


def _turned(pilot: Draw, leaf: int) -> Draw:
    """A draw of one array alone, whose second axis is the first."""
    return pilot._replace(x=np.swapaxes(np.asarray(jax.tree.leaves(pilot.x)[leaf]), 2, 3))


def _ordered(
    leaf: int, shape: tuple[int, ...], settings: SummariesSettings, word: str | None = None
) -> Part:
    """A part that has an order: by its shape, or as it is called."""
    few = [axis for axis, size in enumerate(shape) if size <= settings.most_channels]
    # Channels come last or first; of a square of few numbers nothing can be said.
    axes = [axis for axis in (len(shape) - 1, 0) if axis in few]
    is_series = len(shape) == 1 or (len(shape) == 2 and len(few) == 1)
    is_image = (len(shape) == 2 and not few) or (len(shape) == 3 and bool(axes))
    kind = word or ("series" if is_series else "image" if is_image else "vector")
    enough = kind == "vector" or max(shape, default=1) >= settings.fewest_ordered
    if kind == "vector" or (word is None and not enough):
        return Part("vector", (leaf,))
    space = 1 if kind == "series" else 2
    return Part(kind, (leaf,), axes[0] if len(shape) > space else None)  # pyright: ignore[reportArgumentType]


def _joined(parts: list[Part]) -> tuple[Part, ...]:
    """The parts, with all plain vectors as one."""
    vectors = tuple(i for part in parts if part.kind == "vector" for i in part.leaves)
    others = [part for part in parts if part.kind != "vector"]
    return (*others, Part("vector", vectors)) if vectors else tuple(others)
