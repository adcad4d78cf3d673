"""The error to expect of an estimate of y, as a smooth function of theta."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core.problem import Problem
from .._core.types import Theta
from .smooth import Smooth
from .training_prior import TrainingPrior


@dataclasses.dataclass(frozen=True, eq=False)
class ErrorAlong:
    """The logarithm of a standard deviation of y, by where theta lies in its training ranges."""

    problem: Problem
    prior: TrainingPrior
    spans: Float[Array, " p"]
    """The training ranges in standard deviations."""
    model: Smooth
    tables: tuple[Float[Array, "d t"], Float[Array, "d t"]] | None = None
    """Values of y and where they lie in standard deviations, where these are a guide, too."""
    more: Float[Array, " d"] | None = None
    """What is added to the logarithms."""

    def __call__(self, theta: Theta) -> Float[Array, " d"]:
        """At one theta."""
        place = (self.prior.places(theta) + 1) / 2 * self.spans
        if self.tables is not None:
            along = jax.vmap(jnp.interp)(self.problem.y_of(theta), *self.tables)
            place = jnp.concatenate([place, along])
        return _raised(self.model(place), self.more)


@dataclasses.dataclass(frozen=True, eq=False)
class ErrorByY:
    """The same by y alone, where the coordinates of theta are not known."""

    problem: Problem
    centre: Float[Array, " d"]
    unit: Float[Array, " d"]
    model: Smooth
    more: Float[Array, " d"] | None = None

    def __call__(self, theta: Theta) -> Float[Array, " d"]:
        """At one theta."""
        place = 3 * (self.problem.y_of(theta) - self.centre) / self.unit
        return _raised(self.model(place), self.more)


ExpectedError = ErrorAlong | ErrorByY


def raised(error: ExpectedError, more: Float[Array, " d"]) -> ExpectedError:
    """The same with something added to the logarithms."""
    return dataclasses.replace(error, more=more if error.more is None else error.more + more)


def _raised(values: Array, more: Array | None) -> Array:
    return values if more is None else values + more
