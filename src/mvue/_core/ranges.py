"""The range of interest of each coordinate of theta, as the prior gives it."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.random as jr
import numpy as np
from numpyro.distributions import biject_to, constraints

from .._runtime.jit import jit
from .coordinates import Bijection, Coordinates, Numbers
from .priors import element_support, prior_leaves, support_ends
from .problem import Problem, refusal
from .theta import ThetaLayout
from .types import Key, Theta

DRAWS = 4096
TAIL = 0.005  # an unbounded prior is of interest up to this quantile
OPEN_EDGE = 0.002  # where a bounded one is no longer simulated at its very edge


@dataclasses.dataclass(frozen=True)
class Ranges:
    """Coordinates of theta, where each of them is of interest, and draws from the prior."""

    coordinates: Coordinates
    whole: bool
    """Whether only whole numbers make sense."""
    draws: np.ndarray
    """Draws from the prior, (DRAWS, p)."""
    low: np.ndarray
    """Lower end of the range of interest, (p,)."""
    high: np.ndarray
    """Its upper end."""
    positive: np.ndarray
    """Which coordinates may end at zero, (p,): the range that the prior allows is positive."""

    def quantile(self, fraction: float) -> np.ndarray:
        """Quantiles of the prior, (p,)."""
        return np.quantile(self.draws, fraction, axis=0)


class _OfArray(NamedTuple):
    """The ranges of the coordinates of one array of theta."""

    mapped: Numbers | Bijection
    draws: np.ndarray
    low: np.ndarray
    high: np.ndarray
    positive: np.ndarray


def ranges_of(problem: Problem, key: Key) -> Ranges | str:
    """The ranges of a problem's theta, or in words why they are not known."""
    drawn = jit(lambda key: jax.vmap(problem.sample_prior)(jr.split(key, DRAWS)))(key)
    drawn = jax.tree.map(np.asarray, drawn)
    arrays, priors = jax.tree.leaves(drawn), prior_leaves(problem.prior)
    if len(priors) != len(arrays):
        return "a prior gives several arrays"
    kinds = {array.dtype.kind for array in arrays}
    if kinds != {"f"} and kinds != {"i"}:
        return "theta is neither of real nor of whole numbers throughout"
    parts = []
    for prior, array in zip(priors, arrays, strict=True):
        found = _of_numbers(prior, array) or _free(prior, array)
        if found is None:
            return f"the support of the prior {type(prior).__name__} is not a range"
        parts.append(found)
    layout = ThetaLayout.of(jax.tree.map(lambda array: array[0], drawn))
    coordinates = Coordinates.of(layout, [part.mapped for part in parts])
    if problem.target is None and isinstance(parts[0].mapped, Numbers):  # theta is y
        coordinates = dataclasses.replace(coordinates, names=problem.names)
    draws = np.concatenate([part.draws for part in parts], axis=1)
    constant = np.flatnonzero((draws == draws[:1]).all(axis=0))
    if constant.size:
        return f"{coordinates.names[constant[0]]} is the same in all of its draws"
    return Ranges(
        coordinates,
        kinds == {"i"},
        draws,
        *(np.concatenate(ends) for ends in zip(*(part[2:] for part in parts), strict=True)),
    )


def is_defined(problem: Problem, thetas: list[Theta]) -> bool:
    """Whether the likelihood, if it is a numpyro distribution, accepts these parameters."""
    return all(refusal(problem, theta) is None for theta in thetas)


def _of_numbers(prior: Any, drawn: np.ndarray) -> _OfArray | None:
    """The numbers of an array, if each has a range of its own."""
    shape = drawn.shape[1:]
    bounds = _bounds(prior, shape)
    if bounds is None:
        return None
    values = np.asarray(drawn, np.float64).reshape(len(drawn), -1)
    lower, upper = (end.ravel() for end in bounds)
    low = np.where(np.isfinite(lower), lower, np.quantile(values, TAIL, axis=0))
    high = np.where(np.isfinite(upper), upper, np.quantile(values, 1 - TAIL, axis=0))
    return _OfArray(Numbers(shape, drawn.dtype.kind == "i"), values, low, high, lower >= 0)


def _free(prior: Any, drawn: np.ndarray) -> _OfArray | None:
    """Coordinates without bounds of an array whose numbers depend on each other."""
    support = getattr(prior, "support", None)
    if not isinstance(support, constraints.Constraint) or drawn.dtype.kind != "f":
        return None
    try:
        mapped = Bijection.of(biject_to(support), drawn[0])
    except (NotImplementedError, TypeError, ValueError):
        return None
    values = np.asarray(jit(jax.vmap(mapped.from_theta))(drawn), np.float64)
    if not np.isfinite(values).all():
        return None
    low, high = (np.quantile(values, fraction, axis=0) for fraction in (TAIL, 1 - TAIL))
    return _OfArray(mapped, values, low, high, np.zeros(len(low), bool))


def _bounds(prior: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray] | None:
    """Ends of the support of independent numbers, infinite where open; None for other supports."""
    support = element_support(prior)
    known = (-np.inf, np.inf) if support is constraints.real else support_ends(support)
    if known is None:
        return None
    try:
        ends = [np.broadcast_to(np.asarray(end, np.float64), shape) for end in known]
    except ValueError:
        return None
    return ends[0], ends[1]
