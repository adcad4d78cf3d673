"""The network of the simulated room: a correction to a closed-form estimate."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr
from jaxtyping import Array, Float

import mvue

from ...problems import RSSIRoom

SPACING = 1.0  # of the grid, in cells: of the order of the bound on the standard deviation
VARIANCE_FLOOR = SPACING**2 / 12  # what a grid does not resolve


@mvue.register(name="mvue.experiments.Scoring")
class Scoring(mvue.nn.Frozen):
    """The posterior mean on a grid, under a flat prior, and a step of Fisher scoring from there.

    Args:
        room: the beacons and their noise.
        margin: how far the grid reaches beyond the walls.
    """

    room: RSSIRoom = eqx.field(static=True)
    places: Float[Array, "g 2"]
    evidence: Float[Array, "g s"]
    """What each sufficient statistic says for each place."""
    silence: Float[Array, " g"]
    """What is said for each place by no beacon being heard."""

    def __init__(self, room: RSSIRoom, margin: float) -> None:
        axes = [
            np.arange(low - margin, high + margin + SPACING / 2, SPACING)
            for low, high in zip(room.low, room.high, strict=True)
        ]
        self.room = room
        self.places = jnp.asarray(np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 2), float)
        self.evidence, self.silence = jax.vmap(self.says)(self.places)

    def says(self, place: Float[Array, " 2"]) -> tuple[Array, Array]:
        """The log-likelihood of a place: it is linear in how often and how loud beacons are heard.

        Returns:
            The coefficients of the sufficient statistics, and the constant.
        """
        room = self.room
        above = room.mean(place) - room.threshold
        unheard = log_ndtr(-above / room.shadowing)
        heard = -(above**2) / (2 * room.shadowing**2) - unheard
        evidence = jnp.concatenate([heard, above / room.shadowing**2])
        return room.n * evidence, room.n * unheard.sum()

    def __call__(self, statistics: Float[Array, " s"]) -> tuple[Array, Array]:
        """The estimate (2,), and the covariance of the posterior (2, 2)."""
        weights = jax.nn.softmax(self.evidence @ statistics + self.silence)
        mean = weights @ self.places
        away = self.places - mean[None, :]
        covariance = (away.T * weights[None, :]) @ away + VARIANCE_FLOOR * jnp.eye(2)

        def log_likelihood(place: Array) -> Array:
            evidence, silence = self.says(place)
            return evidence @ statistics + silence

        step = self.room.crb(mean) @ jax.grad(log_likelihood)(mean)
        return mean + jnp.clip(step, -SPACING, SPACING), covariance


@mvue.register(name="mvue.experiments.RoomNetwork")
class RoomNetwork(eqx.Module):
    """A closed-form estimate, and what has to be added to it in units of its own spread.

    Args:
        room: the beacons and their noise.
        margin: how far beyond the walls places are thought possible.
        width: of both hidden layers.
        key: of the first weights.
    """

    room: RSSIRoom = eqx.field(static=True)
    scoring: Scoring
    network: eqx.nn.MLP

    def __init__(self, room: RSSIRoom, margin: float, width: int = 64, *, key: Array) -> None:
        self.room, self.scoring = room, Scoring(room, margin)
        features = 5 + 2 * len(room.beacons)
        network = eqx.nn.MLP(features, 2, width, 2, jax.nn.gelu, key=key)
        self.network = eqx.tree_at(
            lambda net: net.layers[-1].weight, network, replace_fn=lambda weight: 0.1 * weight
        )

    def first(self, x: Float[Array, "n k"]) -> Float[Array, " 2"]:
        """The closed-form estimate."""
        return self.scoring(self.room.sufficient(x))[0]

    def __call__(self, x: Float[Array, "n k"]) -> Float[Array, " 2"]:
        """The estimate from one measurement."""
        statistics = self.room.sufficient(x)
        first, covariance = self.scoring(statistics)
        sd = jnp.sqrt(jnp.diag(covariance))
        centre, half = (self.room.high + self.room.low) / 2, (self.room.high - self.room.low) / 2
        heard, loud = jnp.split(statistics, 2)
        features = [
            (first - jnp.asarray(centre, first.dtype)) / jnp.asarray(half, first.dtype),
            jnp.log(sd),
            covariance[0, 1:] / (sd[0] * sd[1]),
            2 * heard - 1,
            loud / self.room.shadowing,
        ]
        return first + sd * self.network(jnp.concatenate(features))
