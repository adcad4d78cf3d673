"""Signals and arrays: tones, chirps, directions of arrival, delays, amplitudes."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from ..._core.types import Key
from .problem import (
    POSITIVE,
    FieldProblem,
    GaussianModel,
    Model,
    WhiteNoise,
    box,
    complex_noise,
    field_problem,
    first,
)

TEN_DECIBELS = 10**-0.5  # the sd of noise for a signal of size 1
FIVE_DECIBELS = 10**-0.25
GRID = 64  # frequencies or directions that a rough estimate compares


def tone(n: int = 32) -> FieldProblem:
    """A complex tone: its frequency."""
    time = np.arange(n) - (n - 1) / 2

    def mean(theta: Array) -> Array:
        frequency, phase, size = theta
        return _turned(size, frequency * jnp.asarray(time) + phase)

    def start(x: Array) -> Array:
        frequencies = jnp.linspace(0.4, 2.6, GRID)
        peaks = _turned(1 / n, -frequencies[:, None] * time[None]) @ x
        peak = jnp.argmax(jnp.abs(peaks))
        return jnp.stack([frequencies[peak], jnp.angle(peaks[peak]), jnp.abs(peaks[peak])])

    model = WhiteNoise(mean, TEN_DECIBELS)
    return field_problem(
        "tone",
        f"frequency of a complex tone, {n} samples, 10 dB, phase and amplitude unknown",
        box((0.5, 2.5), (-1.0, 1.0), (0.8, 1.25)),
        model.simulate,
        target=first(1),
        names=("frequency",),
        at=[[0.5, 0, 1], [0.8, 0.5, 0.9], [1.5, 0, 1], [2.2, -0.5, 1.1], [2.5, 0.9, 0.8]],
        log_likelihood=model.log_likelihood,
        information=model.information,
        limits=[(-np.pi, np.pi), (-4.0, 4.0), POSITIVE],
        start=start,
    )


def chirp(n: int = 32) -> FieldProblem:
    """A complex chirp: its rate and its frequency in the middle."""
    time = np.arange(n) - (n - 1) / 2

    def mean(theta: Array) -> Array:
        rate, frequency, phase, size = theta
        now = jnp.asarray(time)
        return _turned(size, rate / 2 * now**2 + frequency * now + phase)

    def start(x: Array) -> Array:
        rates, frequencies = jnp.linspace(-0.06, 0.06, 24), jnp.linspace(-1.2, 1.2, GRID)
        angles = rates[:, None, None] / 2 * (time**2)[None, None]
        angles = angles + frequencies[None, :, None] * time[None, None]
        peaks = _turned(1 / n, -angles) @ x
        i, j = jnp.unravel_index(jnp.argmax(jnp.abs(peaks)), peaks.shape)
        peak = peaks[i, j]
        return jnp.stack([rates[i], frequencies[j], jnp.angle(peak), jnp.abs(peak)])

    model = WhiteNoise(mean, TEN_DECIBELS)
    return field_problem(
        "chirp",
        f"rate and frequency of a complex chirp, {n} samples, 10 dB, phase and amplitude unknown",
        box((-0.05, 0.05), (-1.0, 1.0), (-np.pi, np.pi), (0.8, 1.25)),
        model.simulate,
        target=first(2),
        names=("rate", "frequency"),
        at=[
            *([-0.05, -1, 0, 1], [-0.02, 0.6, 2, 0.9], [0.0, 0.0, -1, 1]),
            *([0.03, -0.5, 1, 1.2], [0.05, 1, -3, 1]),
        ],
        log_likelihood=model.log_likelihood,
        information=model.information,
        limits=[(-0.3, 0.3), (-np.pi, np.pi), (-2 * np.pi, 2 * np.pi), POSITIVE],
        start=start,
    )


def direction_of_arrival(sensors: int = 8, snapshots: int = 10) -> FieldProblem:
    """One source in front of a line of sensors: its direction."""
    model = GaussianModel(_array_covariance(sensors), copies=snapshots)

    def simulate(key: Key, theta: Array) -> Array:
        return _snapshots(key, theta, sensors, snapshots)

    def start(x: Array) -> Array:
        sines = jnp.linspace(-0.95, 0.95, GRID)
        powers = jnp.mean(jnp.abs(x @ _steering(sensors, sines).conj()) ** 2, axis=0)
        return jnp.arcsin(sines[jnp.argmax(powers)])[None]

    return field_problem(
        "direction-of-arrival",
        f"direction of one source, {sensors} sensors, {snapshots} snapshots, 5 dB",
        box((-1.0, 1.0)),
        simulate,
        names=("direction",),
        at=[[-1.0], [-0.5], [0.0], [0.3], [0.8], [1.0]],
        log_likelihood=model.log_likelihood,
        information=model.information,
        limits=[(-np.pi / 2, np.pi / 2)],
        start=start,
    )


def two_directions_of_arrival(sensors: int = 8, snapshots: int = 20) -> FieldProblem:
    """Two uncorrelated sources of equal power: their directions, in order."""
    model = GaussianModel(_array_covariance(sensors), copies=snapshots)

    def simulate(key: Key, theta: Array) -> Array:
        return _snapshots(key, theta, sensors, snapshots)

    return field_problem(
        "two-directions-of-arrival",
        f"directions of two sources in order, {sensors} sensors, {snapshots} snapshots, 5 dB",
        box((-1.0, -0.2), (0.2, 1.0)),
        simulate,
        names=("left", "right"),
        at=[[-1.0, 0.2], [-0.7, 0.7], [-0.4, 0.3], [-0.2, 0.2], [-0.2, 1.0], [-1.0, 1.0]],
        log_likelihood=model.log_likelihood,
        information=model.information,
        limits=[(-np.pi / 2, 0.0), (0.0, np.pi / 2)],
    )


def delay(n: int = 64) -> FieldProblem:
    """A pulse in noise: when it came."""
    times = np.linspace(0, 1, n)

    def mean(theta: Array) -> Array:
        return theta[1] * jnp.exp(-0.5 * ((jnp.asarray(times) - theta[0]) / 0.05) ** 2)

    def start(x: Array) -> Array:
        pulses = jnp.exp(-0.5 * ((times[:, None] - times[None]) / 0.05) ** 2)
        matches = pulses @ x / jnp.sum(pulses**2, axis=1)
        return jnp.stack([jnp.asarray(times, x.dtype)[jnp.argmax(matches)], jnp.max(matches)])

    model = WhiteNoise(mean, 0.2)
    return field_problem(
        "delay",
        f"delay of a pulse in noise, {n} samples, amplitude unknown",
        box((0.25, 0.75), (0.8, 1.5)),
        model.simulate,
        target=first(1),
        names=("delay",),
        at=[[0.25, 1], [0.4, 1], [0.5, 0.8], [0.6, 1.4], [0.75, 1]],
        log_likelihood=model.log_likelihood,
        information=model.information,
        limits=[(0.0, 1.0), POSITIVE],
        start=start,
    )


def rician_amplitude(n: int = 8) -> FieldProblem:
    """Magnitudes of a constant in complex noise: its amplitude, down to nothing."""

    def simulate(key: Key, theta: Array) -> Array:
        parts = jr.normal(key, (n, 2))
        return jnp.hypot(theta[0] + parts[:, 0], parts[:, 1])

    def log_likelihood(theta: Array, x: Array) -> Array:
        product = x * theta[0]
        bessel = jnp.log(jax.scipy.special.i0e(product)) + jnp.abs(product)
        return jnp.sum(jnp.log(x) - (x**2 + theta[0] ** 2) / 2 + bessel)

    return field_problem(
        "rician-amplitude",
        f"amplitude below and around the noise, {n} magnitudes",
        box((0.05, 3.0)),
        simulate,
        names=("amplitude",),
        at=[[0.05], [0.3], [0.7], [1.2], [2.0], [3.0]],
        log_likelihood=log_likelihood,
        limits=[POSITIVE],
        has_unbiased=False,
        notes="The mean of every estimator is a power series in the squared amplitude, which the "
        "amplitude itself is not: no estimator is unbiased, and the bound has no limit as the "
        "amplitude vanishes.",
    )


def _turned(size: Array | float, angle: Array) -> Array:
    """Complex numbers of this size and angle."""
    return size * jax.lax.complex(jnp.cos(angle), jnp.sin(angle))


def _steering(sensors: int, sines: Array) -> Array:
    """Responses of a line of sensors half a wavelength apart, (sensors, sources)."""
    place = jnp.arange(sensors) - (sensors - 1) / 2
    return _turned(1.0, jnp.pi * place[:, None] * sines[None])


def _snapshots(key: Key, theta: Array, sensors: int, snapshots: int) -> Array:
    """Measurements of sources of power 1 in these directions, (snapshots, sensors)."""
    signal, noise = jr.split(key)
    sources = complex_noise(signal, (snapshots, len(theta)), 1.0)
    steering = _steering(sensors, jnp.sin(theta))
    return sources @ steering.T + complex_noise(noise, (snapshots, sensors), FIVE_DECIBELS)


def _array_covariance(sensors: int) -> Model:
    def covariance(theta: Array) -> Array:
        steering = _steering(sensors, jnp.sin(theta))
        matrix = steering @ steering.conj().T + FIVE_DECIBELS**2 * jnp.eye(sensors)
        return 0.5 * jnp.block([[matrix.real, -matrix.imag], [matrix.imag, matrix.real]])

    return covariance


ENTRIES = {
    "tone": tone,
    "chirp": chirp,
    "direction-of-arrival": direction_of_arrival,
    "two-directions-of-arrival": two_directions_of_arrival,
    "delay": delay,
    "rician-amplitude": rician_amplitude,
}
