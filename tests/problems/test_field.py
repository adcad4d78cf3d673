"""Problems of the field: data of the stated shape, bounds and likelihoods that agree with them."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import special, stats

import mvue
from mvue.problems import FieldProblem, field
from mvue.problems._field.counts import _linked_covariance
from mvue.problems._field.samples import undecided
from mvue.problems._field.series import fractional_autocovariance

SHAPES = {
    "tone": (32,),
    "chirp": (32,),
    "direction-of-arrival": (10, 8),
    "two-directions-of-arrival": (20, 8),
    "delay": (64,),
    "rician-amplitude": (8,),
    "decay": (16,),
    "damped-oscillation": (40,),
    "two-exponentials": (40,),
    "michaelis-menten": (12,),
    "ivim-30": (18,),
    "ivim-50": (18,),
    "ivim-100": (18,),
    "autoregression": (60,),
    "second-autoregression": (100,),
    "moving-average": (100,),
    "mean-reversion": (100,),
    "hurst-exponent-100": (100,),
    "hurst-exponent-400": (400,),
    "hurst-exponent-1600": (1600,),
    "queue": (50,),
    "field-range": (12, 12),
    "field-range-and-smoothness": (16, 16),
    "galaxy": (16, 16),
    "spot": (9, 9),
    "fluorescence-lifetime": (32,),
    "mutation-rate": (39,),
    "linked-mutation-rate": (39,),
    "capture-recapture": (1,),
    "nakagami-shape": (50,),
    "clutter-shape": (200,),
    "extreme-values": (60,),
    "drift-diffusion": (100, 2),
}
LARGE = ("hurst-exponent-400", "hurst-exponent-1600", "field-range-and-smoothness")
SCORED = [
    name
    for name in SHAPES
    if name not in (*LARGE, "queue", "linked-mutation-rate", "capture-recapture")
    and name not in ("ivim-50", "ivim-100", "damped-oscillation")  # as others, with other numbers
]


def test_names():
    assert set(field()) == set(SHAPES)
    with pytest.raises(ValueError, match="did you mean 'tone'"):
        field("tones")
    assert "Hurst" in repr(field("hurst-exponent-100"))


def drawn(entry: FieldProblem, k: int, count: int, seed: int = 0) -> jax.Array:
    """Measurements at one of the values."""
    like = jax.eval_shape(entry.problem.sample_prior, jr.key(0))
    theta = jnp.asarray(entry.at[k], like.dtype)
    draw = jax.jit(jax.vmap(entry.problem.simulate, in_axes=(0, None)))
    return draw(jr.split(jr.key(seed), count), theta)


@pytest.mark.parametrize("name", SHAPES)
def test_data_are_finite_and_of_the_stated_shape(name):
    entry = field(name)
    x = drawn(entry, -1, 4)
    assert x.shape == (4, *SHAPES[name])
    assert jnp.isfinite(x).all()
    hidden = entry.problem
    assert hidden.log_likelihood is hidden.crb is hidden.layout is hidden.exchangeable is None
    one = jax.eval_shape(hidden.sample_prior, jr.key(0))
    assert entry.at.shape[1:] == one.shape
    nearby = entry.at * (1 - 1e-6 * np.sign(entry.at)), entry.at, entry.at * (1 + 1e-6)
    inside = [jax.vmap(hidden.prior.support)(jnp.asarray(at, one.dtype)) for at in nearby]
    assert np.logical_or.reduce([np.asarray(part) for part in inside]).all()
    assert (entry.limits is None) == (entry.known.log_likelihood is None)


@pytest.mark.parametrize("name", SCORED)
def test_the_mean_score_is_zero_and_its_covariance_is_the_information(name):
    entry, count = field(name), 500
    k = len(entry.at) // 2
    theta = jnp.asarray(entry.at[k], float)
    score = jax.jit(jax.vmap(jax.grad(entry.known.log_likelihood), in_axes=(None, 0)))
    scores = np.asarray(score(theta, drawn(entry, k, count)), np.float64)
    assert (np.abs(scores.mean(axis=0)) < 5 * scores.std(axis=0) / np.sqrt(count)).all()
    if entry.known.crb is None:
        return
    # The inverse of a mean of outer products, whose diagonal has the spread of an F law.
    unit = scores.std(axis=0)
    scaled = scores / unit
    inverse = np.linalg.inv(scaled.T @ scaled / count) / unit[:, None] / unit[None]
    slopes = np.asarray(jax.jacobian(entry.problem.y_of)(theta), np.float64)
    measured = np.diag(slopes @ inverse @ slopes.T)
    exact = np.einsum("kii->ki", entry.crb(entry.at[k : k + 1]))[0]
    assert (exact > 0).all()
    assert (np.abs(np.log(measured / exact)) < 5 * np.sqrt(4 / count)).all()


def test_the_bound_of_a_tone_is_that_of_textbooks():
    entry, n = field("tone"), 32
    exact = 6 * 0.1 / (entry.at[:, 2] ** 2 * n * (n**2 - 1))
    np.testing.assert_allclose(entry.crb()[:, 0, 0], exact, rtol=1e-6)


def test_bounds_of_long_memory_are_those_of_a_matrix_by_differences():
    entry, n, step = field("hurst-exponent-100"), 100, 1e-5

    def covariance(exponent):
        lag = np.arange(n)
        power = 2 * exponent
        lags = (np.abs(lag + 1) ** power - 2.0 * lag**power + np.abs(lag - 1) ** power) / 2
        return lags[np.abs(np.subtract.outer(lag, lag))]

    for exponent in (0.2, 0.8):
        slope = (covariance(exponent + step) - covariance(exponent - step)) / (2 * step)
        scaled = np.linalg.solve(covariance(exponent), slope)
        mixed = np.trace(scaled)
        exact = 1 / (0.5 * np.sum(scaled * scaled.T) - mixed**2 / (2 * n))
        found = entry.crb(np.array([[exponent, 1.0]]))[0, 0, 0]
        assert found == pytest.approx(exact, rel=1e-4)
        lags = fractional_autocovariance(jnp.asarray(exponent), n)
        np.testing.assert_allclose(lags, covariance(exponent)[0], rtol=1e-5, atol=1e-8)


def test_classical_estimators(seed):
    watterson = field("mutation-rate").classical["watterson"]
    x = drawn(field("mutation-rate"), 2, 4_000, seed)
    estimates = np.asarray(jax.vmap(watterson)(x))[:, 0]
    assert abs(estimates.mean() - 10) < 5 * estimates.std() / np.sqrt(4_000)
    chapman = field("capture-recapture").classical["chapman"]
    estimates = np.asarray(jax.vmap(chapman)(drawn(field("capture-recapture"), 1, 4_000, seed)))
    assert abs(estimates.mean() - 140) < 5 * estimates.std() / np.sqrt(4_000)


def test_recaptures_are_hypergeometric():
    x = np.asarray(drawn(field("capture-recapture"), 0, 4_000))[:, 0]
    law = stats.hypergeom(100, 60, 60)
    assert abs(x.mean() - law.mean()) < 5 * law.std() / np.sqrt(4_000)
    assert abs(x.std() / law.std() - 1) < 0.06


def test_covariances_without_recombination_by_simulation():
    """Those of Watterson's total: θ a₁ + θ² a₂, and of single counts."""
    covariance = _linked_covariance(40)
    assert covariance.sum() == pytest.approx(sum(1 / k**2 for k in range(1, 40)))
    x = np.asarray(drawn(field("linked-mutation-rate"), 2, 3_000))
    expected = 10 / np.arange(1, 4) + 100 * np.diag(covariance)[:3]
    np.testing.assert_allclose(x[:, :3].var(axis=0), expected, rtol=0.25)
    assert abs(x.sum(axis=1).var() / (10 * special.polygamma(0, 40) + 5.77 + 161.7) - 1) < 0.2


def test_response_times_by_their_known_moments():
    drift, boundary = 1.0, 1.4
    x = np.asarray(drawn(field("drift-diffusion"), 2, 200)).reshape(-1, 2)
    share = 1 / (1 + np.exp(-drift * boundary))
    assert abs(x[:, 0].mean() - share) < 5 * 0.5 / np.sqrt(len(x))
    mean = boundary / (2 * drift) * np.tanh(drift * boundary / 2)
    assert abs(x[:, 1].mean() - 0.3 - mean) < 5 * x[:, 1].std() / np.sqrt(len(x))
    early = undecided(jnp.array([0.01]), jnp.asarray(drift), jnp.asarray(boundary))
    assert early[0] == pytest.approx(1, abs=1e-4)


def test_maximum_likelihood_from_rough_starts(key):
    entry = field("tone")
    mle = mvue.maximum_likelihood(entry.known, bounds=entry.limits, init=entry.start, starts=2)
    estimates = np.asarray(jax.jit(jax.vmap(mle))(drawn(entry, 2, 100)))[:, 0]
    assert np.abs(estimates - 1.5).max() < 6 * np.sqrt(entry.crb()[2, 0, 0])
