"""Weights for averages that are learned from simulations: the precision of a kind of measurement.

Weights that depend on the noise in the estimates make their average biased, those that depend on
what is known beforehand do not: given that, Σ w T / Σ w has the mean of its terms. The best of
these are one over the variance given what is known. Where the variance changes with the parameter
by one factor for all measurements, v(y, known) = a(y) b(known), the factor cancels, and 1/b is best
at every y; elsewhere it is a mean over y of what would be best.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.checks import check_count, describe_shapes, is_not_jax, refuse_frozen_draws
from .._core.keys import key_for
from .._core.problem import Problem
from .._core.types import Estimator, Key, Measurement
from .._data.theta_basis import ThetaBasis
from .._numerics.polynomials import legendre
from .._runtime.jit import as_array

DEGREE = 5  # of polynomials of the ranks of one known number
MOST_PRODUCTS = 20  # of two known numbers
TABLE = 65  # quantiles
SCORING_STEPS = 50
REPEATS = 8  # of which each variance is estimated


class KnownFeatures(eqx.Module):
    """Smooth functions of what is known of a measurement: its ranks, itself and its logarithm."""

    tables: Float[Array, "k t"]
    mean: Float[Array, " k"]
    sd: Float[Array, " k"]
    usual: Float[Array, " k"]
    """Geometric means of those that are positive: weights are then about one, in any units."""
    positive: tuple[bool, ...] = eqx.field(static=True)

    @classmethod
    def of(cls, known: np.ndarray) -> "KnownFeatures":
        """Functions for known numbers, (n, k)."""
        tables = np.quantile(known, np.linspace(0, 1, TABLE), axis=0).T
        sd = known.std(axis=0)
        positive = tuple(bool((column > 0).all()) for column in known.T)
        mean, sd = known.mean(axis=0), np.where(sd > 0, sd, 1.0)
        usual = np.exp(np.log(np.where(positive, known, 1.0)).mean(axis=0))
        return cls(as_array(tables), as_array(mean), as_array(sd), as_array(usual), positive)

    def __call__(self, known: Float[Array, " k"]) -> Float[Array, " f"]:
        """The functions; beyond the simulated values those at the nearest."""
        known = jnp.clip(known, self.tables[:, 0], self.tables[:, -1])
        grid = jnp.linspace(-1.0, 1.0, self.tables.shape[1])
        place = jax.vmap(lambda value, table: jnp.interp(value, table, grid))(known, self.tables)
        powers = legendre(place, DEGREE)[1:]
        first, second = np.triu_indices(len(self.positive), 1)
        pairs = (place[first] * place[second])[:MOST_PRODUCTS]
        logs = [
            jnp.log(known[i] / self.usual[i])
            for i, positive in enumerate(self.positive)
            if positive
        ]
        parts = [powers.ravel(), pairs, (known - self.mean) / self.sd, *map(jnp.atleast_1d, logs)]
        return jnp.concatenate(parts)


class LearnedWeights(eqx.Module):
    """The precision of the estimate from a measurement, from what is known of it beforehand.

    A function of one measurement, as `average` and `Average` take it for weights; made by
    `Average.learned`. Known values beyond the simulated ones count as the nearest of these.
    """

    known: Callable[[Measurement], Any]
    features: KnownFeatures
    coefficients: Float[Array, "d f"]
    """Of the logarithm of the variance."""
    note: str = eqx.field(static=True)

    def __call__(self, x: Measurement) -> Float[Array, " d"]:
        """The weight of each component of the estimate."""
        return self.of_known(jnp.ravel(jnp.asarray(self.known(x), float)))

    def of_known(self, known: Float[Array, " k"]) -> Float[Array, " d"]:
        """The same from the known numbers."""
        return jnp.exp(-self.coefficients @ self.features(known))

    def __repr__(self) -> str:
        return f"LearnedWeights({self.note})"


def learn_weights(
    estimator: Estimator,
    problem: Problem,
    known: Callable[[Measurement], Any],
    *,
    key: Key,
    units: int,
) -> LearnedWeights:
    """Weights for averages of an estimator.

    Args:
        estimator: of one measurement.
        problem: simulates measurements with all that is known of them; what is known is a part of
            theta, drawn from its prior.
        known: numbers that are known of one measurement whatever its noise.
        key: for the simulations.
        units: how many values of theta to simulate.
    """
    check_count("units", units, least=64)
    if not callable(known):
        raise TypeError(f"known must be a function of one measurement, got {type(known).__name__}")
    _check_outputs(problem, estimator=estimator, known=known)
    draw = problem.draw(_checked_key(key), units, REPEATS)
    both = jax.jit(jax.vmap(jax.vmap(lambda x: (jnp.ravel(estimator(x)), _known(known, x)))))
    estimates, values = (np.asarray(part, np.float64) for part in both(draw.x))
    if not np.isfinite(estimates).all() or not np.isfinite(values).all():
        raise ValueError(
            "estimator and known must be finite on all simulations, got "
            f"{np.sum(~np.isfinite(estimates))} and {np.sum(~np.isfinite(values))} numbers that "
            "are not: restrict the prior"
        )
    moved = (values != values[:, :1]).any(axis=(1, 2))
    if moved.any():
        raise ValueError(
            f"known must not depend on the noise in x, got values that differ between measurements "
            f"of the same theta in {moved.sum():,} of {units:,} cases: weights by them would make "
            "the average biased. What is known of a sensor beforehand belongs into theta"
        )
    values = values[:, 0]
    if not (np.ptp(values, axis=0) > 0).any():
        raise ValueError(
            "known must vary from one theta to another, got the same for all: weights are equal"
        )
    variances = estimates.var(axis=1, ddof=1)
    if not (variances > 0).any(axis=0).all():
        raise ValueError(
            "estimator must have a variance, got the same estimates from all measurements of a "
            "theta: there is nothing to weigh"
        )
    features = KnownFeatures.of(values)
    columns = np.asarray(jax.vmap(features)(jnp.asarray(values, float)), np.float64)
    y = np.asarray(draw.y, np.float64)
    about_y = ThetaBasis.of(y, None, most=12)(y, None) if np.ptp(y, axis=0).any() else 1 + 0 * y
    fitted = [_log_variance(column, columns, about_y) for column in variances.T]
    count = values.shape[1]
    numbers = "a known number" if count == 1 else f"{count} known numbers"
    note = f"precision by {numbers}, from {units:,} values of theta"
    learned = LearnedWeights(known, features, as_array(np.stack(fitted)), note)
    weights = np.asarray(jax.vmap(learned.of_known)(as_array(values)))
    if not (np.isfinite(weights) & (weights > 0)).all():
        raise ValueError(
            "known must be numbers from which single precision can make weights, got some from "
            f"{values.min():.3g} to {values.max():.3g} with weights that are zero or infinite: "
            "give it in other units, or its logarithm"
        )
    return learned


def _checked_key(key: Any) -> Key:
    key_for("learned weights", key)  # refuses what is none
    return key


def _check_outputs(problem: Problem, **functions: Callable[[Measurement], Any]) -> None:
    """Refuse functions of one measurement that do not return real numbers, or not in JAX."""
    x, _ = problem.shapes()
    for name, function in functions.items():
        refuse_frozen_draws(name, function, x)
        try:
            found = jax.eval_shape(lambda one, f=function: jnp.asarray(f(one)), x)
        except Exception as error:
            hint = "write it with jax.numpy instead of NumPy: " if is_not_jax(error) else ""
            reason = str(error).split("\n", 1)[0]
            raise ValueError(
                f"{name} must return one or more real numbers for one measurement of "
                f"{describe_shapes(x)}: {hint}{type(error).__name__}: {reason}"
            ) from error
        if jnp.issubdtype(found.dtype, jnp.complexfloating):
            raise TypeError(
                f"{name} must return real numbers, got {found.dtype}: give real and imaginary part "
                "as two"
            )


def _known(known: Callable[[Measurement], Any], x: Measurement) -> Array:
    return jnp.ravel(jnp.asarray(known(x), float))


def _log_variance(variances: np.ndarray, known: np.ndarray, about_y: np.ndarray) -> np.ndarray:
    """Coefficients b of log v = a(y) + b · known, by gamma quasi-likelihood.

    That is consistent for the mean of the estimated variances whatever their distribution, and
    convex. Scoring takes the same matrix in every step.
    """
    centred = known - known.mean(axis=0)
    columns = np.concatenate([about_y, centred], axis=1)
    scale = np.where((size := columns.std(axis=0)) > 0, size, 1.0)
    columns = columns / scale
    unit = variances.mean()
    solve = np.linalg.pinv(columns, rcond=1e-4)
    start = np.log(np.maximum(variances / unit, 1e-3))
    found = solve @ start

    def objective(coefficients: np.ndarray) -> float:
        logs = columns @ coefficients
        return float(np.mean(logs + variances / unit * np.exp(-np.clip(logs, -50, 50))))

    for _ in range(SCORING_STEPS):
        logs = columns @ found
        move = solve @ (variances / unit * np.exp(-np.clip(logs, -50, 50)) - 1)
        share, now = 1.0, objective(found)
        while share > 1e-6 and objective(found + share * move) > now:
            share /= 2
        found = found + share * move
    return (found / scale)[about_y.shape[1] :]
