"""Statistics of series, images and vectors against their definitions."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from helpers.layouts import statistics_for
from mvue._summaries.ordered import signal_subspace


def of_one(statistics, x):
    """The second moments of one measurement, in the units of x."""
    unit = float(statistics.scale.matrix)
    parts = eqx.filter_jit(statistics._second_moments)([x])
    return [np.asarray(part, np.float64) / unit**2 for part in parts[1:]]


@pytest.mark.parametrize("is_complex", [False, True])
def test_lag_products_of_a_series(is_complex, key):
    x = jr.normal(key, (50, 20), complex if is_complex else float) + 0.5
    statistics = statistics_for([x], kind="series")
    level, lagged = of_one(statistics, x[0])
    one = np.asarray(x[0], np.complex128 if is_complex else np.float64)
    centred = one - one.mean()
    wanted = [np.sum(centred[k:] * centred[: 20 - k].conj()) / 20 for k in range(13)]
    wanted = np.concatenate([np.real(wanted), np.imag(wanted)]) if is_complex else np.array(wanted)
    np.testing.assert_allclose(lagged, wanted, atol=2e-6)
    np.testing.assert_allclose(level[0], np.abs(one.mean()) ** 2, rtol=1e-4)


def test_lag_products_of_two_channels(key):
    x = jr.normal(key, (50, 20, 2))
    statistics = statistics_for([x], kind="series", channels=1)
    _, lagged = of_one(statistics, x[0])
    one = np.asarray(x[0], np.float64)
    centred = one - one.mean(axis=0)
    same = (centred.T @ centred / 20)[np.triu_indices(2)]
    np.testing.assert_allclose(lagged[:3], same, atol=2e-6)
    np.testing.assert_allclose(lagged[3:7], (centred[1:].T @ centred[:-1] / 20).ravel(), atol=2e-6)


def test_lag_products_of_an_image_are_all_there_once(key):
    x = jr.normal(key, (50, 9, 11))
    statistics = statistics_for([x], kind="image")
    _, lagged = of_one(statistics, x[0])
    centred = np.asarray(x[0] - x[0].mean(), np.float64)
    wanted = [
        sum(
            centred[a + i, b + j] * centred[a, b]
            for a in range(9 - i)
            for b in range(max(0, -j), 11 - max(0, j))
        )
        / 99
        for i in range(5)
        for j in range(-4, 5)
        if i > 0 or j >= 0
    ]
    np.testing.assert_allclose(np.sort(lagged), np.sort(wanted), atol=2e-6)


@pytest.mark.parametrize(("n", "is_complex"), [(128, False), (128, True), (600, False)])
def test_spectrum_tells_the_frequency(n, is_complex, key):
    """All of the power of a tone is in its band, by product with a matrix and by transform."""
    phase = 2 * jnp.pi * (n // 8) / n * jnp.arange(n)
    one = jnp.exp(1j * phase) if is_complex else jnp.cos(phase)
    x = jnp.stack([one] * 4) + 1e-4 * jr.normal(key, (4, n))
    statistics = statistics_for([x], kind="series")
    power = np.array(statistics._spectrum(statistics._array([x[0]])))[:, 0]
    power /= float(statistics.scale.matrix) ** 2
    assert np.sum(power > 1e-3 * power.max()) == 2  # of equal ratios, and of equal widths
    numbers = np.asarray(eqx.filter_jit(statistics.inputs)([x[0]]))
    assert np.isfinite(numbers).all()


def test_long_series_have_few_statistics(key):
    x = jr.normal(key, (64, 5000))
    statistics = statistics_for([x], kind="series")
    assert jax.eval_shape(statistics.inputs, [x[0]]).size < 400


def test_signal_subspace_is_where_means_differ(swept_key):
    theta, noise = jr.split(swept_key)
    axes = np.linalg.qr(np.asarray(jr.normal(jr.fold_in(theta, 1), (300, 3))))[0]
    signal = 4 * np.asarray(jr.normal(theta, (512, 1, 3))) @ axes.T
    flat = signal + np.asarray(jr.normal(noise, (512, 4, 300)))
    _, found = signal_subspace(flat, 50)
    directions = np.linalg.qr(found)[0]
    assert 3 <= found.shape[1] <= 12
    # Each axis lies in the span of what was found.
    assert (np.linalg.norm(directions.T @ axes, axis=0) > 0.95).all()


def test_a_field_without_a_signal_in_its_mean_has_no_subspace(key):
    flat = np.asarray(jr.normal(key, (512, 4, 300)))
    assert signal_subspace(flat, 50)[1].shape[1] < 6


@pytest.mark.parametrize("kind", ["series", "vector"])
def test_an_offset_is_taken_away(kind, key):
    """Temperatures in kelvin are seen as those in degrees."""
    x = 0.05 * jr.normal(key, (50, 30))
    plain, shifted = (statistics_for([part], kind=kind) for part in (x, x + 300))
    assert float(shifted.scale.shift) == pytest.approx(300, abs=0.1)
    seen = [
        np.asarray(jax.vmap(lambda one, s=s: s.inputs([one]))(part))
        for s, part in ((plain, x), (shifted, x + 300))
    ]
    assert seen[0].shape == seen[1].shape
    worst = np.abs(np.corrcoef(seen[0][:, 0], seen[1][:, 0])[0, 1])
    assert worst > 0.999
