"""The control variate that lowers the variance of the bias penalty.

At an anchor, a copy of the weights, the bias is measured on many simulations as a smooth function
of theta (a sum of Legendre polynomials). What remains of the anchor's errors has mean zero. It is
subtracted from the errors in the penalty of the steps that follow, whose expectation stays and
whose variance falls.
"""

from collections.abc import Callable, Sequence
from itertools import combinations_with_replacement
from math import comb
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._core.problem import Draw, Problem
from .._core.theta import theta_vector
from .._core.types import Key, Theta
from .._numerics.polynomials import layer_values, layers_of, legendre
from .._recipe.settings import ControlVariateSettings
from .._recipe.training_prior import TrainingPrior
from .._runtime.jit import as_array
from ..losses._functions import unit_squared_bias


class ThetaFeatures:
    """Legendre polynomials of the ranks of theta, up to some total degree, and layers at its ends.

    Ranks are evenly distributed, which makes the polynomials of one coordinate uncorrelated. Of
    theta with too many coordinates there is only the constant.

    Args:
        problem: with the prior that is trained on.
        key: for draws from it.
        settings: how many features there are.
        widths: of the ranges of theta, in standard deviations; empty where that is not known.
    """

    def __init__(
        self,
        problem: Problem,
        key: Key,
        settings: ControlVariateSettings | None = None,
        widths: Sequence[float] = (),
    ) -> None:
        self.settings = settings = settings or ControlVariateSettings()
        p = jax.eval_shape(lambda key: theta_vector(problem.sample_prior(key)), key).size
        prior = problem.prior
        self._place = theta_vector
        if isinstance(prior, TrainingPrior):
            self._place = prior.coordinates.from_theta
            p = prior.tables.shape[0]
        degree = 0
        while degree < settings.highest_degree and (
            comb(p + degree + 1, p) <= settings.most_features
        ):
            degree += 1
        if degree > 0 and isinstance(prior, TrainingPrior):
            self.tables = prior.tables
        elif degree > 0:
            self.tables = _quantiles(problem, key, settings)
        self._layers = layers_of(widths, settings.most_layers) if len(widths) == p else ()
        terms = [
            term
            for total in range(degree + 1)
            for term in combinations_with_replacement(range(p), total)
        ]
        # Layers alone, and times each other coordinate, as groups of their own.
        self._across = [k for k, _, _ in self._layers] if p > 1 else []
        edges = [-1] * len(self._layers) + [-2] * (len(self._across) * (p - 1))
        if len(edges) > settings.most_features:
            self._across, edges = [], [-1] * len(self._layers)
        self.degrees = np.array([len(term) for term in terms] + (edges if degree > 0 else []))
        self._highest, self._selectors = degree, _selectors(terms, p, degree)

    def __call__(self, theta: Theta) -> Float[Array, " q"]:
        """The polynomials at one theta."""
        if self._highest == 0:
            return jnp.ones(1)
        grid = jnp.linspace(-1.0, 1.0, self.tables.shape[1])
        place = jax.vmap(lambda value, table: jnp.interp(value, table, grid))(
            self._place(theta), self.tables
        )
        unit = jnp.sqrt(2 * jnp.arange(self._highest + 1) + 1.0)
        values = (legendre(place, self._highest) * unit[:, None]).ravel()
        product = jnp.ones(self._selectors[0].shape[0])
        for selector in self._selectors:
            product = product * (jnp.asarray(selector, values.dtype) @ values)
        layers = layer_values(place, self._layers)
        others = [
            layers[i] * jnp.delete(place, k, assume_unique_indices=True)
            for i, k in enumerate(self._across)
        ]
        return jnp.concatenate([product, layers, *others])


def _quantiles(problem: Problem, key: Key, settings: ControlVariateSettings) -> Float[Array, "p t"]:
    keys = jr.split(key, settings.draws)
    draws = jax.jit(jax.vmap(lambda key: theta_vector(problem.sample_prior(key))))(keys)
    values = np.asarray(draws, np.float64)
    tables = np.quantile(values, np.linspace(0, 1, settings.table), axis=0).T
    return as_array(tables)


def _selectors(terms: list[tuple[int, ...]], p: int, degree: int) -> list[np.ndarray]:
    """Matrices that pick the factors of each term: products of them are fast, gathers are not."""
    slots = max(1, min(p, degree))
    selectors = [np.zeros((len(terms), (degree + 1) * p)) for _ in range(slots)]
    for row, term in enumerate(terms):
        coordinates = sorted(set(term))
        for slot, selector in enumerate(selectors):
            used = slot < len(coordinates)
            power = term.count(coordinates[slot]) if used else 0
            selector[row, power * p + (coordinates[slot] if used else 0)] = 1.0
    return selectors


class Anchor(NamedTuple):
    """An earlier state of the estimator, and its bias."""

    params: PyTree
    bias: Float[Array, "q d"]
    """Coefficients of the bias, in units of the weights."""
    trust: Float[Array, " d"]
    """1 where all of the bias is in the coefficients, 0 where they say nothing."""


class BiasSums(NamedTuple):
    """What a bias is fitted from: moments of features and mean errors, summed over units."""

    gram: Float[Array, "q q"]
    cross: Float[Array, "q d"]
    squares: Float[Array, " d"]
    squared_bias: Float[Array, " d"]
    units: Float[Array, ""]


class Control:
    """The noise of anchors on draws of one problem.

    Args:
        features: of theta, of which biases are linear functions.
        weights: of units in the loss, (N,) or (N, d) or None; they tell the size of errors.
    """

    def __init__(self, features: ThetaFeatures, weights: Callable[[Draw], Any]) -> None:
        self.features, self._weights = features, weights

    def first(self, params: PyTree, d: int) -> Anchor:
        """The anchor before any was measured."""
        size = len(self.features.degrees)
        return Anchor(params, as_array(np.zeros((size, d))), as_array(np.zeros(d)))

    def zero(self, d: int) -> BiasSums:
        """Sums over nothing."""
        q = len(self.features.degrees)
        return BiasSums(*(as_array(np.zeros(shape)) for shape in ((q, q), (q, d), (d,), (d,), ())))

    def noise(
        self, anchor: Anchor, estimates: Array, draw: Draw, baseline: Array | None
    ) -> Float[Array, "n m d"]:
        """The part of the anchor's errors that has mean zero for every unit."""
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
        bias = np.linalg.solve(gram + self.features.settings.ridge * np.eye(len(gram)), cross)
        for degree in np.unique(self.features.degrees):
            same = self.features.degrees == degree
            size = np.maximum((bias[same] ** 2).sum(axis=0), np.finfo(float).tiny)
            bias[same] *= np.clip(1 - same.sum() * squares / units / size, 0.0, 1.0)
        seen = 2 * np.einsum("qd,qd->d", bias, cross) - np.einsum("qd,qr,rd->d", bias, gram, bias)
        missed = np.maximum(squared_bias / units - seen, 0.0)
        noise = np.maximum(squares - squared_bias / units, np.finfo(float).tiny)
        trust = noise / (noise + missed)
        good = np.isfinite(bias).all(axis=0) & np.isfinite(trust)
        bias, trust = (as_array(np.where(good, part, 0.0)) for part in (bias, trust))
        return Anchor(params, bias, trust)

    def scale(self, draw: Draw) -> Float[Array, "n d"]:
        """One over the size of errors, as the weights of the loss have it."""
        weights = self._weights(draw)
        if weights is None:
            return jnp.ones_like(draw.y)
        root = jnp.sqrt(weights)
        return root if root.ndim == 2 else jnp.broadcast_to(root[:, None], draw.y.shape)


def _centred(values: Array) -> Array:
    return values - jnp.mean(values, axis=1, keepdims=True)
