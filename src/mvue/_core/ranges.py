"""Theta as a vector of coordinates, each with the range that the prior gives it.

They are the numbers of theta themselves, or, where these are not free of each other as on a
simplex, coordinates that are.
"""

import dataclasses
import math
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float
from numpyro.distributions import biject_to, constraints

from .coordinates import Bijection
from .priors import element_support, prior_leaves
from .problem import Problem, refusal
from .types import Key, Theta

DRAWS = 4096
TAIL = 0.005  # an unbounded prior is of interest up to this quantile
OPEN_EDGE = 0.002  # where a bounded one is no longer simulated at its very edge


class Numbers(NamedTuple):
    """Coordinates that are the numbers of an array of theta themselves."""

    shape: tuple[int, ...]

    def to_theta(self, values: Array) -> Array:
        """The array with these coordinates."""
        return values.reshape(self.shape)

    def from_theta(self, array: Array) -> Array:
        """The coordinates of an array."""
        return jnp.ravel(array)


class Axes(NamedTuple):
    """The coordinates of one array of theta."""

    mapping: Numbers | Bijection
    names: list[str]
    values: np.ndarray
    """Of draws from the prior, (DRAWS, size)."""
    low: np.ndarray
    """Lower end of the range of interest, (size,)."""
    high: np.ndarray
    positive: np.ndarray
    """Whether zero may be an end of the axis: the range that the prior allows is positive."""


@dataclasses.dataclass(frozen=True)
class Coordinates:
    """One vector for all of theta."""

    axes: tuple[Axes, ...]
    """Of the arrays of theta."""
    structure: Any
    whole: bool
    """Whether only whole numbers make sense."""

    def theta(self, values: Float[Array, " p"]) -> Theta:
        """One theta from its coordinates."""
        values = jnp.round(values).astype(int) if self.whole else values
        split = jnp.split(values, np.cumsum([len(part.names) for part in self.axes])[:-1])
        arrays = [part.mapping.to_theta(v) for part, v in zip(self.axes, split, strict=True)]
        return jax.tree.unflatten(self.structure, arrays)

    def values(self, theta: Theta) -> Float[Array, " p"]:
        """The coordinates of one theta."""
        arrays = self.structure.flatten_up_to(theta)
        found = [part.mapping.from_theta(a) for part, a in zip(self.axes, arrays, strict=True)]
        return jnp.concatenate(found).astype(float)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What the coordinates are called."""
        return tuple(name for part in self.axes for name in part.names)

    @cached_property
    def low(self) -> np.ndarray:
        """Lower end of the range of interest, (p,)."""
        return np.concatenate([part.low for part in self.axes])

    @cached_property
    def high(self) -> np.ndarray:
        """Its upper end."""
        return np.concatenate([part.high for part in self.axes])

    @cached_property
    def positive(self) -> np.ndarray:
        """Which coordinates may end at zero, (p,)."""
        return np.concatenate([part.positive for part in self.axes])

    @cached_property
    def draws(self) -> np.ndarray:
        """Draws from the prior, (DRAWS, p)."""
        return np.concatenate([part.values for part in self.axes], axis=1)

    def quantile(self, fraction: float) -> np.ndarray:
        """Quantiles of the prior, (p,)."""
        return np.quantile(self.draws, fraction, axis=0)


def coordinates_of(problem: Problem, key: Key) -> Coordinates | str:
    """The coordinates of theta, or in words why they are not known."""
    drawn = jax.jit(jax.vmap(problem.sample_prior))(jr.split(key, DRAWS))
    arrays, structure = jax.tree_util.tree_flatten_with_path(drawn)
    priors = prior_leaves(problem.prior)
    if len(priors) != len(arrays):
        return "a prior gives several arrays"
    kinds = {array.dtype.kind for _, array in arrays}
    if kinds != {"f"} and kinds != {"i"}:
        return "theta is neither of real nor of whole numbers throughout"
    axes = []
    for prior, (path, array) in zip(priors, arrays, strict=True):
        name = ".".join(str(getattr(part, "key", part)) for part in path) or "theta"
        found = _ranges(prior, name, array) or _free(prior, name, array)
        if found is None:
            return f"the support of the prior {type(prior).__name__} is not a range"
        axes.append(found)
    if problem.target is None and isinstance(axes[0].mapping, Numbers):  # theta is y
        axes = [axes[0]._replace(names=list(problem.names or ()))]
    return Coordinates(tuple(axes), structure, kinds == {"i"})


def is_defined(problem: Problem, thetas: list[Theta]) -> bool:
    """Whether the likelihood, if it is a numpyro distribution, accepts these parameters."""
    return all(refusal(problem, theta) is None for theta in thetas)


def _ranges(prior: Any, name: str, drawn: Array) -> Axes | None:
    """The numbers of an array, if each has a range of its own."""
    shape = drawn.shape[1:]
    bounds = _bounds(prior, shape)
    if bounds is None:
        return None
    values = np.asarray(drawn, np.float64).reshape(len(drawn), -1)
    lower, upper = (end.ravel() for end in bounds)
    low = np.where(np.isfinite(lower), lower, np.quantile(values, TAIL, axis=0))
    high = np.where(np.isfinite(upper), upper, np.quantile(values, 1 - TAIL, axis=0))
    names = [f"{name}[{i}]" for i in range(values.shape[1])] if shape else [name]
    return Axes(Numbers(shape), names, values, low, high, lower >= 0)


def _free(prior: Any, name: str, drawn: Array) -> Axes | None:
    """Coordinates without bounds of an array whose numbers depend on each other."""
    support = getattr(prior, "support", None)
    if not isinstance(support, constraints.Constraint) or drawn.dtype.kind != "f":
        return None
    try:
        transform = biject_to(support)
        shape = jax.eval_shape(transform.inv, drawn[0]).shape
    except (NotImplementedError, TypeError, ValueError):
        return None
    limit = np.full(math.prod(shape), np.inf)
    mapping = Bijection(transform, -limit, limit, shape)
    values = np.asarray(jax.vmap(mapping.from_theta)(drawn), np.float64)
    if not np.isfinite(values).all():
        return None
    low, high = (np.quantile(values, fraction, axis=0) for fraction in (TAIL, 1 - TAIL))
    names = [f"{name} (free {i})" for i in range(len(low))]
    return Axes(mapping, names, values, low, high, np.zeros(len(low), bool))


def _bounds(prior: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray] | None:
    """Ends of the support of independent numbers, infinite where open; None for other supports."""
    support = element_support(prior)
    low = getattr(support, "lower_bound", -np.inf)
    high = getattr(support, "upper_bound", np.inf)
    bounded = hasattr(support, "lower_bound") or hasattr(support, "upper_bound")
    if not bounded and support is not constraints.real:
        return None
    try:
        ends = [np.broadcast_to(np.asarray(end, np.float64), shape) for end in (low, high)]
    except ValueError:
        return None
    return ends[0], ends[1]
