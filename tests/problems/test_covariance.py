"""Structured covariances against exact theory."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats

import mvue
from mvue.nn._frozen import trainable
from mvue.problems import (
    CovarianceMLP,
    UnrolledCovariance,
    sparse_basis,
    structured_covariance,
    toeplitz_basis,
)

Y = np.array([0.2, 0.9, 0.4, 0.1, 0.6, 0.8, 0.5, 0.9, 0.3])
CHAIN = sparse_basis(3, [(0, 1), (1, 2)])
CHAIN_Y = np.array([0.5, 0.1, 0.8, 0.9, 0.4])


@pytest.fixture(scope="module")
def paper():
    return structured_covariance()


@pytest.fixture(scope="module")
def samples():
    return structured_covariance(statistic=False)


def chain(n, *, statistic=True):
    return structured_covariance(CHAIN, n, statistic=statistic)


def drawn(structure, key, count, repeats=1):
    return jax.jit(structure.problem.draw, static_argnums=(1, 2))(key, count, repeats)


def simulated(structure, y, key, count):
    y = jnp.asarray(y, jnp.float32)

    @jax.jit
    @jax.vmap
    def simulate(key):
        return structure.sample_covariance(structure.problem.simulate(key, y))

    return simulate(jr.split(key, count))


def assert_near(values, expected, errors=4.5):
    """The mean of independent values, to within so many standard errors."""
    values = np.asarray(values, np.float64)
    error = values.std(axis=0) / np.sqrt(len(values))
    difference = np.abs(values.mean(axis=0) - expected)
    assert (difference < errors * error + 1e-12).all(), (difference / error).max()


def test_default_is_the_pattern_of_the_paper(paper):
    y = Y
    expected = [
        [1 + y[0], 0, 0, y[5] / 2, 0],
        [0, 1 + y[1], 0, y[6] / 2, 0],
        [0, 0, 1 + y[2], 0, y[7] / 2],
        [y[5] / 2, y[6] / 2, 0, 1 + y[3], y[8] / 2],
        [0, 0, y[7] / 2, y[8] / 2, 1 + y[4]],
    ]
    np.testing.assert_allclose(paper.covariance(Y), expected, atol=1e-6)
    assert paper.problem.names == tuple(f"y{k}" for k in range(1, 10))
    assert (paper.d, paper.p, paper.n) == (9, 5, 200)
    draw = drawn(paper, jr.key(0), 1000)
    assert float(draw.y.min()) >= 0
    assert float(draw.y.max()) <= 1


@pytest.mark.parametrize("y", [Y, 1 - Y])
def test_information_is_that_of_the_library(paper, y):
    known = mvue.gaussian_fisher_information(np.zeros(5), paper.covariance, y, samples=200)
    with jax.enable_x64(True):
        found = jax.jit(paper.fisher)(jnp.asarray(y))
    np.testing.assert_allclose(found, known.matrix, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("basis", "y"), [(toeplitz_basis(6, 4), [0.1, 0.9, 0.5, 0.7]), (None, Y)])
def test_bounds_are_exact(basis, y):
    """The second derivative of the likelihood is linear in the sample covariance, so that its mean
    is found at Σ itself."""
    structure = structured_covariance(basis, n=30)

    @jax.jit
    def everything(y):
        sigma = structure.covariance(y)
        curvature = -jax.hessian(structure.problem.log_likelihood)(y, sigma)
        jacobian = jax.jacfwd(structure.covariance)(y).reshape(-1, structure.d)
        crb, frobenius = structure.crb(y), structure.frobenius_crb(y)
        return structure.fisher(y), curvature, crb, frobenius, jacobian, structure.problem.crb(y)

    with jax.enable_x64(True):
        found = everything(jnp.asarray(y))
    fisher, curvature, crb, frobenius, jacobian, known = map(np.asarray, found)
    np.testing.assert_allclose(fisher, curvature, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(crb @ fisher, np.eye(structure.d), atol=1e-9)
    np.testing.assert_array_equal(crb, known)
    assert float(frobenius) == pytest.approx(np.trace(jacobian @ crb @ jacobian.T), rel=1e-9)


def test_single_precision_is_enough(paper):
    with jax.enable_x64(True):
        exact = jax.jit(paper.crb)(jnp.asarray(Y))
    found = jax.jit(paper.crb)(jnp.asarray(Y, jnp.float32))
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-6)


def test_masked_estimate_reads_entries_off(paper, key):
    sample = jr.normal(key, (5, 5))
    beside = jnp.stack([sample[0, 3], sample[1, 3], sample[2, 4], sample[3, 4]])
    across = jnp.stack([sample[3, 0], sample[3, 1], sample[4, 2], sample[4, 3]])
    expected = jnp.concatenate([jnp.diag(sample) - 1, beside + across])
    np.testing.assert_allclose(paper.masked(sample), expected, atol=1e-5)


@pytest.mark.parametrize("basis", [None, toeplitz_basis(24, 20, decay=0.9), CHAIN])
def test_masked_estimate_of_the_truth_is_the_truth(basis):
    structure = structured_covariance(basis)
    y = structure.centre
    np.testing.assert_allclose(structure.masked(structure.covariance(y)), y, atol=1e-4)


@pytest.mark.parametrize("statistic", [True, False])
def test_masked_estimate_is_unbiased_with_the_covariance_it_claims(swept_key, statistic):
    structure = structured_covariance(n=10, statistic=statistic)
    y = jnp.asarray(Y, jnp.float32)
    estimate = lambda k: structure.masked(structure.problem.simulate(k, y))  # noqa: E731
    estimates = jax.jit(jax.vmap(estimate))(jr.split(swept_key, 20_000))
    assert_near(estimates, Y)
    errors = np.asarray(estimates, np.float64) - Y
    products = errors[:, :, None] * errors[:, None, :]
    assert_near(products, np.asarray(structure.masked_covariance(Y), np.float64))


def test_masked_covariance_is_that_of_entries():
    """Cov(S_ij, S_kl) = (Σ_ik Σ_jl + Σ_il Σ_jk) / n."""
    with jax.enable_x64(True):
        structure = structured_covariance(toeplitz_basis(5, 3), n=7)
        y = jnp.asarray([0.3, 0.8, 0.1])
        s = structure.covariance(y)
        entries = jnp.einsum("ik,jl->ijkl", s, s) + jnp.einsum("il,jk->ijkl", s, s)
        reader = jax.jacfwd(structure.masked)(s)
        expected = jnp.einsum("aij,ijkl,bkl->ab", reader, entries / 7, reader)
        np.testing.assert_allclose(structure.masked_covariance(y), expected, rtol=1e-9)


@pytest.mark.parametrize("n", [5, 2])
def test_both_kinds_of_measurement_have_one_distribution(swept_key, n):
    """Moments up to the fourth, and products of entries; also with fewer samples than variables."""
    first, second = jr.split(swept_key)
    structure = chain(n)
    upper = np.triu_indices(3)
    drawn = [
        np.asarray(simulated(s, CHAIN_Y, k, 40_000), np.float64)
        for s, k in ((structure, first), (chain(n, statistic=False), second))
    ]
    sigma = np.asarray(structure.covariance(CHAIN_Y), np.float64)
    assert_near(drawn[0], sigma)
    moments = []
    for s in drawn:
        entries = s[:, *upper]
        values = [entries**power for power in (1, 2, 3, 4)]
        products = entries[:, :, None] * entries[:, None, :]
        values += [products.reshape(len(s), -1), (products**2).reshape(len(s), -1)]
        values.append(np.abs(np.linalg.det(s))[:, None] ** 0.5)
        moments.append(np.concatenate(values, axis=1))
    if n < 3:
        assert (np.linalg.matrix_rank(drawn[0][:100], tol=1e-4) == n).all()
        moments = [m[:, :-1] for m in moments]  # the determinant is rounding
    a, b = moments
    error = np.sqrt(a.var(axis=0) / len(a) + b.var(axis=0) / len(b))
    assert (np.abs(a.mean(axis=0) - b.mean(axis=0)) < 5 * error).all()


def test_likelihood_is_that_of_the_samples(paper, samples, key):
    with jax.enable_x64(True):
        x = samples.problem.simulate(key, jnp.asarray(Y))
        likelihoods = []
        for y in (Y, 0.5 * Y, 1 - Y):
            sigma = np.asarray(samples.covariance(y))
            expected = scipy.stats.multivariate_normal(cov=sigma).logpdf(np.asarray(x)).sum()
            found = samples.problem.log_likelihood(jnp.asarray(y), x)
            of_statistic = paper.problem.log_likelihood(jnp.asarray(y), x.T @ x / 200)
            assert float(found) == pytest.approx(expected, rel=1e-10)
            likelihoods.append((float(found), float(of_statistic)))
        ratios = np.diff(np.array(likelihoods), axis=0)
        np.testing.assert_allclose(ratios[:, 0], ratios[:, 1], rtol=1e-8)


def test_maximum_likelihood_solves_the_score_equation(key):
    """Also where it is hard: with 8 samples, many masked estimates are no covariances at all, and
    many maxima are beyond the range of the prior."""
    structure = structured_covariance(n=8)
    x = drawn(structure, key, 300).x[:, 0]
    estimates = jax.jit(jax.vmap(structure.maximum_likelihood))(x)
    assert np.isnan(estimates).any(axis=1).mean() <= 0.02
    good = np.isfinite(estimates).all(axis=1)
    estimates, x = estimates[good], x[good]

    @jax.jit
    @jax.vmap
    def look(y, sample):
        value, gradient = jax.value_and_grad(structure.problem.log_likelihood)(y, sample)
        # Squared, in standard errors.
        return value, gradient @ structure.crb(y) @ gradient, structure.covariance(y)

    value, distance, sigma = look(estimates, x)
    assert float(np.linalg.eigvalsh(sigma).min()) > 0
    assert float(distance.max()) < 1e-5
    assert float(estimates.min()) < 0
    assert float(estimates.max()) > 1
    start, _, sigma = look(jax.vmap(structure.masked)(x), x)
    assert float(np.linalg.eigvalsh(sigma).min()) < 0
    gain = np.asarray(value - start)
    assert (gain[np.linalg.eigvalsh(sigma)[:, 0] > 0] > -1e-3).all()


def test_maximum_likelihood_is_efficient_in_large_samples(swept_key):
    structure = structured_covariance(n=2000)
    x = simulated(structure, Y, swept_key, 4000)
    bound = np.asarray(structure.crb(Y), np.float64)
    errors = np.asarray(jax.jit(jax.vmap(structure.maximum_likelihood))(x), np.float64) - Y
    scaled = errors**2 / np.diag(bound)
    # Its excess over the bound is of the order 1/n.
    assert_near(scaled.mean(axis=1), 1.0)
    assert np.abs(errors.mean(axis=0) / np.sqrt(np.diag(bound))).max() < 0.1
    masked = np.diag(np.asarray(structure.masked_covariance(Y))) / np.diag(bound)
    assert masked.mean() > scaled.mean() + 0.02


def test_maximum_likelihood_alone_compiled_and_batched(paper, samples, key):
    y = jnp.asarray(Y, jnp.float32)
    x = jax.vmap(lambda k: samples.problem.simulate(k, y))(jr.split(key, 3))
    batched = jax.jit(jax.vmap(samples.maximum_likelihood))(x)
    sample = samples.sample_covariance(x[1])
    np.testing.assert_allclose(paper.maximum_likelihood(sample), batched[1], atol=1e-5)


def test_maximum_likelihood_can_be_differentiated(paper, key):
    with jax.enable_x64(True):
        x = paper.problem.simulate(key, jnp.asarray(Y))
        direction = x @ x
        small = 1e-4
        mle = jax.jit(lambda x: paper.maximum_likelihood(x, tolerance=1e-8))
        expected = (mle(x + small * direction) - mle(x - small * direction)) / (2 * small)
        found = jax.jit(jax.jacrev(paper.maximum_likelihood))(x)
        assert found.shape == (9, 5, 5)
        np.testing.assert_allclose(jnp.tensordot(found, direction, 2), expected, rtol=1e-3)


def test_maximum_likelihood_that_is_cut_short_is_nan(key):
    structure = structured_covariance(n=8)
    x = drawn(structure, key, 50).x[:, 0].at[0].set(jnp.nan)
    short = jax.jit(jax.vmap(lambda one: structure.maximum_likelihood(one, max_steps=4)))(x)
    failed = np.isnan(short)
    assert failed[0].all()
    assert 1 < failed[:, 0].sum() < 50
    assert (failed.all(axis=1) == failed.any(axis=1)).all()


def test_second_structure(key):
    """Twenty unknowns: a series of 24 steps with the memory of 19."""
    structure = structured_covariance(toeplitz_basis(24, 20), n=500)
    assert structure.d == 20
    draw = drawn(structure, key, 40)
    x = draw.x[:, 0]
    sigma = np.asarray(jax.vmap(structure.covariance)(draw.y))
    assert np.linalg.eigvalsh(sigma).min() > 0
    np.testing.assert_array_equal(sigma[:, 0, :20], sigma[:, 2, 2:22])
    estimates = jax.jit(jax.vmap(structure.maximum_likelihood))(x)
    bound = np.asarray(jax.vmap(structure.crb)(draw.y), np.float64)
    scaled = (np.asarray(estimates) - draw.y) ** 2 / bound.diagonal(axis1=1, axis2=2)
    assert_near(scaled.mean(axis=1), 1.0)
    masked = jax.vmap(structure.masked)(x)
    assert_near(masked - draw.y, 0.0)


def test_bases():
    np.testing.assert_array_equal(sparse_basis(2, [(0, 1)], scale=2)[2], [[0, 2], [2, 0]])
    basis = toeplitz_basis(4, 3, decay=0.5)
    np.testing.assert_allclose(basis[0], np.eye(4))
    np.testing.assert_allclose(basis[1][0], [0, 1 / 3, 0, 0])
    np.testing.assert_allclose(basis[2][1], [0, 0, 0, 1 / 6])
    assert toeplitz_basis(4, 1).shape == (1, 4, 4)


def test_samples_as_many_as_variables(key):
    """What the problem simulates is the only thing that a square matrix can be."""
    statistic, raw = chain(3), chain(3, statistic=False)
    x = jr.normal(key, (3, 3))
    np.testing.assert_array_equal(statistic.sample_covariance(x), x)
    np.testing.assert_allclose(raw.sample_covariance(x), x.T @ x / 3, rtol=1e-6)
    assert np.isfinite(raw.masked(x)).all()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: structured_covariance(np.eye(3)), ValueError, r"shape \(d, p, p\).*got \(3, 3\)"),
        (lambda: structured_covariance(np.ones((1, 2, 3))), ValueError, r"got \(1, 2, 3\)"),
        (lambda: structured_covariance([np.tri(3)]), ValueError, "basis must be symmetric"),
        (lambda: structured_covariance(1j * CHAIN), TypeError, "real numbers, got complex128"),
        (lambda: structured_covariance(CHAIN * np.nan), ValueError, "basis must be finite"),
        (
            lambda: structured_covariance(np.concatenate([CHAIN, CHAIN[:1]])),
            ValueError,
            "its 6 matrices span only 5",
        ),
        (lambda: structured_covariance(CHAIN, 0), ValueError, "n must be a whole number"),
        (
            lambda: structured_covariance(CHAIN, offset=np.eye(4)),
            ValueError,
            r"offset must have shape \(3, 3\).*got \(4, 4\)",
        ),
        (
            lambda: structured_covariance(CHAIN, offset=np.tri(3)),
            ValueError,
            "offset must be symmetric",
        ),
        (
            lambda: structured_covariance(CHAIN, prior=dist.Uniform(0.0, 1.0)),
            ValueError,
            r"one vector of shape \(5,\)",
        ),
        (lambda: structured_covariance(CHAIN, prior=3.0), ValueError, "prior.sample"),
        (
            lambda: structured_covariance(2 * CHAIN, offset=0.5 * np.eye(3)),
            ValueError,
            "positive definite for every y of the prior.*narrow the prior",
        ),
        (
            # No draw is near the one corner of 2²⁰ where this happens.
            lambda: structured_covariance(4 * toeplitz_basis(20, 20)),
            ValueError,
            "smallest eigenvalue",
        ),
        (lambda: sparse_basis(3, [(0, 3)]), ValueError, "numbers from 0 to 2"),
        (lambda: sparse_basis(3, [(1, 1)]), ValueError, "two different numbers"),
        (lambda: toeplitz_basis(3, 4), ValueError, "at most p = 3, got 4"),
        (lambda: toeplitz_basis(3, 2, decay=0.0), ValueError, "decay must be above 0"),
        (lambda: chain(5).masked(jnp.zeros((4, 3))), ValueError, r"or samples of shape \(5, 3\)"),
    ],
)
def test_bad_inputs(call, error, message):
    with pytest.raises(error, match=message):
        call()


def by_hand(network, sample):
    """The iteration of the paper, without a scan."""
    structure = network.structure
    upper = np.triu_indices(structure.p)
    alpha, v = jnp.full((structure.d,), 0.5), jnp.zeros((network.state,))
    matrix = sample
    for k in range(network.iterations):
        update = network.update
        if not network.tied:
            update = jax.tree.map(lambda leaf, k=k: leaf[k], update)
        inputs = [sample[upper]] if network.keep_sample else []
        inputs = jnp.concatenate([*inputs, matrix[upper], v])
        hidden = jnp.maximum(update.hidden.weight @ inputs + update.hidden.bias, 0)
        change = update.out.weight @ hidden + update.out.bias
        alpha = alpha + network.step * change[: structure.d]
        v = v + network.step * change[structure.d :]
        matrix = structure.covariance(alpha)
    return alpha


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("keep_sample", [True, False])
def test_unrolled_network_is_the_iteration_of_the_paper(paper, key, tied, keep_sample):
    network = UnrolledCovariance(paper, iterations=4, tied=tied, keep_sample=keep_sample, key=key)
    inputs = 15 * (1 + keep_sample) + 50
    assert network.update.hidden.weight.shape == (*(() if tied else (4,)), 100, inputs)
    assert network.update.out.weight.shape == (*(() if tied else (4,)), 59, 100)
    x = drawn(paper, key, 3).x[:, 0]
    estimates = jax.jit(jax.vmap(network))(x)
    assert estimates.shape == (3, 9)
    expected = jax.jit(jax.vmap(lambda one: by_hand(network, one)))(x)
    np.testing.assert_allclose(estimates, expected, atol=1e-5)


def test_unrolled_network_has_finite_gradients_in_all_layers(paper, key):
    network = UnrolledCovariance(paper, key=key)
    x = drawn(paper, key, 1, 20).x[0]
    gradients = eqx.filter_jit(eqx.filter_grad(lambda net: jnp.sum(jax.vmap(net)(x) ** 2)))(network)
    for leaf in jax.tree.leaves(eqx.filter(gradients, eqx.is_array)):
        assert leaf.shape[0] == 50
        assert np.isfinite(leaf).all()
        assert (np.abs(leaf).reshape(50, -1).max(axis=1) > 0).all()


@pytest.mark.parametrize("make", [UnrolledCovariance, CovarianceMLP])
def test_networks_take_both_kinds_of_measurement(samples, key, make):
    x = samples.problem.simulate(key, jnp.asarray(Y, jnp.float32))
    network = make(samples, key=key)
    np.testing.assert_allclose(network(x), network(x.T @ x / 200), atol=1e-5)


def test_mlp_corrects_the_masked_estimate(paper, key):
    network, correction = (CovarianceMLP(paper, correction=c, key=key) for c in (False, True))
    assert [layer.weight.shape for layer in network.network.layers] == [
        (64, 15),
        (64, 64),
        (9, 64),
    ]
    x = drawn(paper, key, 500).x[:, 0]
    entries = jax.jit(jax.vmap(lambda one: network.inputs(paper.distinct(one))))(x)
    np.testing.assert_allclose(entries.mean(axis=0), 0.0, atol=0.25)
    np.testing.assert_allclose(entries.std(axis=0), 1.0, atol=0.25)
    masked, whole, corrections = (
        np.asarray(jax.jit(jax.vmap(part))(x)) for part in (paper.masked, network, correction)
    )
    np.testing.assert_allclose(whole, masked + corrections, atol=1e-5)
    error = np.sqrt(np.diag(paper.masked_covariance(Y)))
    assert (np.abs(corrections) / error).mean() < 0.1


def test_mlp_trains_its_layers_alone(paper, key):
    network = CovarianceMLP(paper, key=key)
    mask = trainable(network)
    assert all(jax.tree.leaves(eqx.filter(mask.network.layers, eqx.is_array, inverse=True)))
    assert not any(jax.tree.leaves((mask.inputs, mask.outputs)))
