"""The backtracking line search of Newton's method, for negative log-likelihoods.

A step is taken if the value decreases enough (Armijo's rule). Near the optimum, single precision
does not resolve the value, whose rounding grows with the number of samples; it does resolve the
distance that is left, the length of Newton's step in standard errors. Hence a step is also taken
if it halves the distance while the value rises by no more than rounding.
"""

from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

ARMIJO = 1e-4  # of the decrease that the slope promises
MARGIN = 1e-2  # by which the value may rise, beside its rounding, where the distance is halved
SHRINK = 0.25  # of the step after a rejection
STALLED = SHRINK**12  # a step so much shortened will not succeed any more

State = TypeVar("State")


def succeeds(
    value: Float[Array, ""],
    trial_value: Float[Array, ""],
    promised: Float[Array, ""],
    distance: Float[Array, ""],
    trial_distance: Float[Array, ""],
) -> Bool[Array, ""]:
    """Whether a trial step is taken.

    Args:
        value: where the search is.
        trial_value: after the step; NaN where it cannot be used.
        promised: the change of the value along the slope; a descent is negative.
        distance: to the optimum from where the search is, in standard errors.
        trial_distance: the same after the step; infinite where it is not known.
    """
    lower = (promised < 0) & (trial_value <= value + ARMIJO * promised)
    rounding = 16 * jnp.finfo(value.dtype).eps * jnp.abs(value)
    nearer = trial_distance <= 0.5 * distance
    nearer = nearer & (trial_value <= value + MARGIN + rounding)
    return jnp.isfinite(trial_value) & (lower | nearer)


def moved(
    accept: Bool[Array, ""], there: State, here: State, length: Float[Array, ""]
) -> tuple[State, Float[Array, ""]]:
    """The state after a trial, and the fraction of the next Newton step to try."""
    state = jax.tree.map(lambda a, b: jnp.where(accept, a, b), there, here)
    return state, jnp.where(accept, jnp.minimum(1.0, length / SHRINK), SHRINK * length)
