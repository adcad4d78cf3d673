"""Images: random fields, galaxies, spots of light."""

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
    PoissonCounts,
    WhiteNoise,
    box,
    field_problem,
    first,
)

NUGGET = 1e-3
"""Variance of white noise on a random field, which keeps single precision from failing."""


def field_range(side: int = 12) -> FieldProblem:
    """A Gaussian field: the range of its exponential correlation."""
    distance = _distances(side)
    return _field(
        "field-range",
        f"range of a Gaussian field on {side} x {side} pixels, variance unknown",
        side,
        lambda theta: theta[1] ** 2 * jnp.exp(-jnp.asarray(distance) / theta[0]),
        [(1.0, 5.0), (0.7, 1.4)],
        ("range",),
        at=[[1, 1], [2, 1], [3.5, 1], [5, 1]],
        limits=[(0.05, 200.0), POSITIVE],
    )


def field_range_and_smoothness(side: int = 16) -> FieldProblem:
    """A Gaussian field: range and smoothness of its correlation."""
    distance = _distances(side)
    apart = np.where(distance > 0, distance, 1.0)

    def covariance(theta: Array) -> Array:
        reach, power, sd = theta
        # Both derivatives of 0 to a power are lost to rounding unless 0 is left out.
        correlation = jnp.exp(-jnp.exp(power * jnp.log(jnp.asarray(apart) / reach)))
        return sd**2 * jnp.where(distance > 0, correlation, 1.0)

    return _field(
        "field-range-and-smoothness",
        f"range and smoothness of a Gaussian field on {side} x {side} pixels, variance unknown",
        side,
        covariance,
        [(1.5, 5.0), (0.6, 1.8), (0.7, 1.4)],
        ("range", "smoothness"),
        at=[[1.5, 0.6, 1], [1.5, 1.8, 1], [3, 1.2, 1], [5, 0.6, 1], [5, 1.8, 1]],
        limits=[(0.05, 200.0), (0.05, 2.0), POSITIVE],
        notes="The correlation is a powered exponential, whose exponent is the smoothness; that of "
        "Matérn needs a Bessel function of any order.",
    )


def galaxy(side: int = 16) -> FieldProblem:
    """A Gaussian galaxy in noise: ellipticity and size."""
    row, column = np.meshgrid(*[np.arange(side) - (side - 1) / 2] * 2, indexing="ij")

    def mean(theta: Array) -> Array:
        first, second, size, flux = theta
        left = 1 - first**2 - second**2
        across, along = jnp.asarray(column), jnp.asarray(row)
        squares = (1 - first) * across**2 + (1 + first) * along**2 - 2 * second * across * along
        return flux / jnp.sqrt(left) * jnp.exp(-0.5 * squares / (left * size**2))

    model = WhiteNoise(mean, 0.1)
    return field_problem(
        "galaxy",
        f"ellipticity and size of a Gaussian galaxy, {side} x {side} pixels, flux unknown",
        box((-0.4, 0.4), (-0.4, 0.4), (1.5, 2.5), (0.8, 1.25)),
        model.simulate,
        target=first(3),
        names=("e1", "e2", "size"),
        at=[[0, 0, 2, 1], [0.4, 0, 1.5, 1], [-0.4, 0.4, 2.5, 1], [0.2, -0.4, 2, 0.8]],
        log_likelihood=model.log_likelihood,
        information=model.information,
        limits=[(-0.7, 0.7), (-0.7, 0.7), (0.3, 8.0), POSITIVE],
    )


def spot(side: int = 9, width: float = 1.3) -> FieldProblem:
    """A spot of light counted by pixels: its position."""
    grid = np.arange(side) - (side - 1) / 2

    def mean(theta: Array) -> Array:
        column, row, light, dark = theta
        place = jnp.asarray(grid)
        across, along = (jnp.exp(-0.5 * ((place - c) / width) ** 2) for c in (column, row))
        return light * jnp.outer(across, along) / (2 * np.pi * width**2) + dark

    model = PoissonCounts(mean)
    return field_problem(
        "spot",
        f"position of a spot on {side} x {side} pixels, photon counts, brightness and background "
        "unknown",
        box((-1.0, 1.0), (-1.0, 1.0), (300.0, 1000.0), (2.0, 10.0)),
        model.simulate,
        target=first(1),
        names=("position",),
        at=[[-1, 0, 500, 5], [0, 0.5, 800, 3], [1, -1, 400, 9]],
        log_likelihood=model.log_likelihood,
        information=model.information,
        limits=[(-4.0, 4.0), (-4.0, 4.0), POSITIVE, POSITIVE],
    )


def _field(
    name: str,
    description: str,
    side: int,
    correlated: Model,
    ends: list[tuple[float, float]],
    names: tuple[str, ...],
    *,
    at: list[list[float]],
    limits: list[tuple[float, float]],
    notes: str = "",
) -> FieldProblem:
    """A Gaussian random field of known form; the first coordinates of theta are estimated."""

    def covariance(theta: Array) -> Array:
        return correlated(theta) + NUGGET * jnp.eye(side**2)

    def simulate(key: Key, theta: Array) -> Array:
        root = jnp.linalg.cholesky(covariance(theta))
        return (root @ jr.normal(key, (side**2,))).reshape(side, side)

    model = GaussianModel(covariance)
    return field_problem(
        name,
        description,
        box(*ends),
        simulate,
        target=first(len(names)),
        names=names,
        at=at,
        log_likelihood=model.log_likelihood,
        information=model.information,
        limits=limits,
        notes=notes,
    )


def _distances(side: int) -> np.ndarray:
    """Between all pairs of pixels."""
    place = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), -1)
    place = place.reshape(-1, 2)
    return np.sqrt(((place[:, None] - place[None]) ** 2).sum(-1))


ENTRIES = {
    "field-range": field_range,
    "field-range-and-smoothness": field_range_and_smoothness,
    "galaxy": galaxy,
    "spot": spot,
}
