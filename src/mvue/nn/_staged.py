"""Networks whose first stage is not trained: it is computed once for all states of the weights."""

import abc
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .._core.types import Estimator, Measurement
from .._serialise.registry import register
from ._frozen import Frozen


@register(name="mvue.Given")
class Given(Frozen):
    """An estimator that somebody brings; it is not trained."""

    estimator: Estimator

    def __call__(self, x: Measurement) -> Float[Array, " d"]:
        """The estimate from one measurement."""
        return jnp.reshape(self.estimator(x), (-1,))


class Staged(eqx.Module):
    """A network whose first stage is not trained.

    What the first stage makes of a measurement serves every state of the weights.
    """

    @abc.abstractmethod
    def prepare(self, x: Measurement) -> PyTree:
        """The first stage, without anything that is trained."""

    @abc.abstractmethod
    def finish(self, prepared: PyTree) -> Float[Array, " d"]:
        """The estimate from what the first stage made."""

    def __call__(self, x: Measurement) -> Float[Array, " d"]:
        """The estimate from one measurement."""
        return self.finish(self.prepare(x))


def prepare(network: Estimator, x: Measurement) -> PyTree:
    """The first stage of any network: nothing is done, if it has none."""
    return network.prepare(x) if isinstance(network, Staged) else x


def finish(network: Estimator, prepared: PyTree) -> Float[Array, " d"]:
    """All but the first stage of a network."""
    whole = network.finish if isinstance(network, Staged) else network
    return jnp.reshape(whole(prepared), (-1,))


class OnBaseline(NamedTuple):
    """What the first stage of `WithBaseline` makes."""

    baseline: Float[Array, " d"]
    network: PyTree


@register(name="mvue.WithBaseline")
class WithBaseline(Staged):
    """The sum of an estimator that is known to be unbiased and of a network that corrects it."""

    baseline: Given
    network: Estimator

    def prepare(self, x: Measurement) -> OnBaseline:
        """The estimate of the baseline, and the first stage of the network."""
        return OnBaseline(self.baseline(x), prepare(self.network, x))

    def finish(self, prepared: OnBaseline) -> Float[Array, " d"]:
        """The sum."""
        return prepared.baseline + finish(self.network, prepared.network)
