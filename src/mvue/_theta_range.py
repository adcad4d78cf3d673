"""Theta as a vector of coordinates, each with the range that the prior gives it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ._problem import Problem, prior_leaves
from ._types import Key, Theta

DRAWS = 4096
TAIL = 0.005  # an unbounded prior is of interest up to this quantile
OPEN_EDGE = 0.002  # where a bounded one is no longer simulated at its very edge


@dataclasses.dataclass(frozen=True)
class Coordinates:
    """The continuous and whole-number entries of theta, flattened."""

    names: tuple[str, ...]
    low: np.ndarray
    """Lower end of the range of interest, (p,)."""
    high: np.ndarray
    positive: np.ndarray
    """Whether zero may be an end of the axis, (p,): the range that the prior allows is positive."""
    whole: bool
    """Whether only whole numbers make sense."""
    draws: np.ndarray
    """Draws from the prior, (DRAWS, p)."""
    unravel: Callable[[Array], Theta]

    def theta(self, values: Float[Array, " p"]) -> Theta:
        """One theta from its coordinates."""
        return self.unravel(jnp.round(values).astype(int) if self.whole else values)

    def quantile(self, fraction: float) -> np.ndarray:
        """Quantiles of the prior, (p,)."""
        return np.quantile(self.draws, fraction, axis=0)


def coordinates_of(problem: Problem, key: Key) -> Coordinates | str:
    """The coordinates of theta, or in words why they are not known."""
    drawn = jax.jit(jax.vmap(problem.sample_prior))(jr.split(key, DRAWS))
    priors, parts = prior_leaves(problem.prior), jax.tree.leaves(drawn)
    if len(priors) != len(parts):
        return "a prior gives several arrays"
    one = jax.tree.map(lambda leaf: leaf[0], drawn)
    kinds = {part.dtype.kind for part in parts}
    if kinds != {"f"} and kinds != {"i"}:
        return "theta is neither of real nor of whole numbers throughout"
    low, high, positive = [], [], []
    for prior, part in zip(priors, parts, strict=True):
        values = np.asarray(part, np.float64).reshape(len(part), -1)
        bounds = _bounds(prior, part.shape[1:])
        if bounds is None:
            return f"the support of the prior {type(prior).__name__} is not a range"
        lower, upper = (np.broadcast_to(end, part.shape[1:]).ravel() for end in bounds)
        low.append(np.where(np.isfinite(lower), lower, np.quantile(values, TAIL, axis=0)))
        high.append(np.where(np.isfinite(upper), upper, np.quantile(values, 1 - TAIL, axis=0)))
        positive.append(lower >= 0)
    flat = jax.vmap(lambda theta: ravel_pytree(theta)[0])(drawn)
    return Coordinates(
        names=_names(one) if problem.target is not None else problem.names or (),
        low=np.concatenate(low),
        high=np.concatenate(high),
        positive=np.concatenate(positive),
        whole=kinds == {"i"},
        draws=np.asarray(flat, np.float64),
        unravel=ravel_pytree(one)[1],
    )


def is_defined(problem: Problem, thetas: list[Theta]) -> bool:
    """Whether the likelihood, if it is a numpyro distribution, accepts these parameters."""
    if problem.likelihood is None:
        return True
    with numpyro.validation_enabled():
        try:
            for theta in thetas:
                problem.likelihood(theta)
        except ValueError:
            return False
    return True


def _bounds(prior: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray] | None:
    """Ends of the support of independent numbers, infinite where open; None for other supports."""
    support = getattr(prior, "support", None)
    while hasattr(support, "base_constraint"):
        support = support.base_constraint  # type: ignore[union-attr]
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


def _names(theta: Theta) -> tuple[str, ...]:
    names: list[str] = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(theta):
        name = ".".join(str(getattr(part, "key", part)) for part in path) or "theta"
        size = int(np.prod(leaf.shape))
        names += [name] if leaf.ndim == 0 else [f"{name}[{i}]" for i in range(size)]
    return tuple(names)
