"""Short curves of known form in white noise: decays, oscillations, kinetics, diffusion."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .problem import POSITIVE, FieldProblem, Model, WhiteNoise, box, field_problem, first

B_VALUES = np.array(
    [0, 1, 2, 5, 10, 20, 30, 50, 75, 100, 150, 250, 350, 400, 550, 700, 850, 1000], float
)
"""Diffusion weightings in s/mm², those of the public comparison of algorithms."""
IVIM_RANGE = ((0.0004, 0.003), (0.05, 0.7), (0.01, 0.1), (0.8, 1.2))
"""Diffusion coefficient, perfusion fraction, pseudo-diffusion coefficient, signal at b = 0."""


def decay(n: int = 16) -> FieldProblem:
    """An exponential decay: its rate."""
    times = np.linspace(0, 3, n)
    return _curve(
        "decay",
        f"rate of an exponential decay, {n} samples, amplitude unknown",
        lambda theta: theta[1] * jnp.exp(-theta[0] * jnp.asarray(times)),
        0.05,
        [(0.3, 3.0), (0.7, 1.5)],
        ("rate",),
        at=[[0.3, 1], [1, 1], [2, 0.8], [3, 1.4]],
        limits=[POSITIVE, POSITIVE],
    )


def damped_oscillation(n: int = 40) -> FieldProblem:
    """A damped oscillation: its frequency."""
    times = np.linspace(0, 4, n)

    def mean(theta: Array) -> Array:
        frequency, damping, size = theta
        now = jnp.asarray(times)
        return size * jnp.exp(-damping * now) * jnp.cos(frequency * now)

    return _curve(
        "damped-oscillation",
        f"frequency of a damped oscillation, {n} samples, damping and amplitude unknown",
        mean,
        0.1,
        [(4.0, 8.0), (0.2, 0.8), (0.8, 1.5)],
        ("frequency",),
        at=[[4, 0.5, 1], [5, 0.3, 1.2], [6.5, 0.7, 0.9], [8, 0.5, 1]],
        limits=[(0.0, 12.0), (0.0, 5.0), POSITIVE],
    )


def two_exponentials(n: int = 40) -> FieldProblem:
    """A sum of two decays: both rates."""
    times = np.linspace(0, 6, n)

    def mean(theta: Array) -> Array:
        now = jnp.asarray(times)
        return theta[2] * jnp.exp(-theta[0] * now) + theta[3] * jnp.exp(-theta[1] * now)

    return _curve(
        "two-exponentials",
        f"rates of a sum of two decays, {n} samples, amplitudes unknown",
        mean,
        0.02,
        [(0.3, 1.0), (3.0, 8.0), (0.5, 1.5), (0.5, 1.5)],
        ("slow rate", "fast rate"),
        at=[[0.3, 3, 1, 1], [0.3, 8, 1, 1], [0.6, 5, 0.7, 1.3], [1, 3, 1, 1], [1, 8, 1.2, 0.6]],
        limits=[(0.0, 2.0), (2.0, 60.0), POSITIVE, POSITIVE],
    )


def michaelis_menten() -> FieldProblem:
    """Initial speeds of a reaction: the largest speed and the constant of Michaelis."""
    amounts = np.array([0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.5, 4.0, 6.0, 8.0, 10.0, 12.0])
    return _curve(
        "michaelis-menten",
        f"largest speed and Michaelis constant from {len(amounts)} speeds of a reaction",
        lambda theta: theta[0] / (1 + theta[1] / jnp.asarray(amounts)),
        0.03,
        [(0.8, 1.5), (0.3, 3.0)],
        ("largest speed", "Michaelis constant"),
        at=[[1, 0.3], [0.8, 1], [1.2, 2], [0.8, 3], [1.5, 3]],
        limits=[POSITIVE, POSITIVE],
    )


def ivim(snr: int) -> FieldProblem:
    """Intravoxel incoherent motion: diffusion and perfusion from a diffusion-weighted signal."""
    diffusion, fraction, pseudo, _ = IVIM_RANGE
    return _curve(
        f"ivim-{snr}",
        f"diffusion and perfusion from {len(B_VALUES)} b-values, SNR {snr}, signal at b = 0 "
        "unknown",
        ivim_signal,
        1 / snr,
        IVIM_RANGE,
        ("D", "f", "D*"),
        at=[
            [0.0015, 0.11, 0.1, 1],  # liver
            [0.0013, 0.15, 0.01, 1],  # pancreas
            [0.0013, 0.2, 0.03, 1],  # spleen
            [0.00041, 0.178, 0.0289, 1],  # spinal cord
            [0.00131, 0.69, 0.029, 1],  # intestine
            [diffusion[1], fraction[0], pseudo[0], 1],
        ],
        limits=[(0.0, 0.01), (-0.5, 1.5), (0.004, 2.0), POSITIVE],
        notes="The noise is normal; the public comparison takes absolute values of it, which "
        "matters where the signal is below the noise. As the perfused fraction vanishes the data "
        "say nothing about D*, whose unbiased estimators then have no bounded variance.",
    )


def ivim_signal(theta: Array) -> Array:
    """The signal at all b-values."""
    diffusion, fraction, pseudo, size = theta
    b = jnp.asarray(B_VALUES)
    slow, fast = jnp.exp(-b * diffusion), jnp.exp(-b * pseudo)
    return size * ((1 - fraction) * slow + fraction * fast)


def _curve(
    name: str,
    description: str,
    mean: Model,
    sd: float,
    ends: list[tuple[float, float]] | tuple[tuple[float, float], ...],
    names: tuple[str, ...],
    *,
    at: list[list[float]],
    limits: list[tuple[float, float]],
    notes: str = "",
) -> FieldProblem:
    """A curve in white noise; the first coordinates of theta are estimated."""
    model = WhiteNoise(mean, sd)
    return field_problem(
        name,
        description,
        box(*ends),
        model.simulate,
        target=first(len(names)),
        names=names,
        at=at,
        log_likelihood=model.log_likelihood,
        information=model.information,
        limits=limits,
        notes=notes,
    )


ENTRIES = {
    "decay": decay,
    "damped-oscillation": damped_oscillation,
    "two-exponentials": two_exponentials,
    "michaelis-menten": michaelis_menten,
    "ivim-30": lambda: ivim(30),
    "ivim-50": lambda: ivim(50),
    "ivim-100": lambda: ivim(100),
}
