"""Learned Fisher scoring: stages that update an estimate by what is linear in the summaries.

In an exponential family, and for Gaussian data, the score is linear in first and second moments of
the data with coefficients that depend on the parameter. A stage can so represent one step of Fisher
scoring, T + F(T)⁻¹ score(T; x), and one such step from a decent first estimate is efficient
(Le Cam's one-step estimator).
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._serialise.registry import register
from ._layers import linear, mlp


@register(name="mvue.ScoringStage")
class ScoringStage(eqx.Module):
    """One update: summaries times coefficients that depend on the current state.

    Args:
        summaries: how many there are.
        state: numbers of the state, of which the first are the estimates, within -1 … 1.
        finest: of each estimate, the largest frequency of the waves, in radians.
        waves: plane waves of the estimates that coefficients are made from.
        rank: products of a summary and a coefficient.
        width: of the network from the state to the coefficients.
        rng: for the initial weights.
    """

    mix: eqx.nn.Linear
    waves: eqx.nn.Linear
    coefficients: eqx.nn.MLP
    update: eqx.nn.Linear

    def __init__(
        self,
        summaries: int,
        state: int,
        finest: tuple[float, ...],
        *,
        waves: int,
        rank: int,
        width: int,
        rng: np.random.Generator,
    ) -> None:
        self.mix = linear(summaries, rank, rng)
        self.waves = plane_waves(finest, waves, rng)
        self.coefficients = mlp(state + waves, rank, width, 2, rng)
        update = linear(2 * rank, state, rng)
        # A small first step: the state is that of the stage before.
        parts = lambda layer: (layer.weight, layer.bias)  # noqa: E731
        self.update = eqx.tree_at(parts, update, (0.1 * update.weight, 0.0 * update.weight[:, 0]))

    def __call__(self, summaries: Float[Array, " s"], state: Float[Array, " q"]) -> Array:
        """What to add to the state."""
        waves = jnp.sin(self.waves(state[: self.waves.in_features]))
        coefficients = self.coefficients(jnp.concatenate([state, waves]))
        products = coefficients * self.mix(summaries)
        return self.update(jnp.concatenate([products, coefficients]))


def plane_waves(finest: tuple[float, ...], count: int, rng: np.random.Generator) -> eqx.nn.Linear:
    """Arguments of sines of estimates within -1 … 1, whose frequencies are learned.

    Coefficients may change within a small part of the range of an estimate, and with several
    estimates together: those of a chirp are sines of its frequency, rate and phase at once.
    """
    shape = count, len(finest)
    highest = np.maximum(np.asarray(finest), 1.0)
    frequencies = highest ** rng.uniform(size=shape) * rng.choice([-1.0, 1.0], size=shape)
    chosen = rng.uniform(size=shape) < 0.5
    chosen[np.arange(count), rng.integers(len(finest), size=count)] = True
    layer = linear(len(finest), count, rng)
    weight = jnp.asarray(np.where(chosen, frequencies, 0.0), layer.weight.dtype)
    bias = jnp.asarray(rng.uniform(-np.pi, np.pi, size=count), layer.weight.dtype)
    return eqx.tree_at(lambda layer: (layer.weight, layer.bias), layer, (weight, bias))
