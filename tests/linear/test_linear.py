import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mvue
from mvue._linear.grouped_moments import GroupedMoments
from mvue._linear.spectrum import (
    fit_moments,
    noise_spectrum,
    sample_resolution,
    spectrum_of,
)

WEIGHTS = [0.0, 0.5, 10.0, 1000.0, math.inf]


def normal(rng, *shape, is_complex=False):
    real = rng.normal(size=shape)
    return real + 1j * rng.normal(size=shape) if is_complex else real


def covariance(rng, size, is_complex=False):
    root = normal(rng, size, size, is_complex=is_complex)
    return root @ root.conj().T / size + 0.2 * np.eye(size)


def model(seed, m=7, d=3, is_complex=False):
    rng = np.random.default_rng(seed)
    return (
        normal(rng, m, d, is_complex=is_complex),
        covariance(rng, m, is_complex),
        covariance(rng, d, is_complex),
    )


def theorem_3(H, noise, prior, bias_weight):
    """The formula as printed, with explicit inverses."""
    h = H.conj().T @ np.linalg.inv(noise)
    return np.linalg.solve(h @ H + np.linalg.inv(prior) / (bias_weight + 1), h)


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("bias_weight", WEIGHTS)
def test_known_model_is_theorem_3(seed, is_complex, bias_weight):
    H, noise, prior = model(seed, is_complex=is_complex)
    estimator = mvue.linear_bce(H, noise, prior, bias_weight)
    A = theorem_3(H, noise, prior, bias_weight)
    assert estimator.weight.dtype == (np.complex128 if is_complex else np.float64)
    np.testing.assert_allclose(estimator.weight, A, rtol=0, atol=1e-10)
    np.testing.assert_allclose(estimator.covariance, A @ noise @ A.conj().T, rtol=0, atol=1e-10)
    np.testing.assert_allclose(estimator.bias_matrix, A @ H - np.eye(3), rtol=0, atol=1e-10)


@pytest.mark.parametrize("is_complex", [False, True])
def test_named_ends(seed, is_complex):
    H, noise, prior = model(seed, is_complex=is_complex)
    second = H @ prior @ H.conj().T + noise
    posterior_mean = prior @ H.conj().T @ np.linalg.inv(second)
    np.testing.assert_allclose(mvue.lmmse(H, noise, prior).weight, posterior_mean, atol=1e-10)
    unbiased = mvue.wls(H, noise)
    np.testing.assert_allclose(unbiased.bias_matrix, 0, atol=1e-10)
    gauss_markov = np.linalg.inv(H.conj().T @ np.linalg.inv(noise) @ H)
    np.testing.assert_allclose(unbiased.covariance, gauss_markov, atol=1e-10)
    at_infinity = mvue.linear_bce(H, noise, prior, math.inf)
    np.testing.assert_allclose(unbiased.weight, at_infinity.weight, atol=1e-10)


@pytest.mark.parametrize("bias_weight", WEIGHTS)
@pytest.mark.parametrize("m", [3, 7])
def test_theorem_2_on_exact_moments_is_theorem_3(seed, bias_weight, m):
    H, noise, prior = model(seed, m=m)
    spectrum = noise_spectrum(H @ prior @ H.T + noise, noise, prior @ H.T)
    expected = mvue.linear_bce(H, noise, prior, bias_weight).weight
    # With as many measurements as parameters H is inverted, and its condition multiplies rounding.
    condition = np.linalg.cond(H) if m == 3 else 1.0
    np.testing.assert_allclose(
        spectrum.coefficients(bias_weight), expected, rtol=0, atol=1e-10 * max(condition, 1)
    )


def test_forms_of_a_covariance_agree():
    H = np.random.default_rng(0).normal(size=(4, 2))
    full = mvue.linear_bce(H, 2.0 * np.eye(4), 3.0 * np.eye(2), 5.0).weight
    for noise in (2, 2.0, np.full(4, 2.0), jnp.full(4, 2.0)):
        for prior in (3.0, np.full(2, 3.0)):
            np.testing.assert_allclose(
                mvue.linear_bce(H, noise, prior, 5.0).weight, full, atol=1e-14
            )


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    d=st.integers(1, 4),
    extra=st.integers(0, 4),
    is_complex=st.booleans(),
    bias_weight=st.floats(0, 1e6),
    factor=st.floats(1e-3, 1e3),
)
def test_properties_of_the_known_model(seed, d, extra, is_complex, bias_weight, factor):
    H, noise, prior = model(seed, d + extra, d, is_complex)
    estimator = mvue.linear_bce(H, noise, prior, bias_weight)
    # The estimate shrinks: A H has eigenvalues between those of LMMSE and 1.
    shrink = np.linalg.eigvals(estimator.weight @ H)
    assert (np.abs(shrink.imag) < 1e-6).all()
    assert (shrink.real > -1e-6).all()
    assert (shrink.real < 1 + 1e-6).all()
    # Other units of x change nothing.
    rescaled = mvue.linear_bce(factor * H, factor**2 * noise, prior, bias_weight)
    scale = np.abs(estimator.weight).max()
    np.testing.assert_allclose(
        factor * rescaled.weight, estimator.weight, rtol=0, atol=1e-7 * scale
    )
    # A larger bias weight means more variance and less bias.
    more = mvue.linear_bce(H, noise, prior, 2 * bias_weight + 1)
    total = np.trace(estimator.covariance).real
    assert np.trace(more.covariance).real >= total * (1 - 1e-6)


def test_estimator_is_a_function_of_one_measurement():
    H, noise, prior = model(0)
    estimator = mvue.linear_bce(H, noise, prior, 10.0)
    x = np.arange(7.0)
    expected = estimator.weight @ x
    assert isinstance(estimator(x), np.ndarray)
    assert estimator(x).dtype == np.float64
    np.testing.assert_allclose(estimator(jnp.asarray(x)), expected, rtol=1e-5)
    np.testing.assert_allclose(eqx.filter_jit(estimator)(jnp.asarray(x)), expected, rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(estimator)(jnp.asarray([x, x]))[1], expected, rtol=1e-5)
    batch = np.stack([x, 2 * x])
    assert estimator(batch).dtype == np.float64
    np.testing.assert_allclose(estimator(batch)[1], 2 * expected)
    np.testing.assert_allclose(jax.jit(lambda b: estimator(b))(batch)[1], 2 * expected, rtol=1e-5)
    with pytest.raises(ValueError, match=r"shape \(7,\) or a batch of shape \(n, 7\), got \(3,\)"):
        estimator(np.zeros(3))


@pytest.mark.parametrize("is_complex", [False, True])
def test_batches_by_vmap(is_complex):
    rng = np.random.default_rng(0)
    H = normal(rng, 5, 6, 2, is_complex=is_complex)
    noise = covariance(rng, 6, is_complex)
    with jax.enable_x64(True):
        many = jax.vmap(lambda h: mvue.linear_bce(h, jnp.asarray(noise), 1.0, 10.0))(H)
    for i in range(5):
        one = mvue.linear_bce(H[i], noise, 1.0, 10.0)
        np.testing.assert_allclose(many.weight[i], one.weight, atol=1e-12)
        np.testing.assert_allclose(many.covariance[i], one.covariance, atol=1e-12)
        np.testing.assert_allclose(many.bias_matrix[i], one.bias_matrix, atol=1e-12)


def test_batches_in_single_precision_and_over_bias_weights():
    H = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    weights = jnp.array([0.0, 3.0, jnp.inf])
    many = jax.vmap(mvue.linear_bce, in_axes=(None, None, None, 0))(H, 1.0, 1.0, weights)
    for i, bias_weight in enumerate(weights.tolist()):
        one = mvue.linear_bce(H, 1.0, 1.0, bias_weight)
        np.testing.assert_allclose(many.weight[i], one.weight, atol=1e-6)


H22 = np.array([[1.0, 0.5], [0.0, 2.0]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((H22, 1.0, 1.0, -1.0), "bias_weight must be at least 0, got -1.0"),
        ((H22, 1.0, 1.0, math.nan), "bias_weight must be at least 0, got nan"),
        ((H22 * np.nan, 1.0, 1.0, 1.0), "H must be finite"),
        ((H22, np.nan, 1.0, 1.0), "noise_cov must be finite"),
        ((H22, 1.0, np.inf, 1.0), "prior_cov must be finite"),
        ((H22[0], 1.0, 1.0, 1.0), r"shape \(m, d\), got shape \(2,\)"),
        ((np.stack([H22, H22]), 1.0, 1.0, 1.0), "use jax.vmap"),
        ((H22, np.ones(3), 1.0, 1.0), r"noise_cov must be a number, a vector of 2.*got shape \(3,"),
        ((H22, 1.0, np.eye(3), 1.0), "prior_cov must be a number, a vector of 2"),
        ((H22, 0.0, 1.0, 1.0), "noise_cov must have positive variances"),
        ((H22, np.array([1.0, -1.0]), 1.0, 1.0), "noise_cov must have positive variances"),
        ((H22, 1j, 1.0, 1.0), "noise_cov must have positive variances"),
        ((H22, np.ones((2, 2)), 1.0, 1.0), "noise_cov must be positive definite"),
        ((H22, np.diag([1.0, -1.0]), 1.0, 1.0), "smallest eigenvalue is -1"),
        ((H22, -np.eye(2), 1.0, 1.0), "smallest eigenvalue is -1"),
        ((H22, 1.0, -np.eye(2), 0.0), "prior_cov must be positive definite"),
        ((H22, np.array([[1.0, 0.5], [0.4, 1.0]]), 1.0, 1.0), "Hermitian.*by up to 0.1"),
        ((H22, np.array([[1, 0.5j], [0.5j, 1]]), 1.0, 1.0), "noise_cov must be Hermitian"),
        ((H22, 1.0, np.ones((2, 2)), 1.0), "prior_cov must be positive definite"),
        ((np.ones((3, 2)), 1.0, 1.0, math.inf), "full column rank.*got rank 1 for 2 parameters"),
        ((np.ones((1, 2)), 1.0, 1.0, math.inf), "full column rank.*got rank 1 for 2 parameters"),
        ((np.zeros((3, 2)), 1.0, 1.0, math.inf), "got rank 0"),
    ],
)
def test_bad_models(arguments, message):
    with pytest.raises(ValueError, match=message):
        mvue.linear_bce(*arguments)


def test_names_are_no_numbers():
    with pytest.raises(TypeError, match="H must be an array of numbers"):
        mvue.lmmse([["a"]], 1.0, 1.0)


def simulate(rng, H, noise_sd, units, repeats):
    y = rng.normal(size=(units, H.shape[1]))
    noise = rng.normal(size=(units, repeats, H.shape[0])) * noise_sd
    return (y @ H.T)[:, None] + noise, y


def moments_of(x, y):
    moments = GroupedMoments()
    moments.add_units(x, y)
    return moments.summary()


@pytest.mark.filterwarnings("ignore::mvue.exceptions.UnresolvedSignalWarning")
@pytest.mark.parametrize("p", [2, 6])
def test_samples_with_few_repeats_give_the_bias_weight_asked_for(seed, p):
    """The plug-in estimate of the bias would act as λ_eff = 3.98 at λ = 1000 and M = 5."""
    rng = np.random.default_rng(seed)
    H = np.eye(p, 2) + rng.uniform(-0.2, 0.2, size=(p, 2))
    noise_sd = rng.uniform(0.7, 1.2, size=p)
    fits = np.stack(
        [
            fit_moments(moments_of(*simulate(rng, H, noise_sd, 3000, 5)), 1000.0).coefficients
            for _ in range(40)
        ]
    )
    mean, se = fits.mean(axis=0), fits.std(axis=0, ddof=1) / np.sqrt(len(fits))
    asked = mvue.linear_bce(H, noise_sd**2, 1.0, 1000.0).weight
    plug_in = mvue.linear_bce(
        H, noise_sd**2, 1.0, mvue.losses.effective_bias_weight(1000.0, 5)
    ).weight
    # Largest of up to 12 entries; the estimator's own bias is of the order of 1/units.
    assert (np.abs(mean - asked) < 4.5 * se + 10 / 3000 * np.abs(asked).max()).all()
    assert (np.abs(mean - plug_in) / se).max() > 15


def mean_squared_error(A, H, noise_sd):
    bias = A @ H - np.eye(H.shape[1])
    return np.sum(bias**2) + np.sum((A * noise_sd) ** 2)


def test_directions_without_signal_do_not_ruin_the_estimate(seed):
    rng = np.random.default_rng(seed)
    H, noise_sd = rng.normal(size=(10, 2)), rng.uniform(0.7, 1.4, size=10)
    moments = moments_of(*simulate(rng, H, noise_sd, 1000, 5))
    with pytest.warns(mvue.exceptions.UnresolvedSignalWarning, match="8 of 10 directions"):
        fit = fit_moments(moments, math.inf)
    best = mean_squared_error(mvue.wls(H, noise_sd**2).weight, H, noise_sd)
    # Least squares with 10 features on 5000 rows costs about 10/5000 more; the rest is for S, W.
    assert mean_squared_error(fit.coefficients, H, noise_sd) < 1.05 * best
    second, cross = moments.second_moments(centre=True)
    formula = cross @ np.linalg.inv(second - moments.noise_covariance)
    assert mean_squared_error(formula, H, noise_sd) > 2 * best


def test_resolution_holds_for_pure_noise(seed):
    rng = np.random.default_rng(seed)
    for units, repeats, p in ((200, 2, 1), (400, 5, 20), (2000, 3, 50)):
        moments = moments_of(rng.normal(size=(units, repeats, p)), rng.normal(size=(units, 1)))
        spectrum = spectrum_of(moments, centre=True)
        assert not spectrum.resolved.any()
        # The limit is close to what noise does show, so little signal is given away.
        if p > 1:
            assert (1 - spectrum.noise_share).max() > 0.3 * sample_resolution(moments)


def test_gains_are_continuous_in_the_bias_weight(seed):
    rng = np.random.default_rng(seed)
    moments = moments_of(rng.normal(size=(300, 3, 5)), rng.normal(size=(300, 1)))
    spectrum = spectrum_of(moments, centre=True)
    grid = np.concatenate([[0.0], np.geomspace(1e-3, 1e9, 2000), [np.inf]])
    gains = np.stack([spectrum.gains(w) for w in grid])
    assert (gains > 0).all()
    assert (np.abs(np.diff(np.log(gains), axis=0)) < 0.05).all()
    np.testing.assert_array_equal(gains[0], 1.0)
    np.testing.assert_array_equal(gains[-1], 1.0)


def test_formula_is_used_where_the_signal_is_resolved(seed):
    rng = np.random.default_rng(seed)
    moments = moments_of(*simulate(rng, np.eye(3), np.full(3, 0.8), 500, 4))
    second, cross = moments.second_moments(centre=True)
    for bias_weight in (0.0, 1.0, 50.0, 1e6, math.inf):
        rho = 1.0 if math.isinf(bias_weight) else bias_weight / (1 + bias_weight)
        formula = cross @ np.linalg.inv(second - rho * moments.noise_covariance)
        fit = fit_moments(moments, bias_weight)
        np.testing.assert_allclose(fit.coefficients, formula, rtol=0, atol=1e-10)


def test_moments_without_spread_in_a_feature():
    x = np.array([[1.0, 0.1], [2.0, 0.1], [3.0, 0.1], [4.0, 0.1]])
    y = np.array([[1.0], [2.0], [3.0], [4.0]])
    moments = moments_of(np.repeat(x[:, None], 2, axis=1), y)
    fit = fit_moments(moments, 10.0)
    np.testing.assert_allclose(fit.coefficients, [[1.0, 0.0]], atol=1e-12)


def test_weights_that_do_not_count():
    moments = GroupedMoments()
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(5.0), 3)[:, None]
    moments.add(rng.normal(size=(15, 2)), y, weights=np.full(15, 0.1))
    with pytest.raises(ValueError, match=r"must count rows.*got a sum of 1\.5"):
        fit_moments(moments.summary(), 1.0)


@pytest.mark.parametrize("bias_weight", [1e3, 1e10, 1e14, 1e20, 1e300])
@pytest.mark.parametrize("shape", [(3, 2), (6, 4), (2, 5)])
def test_without_full_rank_a_large_bias_weight_comes_near_the_smallest_solution(
    seed, shape, bias_weight
):
    """In units of the prior; what rounding leaves of H in other directions is no signal."""
    rng = np.random.default_rng(seed)
    m, d = shape
    H = rng.normal(size=(m, 2))[:, :1] @ rng.normal(size=(1, d)) if m > d else normal(rng, m, d)
    H = H * np.geomspace(1e-6, 1e3, d)  # columns of very different sizes
    noise, prior = covariance(rng, m), covariance(rng, d)
    root, white = np.linalg.cholesky(prior), np.linalg.inv(np.linalg.cholesky(noise))
    left, values, right = np.linalg.svd(white @ H @ root, full_matrices=False)
    rank = 1 if m > d else m
    gains = values[:rank] / (values[:rank] ** 2 + 1 / (1 + bias_weight))
    expected = root @ right[:rank].T @ (gains[:, None] * left[:, :rank].T) @ white
    found = mvue.linear_bce(H, noise, prior, bias_weight).weight
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7 * np.abs(expected).max())


def test_a_small_column_is_no_lack_of_rank():
    H = np.array([[1.0, 1e-20], [1.0, -1e-20]])
    found = mvue.linear_bce(H, 1.0, 1.0, 1e300).weight
    np.testing.assert_allclose(found, np.linalg.inv(H), rtol=1e-12)


def test_any_variance_of_the_noise_will_do_for_wls_and_what_overflows_is_refused():
    np.testing.assert_allclose(mvue.wls(np.ones((3, 1)), 1e-320).weight, 1 / 3, rtol=1e-12)
    for H, noise in ((1e200, 1e-320), (1e-320, 1.0)):
        with pytest.raises(ValueError, match="H, noise_cov and prior_cov must be of sizes that"):
            mvue.wls(np.full((3, 1), H), noise)


@pytest.mark.parametrize("is_complex", [False, True])
def test_predict_keeps_the_digits_of_numpy(is_complex):
    H = normal(np.random.default_rng(0), 4, 2, is_complex=is_complex)
    for estimator in (mvue.wls(H, 1.0), mvue.lmmse(H, 1.0, 1e9), mvue.linear_bce(H, 1.0, 1.0, 9.0)):
        x = 1.7e9 + np.arange(12.0).reshape(3, 4)  # seconds of these years
        x = x + 0j if is_complex else x
        found = estimator.predict(x)
        np.testing.assert_array_equal(found, estimator(x))
        np.testing.assert_allclose(found, x @ estimator.weight.T, rtol=1e-14)
    assert mvue.wls(np.ones((1, 1)), 1.0).predict([[16777217]]) == 16777217
    single = mvue.wls(H, 1.0).predict(np.ones((3, 4), np.complex64 if is_complex else np.float32))
    assert single.shape == (3, 2)
    if not is_complex:
        with pytest.raises(TypeError, match="x must be numbers of the kind float64, got complex"):
            mvue.wls(H, 1.0).predict(np.ones((3, 4)) * 1j)
