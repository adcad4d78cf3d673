"""The box of a likelihood search, in coordinates in which likelihoods are close to quadratic."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array
from numpyro.distributions import biject_to, constraints

from .._core.checks import describe_shapes
from .._core.coordinates import Bijection, Coordinates, Scaled
from .._core.priors import element_constraint, support_ends
from .._core.problem import Problem
from .._core.theta import ThetaLayout
from .._core.types import Theta

DRAWS = 1024  # from the prior, to learn its location and spread
FLOOR = 1e-7  # how near to the end of a half-line, in units of the prior's median distance
LOG_FROM = 2.0  # intervals of positive numbers that span this ratio get logarithmic coordinates

BOUNDS_HELP = (
    "bounds must be None (the prior's support), 'none', a pair (low, high) of numbers or of "
    "values shaped like theta, or a dict of these for some entries of theta"
)


class Limits(eqx.Module):
    """The bounds of one array of theta."""

    low: np.ndarray
    """Lower ends in coordinates, a vector."""
    high: np.ndarray
    within: tuple[np.ndarray, np.ndarray] | None
    """The ends in theta; None for what is not bounded number by number."""

    def clip(self, array: Any) -> Array:
        """The nearest array in the box; without ends, the array as it is."""
        array = jnp.asarray(array, jnp.result_type(float))
        if self.within is None:
            return array
        low, high = (jnp.asarray(end, array.dtype) for end in self.within)
        return jnp.clip(array, low, high)


class Box(eqx.Module):
    """Coordinates of theta, and the bounds within which a likelihood is maximised."""

    coordinates: Coordinates
    limits: tuple[Limits, ...]
    """Of each array of theta."""

    @property
    def low(self) -> Array:
        """Lower ends of the coordinates, (p,)."""
        return jnp.concatenate([jnp.asarray(part.low) for part in self.limits])

    @property
    def high(self) -> Array:
        """Their upper ends."""
        return jnp.concatenate([jnp.asarray(part.high) for part in self.limits])

    def to_theta(self, u: Array) -> Theta:
        """Theta at the coordinates u."""
        return self.coordinates.to_theta(u)

    def from_theta(self, theta: Theta) -> Array:
        """The coordinates of the theta in the box that is nearest."""
        return self.coordinates.from_theta(self.clip(theta))

    def clip(self, theta: Theta) -> Theta:
        """The theta in the box that is nearest, number by number."""
        structure = self.coordinates.structure
        arrays = structure.flatten_up_to(theta)
        clipped = [part.clip(array) for part, array in zip(self.limits, arrays, strict=True)]
        return jax.tree.unflatten(structure, clipped)


def box_of(problem: Problem, bounds: Any = None) -> tuple[Box, np.ndarray]:
    """The box of a problem's theta, and draws from the prior in its coordinates, (DRAWS, p)."""
    draws = jax.vmap(problem.sample_prior)(jr.split(jr.key(0), DRAWS))
    one = jax.tree.map(lambda leaf: leaf[0], draws)
    layout = ThetaLayout.of(one)
    parts = []
    for name, support, pair, drawn in zip(
        layout.arrays,
        _supports(problem.prior, one),
        _pairs(bounds, one),
        jax.tree.leaves(draws),
        strict=True,
    ):
        if not jnp.issubdtype(drawn.dtype, jnp.floating) or getattr(support, "is_discrete", False):
            raise ValueError(
                f"{name} is not a real number but {drawn.dtype} with support {support}: a "
                "likelihood is maximised by its derivatives, so the prior must be continuous"
            )
        parts.append(_of_array(name, np.asarray(drawn, np.float64), support, pair))
    maps, limits = zip(*parts, strict=True)
    box = Box(Coordinates.of(layout, maps), limits)
    return box, np.asarray(jax.vmap(box.from_theta)(draws))


def _of_array(
    name: str, draws: np.ndarray, support: Any, pair: Any
) -> tuple[Scaled | Bijection, Limits]:
    """Coordinates and bounds of one array, from its support or a pair of ends that was given."""
    if pair is None:
        pair = _interval(support)
    if pair is None:
        mapped = Bijection.of(biject_to(support), jnp.asarray(draws[0]))
        limit = np.full(mapped.size, np.inf)
        return mapped, Limits(-limit, limit, None)
    try:
        low, high = (np.broadcast_to(np.asarray(b, np.float64), draws.shape[1:]) for b in pair)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"bounds of {name}, {pair}, do not fit its shape {draws.shape[1:]}: {error}"
        ) from error
    if not (low < high).all():
        raise ValueError(f"bounds of {name} must have low < high, got {low} and {high}")
    return _numbers(draws, low, high)


def _numbers(draws: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[Scaled, Limits]:
    """Numbers that have intervals of their own.

    Half-lines and intervals of positive numbers have logarithmic coordinates, in which likelihoods
    of scales and rates are close to quadratic.
    """
    centre, spread = np.median(draws, axis=0), np.std(draws, axis=0)
    spread = np.where(spread > 0, spread, np.maximum(np.abs(centre), 1.0))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        above, below = np.isfinite(low), np.isfinite(high)
        between = above & below
        ratio = between & (low > 0) & (high >= LOG_FROM * low)
        rising, falling = above & ~below, below & ~above
        distance = np.median(np.where(rising, draws - low, high - draws), axis=0)
        distance = np.where(distance > 0, distance, spread)
        offset = np.select(
            [ratio, between, rising, falling],
            [np.zeros_like(low), (low + high) / 2, low, high],
            centre,
        )
        factor = np.select(
            [ratio, between, rising, falling],
            [np.sqrt(low * high), (high - low) / 2, distance, -distance],
            spread,
        )
        is_log = ratio | rising | falling
        ends = [np.where(is_log, np.log((b - offset) / factor), b) for b in (low, high)]
        ends = [np.where(between & ~is_log, (b - offset) / factor, b) for b in ends]
        floor = np.log(FLOOR)
        u_low = np.select([rising | falling], [np.full_like(low, floor)], ends[0])
        u_high = np.select([rising | falling], [np.full_like(low, np.inf)], ends[1])
        theta_low = np.where(rising, low + FLOOR * distance, low)
        theta_high = np.where(falling, high - FLOOR * distance, high)
    mapped = Scaled(*map(np.asarray, (offset, factor, is_log)))
    return mapped, Limits(u_low.ravel(), u_high.ravel(), (theta_low, theta_high))


def _interval(support: Any) -> tuple[Any, Any] | None:
    """The ends of a support that bounds each number by itself; None for other supports."""
    support = element_constraint(support)
    unbounded = (type(None), type(constraints.real), type(constraints.dependent))
    return (-np.inf, np.inf) if isinstance(support, unbounded) else support_ends(support)


def _supports(prior: Any, one: Theta) -> list[Any]:
    """The support of each leaf of theta; None where the prior does not tell."""
    if isinstance(prior, Mapping):
        return [s for name in sorted(prior) for s in _supports(prior[name], one[name])]
    support = getattr(prior, "support", None)
    if hasattr(one, "shape"):
        return [support if isinstance(support, constraints.Constraint) else None]
    return [None] * len(jax.tree.leaves(one))


def _pairs(bounds: Any, one: Theta) -> list[Any]:
    """The bounds that were given for each leaf of theta; None for the prior's support."""
    leaves, structure = jax.tree.flatten(one)
    if bounds is None:
        return [None] * len(leaves)
    if isinstance(bounds, str):
        if bounds != "none":
            raise ValueError(f"{BOUNDS_HELP}; got {bounds!r}")
        return [(-np.inf, np.inf)] * len(leaves)
    if isinstance(bounds, Mapping):
        unknown = sorted(set(bounds) - set(one)) if isinstance(one, Mapping) else list(bounds)
        if unknown:
            raise ValueError(f"bounds name {unknown}, which theta does not have; {BOUNDS_HELP}")
        return [p for name in sorted(one) for p in _pairs(bounds.get(name), one[name])]
    if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:
        raise ValueError(f"{BOUNDS_HELP}; got {bounds!r}")

    def each(side: Any) -> list[Any]:
        if np.ndim(side) == 0 and not isinstance(side, Mapping):
            return [side] * len(leaves)
        try:
            return structure.flatten_up_to(side)
        except ValueError as error:
            raise ValueError(
                f"{BOUNDS_HELP}; theta has {describe_shapes(one)}, got {side!r}"
            ) from error

    return list(zip(each(bounds[0]), each(bounds[1]), strict=True))
