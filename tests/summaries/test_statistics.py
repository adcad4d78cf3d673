"""What the default network sees: statistics that are the answers to classical problems."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import mvue
from helpers.layouts import statistics_for

SHAPE = np.array([[1.0, 0.0], [0.6, 0.8]], np.float32)


def seen(statistics, x):
    """Statistics of several measurements, (R, p)."""
    return np.asarray(jax.jit(jax.vmap(statistics))(x))


def has(statistics, wanted, rtol=1e-3):
    """Whether one of the columns is what is wanted, up to a constant factor."""
    ratio = np.asarray(statistics) / np.asarray(wanted)[:, None]
    return bool((np.ptp(ratio, axis=0) <= rtol * np.abs(ratio).min(axis=0)).any())


def test_default_network_sees_the_noise_behind_random_signs(key):
    signs, noise = jr.split(key)
    x = jr.rademacher(signs, (4, 40)) * (10 + 0.1 * jr.normal(noise, (4, 40)))
    statistics = statistics_for(x, sets=[(0,)])
    found = seen(statistics.inputs, x)
    wanted = jnp.log(jnp.std(jnp.abs(x), axis=1))
    assert jnp.isclose(found, wanted[:, None], rtol=1e-3).all(axis=0).any()


def test_statistics_of_vectors_about_zero_and_about_the_mean(key):
    x = jnp.array([[5.0, -3.0]]) + jr.normal(key, (12, 2)) @ jnp.array([[1.0, 0.7], [0.0, 2.0]])
    statistics = statistics_for(x[None], sets=[(0,)])
    natural, inputs = (seen(part, x[None])[0] for part in (statistics.natural, statistics.inputs))
    rows = np.asarray(x, np.float64)
    for centred in (rows, rows - rows.mean(axis=0)):
        moments = centred.T @ centred / 12
        inverse = np.linalg.inv(moments)
        slopes = [moments[0, 1] / moments[1, 1], moments[0, 1] / moments[0, 0]]
        products = [moments[0, 0] * moments[1, 1], moments[0, 1] ** 2]
        for wanted in (moments[0, 1], inverse[0, 0], inverse[0, 1], *slopes, *products):
            assert np.isclose(natural, wanted, rtol=2e-3).any()
        assert np.isclose(inputs, np.log(moments[0, 0]) / 2, rtol=1e-3).any()
    assert np.isclose(natural, np.prod(rows.mean(axis=0)), rtol=1e-4).any()


def test_statistics_of_positive_data_stay_finite_below_zero(key):
    x = jr.exponential(key, (64, 8))
    statistics = statistics_for(x, sets=[(0,)])
    assert statistics.positive
    assert np.isfinite(seen(statistics.inputs, x - 1.0)).all()


def test_statistics_along_principal_directions(key):
    """A signal along one known direction of four: its power over that of the rest."""
    direction = jnp.array([1.0, -1.0, 1.0, 1.0]) / 2
    signal, noise, scale = jr.split(key, 3)
    size = 3.0 * jr.normal(signal, (500, 6, 1))
    rows = size * direction[None, None, :] + jr.normal(noise, (500, 6, 4))
    rows = rows * jnp.exp(jr.normal(scale, (500, 1, 1)))
    statistics = statistics_for([rows], sets=[(0,)])
    natural = seen(statistics.natural, [rows])
    along = ((rows @ direction) ** 2).sum(axis=1)
    exact = along / ((rows**2).sum(axis=(1, 2)) - along)
    errors = jnp.abs(jnp.log(natural / exact[:, None])).max(axis=0)
    assert errors.min() < 0.2
    inputs = seen(statistics.inputs, [rows])
    logs = 0.5 * jnp.log(along / 6)
    assert jnp.abs(inputs - logs[:, None]).max(axis=0).min() < 0.1


def test_statistics_of_ordered_positive_data_have_logarithms(key):
    x = jnp.cumsum(jr.exponential(key, (100, 5)), axis=1)
    statistics = statistics_for([x])
    inputs = seen(statistics.inputs, [x])
    for i in range(5):
        assert jnp.ptp(inputs - jnp.log(x[:, i : i + 1]), axis=0).min() < 1e-4


def test_statistics_of_positive_scalars_have_inverses(key):
    """Rates are inverses of means, precisions of variances."""
    x = jr.exponential(key, (100, 8))
    natural = seen(statistics_for(x, sets=[(0,)]).natural, x)
    assert has(natural, 1 / x.mean(axis=1))
    assert has(natural, 1 / x.var(axis=1))
    shifted = x - x.mean()
    natural = seen(statistics_for(shifted, sets=[(0,)]).natural, shifted)
    assert not has(natural, 1 / shifted.mean(axis=1))
    assert has(natural, 1 / shifted.var(axis=1))


def test_statistics_of_pairs_have_correlations_and_their_cubes(key):
    x = jr.normal(key, (50, 10, 2)) @ SHAPE.T + jnp.array([[[3.0, -2.0]]])
    natural = seen(statistics_for([x], sets=[(0,)]).natural, [x])
    found = np.array([np.corrcoef(one.T)[0, 1] for one in np.asarray(x, np.float64)])
    assert has(natural, found)
    assert has(natural, found**3)


@pytest.mark.parametrize("size", [1, 2])
def test_means_against_the_noise(size, key):
    """Two samples whose noise has one shape and many sizes: Student's and Mahalanobis' ratios."""
    a_key, b_key, scale_key = jr.split(key, 3)
    shape = SHAPE[:size, :size]
    scale = jnp.exp(jr.normal(scale_key, (4000, 1, 1)))
    a = 1.0 + scale * jr.normal(a_key, (4000, 9, size)) @ shape.T
    b = -0.5 + scale * jr.normal(b_key, (4000, 7, size)) @ shape.T
    x = {"a": a, "b": b} if size > 1 else {"a": a[..., 0], "b": b[..., 0]}
    statistics = statistics_for(x, sets=[(0,), (1,)])
    white_a, white_b = (rows @ np.linalg.inv(shape).T for rows in (a, b))
    squares = sum(
        ((part - part.mean(axis=1, keepdims=True)) ** 2).sum(axis=(1, 2))
        for part in (white_a, white_b)
    )
    distance = ((white_a.mean(axis=1) - white_b.mean(axis=1)) ** 2).sum(axis=1) / squares
    for part in (statistics.natural, statistics.inputs):
        found = seen(part, x)[:, -1]
        np.testing.assert_allclose(found / distance, np.median(found / distance), rtol=0.15)
    if size == 1:
        ratio = (a.mean(axis=1) - b.mean(axis=1))[:, 0] / jnp.sqrt(squares)
        assert has(seen(statistics.natural, x), ratio)


def test_noise_that_vanishes_is_no_large_number(key):
    x = {"a": 3.0 + jr.normal(key, (100, 6)), "b": jr.normal(jr.fold_in(key, 1), (100, 6))}
    statistics = statistics_for(x, sets=[(0,), (1,)])
    still = {"a": jnp.full((1, 6), 3.0), "b": jnp.zeros((1, 6))}
    found = seen(statistics.natural, still)
    quietest = min(float(part.var(axis=1, ddof=1).min()) for part in x.values())
    assert np.isfinite(found).all()
    assert np.abs(found).max() < 10 * 3.0**2 / (mvue.Recipe().summaries.least_noise * quietest)


@pytest.mark.parametrize("kind", ["counts", "counts as floats", "now and then all the same"])
def test_sets_without_noise_are_not_measured_against_it(kind, key):
    x = jr.poisson(key, 3.0, (100, 6))
    if kind != "counts":
        x = x.astype(float)
    if kind == "now and then all the same":
        x = (0.1 + x).at[0].set(0.1)
    assert statistics_for(x, sets=[(0,)]).whitening is None


def test_order_statistics_of_a_large_set_are_those_of_its_blocks(seed):
    """As quantiles they have a standard error like that of sample quantiles; the ends are exact."""
    n, rows = 1001, 400
    x = jr.exponential(jr.key(seed), (rows, n))
    statistics = statistics_for(x, sets=[(0,)])
    assert statistics.in_blocks
    ordered = np.asarray(jax.vmap(statistics._ordered)(x))
    size = ordered.shape[1]
    assert n // 4 <= size <= n // 3
    np.testing.assert_array_equal(ordered[:, 0], np.min(x, axis=1))
    np.testing.assert_array_equal(ordered[:, -1], np.max(x, axis=1))
    assert (np.diff(ordered[:, 1:-1], axis=1) >= 0).all()
    # The mean of the k-th of m exponential order statistics is a sum of 1/j.
    expected = np.cumsum(1 / np.arange(size, 0, -1))[1:-1]
    mean, sd = ordered[:, 1:-1].mean(axis=0), ordered[:, 1:-1].std(axis=0)
    assert (np.abs(mean - expected) < 5 * sd / rows**0.5).all()
    middle = size // 2
    sorted_sd = np.quantile(x, (middle + 0.5) / size, axis=1).std()
    assert sd[middle - 1] < 1.1 * sorted_sd


def test_files_of_earlier_versions_sort_all(key):
    x = jr.normal(key, (3, 600))
    statistics = dataclasses.replace(statistics_for(x, sets=[(0,)]), in_blocks=False)
    np.testing.assert_array_equal(jax.vmap(statistics._ordered)(x), np.sort(x, axis=1))
