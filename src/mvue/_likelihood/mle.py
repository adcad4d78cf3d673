"""Maximum likelihood for batches of measurements, by Newton's method."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optimistix as optx
from jaxtyping import Array, Bool, Float, Int

from .._core.checks import check_count, describe_shapes
from .._core.estimators import MeasurementSpec, Predictor
from .._core.problem import Problem
from .._core.types import Estimator, Measurement, Theta
from .._numerics.newton import BoxNewton, NewtonPoint
from .box import Box, box_of

CANDIDATES = 16  # values from the prior that are compared to choose one start
JITTER = 0.3  # of the prior's spread, around a given start
MARGIN = 1e-2  # in log-likelihood; a start that ends higher than this disproves the optimum


class Solution(NamedTuple):
    """The maximum of one likelihood, and how far it can be trusted."""

    y: Float[Array, " d"]
    """The estimate; of the best point found, if nothing converged."""
    theta: Theta
    """Where the likelihood is largest."""
    log_likelihood: Float[Array, ""]
    """Its logarithm there."""
    converged: Bool[Array, ""]
    """Whether this is a maximum, to within the tolerance, and no start ended higher."""
    steps: Int[Array, ""]
    """Newton steps that the winning start took, rejected ones included."""
    start: Int[Array, ""]
    """The number of the start that won."""
    at_bound: Bool[Array, ""]
    """Whether a bound holds any element of theta back."""


class MaximumLikelihood(Predictor, eqx.Module):
    """The estimator that `maximum_likelihood` makes, of one measurement or a batch.

    It may be compiled, batched with `jax.vmap`, and differentiated once. NaN where `solve` did not
    converge. A measurement of exchangeable draws may have another number of them.
    """

    problem: Problem = eqx.field(static=True)
    box: Box
    candidates: np.ndarray
    """Starts in coordinates, (starts, CANDIDATES, p), or steps from init, (starts, p)."""
    init: Callable[[Any], Any] | None = eqx.field(static=True)
    tolerance: float = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)
    on_failure: str = eqx.field(static=True)
    measurement: MeasurementSpec = eqx.field(static=True)

    # By identity, so that `jax.jit(estimator)` works although there are arrays inside.
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    @property
    def function(self) -> Estimator:
        """The estimate from one measurement, which is not checked."""
        return self._estimate

    @property
    def _spec(self) -> MeasurementSpec:
        return self.measurement

    def _estimate(self, x: Measurement) -> Float[Array, " d"]:
        found = self.solve(x)
        if self.on_failure == "keep":
            return found.y
        return jnp.where(found.converged, found.y, jnp.nan)

    def solve(self, x: Measurement) -> Solution:
        """Maximise the likelihood of one measurement, and say how that went."""
        x = self.measurement.arrays(x)
        if self.measurement.is_batch(x):
            raise ValueError(
                f"x must be one measurement, got a batch of {describe_shapes(x)}: use "
                "jax.vmap(estimator.solve)"
            )
        self._check_size(x)
        still = jax.tree.map(jax.lax.stop_gradient, x)
        solver = BoxNewton(low=self.box.low, high=self.box.high, atol=self.tolerance)

        def search(u: Array) -> tuple[Array, NewtonPoint, Array, Array]:
            solution = optx.minimise(
                self._loss, solver, u, still, max_steps=self.max_steps, throw=False
            )
            state = solution.state
            return solution.value, state.point, solver.converged(state), solution.stats["num_steps"]

        # One start after the other: batches of measurements are large enough for the machine,
        # and memory does not grow with the number of starts.
        starts = self._starts(still)
        low, high = solver.inside(starts)
        starts = jnp.clip(starts, low[None], high[None])
        u, points, converged, steps = jax.lax.map(search, starts)
        values = jnp.where(jnp.isfinite(points.value), points.value, jnp.inf)
        winner = jnp.argmin(jnp.where(converged, values, jnp.inf))
        winner = jnp.where(converged.any(), winner, jnp.argmin(values))
        rounding = 32 * jnp.finfo(values.dtype).eps * jnp.abs(values[winner])
        best = values[winner] <= values.min() + MARGIN + rounding
        u, point = u[winner], jax.tree.map(lambda leaf: leaf[winner], points)
        good = converged[winner] & best
        u = jnp.where(good, self._last_step(u, point, x), u)
        u = solver.on_bounds(u, point)
        theta = self.box.clip(self.box.to_theta(u))
        return Solution(
            y=self.problem.y_of(theta),
            theta=theta,
            log_likelihood=-point.value,
            converged=good,
            steps=steps[winner],
            start=winner,
            at_bound=point.held.any(),
        )

    def _check_size(self, x: Measurement) -> None:
        """Refuse a set of another size than the problem's if its likelihood does."""
        usual = self.measurement.x
        if describe_shapes(x) == describe_shapes(usual):
            return
        u = jax.ShapeDtypeStruct((self.candidates.shape[-1],), jnp.result_type(float))
        try:
            jax.eval_shape(lambda u, x: self._loss(u, x), u, x)
        except Exception as error:
            raise ValueError(
                f"x must be of {describe_shapes(usual)}, got {describe_shapes(x)}, and "
                f"log_likelihood(theta, x) of this problem takes no other number of draws: {error}"
            ) from error

    def _loss(self, u: Array, x: Measurement) -> Array:
        assert self.problem.log_likelihood is not None
        value = self.problem.log_likelihood(self.box.to_theta(u), x)
        return -jnp.asarray(value, u.dtype).reshape(())

    def _starts(self, x: Measurement) -> Array:
        """Where to start, (starts, p)."""
        dtype = jnp.result_type(float)
        candidates = jnp.asarray(self.candidates, dtype)
        if self.init is not None:
            return self.box.from_theta(self.init(x))[None] + candidates

        def better(best: tuple[Array, Array], u: Array) -> tuple[tuple[Array, Array], None]:
            value = jax.vmap(lambda one: self._loss(one, x))(u)
            lower = value < best[1]  # False for NaN
            u = jnp.where(lower[:, None], u, best[0])
            return (u, jnp.where(lower, value, best[1])), None

        first = (candidates[:, 0], jnp.full(len(candidates), jnp.inf, dtype))
        (best, _), _ = jax.lax.scan(better, first, candidates.swapaxes(0, 1))
        return best

    def _last_step(self, u: Array, point: NewtonPoint, x: Measurement) -> Array:
        """Once more towards the optimum; derivatives with respect to x come from here."""
        # With the inverse curvature a constant, the derivative of this step is that of the
        # optimum, by the implicit function theorem, whatever the steps before it were.
        u, inverse = jax.lax.stop_gradient((u, point.inverse))
        low, high = (jnp.asarray(b, u.dtype) for b in (self.box.low, self.box.high))
        return jnp.clip(u - inverse @ jax.grad(self._loss)(u, x), low, high)


def maximum_likelihood(
    problem: Problem,
    *,
    init: Any = None,
    bounds: Any = None,
    starts: int = 4,
    tolerance: float = 1e-3,
    max_steps: int = 60,
    on_failure: Literal["nan", "keep"] = "nan",
) -> MaximumLikelihood:
    """The maximum likelihood estimator of a problem.

    The likelihood is maximised over all of theta by Newton's method, from several starts; the
    estimate is the target at the best maximum. Where theta has bounds the maximum may lie on one.

    Args:
        problem: must have a `log_likelihood`, twice differentiable by JAX.
        init: where to start: None for values from the prior (of 16 for each start, the one
            with the largest likelihood), a theta, or a function ``x -> theta``, with further
            starts around it.
        bounds: the range of theta: None for the support of the prior, ``"none"``, a pair
            ``(low, high)`` of numbers or values shaped like theta, or a dict of such bounds for
            some entries of theta, the others keeping the prior's support. A range that is
            narrower than what the data allow clips the estimates and so biases them.
        starts: how many searches; the best maximum that is found wins.
        tolerance: how near to the maximum to come, in units of the standard error.
        max_steps: of one search.
        on_failure: ``"nan"``, to estimate NaN where no maximum was found, which `mvue.assess`
            counts as a failure; or ``"keep"``, to estimate by the best point that was seen.
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a Problem, got {type(problem).__name__}")
    if problem.log_likelihood is None:
        raise ValueError(
            "problem has no log_likelihood to maximise: give Problem(log_likelihood=...), or make "
            "it with Problem.from_likelihood"
        )
    check_count("starts", starts)
    check_count("max_steps", max_steps)
    if not isinstance(tolerance, (int, float)) or not 0 < tolerance < 1:
        raise ValueError(
            f"tolerance must be a number between 0 and 1, in standard errors; got {tolerance!r}"
        )
    if on_failure not in ("nan", "keep"):
        raise ValueError(f"on_failure must be 'nan' or 'keep', got {on_failure!r}")
    box, draws = box_of(problem, bounds)
    if init is None:
        # Other draws than those that told the spread are not needed: they are only starts.
        index = np.arange(starts * CANDIDATES) % len(draws)
        candidates = draws[index].reshape(starts, CANDIDATES, -1)
    else:
        steps = np.asarray(jr.normal(jr.key(0), (starts, draws.shape[1])), np.float64)
        candidates = JITTER * steps * draws.std(axis=0) * (np.arange(starts) > 0)[:, None]
    estimator = MaximumLikelihood(
        problem,
        box,
        candidates,
        None if init is None else _as_function(problem, init),
        float(tolerance),
        int(max_steps),
        on_failure,
        MeasurementSpec(problem.shapes()[0], free=1 if problem.exchangeable else 0),
    )
    _check_likelihood(estimator)
    return estimator


def _as_function(problem: Problem, init: Any) -> Callable[[Any], Theta]:
    """A start for each measurement, checked for its structure and shapes."""
    x, _ = problem.shapes()
    one = jax.eval_shape(problem.sample_prior, jr.key(0))
    # A plain function, for a module would be a part of the estimator that is not one of its arrays.
    function = (lambda x: init(x)) if callable(init) else lambda _: init
    try:
        start = eqx.filter_eval_shape(lambda m: jax.tree.map(jnp.asarray, function(m)), x)
    except Exception as error:
        raise ValueError(
            f"init(x) failed for one measurement, {describe_shapes(x)}: "
            f"{type(error).__name__}: {error}"
        ) from error
    shapes = [
        (jax.tree.structure(tree), [leaf.shape for leaf in jax.tree.leaves(tree)])
        for tree in (start, one)
    ]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"init must give a theta of {describe_shapes(one)}, got {describe_shapes(start)}"
        )
    return function


def _check_likelihood(estimator: MaximumLikelihood) -> None:
    """Refuse what cannot be differentiated twice."""
    problem = estimator.problem
    x, _ = problem.shapes()
    one = jax.eval_shape(problem.sample_prior, jr.key(0))
    assert problem.log_likelihood is not None
    try:
        shape = jax.eval_shape(problem.log_likelihood, one, x).shape
    except Exception as error:
        raise ValueError(
            f"log_likelihood(theta, x) failed for {describe_shapes(one)} and "
            f"{describe_shapes(x)}: {type(error).__name__}: {error}"
        ) from error
    if shape != ():
        raise ValueError(f"log_likelihood(theta, x) must return one number, got shape {shape}")
    u = jax.ShapeDtypeStruct((estimator.candidates.shape[-1],), jnp.result_type(float))
    try:
        jax.eval_shape(jax.hessian(estimator._loss), u, x)
    except Exception as error:
        raise ValueError(
            "log_likelihood must be twice differentiable in theta by JAX: "
            f"{type(error).__name__}: {error}"
        ) from error
