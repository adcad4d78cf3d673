"""Parametric bootstrap: estimate the bias by simulating at the estimate, and subtract it."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from .._core.checks import check_count, check_output, describe_shapes
from .._core.estimators import Carrier, MeasurementSpec, Predictor, as_estimator
from .._core.keys import fold_in_each, key_for
from .._core.problem import Problem
from .._core.types import Estimator, Key, Measurement, Theta
from .box import Box, box_of
from .mle import MaximumLikelihood

FAILURE_LIMIT = 0.1
"""The largest fraction of the simulations whose estimate may be non-finite."""

MULTIPLIER = 0x9E3779B1  # an odd number whose powers mix well


class BootstrapCorrected(Predictor, eqx.Module):
    """The estimator that `bootstrap_correct` makes, of one measurement or a batch."""

    problem: Problem = eqx.field(static=True)
    estimator: Any
    theta_of: Any
    """The theta at which measurements are simulated; the estimate itself where that is theta."""
    box: Box
    key: Key
    repeats: int = eqx.field(static=True)
    iterations: int = eqx.field(static=True)
    measurement: MeasurementSpec = eqx.field(static=True)

    # By identity, so that `jax.jit(estimator)` works although there are arrays inside.
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    @property
    def function(self) -> Estimator:
        """The corrected estimate from one measurement, which is not checked."""
        return self._corrected

    @property
    def _spec(self) -> MeasurementSpec:
        return self.measurement

    @property
    def _numbers_held(self) -> int:
        return self.repeats

    def _corrected(self, x: Measurement) -> Float[Array, " d"]:
        estimate, theta = self._estimate(x)
        # Other measurements, other noise: errors of the correction then average out over
        # measurements. The iterations share it, so that they have a limit.
        keys = fold_in_each(jr.fold_in(self.key, _number_of(x)), jnp.arange(self.repeats))
        at = self.box.clip(theta)
        bias = jnp.zeros_like(estimate)
        for _ in range(self.iterations):
            bias, bias_of_theta = self._bias(at, keys)
            moved = jax.tree.map(lambda t, b: t - b, theta, bias_of_theta)
            at = self.box.clip(moved)
        return estimate - bias

    def _estimate(self, x: Measurement) -> tuple[Array, Theta]:
        """The estimate of y and that of theta."""
        if self.theta_of is None and isinstance(self.estimator, MaximumLikelihood):
            found = self.estimator.solve(x)
            keep = found.converged | (self.estimator.on_failure == "keep")
            return jnp.where(keep, found.y, jnp.nan), found.theta
        estimate = jnp.asarray(self.estimator(x), jnp.result_type(float)).reshape(-1)
        if self.theta_of is not None:
            return estimate, self.theta_of(x)
        shape = jax.eval_shape(self.problem.sample_prior, self.key).shape
        return estimate, estimate.reshape(shape)

    def _bias(self, theta: Theta, keys: Key) -> tuple[Array, Theta]:
        """Of the estimates of y and of theta, by simulation at theta."""
        x = jax.vmap(self.problem.simulate, in_axes=(0, None))(keys, theta)
        estimates, thetas = jax.vmap(self._estimate)(x)
        finite = jnp.isfinite(estimates).all(axis=1)
        enough = finite.mean() >= 1 - FAILURE_LIMIT

        def mean(leaf: Array) -> Array:
            mask = finite.reshape(-1, *(1,) * (leaf.ndim - 1))
            total = jnp.where(mask, leaf, 0.0).sum(axis=0)
            return jnp.where(enough, total / finite.sum(), jnp.nan)

        bias = mean(estimates) - self.problem.y_of(theta)
        return bias, jax.tree.map(lambda leaf, t: mean(leaf) - t, thetas, theta)


def bootstrap_correct(
    estimator: Estimator | Carrier,
    problem: Problem,
    *,
    key: Key,
    repeats: int = 200,
    iterations: int = 1,
    theta_of: Callable[[Any], Any] | None = None,
    bounds: Any = None,
) -> BootstrapCorrected:
    """Correct an estimator's bias by the parametric bootstrap.

    For each measurement, `repeats` others are simulated at the estimated theta; the mean error
    of the estimator on these is subtracted. A bias of order 1/n becomes one of order 1/n²,
    and the noise of the correction adds about 1/`repeats` to the variance.

    Args:
        estimator: a function of one measurement, written in JAX, a `Fit` or a `Model`.
        problem: simulates.
        key: decides the random numbers. They depend on the key and on the measurement alone, so
            that equal measurements get equal corrections.
        repeats: simulations for each measurement and iteration.
        iterations: how often the bias is measured, each time at the corrected theta.
        theta_of: ``theta_of(x) -> theta``, where to simulate. Not needed for
            `maximum_likelihood`, which estimates all of theta, nor where y is theta.
        bounds: the range in which to simulate, as in `maximum_likelihood`; by default that of
            the maximum likelihood estimator, or else the support of the prior. A theta outside
            is moved to the nearest one inside, where the bias may be another.

    Returns:
        An estimator, of one measurement or a batch. It is NaN where the estimate is, and where
        more than a tenth of the simulations failed.
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a Problem, got {type(problem).__name__}")
    check_count("repeats", repeats, least=2)
    check_count("iterations", iterations)
    estimator = as_estimator(estimator)
    if theta_of is not None and not callable(theta_of):
        raise TypeError(f"theta_of must be callable, got {type(theta_of).__name__}")
    solves = isinstance(estimator, MaximumLikelihood)
    if not solves and theta_of is None and problem.target is not None:
        raise ValueError(
            "theta_of must say where to simulate: this problem's y is only a function of theta, "
            "and the estimator gives y; give theta_of=lambda x: ..., for example "
            "lambda x: mle.solve(x).theta with mle = mvue.maximum_likelihood(problem)"
        )
    _check_traceable(estimator, theta_of, problem)
    if solves and bounds is None and theta_of is None:
        box = estimator.box
    else:
        box, _ = box_of(problem, bounds)
    return BootstrapCorrected(
        problem,
        estimator,
        theta_of,
        box,
        key_for("bootstrap", key),
        int(repeats),
        int(iterations),
        MeasurementSpec(problem.shapes()[0]),
    )


def _check_traceable(estimator: Estimator, theta_of: Estimator | None, problem: Problem) -> None:
    x, y = problem.shapes()
    one = jax.eval_shape(problem.sample_prior, jr.key(0))
    shapes = {}
    for name, function in (("estimator", estimator), ("theta_of", theta_of)):
        if function is None:
            continue
        try:
            shapes[name] = eqx.filter_eval_shape(
                lambda m, f=function: jax.tree.map(jnp.asarray, f(m)), x
            )
        except Exception as error:
            raise ValueError(
                f"{name} failed on one measurement, {describe_shapes(x)}; it must be written in "
                f"JAX: {type(error).__name__}: {error}"
            ) from error
    check_output("estimator", shapes["estimator"], y.shape[0])
    if theta_of is not None and _layout(shapes["theta_of"]) != _layout(one):
        raise ValueError(
            f"theta_of must return a theta of {describe_shapes(one)}, got "
            f"{describe_shapes(shapes['theta_of'])}"
        )


def _layout(tree: Any) -> Any:
    return jax.tree.structure(tree), [leaf.shape for leaf in jax.tree.leaves(tree)]


def _number_of(x: Measurement) -> Array:
    """A number that tells measurements apart."""
    total = jnp.zeros((), jnp.uint32)
    for leaf in jax.tree.leaves(x):
        leaf = jnp.ravel(leaf)
        if leaf.dtype == bool:
            leaf = leaf.astype(jnp.uint8)
        words = jax.lax.bitcast_convert_type(leaf, _unsigned(leaf.dtype.itemsize)).ravel()
        words = words.astype(jnp.uint32)
        powers = np.cumprod(np.full(words.size + 1, MULTIPLIER, np.uint32), dtype=np.uint32)
        # Low bits of a product depend on low bits alone: stir the words before they are added.
        words = (words ^ (words >> 15)) * jnp.uint32(MULTIPLIER)
        words = (words ^ (words >> 13)) * jnp.asarray(powers[1:])
        total = total * jnp.uint32(powers[0]) + (words ^ (words >> 16)).sum(dtype=jnp.uint32)
    return total


def _unsigned(size: int) -> Any:
    return {1: jnp.uint8, 2: jnp.uint16}.get(size, jnp.uint32)
