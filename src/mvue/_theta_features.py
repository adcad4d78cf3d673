"""Smooth functions of theta, as sums of polynomials."""

from itertools import combinations_with_replacement
from math import comb

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from ._problem import Problem
from ._types import Key, Theta

DRAWS = 2048
TABLE = 65
MOST = 256
HIGHEST_DEGREE = 24


class ThetaFeatures:
    """Legendre polynomials of the ranks of theta, up to some total degree.

    Ranks are evenly distributed, which makes the polynomials of one coordinate uncorrelated. Of
    theta with too many coordinates there is only the constant.
    """

    def __init__(self, problem: Problem, key: Key) -> None:
        p = jax.eval_shape(lambda key: _flat(problem.sample_prior(key)), key).size
        degree = 0
        while degree < HIGHEST_DEGREE and comb(p + degree + 1, p) <= MOST:
            degree += 1
        if degree > 0:
            self.tables = _quantiles(problem, key)
        terms = [
            term
            for total in range(degree + 1)
            for term in combinations_with_replacement(range(p), total)
        ]
        self.degrees = np.array([len(term) for term in terms])
        self._highest, self._selectors = degree, _selectors(terms, p, degree)

    def __call__(self, theta: Theta) -> Float[Array, " q"]:
        """The polynomials at one theta."""
        if self._highest == 0:
            return jnp.ones(1)
        grid = jnp.linspace(-1.0, 1.0, TABLE)
        place = jax.vmap(lambda value, table: jnp.interp(value, table, grid))(
            _flat(theta), self.tables
        )
        powers = [jnp.ones_like(place), place]
        for k in range(1, self._highest):
            powers.append(((2 * k + 1) * place * powers[k] - k * powers[k - 1]) / (k + 1))
        unit = jnp.sqrt(2 * jnp.arange(self._highest + 1) + 1.0)
        values = (jnp.stack(powers) * unit[:, None]).ravel()
        product = jnp.ones(len(self.degrees))
        for selector in self._selectors:
            product = product * (jnp.asarray(selector, values.dtype) @ values)
        return product


def _quantiles(problem: Problem, key: Key) -> Float[Array, "p t"]:
    draws = jax.jit(jax.vmap(lambda key: _flat(problem.sample_prior(key))))(jr.split(key, DRAWS))
    values = np.asarray(draws, np.float64)
    tables = np.quantile(values, np.linspace(0, 1, TABLE), axis=0).T
    return jnp.asarray(tables, jnp.result_type(float))


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


def _flat(theta: Theta) -> Float[Array, " p"]:
    return ravel_pytree(theta)[0].astype(float)
