"""Signal-to-noise ratio of binary symbols in noise, without knowing the symbols."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpyro.distributions as dist
from jaxtyping import Array, Float

from .._core.problem import Problem
from .._core.types import Key, Theta

GRID = 1601  # quadrature points; the integrands are smooth, the trapezoid rule converges fast
REACH = 12.0  # standard deviations beyond the two means


def snr(
    n: int = 50,
    *,
    snr_prior: dist.Distribution | None = None,
    amplitude_prior: dist.Distribution | None = None,
) -> Problem:
    """Non-data-aided SNR: x_l = a_l h + w_l with a = ±1 equiprobable and w ~ N(0, σ²).

    The parameter is h²/σ²; h is a nuisance. Theta is ``{"h": ..., "snr": ...}``.

    Args:
        n: samples in one measurement.
        snr_prior: prior of the SNR, by default uniform on [2, 50].
        amplitude_prior: prior of h, by default uniform on [1, 10].
    """
    return Problem(
        prior={
            "h": amplitude_prior or dist.Uniform(1.0, 10.0),
            "snr": snr_prior or dist.Uniform(2.0, 50.0),
        },
        simulate=lambda key, theta: _simulate(key, theta, n),
        log_likelihood=_log_likelihood,
        target=lambda theta: theta["snr"],
        names=("snr",),
        exchangeable=True,
        crb=lambda theta: _crb(theta, n),
    )


def snr_mle(
    x: Float[Array, " n"], *, tolerance: float = 1e-5, max_steps: int = 50
) -> Float[Array, " 1"]:
    """Maximum likelihood by expectation maximisation; biased upward in short records.

    Each step extrapolates two EM updates to their limit (Steffensen) where that comes closer to
    a fixed point, which takes a handful of steps where plain EM takes hundreds.

    Args:
        x: one measurement.
        tolerance: stop when an update moves h by less, in units of the noise variance.
        max_steps: stop at the latest after so many steps.
    """
    x = x / jnp.sqrt(jnp.mean(x**2))  # so that the noise variance is 1 - h²

    def update(h: Array) -> Array:
        return jnp.mean(x * jnp.tanh(h * x / (1 - h**2)))

    def more(carry: tuple[Array, Array, Array]) -> Array:
        step, h, after = carry
        return (step < max_steps) & (jnp.abs(after - h) > tolerance * (1 - h**2) + rounding)

    def improve(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        step, h, after = carry
        twice = update(after)
        slope = (twice - after) / (after - h)
        limit = h + (after - h) / (1 - slope)
        beyond = update(limit)
        closer = jnp.abs(beyond - limit) < jnp.abs(twice - after)
        good = (slope < 1) & (limit > 0) & (limit < 1) & closer
        return step + 1, jnp.where(good, limit, after), jnp.where(good, beyond, twice)

    rounding = 4 * jnp.finfo(x.dtype).eps
    first = jnp.mean(jnp.abs(x))
    _, _, h = jax.lax.while_loop(more, improve, (jnp.asarray(0), first, update(first)))
    return (h**2 / (1 - h**2))[None]


def snr_corrected_mle(x: Float[Array, " n"]) -> Float[Array, " 1"]:
    """Maximum likelihood with the correction that is exact when the symbols are known."""
    n = x.shape[0]
    return (n - 3) / n * snr_mle(x) - 1 / n


def _simulate(key: Key, theta: Theta, n: int) -> Float[Array, " n"]:
    # Random bits are most of the cost of training: one word makes a symbol from its lowest bit
    # and a normal variate from its 23 highest, as many as single precision can use.
    words = jr.bits(key, (n,), jnp.uint32)
    symbols = jnp.where(words & 1 == 1, 1.0, -1.0)
    uniform = ((words >> 9).astype(jnp.float32) + 0.5) * 2.0**-22 - 1.0  # within (-1, 1)
    noise = jnp.sqrt(2.0) * jax.lax.erf_inv(uniform)
    return theta["h"] * (symbols + noise / jnp.sqrt(theta["snr"]))


def _log_likelihood(theta: Theta, x: Float[Array, " n"]) -> Float[Array, ""]:
    h = theta["h"]
    sigma = h / jnp.sqrt(theta["snr"])
    plus, minus = (dist.Normal(sign * h, sigma).log_prob(x) for sign in (1.0, -1.0))
    return jnp.sum(jnp.logaddexp(plus, minus) - jnp.log(2.0))


def _crb(theta: Theta, n: int) -> Float[Array, "1 1"]:
    """The bound by quadrature; it depends on the SNR alone, so σ is set to 1."""
    h = jnp.sqrt(theta["snr"])
    x = jnp.linspace(-h - REACH, h + REACH, GRID)
    logits = jnp.logaddexp(-0.5 * (x - h) ** 2, -0.5 * (x + h) ** 2)
    density = jnp.exp(logits) / jnp.sqrt(8 * jnp.pi)
    signal = x * jnp.tanh(h * x)
    scores = jnp.stack([signal - h, 0.5 * (x**2 + h**2 - 1) - h * signal])  # to h and to σ²
    step = (2 * h + 2 * REACH) / (GRID - 1)
    fisher = (scores * density[None, :]) @ scores.T * step
    gradient = jnp.stack([2 * h, -(h**2)])
    return (gradient @ jnp.linalg.solve(fisher, gradient) / n)[None, None]
