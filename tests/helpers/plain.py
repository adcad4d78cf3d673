"""Training with everything given: no survey, no anchors, the prior itself, a small network."""

import equinox as eqx
import jax
import jax.numpy as jnp

import mvue


def plain_fit(problem, network=None, loss=None, *, key, **settings):
    if network is None:
        x, y = problem.shapes()
        size = sum(
            leaf.size * (2 if jnp.issubdtype(leaf.dtype, jnp.complexfloating) else 1)
            for leaf in jax.tree.leaves(x)
        )
        inner = eqx.nn.MLP(size, y.shape[0], 16, 1, key=key)
        network = mvue.standardize(inner, problem, key=key)
    loss = mvue.bce(40.0, weight=None) if loss is None else loss
    settings = {"training_prior": problem.prior, "anchors": 0} | settings
    return mvue.fit(problem, network, loss, key=key, **settings)
