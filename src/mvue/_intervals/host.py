"""Estimators of any kind as functions that JAX can trace, those in NumPy included."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from .._core.checks import check_output, describe_shapes, refuse_frozen_draws
from .._core.estimators import as_estimator
from .._core.problem import Problem
from .._core.types import Estimator


def example_of(problem: Problem) -> Any:
    """One measurement."""
    return jax.tree.map(lambda leaf: leaf[0, 0], problem.draw(jr.key(0), 1, 1).x)


def as_jax_function(name: str, estimator: Any, example: Any, d: int) -> Estimator:
    """An estimator that can be traced, checked for its output."""
    label = f"estimator {name!r}"
    estimator = as_estimator(estimator, label)
    refuse_frozen_draws(label, estimator, example)
    try:
        output = eqx.filter_eval_shape(lambda x: jnp.asarray(estimator(x)), example)
    except Exception as error:
        host = _HostEstimator(label, estimator, d)
        try:
            host.call(example)
        except Exception as on_host:
            raise ValueError(
                f"{label} failed on one measurement, {describe_shapes(example)}; with a JAX array: "
                f"{type(error).__name__}: {error}; with NumPy: {type(on_host).__name__}: {on_host}"
            ) from on_host
        return host
    check_output(label, output, d)
    return lambda x: jnp.asarray(estimator(x))


class _HostEstimator:
    """A function that JAX cannot trace, called on NumPy arrays one measurement at a time."""

    def __init__(self, label: str, estimator: Estimator, d: int) -> None:
        self.label, self.estimator, self.d = label, estimator, d
        self.error: Exception | None = None

    def call(self, x: Any) -> np.ndarray:
        output = np.asarray(self.estimator(jax.tree.map(np.array, x)))
        check_output(self.label, output, self.d)
        return output.astype(jnp.result_type(float)).reshape(self.d)

    def noting_errors(self, x: Any) -> np.ndarray:
        try:
            return self.call(x)
        except Exception as error:
            self.error = error
            raise

    def __call__(self, x: Any) -> Array:
        shape = jax.ShapeDtypeStruct((self.d,), jnp.result_type(float))
        return jax.pure_callback(self.noting_errors, shape, x, vmap_method="sequential")


@contextmanager
def own_errors(functions: Mapping[str, Estimator]) -> Iterator[None]:
    """Report what went wrong in a NumPy estimator, not in the machinery around it."""
    try:
        yield
    except Exception:
        for function in functions.values():
            if isinstance(function, _HostEstimator) and function.error is not None:
                raise ValueError(f"{function.label} failed: {function.error}") from function.error
        raise
