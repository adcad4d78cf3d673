"""Statistics of a whole measurement: those of its parts, between its parts, and a user's own."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.types import Measurement
from .._runtime.jit import as_array, jit
from .._serialise.registry import register
from ..nn._frozen import Affine, Frozen
from ..nn._measurements import flatten, stack_elements
from .layout import Layout, Part
from .moments import Moments, joined
from .ordered import OrderedStatistics, ordered_statistics, typical_offset
from .sets import Statistics, against_noise, principal_axes, whitening_of
from .settings import SummariesSettings


@runtime_checkable
class Summaries(Protocol):
    """Summary statistics of one measurement: what the default network and its start see."""

    def inputs(self, x: Measurement) -> Float[Array, " p"]:
        """Statistics whose size is tame, for the network."""
        ...

    def natural(self, x: Measurement) -> Float[Array, " p"]:
        """Statistics of which sums are estimates themselves, for the start in closed form."""
        ...


@register(name="mvue.OwnSummaries")
class OwnSummaries(Frozen):
    """Functions of a measurement that a user gave."""

    functions: tuple[Callable[[Measurement], Any], ...]

    def inputs(self, x: Measurement) -> Float[Array, " p"]:
        """Their values."""
        return jnp.concatenate([flatten(function(x)) for function in self.functions])

    def natural(self, x: Measurement) -> Float[Array, " p"]:
        """The same."""
        return self.inputs(x)


@register(name="mvue.Parts")
class JointStatistics(Frozen):
    """Statistics of a measurement of several parts, such as two samples."""

    parts: tuple[Statistics | OrderedStatistics, ...]
    leaves: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    """Which arrays of the measurement belong to each part."""
    settings: SummariesSettings = eqx.field(static=True, default=SummariesSettings())
    own: OwnSummaries | None = None
    """Of all of the measurement."""

    def inputs(self, x: Measurement) -> Float[Array, " p"]:
        """What the network sees."""
        return joined(self.moments(x))

    def moments(self, x: Measurement) -> list[Moments]:
        """The inputs, part by part."""
        parts = [one for s, part in self._split(x) for one in s.moments(part)]
        return parts + [Moments(None, part) for part in (*self._between(x), *self._own(x))]

    def natural(self, x: Measurement) -> Float[Array, " p"]:
        """Statistics in natural units of each part, and products and differences between sets.

        Products are of all statistics of sets of scalars, and of the means of sets of vectors;
        differences are of means, against the noise.
        """
        if not self.settings.natural:
            return jnp.concatenate([jnp.zeros(0), *self._own(x)])
        found, factors = [], []
        for statistics, part in self._split(x):
            values = statistics.natural(part)
            found.append(values)
            if not isinstance(statistics, Statistics):
                continue
            if statistics.kind == "scalars":
                factors.append(values)
            elif statistics.kind == "vectors":
                size = statistics.rows(part).shape[1]
                factors += [values[:size]] if size <= self.settings.largest_inverse else []
        pairs = itertools.combinations(factors[: self.settings.largest_parts], 2)
        products = [jnp.ravel(jnp.outer(a, b)) for a, b in pairs]
        return jnp.concatenate([*found, *products, *self._between(x), *self._own(x)])

    def _between(self, x: Measurement) -> list[Array]:
        """How far the means of two sets are apart, for those with elements of the same size."""
        if not self.settings.natural:
            return []
        sets = [
            (s.rows(part), s.whitening)
            for s, part in self._split(x)
            if isinstance(s, Statistics) and s.whitening is not None
        ][: self.settings.largest_parts]
        return [
            against_noise([one, other], whitening, self.settings.least_noise)
            for (one, whitening), (other, _) in itertools.combinations(sets, 2)
            if one.shape[1] == other.shape[1]
        ]

    def _own(self, x: Measurement) -> list[Array]:
        return [] if self.own is None else [self.own.inputs(x)]

    def _split(self, x: Measurement) -> list[tuple[Statistics | OrderedStatistics, list[Array]]]:
        arrays = jax.tree.leaves(x)
        return [
            (s, [arrays[i] for i in group])
            for s, group in zip(self.parts, self.leaves, strict=True)
        ]


def choose_statistics(
    x: Measurement,
    layout: Layout,
    settings: SummariesSettings,
    own: Sequence[Callable[[Measurement], Any]] = (),
) -> Statistics | OrderedStatistics | JointStatistics:
    """The statistics for measurements like these.

    Args:
        x: measurements, with two leading axes (N, M).
        layout: of one measurement.
        settings: which statistics there are.
        own: functions of a measurement whose values are statistics, too.
    """
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(x)]
    parts = [_of_part([arrays[i] for i in part.leaves], part, settings) for part in layout.parts]
    if len(parts) == 1 and not own:
        return parts[0]
    leaves = tuple(part.leaves for part in layout.parts)
    given = OwnSummaries(tuple(own)) if own else None
    return JointStatistics(tuple(parts), leaves, settings, given)


def moment_orders(statistics: Summaries, x: Measurement) -> list[int | None]:
    """The order of each input that is a moment of x, as in `Moments`; None for the others."""
    if not isinstance(statistics, (Statistics, OrderedStatistics, JointStatistics)):
        return [None] * jax.eval_shape(statistics.inputs, x).shape[0]
    orders: list[int | None] = []

    def sizes(x: Measurement) -> list[Array]:
        parts = statistics.moments(x)
        orders.extend(part.order for part in parts)
        return [part.values for part in parts]

    found = jax.eval_shape(sizes, x)
    return [order for order, part in zip(orders, found, strict=True) for _ in range(part.shape[0])]


def _of_part(
    x: list[np.ndarray], part: Part, settings: SummariesSettings
) -> Statistics | OrderedStatistics:
    if part.kind != "set":
        return ordered_statistics(x, part.kind, part.axis, settings)
    axis = part.axis or 0
    first = [np.moveaxis(leaf[:, 0], axis + 1, 1) if leaf.ndim > 2 else leaf[:, 0] for leaf in x]
    values = np.asarray(jit(jax.vmap(stack_elements))(first), np.float64)
    whole = all(not jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in x)
    shift = typical_offset(values, settings)
    size = np.median(np.abs(values - shift))
    size = size if size > 0 else np.std(values)
    scale = Affine(as_array(shift), as_array(1 / size if size > 0 else 1.0))
    values = values - shift
    kind, axes, whitening = "scalars" if values.shape[-1] == 1 else "vectors", None, None
    if kind == "vectors" and settings.fewest_axes <= values.shape[-1] <= settings.largest_axes:
        axes = as_array(principal_axes(values))
    if not whole and values.shape[2] <= settings.largest_inverse:
        whitening = whitening_of(values, settings.relative_floor)
    return Statistics(
        kind,
        bool((values > 0).all()) and not whole and shift == 0,
        scale,
        axes,
        None if whitening is None else as_array(whitening),
        settings,
        axis,
        in_blocks=True,
    )
