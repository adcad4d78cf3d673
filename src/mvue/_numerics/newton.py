"""Newton's method with a line search in a box, for negative log-likelihoods."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, Bool, Float, PyTree

from .line_search import STALLED, moved, succeeds
from .small_matrices import invert

EDGE = 1e-6  # of the box is left out at its bounds, where likelihoods need not be defined
LONGEST = 3.0  # step in any coordinate
RESOLVED = 3e-6  # smallest pivot of a scaled Hessian that is told from rounding


class NewtonPoint(NamedTuple):
    """What is known at one point."""

    value: Float[Array, ""]
    """NaN where it cannot be used; infinite before the first look."""
    inverse: Float[Array, "p p"]
    """Of the Hessian with its curvatures made positive; zero for coordinates that are held."""
    slope: Float[Array, " p"]
    """The gradient, zero where a bound holds the coordinate."""
    distance: Float[Array, ""]
    """To the optimum, in units of the standard error that the curvature tells."""
    definite: Bool[Array, ""]
    """Whether the function curves upward in all free directions, beyond rounding."""
    held: Bool[Array, " p"]
    """Which coordinates sit on a bound that they would cross."""


class NewtonState(eqx.Module):
    """Where the search is."""

    point: NewtonPoint
    length: Array
    """The fraction of Newton's step to try next."""


class BoxNewton(optx.AbstractMinimiser):
    """Newton's method with positive curvatures, projected on a box.

    It ends when the optimum is within `atol` standard errors: the length of Newton's step in
    the metric of the Hessian, the observed information.
    """

    low: Array
    high: Array
    atol: float = 1e-3
    rtol: float = 0.0
    norm: Callable[[PyTree], Any] = optx.max_norm

    def inside(self, u: Array) -> tuple[Array, Array]:
        """The ends of the box, a little inward."""
        low, high = jnp.asarray(self.low, u.dtype), jnp.asarray(self.high, u.dtype)
        inset = EDGE * jnp.where(jnp.isfinite(high - low), high - low, 1.0)
        return low + inset, high - inset

    def on_bounds(self, u: Array, point: NewtonPoint) -> Array:
        """With the coordinates that are held moved onto their bounds."""
        low, high = jnp.asarray(self.low, u.dtype), jnp.asarray(self.high, u.dtype)
        nearest = jnp.where(u - low < high - u, low, high)
        return jnp.where(point.held, nearest, u)

    def look(self, fn: Any, u: Array, args: Any) -> NewtonPoint:
        """Value, Newton step and distance to the optimum at u."""

        def derivatives(v: Array) -> tuple[Array, tuple[Array, Array]]:
            value, gradient = jax.value_and_grad(lambda w: fn(w, args)[0])(v)
            return gradient, (value, gradient)

        low, high = self.inside(u)
        hessian, (value, gradient) = jax.jacfwd(derivatives, has_aux=True)(u)
        held = ((u <= low) & (gradient > 0)) | ((u >= high) & (gradient < 0))
        slope = jnp.where(held, 0.0, gradient)
        free = ~held[:, None] & ~held[None, :]
        hessian = jnp.where(free, hessian, jnp.diag(held.astype(u.dtype)))
        # Scaled to a unit diagonal, so that the units of theta do not matter.
        scale = jnp.sqrt(jnp.maximum(jnp.abs(jnp.diag(hessian)), jnp.finfo(u.dtype).tiny ** 0.5))
        scaled = hessian / (scale[:, None] * scale[None, :])
        usable = jnp.isfinite(scaled).all() & jnp.isfinite(slope).all()
        identity = jnp.eye(u.size, dtype=u.dtype)
        scaled = jnp.where(usable, scaled, identity)
        definite = (invert(scaled)[1] > RESOLVED).all()  # False for NaN
        # Twice what makes every row dominated by its diagonal: in one dimension, this turns the
        # sign of the curvature and keeps its size.
        excess = jnp.sum(jnp.abs(scaled), axis=1) - jnp.abs(jnp.diag(scaled)) - jnp.diag(scaled)
        shift = jnp.where(definite, 0.0, 2 * jnp.maximum(excess.max(), 0.0) + RESOLVED)
        inverse = invert(scaled + shift * identity)[0] / (scale[:, None] * scale[None, :])
        along = jnp.where(usable, slope, 0.0)
        return NewtonPoint(
            value=jnp.where(usable & jnp.isfinite(value), value, jnp.nan),
            inverse=jnp.where(free, inverse, 0.0),
            slope=slope,
            distance=jnp.sqrt(jnp.maximum(along @ inverse @ along, 0.0)),
            definite=usable & definite,
            held=held,
        )

    def init(
        self, fn: Any, y: Any, args: Any, options: Any, f_struct: Any, aux_struct: Any, tags: Any
    ) -> NewtonState:
        """Nothing is known yet: the first step is to look at the start."""
        del fn, args, options, f_struct, aux_struct, tags
        point = NewtonPoint(
            value=jnp.full((), jnp.inf, y.dtype),
            inverse=jnp.zeros((y.size, y.size), y.dtype),
            slope=jnp.zeros_like(y),
            distance=jnp.full((), jnp.inf, y.dtype),
            definite=jnp.asarray(False),
            held=jnp.zeros(y.shape, bool),
        )
        return NewtonState(point, jnp.ones((), y.dtype))

    def step(
        self, fn: Any, y: Any, args: Any, options: Any, state: NewtonState, tags: Any
    ) -> tuple[Any, NewtonState, Any]:
        """Try a step; take it or shorten it."""
        del options, tags
        here, length = state.point, state.length
        direction = -(here.inverse @ here.slope)
        direction = direction * LONGEST / jnp.maximum(jnp.max(jnp.abs(direction)), LONGEST)
        low, high = self.inside(y)
        trial = jnp.clip(y + length * direction, low, high)
        there = self.look(fn, trial, args)
        promised = jnp.sum(here.slope * (trial - y))
        accept = succeeds(here.value, there.value, promised, here.distance, there.distance)
        accept = accept | jnp.isinf(here.value)
        (y, point), length = moved(accept, (trial, there), (y, here), length)
        return y, NewtonState(point, length), None

    def converged(self, state: NewtonState) -> Array:
        """Whether the search is at an optimum."""
        point = state.point
        return jnp.isfinite(point.value) & point.definite & (point.distance <= self.atol)

    def terminate(
        self, fn: Any, y: Any, args: Any, options: Any, state: NewtonState, tags: Any
    ) -> tuple[Any, Any]:
        """Stop at an optimum, where nothing is finite, and where no step succeeds."""
        del fn, y, args, options, tags
        failed = jnp.isnan(state.point.value) | (state.length < STALLED)
        return self.converged(state) | failed, optx.RESULTS.successful

    def postprocess(
        self,
        fn: Any,
        y: Any,
        aux: Any,
        args: Any,
        options: Any,
        state: NewtonState,
        tags: Any,
        result: Any,
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Nothing to do."""
        del fn, args, options, state, tags, result
        return y, aux, {}
