"""`FieldProblem`: a simulator as users bring it, and what theory knows about it for comparison."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array

from ..._core.problem import Problem
from ..._core.types import Estimator, Key
from ..._runtime.jit import in_double_precision

ANY = (-np.inf, np.inf)
POSITIVE = (0.0, np.inf)
Model = Callable[[Any], Any]
"""A function of theta: a mean, a covariance matrix, a target."""


@dataclasses.dataclass(frozen=True, eq=False)
class FieldProblem:
    """A problem of signals, series, images or counts, with bound and likelihood where they exist.

    Theta is one vector, nuisances included. An estimator is trained on `problem`, which has the
    simulator alone; `known` is for those who judge it.
    """

    name: str
    """For example "direction-of-arrival"."""
    description: str
    """Data and parameter, in a line."""
    problem: Problem
    """Prior, simulator and target; no likelihood, no bound and no hint at the layout of data."""
    known: Problem
    """The same with what theory knows: log-likelihood and Cramér-Rao bound, where they exist."""
    at: np.ndarray
    """Values of theta to judge at, (K, p), with ends of the range of interest."""
    limits: tuple[np.ndarray, np.ndarray] | None = None
    """Where theta makes sense, for maximum likelihood; None without a likelihood."""
    start: Callable[[Any], Any] | None = None
    """A rough theta from the data, for likelihoods of many maxima."""
    classical: Mapping[str, Estimator] = dataclasses.field(default_factory=dict)
    """Estimators of the field by name."""
    notes: str = ""
    """What is approximated, and what to expect."""
    has_unbiased: bool = True
    """False where no unbiased estimator of bounded variance exists: a control."""

    def crb(self, at: Any = None) -> np.ndarray | None:
        """Exact bounds on the covariance of y, (K, d, d), in double precision; None without one.

        Args:
            at: values of theta, (K, p), by default the field `at`.
        """
        bound = self.known.crb
        if bound is None:
            return None
        values = np.asarray(self.at if at is None else at, np.float64)
        # One after the other: covariance matrices may be large.
        compute = jax.jit(lambda values: jax.lax.map(bound, values))
        return in_double_precision(lambda: np.asarray(compute(jnp.asarray(values))))

    def __repr__(self) -> str:
        return f"FieldProblem({self.name!r}: {self.description})"


def field_problem(
    name: str,
    description: str,
    prior: Any,
    simulate: Callable[[Key, Any], Any],
    *,
    at: Any,
    names: tuple[str, ...],
    target: Model | None = None,
    log_likelihood: Callable[[Any, Any], Any] | None = None,
    information: Model | None = None,
    limits: Sequence[tuple[float, float]] | None = None,
    **more: Any,
) -> FieldProblem:
    """A problem from its simulator; `information` is the Fisher matrix of theta, in JAX."""
    chosen = target or (lambda theta: theta)
    problem = Problem(prior, simulate, target=target, names=names)
    crb = None if information is None else lambda theta: bound_of(information, chosen, theta)
    ends = None if limits is None else np.array(limits, np.float64).T
    return FieldProblem(
        name,
        description,
        problem,
        dataclasses.replace(problem, log_likelihood=log_likelihood, crb=crb),
        np.asarray(at),
        None if ends is None else (ends[0], ends[1]),
        **more,
    )


def box(*ends: tuple[float, float]) -> dist.Distribution:
    """A uniform prior over a box, from the ends of each coordinate of theta."""
    low, high = np.array(ends).T
    return dist.Uniform(jnp.asarray(low), jnp.asarray(high)).to_event(1)


def first(count: int) -> Model:
    """The target: the first coordinates of theta, the others being nuisances."""
    return lambda theta: theta[:count]


def bound_of(information: Model, target: Model, theta: Array) -> Array:
    """The Cramér-Rao bound of the target, (d, d)."""
    slopes = jax.jacfwd(target)(theta)
    matrix = information(theta)
    # Coordinates of theta may differ by orders of magnitude.
    unit = jnp.diagonal(matrix) ** -0.5
    inverse = jnp.linalg.inv(matrix * unit[:, None] * unit[None, :])
    return slopes @ (inverse * unit[:, None] * unit[None, :]) @ slopes.T


def complex_noise(key: Key, shape: tuple[int, ...], sd: float) -> Array:
    """Circular complex normal noise of variance sd²."""
    parts = jr.normal(key, (*shape, 2)) * sd / np.sqrt(2.0)
    return jax.lax.complex(parts[..., 0], parts[..., 1])


def as_real(x: Array) -> Array:
    """Real parts, then imaginary parts, along the last axis."""
    return jnp.concatenate([x.real, x.imag], -1) if jnp.iscomplexobj(x) else x


@dataclasses.dataclass(frozen=True)
class WhiteNoise:
    """A known curve, signal or image in white normal noise; complex noise has variance sd²."""

    mean: Model
    sd: float

    def simulate(self, key: Key, theta: Array) -> Array:
        """One measurement."""
        mean = self.mean(theta)
        if jnp.iscomplexobj(mean):
            return mean + complex_noise(key, mean.shape, self.sd)
        return mean + self.sd * jr.normal(key, mean.shape)

    def log_likelihood(self, theta: Array, x: Array) -> Array:
        """Up to a constant."""
        mean = self.mean(theta)
        return -jnp.sum(as_real(x - mean) ** 2) * self._precision(mean) / 2

    def information(self, theta: Array) -> Array:
        """The formula of Slepian and Bangs for a known covariance."""
        slopes = jax.jacfwd(lambda one: as_real(self.mean(one)).ravel())(theta)
        return slopes.T @ slopes * self._precision(self.mean(theta))

    def _precision(self, mean: Array) -> float:
        """One over the variance of each real number."""
        return (2 if jnp.iscomplexobj(mean) else 1) / self.sd**2


@dataclasses.dataclass(frozen=True)
class GaussianModel:
    """Normal data whose covariance, and perhaps mean, depend on theta; independent copies."""

    covariance: Model
    """Of one copy as a real vector, complex numbers by `as_real`."""
    mean: Model | None = None
    copies: int = 1

    def log_likelihood(self, theta: Array, x: Array) -> Array:
        """Up to a constant."""
        rows = as_real(x).reshape(self.copies, -1)
        if self.mean is not None:
            rows = rows - self.mean(theta)[None]
        root = jnp.linalg.cholesky(self.covariance(theta))
        white = jax.scipy.linalg.solve_triangular(root, rows.T, lower=True)
        volume = jnp.sum(jnp.log(jnp.diagonal(root)))
        return -0.5 * jnp.sum(white**2) - self.copies * volume

    def information(self, theta: Array) -> Array:
        """The formula of Slepian and Bangs."""
        inverse = jnp.linalg.inv(self.covariance(theta))
        slopes = jnp.moveaxis(jax.jacfwd(self.covariance)(theta), -1, 0)
        scaled = inverse[None] @ slopes
        information = 0.5 * jnp.einsum("aik,bki->ab", scaled, scaled)
        if self.mean is not None:
            moved = jax.jacfwd(self.mean)(theta)
            information += moved.T @ inverse @ moved
        return self.copies * information


@dataclasses.dataclass(frozen=True)
class PoissonCounts:
    """Independent Poisson counts of known means."""

    mean: Model

    def simulate(self, key: Key, theta: Array) -> Array:
        """One measurement, as floating-point numbers."""
        mean = self.mean(theta)
        return jr.poisson(key, mean).astype(mean.dtype)

    def log_likelihood(self, theta: Array, x: Array) -> Array:
        """Up to a constant."""
        mean = self.mean(theta)
        return jnp.sum(x * jnp.log(mean) - mean)

    def information(self, theta: Array) -> Array:
        """Of all counts."""
        mean = self.mean(theta).ravel()
        slopes = jax.jacfwd(lambda one: self.mean(one).ravel())(theta)
        return slopes.T @ (slopes / mean[:, None])


def toeplitz(autocovariance: Array) -> Array:
    """The covariance matrix of a stationary series, from its autocovariance at lags from 0."""
    n = len(autocovariance)
    return autocovariance[np.abs(np.subtract.outer(np.arange(n), np.arange(n)))]
