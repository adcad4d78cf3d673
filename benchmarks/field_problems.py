"""Problems of signal processing, series and images, as users bring them: a simulator alone.

Each has its Cramér-Rao bound in closed form for comparison; the fit does not see it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist

import mvue
from mvue._runtime.jit import in_double_precision


class FieldProblem(NamedTuple):
    name: str
    problem: mvue.Problem
    at: np.ndarray
    """Values of theta to judge at, (K, p)."""
    crb: Callable[[np.ndarray], float]
    """Of y at one theta."""


def box(low, high):
    return dist.Uniform(jnp.array(low), jnp.array(high)).to_event(1)


def first(theta):
    return theta[:1]


def complex_noise(key, shape, sd):
    parts = jr.normal(key, (*shape, 2)) * sd / jnp.sqrt(2.0)
    return parts[..., 0] + 1j * parts[..., 1]


def gaussian_crb(covariance, mean=None, copies=1):
    """The bound of the first coordinate, by the formula of Slepian and Bangs."""

    def bound(at):
        inverse, slopes = jnp.linalg.inv(covariance(at)), jax.jacfwd(covariance)(at)
        scaled = jnp.einsum("ij,jka->ika", inverse, slopes)
        information = 0.5 * jnp.einsum("ika,kib->ab", scaled, scaled)
        if mean is not None:
            moved = jax.jacfwd(mean)(at)
            information += moved.T @ inverse @ moved
        return jnp.linalg.inv(information * copies)[0, 0]

    def crb(theta):
        return in_double_precision(lambda: float(jax.jit(bound)(jnp.asarray(theta))))

    return crb


def tone(n=32, sd=10**-0.5):
    time = np.arange(n) - (n - 1) / 2

    def simulate(key, theta):
        frequency, phase, size = theta
        return size * jnp.exp(1j * (frequency * time + phase)) + complex_noise(key, (n,), sd)

    at = [[0.5, 0, 1], [0.8, 0.5, 0.9], [1.5, 0, 1], [2.2, -0.5, 1.1], [2.5, 0.9, 0.8]]
    return FieldProblem(
        "tone",
        mvue.Problem(box([0.5, -1.0, 0.8], [2.5, 1.0, 1.25]), simulate, target=first),
        np.array(at),
        lambda theta: 6 * sd**2 / (theta[2] ** 2 * n * (n**2 - 1)),
    )


def direction_of_arrival(sensors=8, snapshots=10, sd=10**-0.25):
    place = np.arange(sensors) - (sensors - 1) / 2

    def simulate(key, theta):
        steering = jnp.exp(1j * jnp.pi * place * jnp.sin(theta[0]))
        signal, noise = jr.split(key)
        source = complex_noise(signal, (snapshots,), 1.0)
        return jnp.outer(source, steering) + complex_noise(noise, (snapshots, sensors), sd)

    def covariance(theta):
        steering = jnp.exp(1j * jnp.pi * place * jnp.sin(theta[0]))
        matrix = jnp.outer(steering, steering.conj()) + sd**2 * jnp.eye(sensors)
        return 0.5 * jnp.block([[matrix.real, -matrix.imag], [matrix.imag, matrix.real]])

    return FieldProblem(
        "direction-of-arrival",
        mvue.Problem(box([-1.0], [1.0]), simulate),
        np.array([[-1.0], [-0.5], [0.0], [0.3], [0.8], [1.0]]),
        gaussian_crb(covariance, copies=snapshots),
    )


def autoregression(n=60):
    def simulate(key, theta):
        slope, sd = theta
        noise = jr.normal(key, (n,))
        begin = noise[0] * sd / jnp.sqrt(1 - slope**2)
        step = lambda before, e: (slope * before + sd * e,) * 2  # noqa: E731
        return jnp.concatenate([begin[None], jax.lax.scan(step, begin, noise[1:])[1]])

    def covariance(theta):
        distance = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
        return theta[1] ** 2 / (1 - theta[0] ** 2) * theta[0] ** distance

    return FieldProblem(
        "autoregression",
        mvue.Problem(box([-0.9, 0.5], [0.9, 2.0]), simulate, target=first),
        np.array([[-0.9, 1], [-0.5, 1], [0.05, 1], [0.5, 1], [0.9, 1]]),
        gaussian_crb(covariance),
    )


def curve(name, times, mean, sd, prior, at):
    """A curve of known form in white noise."""

    def simulate(key, theta):
        return mean(theta) + sd * jr.normal(key, (len(times),))

    return FieldProblem(
        name,
        mvue.Problem(prior, simulate, target=first),
        np.array(at),
        gaussian_crb(lambda theta: sd**2 * jnp.eye(len(times), dtype=theta.dtype), mean),
    )


def delay(n=64):
    times = np.linspace(0, 1, n)
    return curve(
        "delay",
        times,
        lambda theta: theta[1] * jnp.exp(-0.5 * ((times - theta[0]) / 0.05) ** 2),
        0.2,
        box([0.25, 0.8], [0.75, 1.5]),
        [[0.25, 1], [0.4, 1], [0.5, 0.8], [0.6, 1.4], [0.75, 1]],
    )


def decay(n=16):
    times = np.linspace(0, 3, n)
    return curve(
        "decay",
        times,
        lambda theta: theta[1] * jnp.exp(-theta[0] * times),
        0.05,
        box([0.3, 0.7], [3.0, 1.5]),
        [[0.3, 1], [1, 1], [2, 0.8], [3, 1.4]],
    )


def damped_oscillation(n=40):
    times = np.linspace(0, 4, n)
    return curve(
        "damped-oscillation",
        times,
        lambda theta: theta[2] * jnp.exp(-theta[1] * times) * jnp.cos(theta[0] * times),
        0.1,
        box([4.0, 0.2, 0.8], [8.0, 0.8, 1.5]),
        [[4, 0.5, 1], [5, 0.3, 1.2], [6.5, 0.7, 0.9], [8, 0.5, 1]],
    )


def spot(side=9, width=1.3):
    grid = np.arange(side) - (side - 1) / 2

    def mean(theta):
        x, y, light, dark = theta
        across, along = (jnp.exp(-0.5 * ((grid - c) / width) ** 2) for c in (x, y))
        return light * jnp.outer(across, along) / (2 * jnp.pi * width**2) + dark

    def bound(at):
        slopes = jax.jacfwd(lambda t: mean(t).ravel())(at)
        return jnp.linalg.inv(slopes.T @ (slopes / mean(at).ravel()[:, None]))[0, 0]

    def crb(theta):
        return in_double_precision(lambda: float(jax.jit(bound)(jnp.asarray(theta))))

    prior = box([-1.0, -1.0, 300.0, 2.0], [1.0, 1.0, 1000.0, 10.0])
    return FieldProblem(
        "spot",
        mvue.Problem(prior, lambda key, t: jr.poisson(key, mean(t)) * 1.0, target=first),
        np.array([[-1, 0, 500, 5], [0, 0.5, 800, 3], [1, -1, 400, 9]]),
        crb,
    )


def gaussian_field(side=12):
    place = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), -1)
    place = place.reshape(-1, 2)
    distance = np.sqrt(((place[:, None] - place[None]) ** 2).sum(-1))

    def covariance(theta):
        return theta[1] ** 2 * jnp.exp(-distance / theta[0]) + 1e-4 * jnp.eye(side**2)

    def simulate(key, theta):
        noise = jr.normal(key, (side**2,))
        return (jnp.linalg.cholesky(covariance(theta)) @ noise).reshape(side, side)

    return FieldProblem(
        "gaussian-field",
        mvue.Problem(box([1.0, 0.7], [5.0, 1.4]), simulate, target=first),
        np.array([[1, 1], [2, 1], [3.5, 1], [5, 1]]),
        gaussian_crb(covariance),
    )


FIELD: dict[str, Callable[[], Any]] = {
    "tone": tone,
    "direction-of-arrival": direction_of_arrival,
    "autoregression": autoregression,
    "delay": delay,
    "decay": decay,
    "damped-oscillation": damped_oscillation,
    "spot": spot,
    "gaussian-field": gaussian_field,
}
