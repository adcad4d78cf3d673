"""Draws from a problem: compiled, and checked before anything is trained on them."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._runtime.jit import forgetful_jit, in_either_precision
from ..exceptions import SimulatorError
from .problem import Draw, Problem
from .types import Key

NONFINITE_LIMIT = 0.01
"""The largest fraction of simulations that may be non-finite before training is refused."""


NONFINITE_FROM = 1_000
"""So many units must have been simulated before a fraction is judged."""


def pilot_draw(problem: Problem, key: Key, n: int, m: int) -> Draw:
    """A first look at the simulator: refuses one that cannot be trained on.

    Units with a non-finite measurement are left out, if they are few.
    """
    draw = compiled_draw(problem, key, n, max(m, 2))
    finite = finite_units(draw)
    failing = nonfinite_error(n - int(finite.sum()), n)
    if failing:
        raise failing
    draw = jax.tree.map(lambda leaf: leaf[np.asarray(finite)], draw)
    if bool((draw.y == draw.y[:1]).all()):
        raise SimulatorError(
            "prior.sample ignores its key: all parameters are equal; draw them from the key that "
            "sample is given"
        )
    if all(bool((leaf == leaf[:, :1]).all()) for leaf in jax.tree.leaves(draw.x)):
        raise SimulatorError(
            "simulate ignores its key: repeated measurements of one theta are all equal, so there "
            "is no noise to average over; draw the noise from the key that simulate is given, with "
            "jax.random: NumPy draws it once, when the simulator is compiled (or run a simulator "
            "in NumPy with mvue.simulate and train with mvue.fit_data)"
        )
    return draw._replace(x=jax.tree.map(lambda leaf: leaf[:, :m], draw.x))


def compiled_draw(problem: Problem, key: Key, n: int, m: int) -> Draw:
    """`Problem.draw`, compiled."""
    return in_either_precision(lambda: _draw(problem, key, n, m))


@forgetful_jit
def _draw(problem: Problem, key: Key, n: int, m: int) -> Draw:
    return problem.draw(key, n, m)


def finite_units(draw: Draw) -> Array:
    """Which units have finite y and finite measurements throughout, (N,)."""
    n = draw.y.shape[0]
    checks = [
        jnp.isfinite(leaf).reshape(n, -1).all(axis=1)
        for leaf in jax.tree.leaves((draw.y, draw.x))
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
    ]
    return jnp.stack(checks).all(axis=0)


def nonfinite_error(bad: int, total: int) -> SimulatorError | None:
    """What to raise for a simulator that fails too often, beyond what chance explains."""
    allowed = NONFINITE_LIMIT * total
    if total < NONFINITE_FROM or bad <= allowed + 3 * allowed**0.5:
        return None
    return SimulatorError(
        f"{bad / total:.2%} of the simulated units have a non-finite measurement, more than the "
        f"{NONFINITE_LIMIT:.0%} that may be left out: mend simulate, or narrow the prior to where "
        "it is defined"
    )
