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
        state: numbers of the state, of which the first are the estimates.
        octaves: of each estimate, as `waves` has it.
        rank: products of a summary and a coefficient.
        width: of the network from the state to the coefficients.
        rng: for the initial weights.
    """

    mix: eqx.nn.Linear
    coefficients: eqx.nn.MLP
    update: eqx.nn.Linear

    def __init__(
        self,
        summaries: int,
        state: int,
        octaves: tuple[int, ...],
        *,
        rank: int,
        width: int,
        rng: np.random.Generator,
    ) -> None:
        self.mix = linear(summaries, rank, rng)
        self.coefficients = mlp(state + 2 * sum(octaves), rank, width, 2, rng)
        update = linear(2 * rank, state, rng)
        # A small first step: the state is that of the stage before.
        parts = lambda layer: (layer.weight, layer.bias)  # noqa: E731
        self.update = eqx.tree_at(parts, update, (0.1 * update.weight, 0.0 * update.weight[:, 0]))

    def __call__(self, summaries: Float[Array, " s"], state: Float[Array, " f"]) -> Array:
        """What to add to the state, of which `state` are the features."""
        coefficients = self.coefficients(state)
        products = coefficients * self.mix(summaries)
        return self.update(jnp.concatenate([products, coefficients]))


def waves(estimates: Float[Array, " q"], octaves: tuple[int, ...]) -> Float[Array, " w"]:
    """Sines and cosines of estimates within -1 … 1, so many octaves of each.

    Coefficients may change within a small part of the range of an estimate.
    """
    parts = [
        wave(estimates[k] * (np.pi / 2 * 2.0 ** np.arange(count)))
        for k, count in enumerate(octaves)
        if count
        for wave in (jnp.sin, jnp.cos)
    ]
    return jnp.concatenate([jnp.zeros(0), *parts])
