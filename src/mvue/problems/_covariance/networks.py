"""Networks that estimate a structured covariance from the sample covariance."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from ..._core.checks import check_count
from ..._core.keys import key_for
from ..._core.sampling import pilot_draw
from ..._core.types import Key
from ..._serialise.registry import register
from ...nn._frozen import Affine
from ...nn._layers import nearly_zero
from ...nn._standardize import PILOT_UNITS, scaling
from .problem import StructuredCovariance
from .structure import LinearCovariance


@register(name="mvue.problems.Update")
class Update(eqx.Module):
    """One hidden layer: what is known of the estimate and the state in, their changes out."""

    hidden: eqx.nn.Linear
    out: eqx.nn.Linear

    def __init__(self, in_size: int, out_size: int, hidden: int, *, key: Key) -> None:
        hidden_key, out_key = jr.split(key)
        self.hidden = eqx.nn.Linear(in_size, hidden, key=hidden_key)
        self.out = eqx.nn.Linear(hidden, out_size, key=out_key)

    def __call__(self, inputs: Float[Array, " i"]) -> Float[Array, " o"]:
        """The changes."""
        return self.out(jax.nn.relu(self.hidden(inputs)))


@register(name="mvue.problems.UnrolledCovariance")
class UnrolledCovariance(eqx.Module):
    """The network of the paper: an iteration that is learned, α ← α + step · Δα.

    It starts at α = ½ and a state v = 0. Every update sees the distinct entries of a covariance
    matrix and v, and changes α and v; the matrix is the sample covariance at first and Σ(α) from
    then on, so that what was measured has to be remembered in v.
    """

    update: Update
    """One network, or those of all iterations in arrays with a leading axis."""
    structure: LinearCovariance = eqx.field(static=True)
    iterations: int = eqx.field(static=True)
    step: float = eqx.field(static=True)
    state: int = eqx.field(static=True)
    tied: bool = eqx.field(static=True)
    keep_sample: bool = eqx.field(static=True)

    def __init__(
        self,
        structure: StructuredCovariance,
        *,
        iterations: int = 50,
        step: float = 0.1,
        hidden: int = 100,
        state: int = 50,
        tied: bool = False,
        keep_sample: bool = False,
        key: Key,
    ) -> None:
        """A network with the sizes of the paper.

        Args:
            structure: what to estimate.
            iterations: how many updates.
            step: how much of each proposed change is made.
            hidden: size of the hidden layer.
            state: size of v.
            tied: the same weights in all iterations; otherwise each has its own.
            keep_sample: show the sample covariance in every iteration, besides Σ(α).
            key: for the initial weights.
        """
        for name, value in (("iterations", iterations), ("hidden", hidden), ("state", state)):
            check_count(name, value)
        entries = structure.p * (structure.p + 1) // 2
        sizes = entries * (1 + keep_sample) + state, structure.d + state, hidden

        def make(key: Key) -> Update:
            return Update(*sizes, key=key)

        self.update = make(key) if tied else eqx.filter_vmap(make)(jr.split(key, iterations))
        self.structure, self.iterations = structure.without_prior(), iterations
        self.step, self.state = step, state
        self.tied, self.keep_sample = tied, keep_sample

    def __call__(self, x: Float[Array, "rows p"]) -> Float[Array, " d"]:
        """The estimate from one measurement of either kind."""
        d = self.structure.d
        sample = self.structure.distinct(x)
        upper = np.triu_indices(self.structure.p)
        basis, offset = (
            jnp.asarray(part[..., *upper], sample.dtype)
            for part in (self.structure.basis, self.structure.offset)
        )
        kept = [sample] if self.keep_sample else []

        def iterate(
            carry: tuple[Array, Array], update: Update | None
        ) -> tuple[tuple[Array, Array], None]:
            matrix, position = carry
            layer = self.update if update is None else update
            change = layer(jnp.concatenate([*kept, matrix, position[d:]]))
            position = position + self.step * change
            return (offset + position[:d] @ basis, position), None

        start = jnp.concatenate(
            [jnp.full((d,), 0.5, sample.dtype), jnp.zeros((self.state,), sample.dtype)]
        )
        (_, position), _ = jax.lax.scan(
            iterate,
            (sample, start),
            None if self.tied else self.update,
            length=self.iterations,
        )
        return position[:d]


@register(name="mvue.problems.CovarianceMLP")
class CovarianceMLP(eqx.Module):
    """The masked estimate and a network of the distinct entries that corrects it.

    The network works in standard units: entries less their means over the prior, over their
    standard deviations; corrections in units of the masked estimate's error.
    """

    inputs: Affine
    network: eqx.nn.MLP
    outputs: Affine
    structure: LinearCovariance = eqx.field(static=True)
    correction: bool = eqx.field(static=True)

    def __init__(
        self,
        structure: StructuredCovariance,
        *,
        width: int = 64,
        depth: int = 2,
        correction: bool = False,
        key: Key,
    ) -> None:
        """A network in the units of the problem, measured on a pilot draw from its prior.

        Args:
            structure: what to estimate.
            width: size of the hidden layers.
            depth: how many hidden layers.
            correction: leave the masked estimate out, for `fit` with
                ``baseline=structure.masked``, which adds it.
            key: for the pilot draw and the initial weights.
        """
        check_count("width", width)
        check_count("depth", depth)
        pilot = pilot_draw(structure.problem, key_for("covariance", key), PILOT_UNITS, 1)
        entries = jax.jit(jax.vmap(structure.distinct))(pilot.x[:, 0])
        errors = jax.jit(jax.vmap(structure.masked))(pilot.x[:, 0]) - pilot.y
        self.inputs = scaling(entries)
        self.outputs = Affine(jnp.zeros((structure.d,)), errors.std(axis=0))
        network = eqx.nn.MLP(entries.shape[1], structure.d, width, depth, jax.nn.gelu, key=key)
        self.network = nearly_zero(network)
        self.structure, self.correction = structure.without_prior(), correction

    def __call__(self, x: Float[Array, "rows p"]) -> Float[Array, " d"]:
        """The estimate from one measurement of either kind."""
        estimate = self.outputs(self.network(self.inputs(self.structure.distinct(x))))
        return estimate if self.correction else self.structure.masked(x) + estimate
