"""Noise that training knows, and takes out of the penalty.

The penalty needs the mean error of each unknown, which a handful of measurements tells badly; its
noise, times a large bias weight, is what limits training. An anchor is an earlier state of the
estimator whose bias was measured on many simulations, as a smooth function of theta. The rest of
its errors has mean zero for every unknown and resembles the errors of the estimator in training:
without it the penalty has the same expectation and little noise. An estimator that is known to be
unbiased serves the same purpose, exactly.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ._losses import unit_squared_bias
from ._problem import Draw
from ._theta_features import ThetaFeatures

RIDGE = 1e-6


class Anchor(NamedTuple):
    """An earlier state of the estimator, and its bias."""

    params: PyTree
    bias: Float[Array, "q d"]
    """Coefficients of the bias, in units of the weights."""
    trust: Float[Array, " d"]
    """1 where all of the bias is in the coefficients, 0 where they say nothing."""


class BiasSums(NamedTuple):
    """What a bias is fitted from: moments of features and mean errors, summed over unknowns."""

    gram: Float[Array, "q q"]
    cross: Float[Array, "q d"]
    squares: Float[Array, " d"]
    squared_bias: Float[Array, " d"]
    units: Float[Array, ""]


class Control:
    """The noise of anchors on draws of one problem.

    Args:
        features: of theta, of which biases are linear functions.
        weights: of unknowns in the loss, (N,) or (N, d) or None; they tell the size of errors.
    """

    def __init__(self, features: ThetaFeatures, weights: Callable[[Draw], Any]) -> None:
        self.features, self._weights = features, weights

    def first(self, params: PyTree, d: int) -> Anchor:
        """The anchor before any was measured."""
        size = len(self.features.degrees)
        return Anchor(params, jnp.zeros((size, d)), jnp.zeros(d))

    def zero(self, d: int) -> BiasSums:
        """Sums over nothing."""
        q = len(self.features.degrees)
        return BiasSums(*map(jnp.zeros, ((q, q), (q, d), (d,), (d,), ())))

    def noise(
        self, anchor: Anchor, estimates: Array, draw: Draw, baseline: Array | None
    ) -> Float[Array, "n m d"]:
        """The part of the anchor's errors that has mean zero for every unknown."""
        bias = jax.vmap(self.features)(draw.theta) @ anchor.bias / self.scale(draw)
        trust = anchor.trust[None, None, :]
        noise = trust * (estimates - (draw.y + bias)[:, None, :])
        if baseline is None:
            return noise
        return noise + (1 - trust) * (baseline - draw.y[:, None, :])

    def matched(self, noise: Array, estimates: Array, draw: Draw) -> Float[Array, "n m d"]:
        """The noise times the factor that makes it most like that of the estimates."""
        unit = self.scale(draw)[:, None, :]
        own = _centred(jax.lax.stop_gradient(estimates)) * unit
        known = _centred(noise) * unit
        square = jnp.sum(known**2, axis=(0, 1))
        factor = jnp.sum(own * known, axis=(0, 1)) / jnp.where(square > 0, square, 1.0)
        return factor[None, None, :] * noise

    def sums(self, errors: Array, draw: Draw) -> BiasSums:
        """The moments of one batch; errors (N, M, d) are those to know the bias of."""
        unit = self.scale(draw)
        mean = jnp.mean(errors, axis=1) * unit
        features = jax.vmap(self.features)(draw.theta)
        return BiasSums(
            gram=features.T @ features,
            cross=features.T @ mean,
            squares=jnp.sum(mean**2, axis=0),
            squared_bias=jnp.sum(unit_squared_bias(errors, "unbiased") * unit**2, axis=0),
            units=jnp.asarray(float(errors.shape[0])),
        )

    def solve(self, params: PyTree, sums: BiasSums) -> Anchor:
        """The anchor with the bias that these moments show.

        Coefficients of each degree are shrunk by the share that their noise has in them. Where
        the polynomials miss a part of the bias, the anchor is trusted less.
        """
        gram, cross, squares, squared_bias, units = (np.asarray(s, np.float64) for s in sums)
        gram, cross, squares = gram / units, cross / units, squares / units
        bias = np.linalg.solve(gram + RIDGE * np.eye(len(gram)), cross)
        for degree in np.unique(self.features.degrees):
            same = self.features.degrees == degree
            size = np.maximum((bias[same] ** 2).sum(axis=0), np.finfo(float).tiny)
            bias[same] *= np.clip(1 - same.sum() * squares / units / size, 0.0, 1.0)
        seen = 2 * np.einsum("qd,qd->d", bias, cross) - np.einsum("qd,qr,rd->d", bias, gram, bias)
        missed = np.maximum(squared_bias / units - seen, 0.0)
        noise = np.maximum(squares - squared_bias / units, np.finfo(float).tiny)
        trust = noise / (noise + missed)
        good = np.isfinite(bias).all(axis=0) & np.isfinite(trust)
        as_array = lambda part: jnp.asarray(np.where(good, part, 0.0), jnp.result_type(float))  # noqa: E731
        return Anchor(params, as_array(bias), as_array(trust))

    def scale(self, draw: Draw) -> Float[Array, "n d"]:
        """One over the size of errors, as the weights of the loss have it."""
        weights = self._weights(draw)
        if weights is None:
            return jnp.ones_like(draw.y)
        root = jnp.sqrt(weights)
        return root if root.ndim == 2 else jnp.broadcast_to(root[:, None], draw.y.shape)


def _centred(values: Array) -> Array:
    return values - jnp.mean(values, axis=1, keepdims=True)
