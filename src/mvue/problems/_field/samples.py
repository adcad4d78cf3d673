"""Samples of independent draws: fading and clutter, extremes, choices and response times."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy.special import gammaln, logsumexp
from jaxtyping import Array

from ..._core.types import Key
from .problem import ANY, POSITIVE, FieldProblem, box, field_problem, first

TEXTURE = np.linspace(-14.0, 5.0, 77)
"""Logarithms of the clutter's texture over which its likelihood integrates."""
ODD = np.arange(1, 40, 2)
"""Terms of a series in exponentials for the time of a decision."""
SWITCH = 0.25  # decision times, in squared boundaries, below which another series is better
HALVINGS = 26


def nakagami_shape(n: int = 50) -> FieldProblem:
    """Fading signals of the law of Nakagami: its shape m."""

    def simulate(key: Key, theta: Array) -> Array:
        return jnp.sqrt(jr.gamma(key, theta[0], (n,)) * theta[1] / theta[0])

    def log_likelihood(theta: Array, x: Array) -> Array:
        shape, power = theta
        scaled = shape / power
        logs = shape * jnp.log(scaled) - gammaln(shape) + (2 * shape - 1) * jnp.log(x)
        return jnp.sum(logs - scaled * x**2)

    def information(theta: Array) -> Array:
        shape, power = theta
        trigamma = jax.scipy.special.polygamma(1, shape)
        return n * jnp.diag(jnp.stack([trigamma - 1 / shape, shape / power**2]))

    return field_problem(
        "nakagami-shape",
        f"shape of Nakagami fading, {n} draws, power unknown",
        box((0.6, 4.0), (0.5, 2.0)),
        simulate,
        target=first(1),
        names=("m",),
        at=[[0.6, 1], [1, 1], [2, 0.5], [3, 2], [4, 1]],
        log_likelihood=log_likelihood,
        information=information,
        limits=[POSITIVE, POSITIVE],
    )


def clutter_shape(n: int = 200) -> FieldProblem:
    """Intensities of the K-distribution: its shape."""

    def simulate(key: Key, theta: Array) -> Array:
        texture, speckle = jr.split(key)
        slow = jr.gamma(texture, theta[0], (n,)) * theta[1] / theta[0]
        return slow * jr.exponential(speckle, (n,))

    def log_likelihood(theta: Array, x: Array) -> Array:
        # The Bessel function of the density, as an integral over the texture.
        shape, mean = theta
        texture = jnp.asarray(TEXTURE)
        logs = shape * texture - shape * jnp.exp(texture) - texture
        speckle = -x[:, None] / mean * jnp.exp(-texture)[None]
        density = logsumexp(logs[None] + speckle, axis=1) + np.log(TEXTURE[1] - TEXTURE[0])
        return jnp.sum(density + shape * jnp.log(shape) - gammaln(shape) - jnp.log(mean))

    def moments(x: Array) -> Array:
        excess = jnp.mean(x**2) / jnp.mean(x) ** 2 / 2 - 1
        return 1 / jnp.maximum(excess, 0.05)[None]

    return field_problem(
        "clutter-shape",
        f"shape of K-distributed intensities, {n} draws, mean unknown",
        box((0.5, 2.5), (0.5, 2.0)),
        simulate,
        target=first(1),
        names=("shape",),
        at=[[0.5, 1], [0.8, 1], [1.2, 0.5], [1.8, 2], [2.5, 1]],
        log_likelihood=log_likelihood,
        limits=[(0.05, 50.0), POSITIVE],
        classical={"moments": moments},
        notes="As the shape grows the law becomes an exponential one, and the estimate of maximum "
        "likelihood infinite with positive probability.",
    )


def extreme_values(n: int = 60) -> FieldProblem:
    """Extremes of the generalised law: location, scale and shape."""

    def simulate(key: Key, theta: Array) -> Array:
        location, scale, shape = theta
        gumbel = jr.gumbel(key, (n,))
        return location + scale * gumbel * _ratio(jnp.expm1, shape * gumbel)

    def log_likelihood(theta: Array, x: Array) -> Array:
        location, scale, shape = theta
        reduced = (x - location) / scale
        product = shape * reduced
        inside = product > -1
        gumbel = reduced * _ratio(jnp.log1p, jnp.where(inside, product, 0.0))
        logs = -jnp.log(scale) - (1 + shape) * gumbel - jnp.exp(-gumbel)
        return jnp.sum(jnp.where(inside, logs, -jnp.inf))

    return field_problem(
        "extreme-values",
        f"location, scale and shape of generalised extreme values, {n} draws",
        box((-1.0, 1.0), (0.5, 2.0), (-0.25, 0.3)),
        simulate,
        names=("location", "scale", "shape"),
        at=[[0, 1, -0.25], [-1, 0.5, -0.1], [0, 1, 0], [1, 2, 0.15], [0, 1, 0.3]],
        log_likelihood=log_likelihood,
        limits=[ANY, POSITIVE, (-0.9, 2.0)],
    )


def drift_diffusion(trials: int = 100) -> FieldProblem:
    """Choices and response times: drift, boundary and the time that is no decision."""

    def simulate(key: Key, theta: Array) -> Array:
        drift, boundary, other = theta
        choosing, timing = jr.split(key)
        # From the middle, choice and time are independent.
        right = jr.bernoulli(choosing, jax.nn.sigmoid(drift * boundary), (trials,))
        left = jr.uniform(timing, (trials,))
        low = jnp.full(trials, 0.003 * boundary**2)
        high = jnp.full(trials, 4.0 * boundary**2)

        def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = ends
            middle = (low + high) / 2
            later = undecided(middle, drift, boundary) > left
            return jnp.where(later, middle, low), jnp.where(later, high, middle)

        low, high = jax.lax.fori_loop(0, HALVINGS, halve, (low, high))
        return jnp.stack([right.astype(low.dtype), other + (low + high) / 2], axis=1)

    def log_likelihood(theta: Array, x: Array) -> Array:
        drift, boundary, other = theta
        right, time = x[:, 0], x[:, 1] - other
        # Times before 0 are impossible; a steep but smooth fall lets a search return from there.
        least = 0.01 * boundary**2
        time = jnp.where(time > least, time, least * jnp.exp(jnp.minimum(time / least, 1.0) - 1))
        logs = (right - 0.5) * drift * boundary - drift**2 * time / 2
        return jnp.sum(logs + _log_first_passage(time / boundary**2) - 2 * jnp.log(boundary))

    def ez(x: Array) -> Array:
        right, time = x[:, 0], x[:, 1]
        edge = 0.5 / trials
        share = jnp.clip(jnp.mean(right), edge, 1 - edge)
        share = jnp.where(jnp.abs(share - 0.5) < edge / 2, 0.5 + edge, share)
        logit = jnp.log(share / (1 - share))
        speed = logit * (share**2 * logit - share * logit + share - 0.5) / jnp.var(time)
        drift = jnp.sign(share - 0.5) * speed**0.25
        boundary = logit / drift
        deciding = boundary / (2 * drift) * jnp.tanh(drift * boundary / 2)
        return jnp.stack([drift, boundary, jnp.mean(time) - deciding])

    return field_problem(
        "drift-diffusion",
        f"drift, boundary and other time from {trials} choices with their times",
        box((0.3, 2.5), (0.8, 2.0), (0.1, 0.4)),
        simulate,
        names=("drift", "boundary", "other time"),
        at=[[0.3, 0.8, 0.1], [0.3, 2, 0.4], [1, 1.4, 0.3], [2.5, 0.8, 0.2], [2.5, 2, 0.3]],
        log_likelihood=log_likelihood,
        limits=[ANY, (0.1, 10.0), (0.0, 2.0)],
        classical={"ez": ez},
        notes="Both choices start alike, with noise of size 1; times are drawn by inverting their "
        "law. EZ is the closed form of Wagenmakers and others.",
    )


def undecided(time: Array, drift: Array, boundary: Array) -> Array:
    """Probability that a decision, started in the middle, takes longer."""
    terms = jnp.asarray(np.where(ODD % 4 == 1, 1.0, -1.0) * ODD)
    rates = (drift**2 + (np.pi * terms / boundary) ** 2) / 2
    weights = terms / rates * np.pi / boundary**2 * 2 * jnp.cosh(drift * boundary / 2)
    return jnp.exp(-time[:, None] * rates[None]) @ weights


def _log_first_passage(time: Array) -> Array:
    """Log-density of the time to leave an interval of length 1 from its middle at one end."""
    early = jnp.minimum(time, SWITCH)
    steps = 0.5 + 2 * jnp.arange(-2.0, 3.0)
    powers = -(steps[None] ** 2 - 0.25) / (2 * early[:, None])
    small = jnp.log(jnp.exp(powers) @ steps) - 0.125 / early - 1.5 * jnp.log(early)
    late = jnp.maximum(time, SWITCH)
    terms = jnp.array([1.0, -3.0, 5.0, -7.0])
    decays = jnp.exp(-(terms[None] ** 2 - 1) * np.pi**2 / 2 * late[:, None])
    large = jnp.log(decays @ terms) + np.log(np.pi) - np.pi**2 / 2 * late
    return jnp.where(time < SWITCH, small - 0.5 * np.log(2 * np.pi), large)


def _ratio(function: Callable[[Any], Any], product: Array) -> Array:
    """``function(product) / product``, and its limit near 0."""
    small = jnp.abs(product) < 1e-3
    safe = jnp.where(small, 1.0, product)
    curve = {jnp.expm1: (1 / 2, 1 / 6), jnp.log1p: (-1 / 2, 1 / 3)}[function]
    series = 1 + product * (curve[0] + product * curve[1])
    return jnp.where(small, series, function(safe) / safe)


ENTRIES = {
    "nakagami-shape": nakagami_shape,
    "clutter-shape": clutter_shape,
    "extreme-values": extreme_values,
    "drift-diffusion": drift_diffusion,
}
