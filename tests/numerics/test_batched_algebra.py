"""Sorting and linear algebra of small things, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mvue._numerics.small_matrices import cholesky, invert, multiply, solve
from mvue._numerics.sorting import LONGEST, sort

floats = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)


@given(st.integers(1, 70).flatmap(lambda n: arrays(np.float32, n, elements=floats)))
@settings(max_examples=60, deadline=None)
def test_sort(values):
    np.testing.assert_array_equal(sort(jnp.asarray(values)), np.sort(values))


@pytest.mark.parametrize("n", [LONGEST, LONGEST + 1])
def test_sort_of_long_vectors_and_infinities(n):
    values = np.random.default_rng(0).normal(size=(3, n)).astype(np.float32)
    values[0, 5], values[1, 7] = np.inf, -np.inf
    np.testing.assert_array_equal(jax.vmap(sort)(jnp.asarray(values)), np.sort(values, axis=1))


@pytest.mark.parametrize("p", [1, 2, 5, 12])
def test_algebra(p, seed):
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(4, p, p + 3))
    matrix = (half @ half.transpose(0, 2, 1)).astype(np.float32)
    vector = rng.normal(size=(4, p)).astype(np.float32)
    exact = matrix.astype(np.float64)
    matrix, vector = jnp.asarray(matrix), jnp.asarray(vector)
    size = np.abs(np.linalg.inv(exact)).max() * np.linalg.cond(exact).max()
    np.testing.assert_allclose(jax.vmap(cholesky)(matrix), np.linalg.cholesky(exact), atol=1e-4)
    inverse, pivots = jax.vmap(invert)(matrix)
    np.testing.assert_allclose(inverse, np.linalg.inv(exact), atol=1e-6 * size)
    np.testing.assert_allclose(np.log(pivots).sum(1), np.linalg.slogdet(exact)[1], atol=1e-3)
    solution, _ = jax.vmap(solve)(matrix, vector)
    expected = np.linalg.solve(exact, vector[..., None])[..., 0]
    np.testing.assert_allclose(solution, expected, atol=3e-6 * size)
    np.testing.assert_allclose(multiply(matrix, matrix), exact @ exact, rtol=1e-4, atol=1e-3)


def test_a_matrix_that_is_not_definite_shows_it():
    matrix = jnp.array([[1.0, 2.0], [2.0, 1.0]])
    assert np.isnan(np.asarray(cholesky(matrix))).any()
    assert (np.asarray(invert(matrix)[1]) < 0).any()
