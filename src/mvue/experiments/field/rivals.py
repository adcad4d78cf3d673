"""Rivals of the default recipe that climb a likelihood, and how they are assessed."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

import mvue

from ..._assessment.report import Assessment, PriorAverage
from ..._numerics.moments import moments_of, summarize
from ...problems import FieldProblem
from .._common import best_microseconds

PIECE = 128  # measurements at a time
WITHOUT_MLE = {
    "hurst-exponent-400": "a matrix of 400 x 400 is factorised in each step",
    "hurst-exponent-1600": "a matrix of 1600 x 1600 is factorised in each step",
    "field-range-and-smoothness": "a matrix of 256 x 256 is factorised in each step",
}
"""Likelihoods that take too long to climb thousands of times, and why."""
WITHOUT_CORRECTION = ("hurst-exponent-100", "field-range", "clutter-shape", "drift-diffusion")
"""Likelihoods that take too long to climb for each simulation of a bootstrap."""


def maximum_likelihood(entry: FieldProblem) -> Any:
    """Maximum likelihood where the model makes sense; None where there is none to climb."""
    if entry.known.log_likelihood is None or entry.name in WITHOUT_MLE:
        return None
    starts = 4 if entry.start is None else 2
    return mvue.maximum_likelihood(
        entry.known, bounds=entry.limits, init=entry.start, starts=starts
    )


def reason_without(entry: FieldProblem) -> str:
    """Why there is no maximum likelihood, or no correction of it; empty where there is."""
    if entry.name in WITHOUT_MLE:
        return f"No maximum likelihood here: {WITHOUT_MLE[entry.name]}."
    if entry.name in WITHOUT_CORRECTION:
        return "Maximum likelihood is not corrected here: that would take hours."
    return "" if entry.known.log_likelihood is not None else "No likelihood is at hand."


def assess_slowly(
    name: str, estimator: Any, entry: FieldProblem, like: mvue.Report, repeats: int, key: Array
) -> tuple[mvue.Report, float]:
    """Bias, sd and MSE at the values of another report, with its bound; and µs per estimate.

    A piece at a time, because a bootstrap holds many measurements for each. `mvue.assess` would
    also average over the prior, which takes as long again.
    """
    draw = jax.jit(jax.vmap(entry.problem.simulate, in_axes=(0, None)))
    estimate = jax.jit(jax.vmap(estimator))
    theta = jnp.asarray(like.theta)
    errors = np.zeros((len(theta), repeats, like.y.shape[1]))
    for k, at in enumerate(theta):
        keys = jr.split(jr.fold_in(key, k), -(-repeats // PIECE) * PIECE)
        pieces = [estimate(draw(piece, at)) for piece in jnp.split(keys, len(keys) // PIECE)]
        errors[k] = np.concatenate(pieces)[:repeats] - like.y[k]
    found = moments_of(jnp.asarray(errors), jnp.asarray(np.isfinite(errors).all(axis=-1))).on_host()
    assessment = Assessment(
        **vars(summarize(found)),
        covariance=found.covariance,
        failures=np.asarray(repeats - found.number, int),
        prior=PriorAverage.unknown(),
    )
    report = dataclasses.replace(
        like, repeats=repeats, estimators={name: assessment}, squared_errors={}
    )
    x = draw(jr.split(key, PIECE), theta[0])
    return report, best_microseconds(lambda: jax.block_until_ready(estimate(x)), PIECE)
