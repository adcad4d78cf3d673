"""Theta as one vector in a box: the coordinates in which likelihoods are maximised."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array
from numpyro.distributions import biject_to, constraints

from .checks import describe_shapes
from .problem import Problem
from .types import Theta

DRAWS = 1024  # from the prior, to learn its location and spread
FLOOR = 1e-7  # how near to the end of a half-line, in units of the prior's median distance
LOG_FROM = 2.0  # intervals of positive numbers that span this ratio get logarithmic coordinates

BOUNDS_HELP = (
    "bounds must be None (the prior's support), 'none', a pair (low, high) of numbers or of "
    "values shaped like theta, or a dict of these for some entries of theta"
)


class Elementwise(eqx.Module):
    """Coordinates of an array each of whose elements has an interval of its own.

    Half-lines and intervals of positive numbers have logarithmic coordinates, in which
    likelihoods of scales and rates are close to quadratic.
    """

    offset: np.ndarray
    factor: np.ndarray
    is_log: np.ndarray
    low: np.ndarray
    """The box, in these coordinates, one entry for each."""
    high: np.ndarray
    theta_low: np.ndarray
    """The box in theta."""
    theta_high: np.ndarray

    def to_theta(self, u: Array) -> Array:
        """Theta at the coordinates u, a vector."""
        u = u.reshape(self.offset.shape)
        exponent = jnp.where(self.is_log, u, 0.0)
        offset, factor = jnp.asarray(self.offset, u.dtype), jnp.asarray(self.factor, u.dtype)
        return offset + factor * jnp.where(self.is_log, jnp.exp(exponent), u)

    def from_theta(self, theta: Any) -> Array:
        """The coordinates of the nearest theta in the box, a vector."""
        theta = self.clip(theta)
        ratio = (theta - jnp.asarray(self.offset, theta.dtype)) / jnp.asarray(
            self.factor, theta.dtype
        )
        logarithm = jnp.log(jnp.where(self.is_log, ratio, 1.0))
        return jnp.where(self.is_log, logarithm, ratio).ravel()

    def clip(self, theta: Any) -> Array:
        """The nearest theta in the box."""
        theta = jnp.asarray(theta, jnp.result_type(float))
        low, high = (jnp.asarray(b, theta.dtype) for b in (self.theta_low, self.theta_high))
        return jnp.clip(theta, low, high)


class Bijection(eqx.Module):
    """Coordinates without bounds of what is constrained otherwise, a simplex for example."""

    transform: Any
    low: np.ndarray
    high: np.ndarray
    shape: tuple[int, ...] = eqx.field(static=True)

    def to_theta(self, u: Array) -> Array:
        """Theta at the coordinates u, a vector."""
        return self.transform(u.reshape(self.shape))

    def from_theta(self, theta: Any) -> Array:
        """The coordinates of theta, a vector."""
        return self.transform.inv(jnp.asarray(theta, jnp.result_type(float))).ravel()

    def clip(self, theta: Any) -> Array:
        """Theta as it is: what lies outside has no nearest point that is cheap to find."""
        return jnp.asarray(theta, jnp.result_type(float))


class Coordinates(eqx.Module):
    """One vector of coordinates for all of theta."""

    leaves: tuple[Elementwise | Bijection, ...]
    structure: Any = eqx.field(static=True)

    @property
    def sizes(self) -> list[int]:
        """How many coordinates each leaf of theta has."""
        return [leaf.low.size for leaf in self.leaves]

    @property
    def low(self) -> Array:
        """Lower end of the box."""
        return jnp.concatenate([jnp.asarray(leaf.low) for leaf in self.leaves])

    @property
    def high(self) -> Array:
        """Upper end of the box."""
        return jnp.concatenate([jnp.asarray(leaf.high) for leaf in self.leaves])

    def to_theta(self, u: Array) -> Theta:
        """Theta at the coordinates u."""
        parts = jnp.split(u, np.cumsum(self.sizes)[:-1])
        values = [leaf.to_theta(part) for leaf, part in zip(self.leaves, parts, strict=True)]
        return jax.tree.unflatten(self.structure, values)

    def from_theta(self, theta: Theta) -> Array:
        """The coordinates of theta, or of what is nearest to it in the box."""
        values = self.structure.flatten_up_to(theta)
        parts = [leaf.from_theta(value) for leaf, value in zip(self.leaves, values, strict=True)]
        return jnp.concatenate(parts)

    def clip(self, theta: Theta) -> Theta:
        """The theta in the box that is nearest, element by element."""
        values = self.structure.flatten_up_to(theta)
        return jax.tree.unflatten(
            self.structure,
            [leaf.clip(value) for leaf, value in zip(self.leaves, values, strict=True)],
        )


def coordinates_of(problem: Problem, bounds: Any = None) -> tuple[Coordinates, np.ndarray]:
    """Coordinates of a problem's theta, and draws from the prior in them, (DRAWS, size)."""
    draws = jax.vmap(problem.sample_prior)(jr.split(jr.key(0), DRAWS))
    one = jax.tree.map(lambda leaf: leaf[0], draws)
    with_path, structure = jax.tree_util.tree_flatten_with_path(one)
    supports = _supports(problem.prior, one)
    pairs = _pairs(bounds, one)
    leaves = []
    for (path, value), support, pair, drawn in zip(
        with_path, supports, pairs, jax.tree.leaves(draws), strict=True
    ):
        name = jax.tree_util.keystr(path) or "theta"
        if not jnp.issubdtype(value.dtype, jnp.floating) or getattr(support, "is_discrete", False):
            raise ValueError(
                f"{name} is not a real number but {value.dtype} with support {support}: a "
                "likelihood is maximised by its derivatives, so the prior must be continuous"
            )
        leaves.append(_leaf(name, np.asarray(drawn, np.float64), support, pair))
    coordinates = Coordinates(tuple(leaves), structure)
    return coordinates, np.asarray(jax.vmap(coordinates.from_theta)(draws))


def _leaf(name: str, draws: np.ndarray, support: Any, pair: Any) -> Elementwise | Bijection:
    if pair is None:
        pair = _interval(support)
    if pair is None:
        transform = biject_to(support)
        shape = jax.eval_shape(lambda t: transform.inv(t), jnp.asarray(draws[0])).shape
        limit = np.full(int(np.prod(shape)), np.inf)
        return Bijection(transform, -limit, limit, shape)
    try:
        low, high = (np.broadcast_to(np.asarray(b, np.float64), draws.shape[1:]) for b in pair)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"bounds of {name}, {pair}, do not fit its shape {draws.shape[1:]}: {error}"
        ) from error
    if not (low < high).all():
        raise ValueError(f"bounds of {name} must have low < high, got {low} and {high}")
    return _elementwise(draws, low, high)


def _elementwise(draws: np.ndarray, low: np.ndarray, high: np.ndarray) -> Elementwise:
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
    arrays = offset, factor, is_log, u_low.ravel(), u_high.ravel(), theta_low, theta_high
    return Elementwise(*map(np.asarray, arrays))


def _interval(support: Any) -> tuple[Any, Any] | None:
    """The ends of a support that bounds each element by itself; None for other supports."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if support is None or isinstance(
        support, (type(constraints.real), type(constraints.dependent))
    ):
        return -np.inf, np.inf
    if isinstance(support, constraints.interval):
        return support.lower_bound, support.upper_bound
    if isinstance(support, constraints.greater_than):
        return support.lower_bound, np.inf
    if isinstance(support, constraints.less_than):
        return -np.inf, support.upper_bound
    return None


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
