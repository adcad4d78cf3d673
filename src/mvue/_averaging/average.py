"""Averaging: one estimate from many measurements of the same parameter."""

import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.checks import all_as_numbers, check_count, describe_shapes, refuse_frozen_draws
from .._core.estimators import Carrier, MeasurementSpec, Predictor, as_estimator, is_traced, spec_of
from .._core.problem import Problem
from .._core.types import Estimator, Key, Measurement
from .._runtime.progress import Progress, progress_for
from ..exceptions import NonFiniteWarning
from .learned import learn_weights
from .running import NonFinite, RunningAverage
from .sets import Sets, checked_mask, leading_shape

CHUNK_NUMBERS = 2**20  # of measurements that are estimated from at a time
LEAST_NUMBERS = 64  # counted for one measurement, as a network holds more than its input

Weights = Callable[[Measurement], Any]


class Average(Predictor, eqx.Module):
    """An estimator from a set of measurements: the average of the estimates from each of them.

    Its measurement is a set, an array or pytree with one more leading axis than that of the local
    estimator. Like every estimator it may be compiled, batched with `jax.vmap`, and assessed. Where
    the local estimator knows the shape of its measurement, as a `Fit` does, several sets of equal
    size may be given as a batch; sets of different sizes may be given as a list.

    Args:
        estimator: of one measurement, a `Fit` or a `Model`.
        weights: optional ``weights(x)`` of one measurement: a number, or one for each component. If
            they depend on the noise in x, the average is not unbiased.
        nonfinite: what to do about estimates that are not finite: "error", or "skip" to leave them
            out. Inside of compiled functions, where nothing can be raised, an error is a
            result of NaN.
        chunk_size: how many measurements to estimate from at a time; chosen by default.
    """

    estimator: Estimator
    weights: Weights | None
    nonfinite: NonFinite = eqx.field(static=True)
    chunk_size: int | None = eqx.field(static=True)
    set_spec: MeasurementSpec | None = eqx.field(static=True)
    """What one set looks like, where that is known."""
    carrier: Carrier | None = eqx.field(static=True)
    """What knows which measurements the estimator is made for."""

    def __init__(
        self,
        estimator: Estimator | Carrier,
        weights: Weights | None = None,
        nonfinite: NonFinite = "error",
        chunk_size: int | None = None,
    ) -> None:
        if chunk_size is not None:
            check_count("chunk_size", chunk_size)
        if weights is not None and not callable(weights):
            raise TypeError(
                f"weights must be a function of one measurement, got {type(weights).__name__}: "
                "give weights of given sets to averaged"
            )
        self.estimator = as_estimator(estimator)
        self.weights = weights
        self.nonfinite = nonfinite
        self.chunk_size = chunk_size
        one = spec_of(estimator)
        self.set_spec = None if one is None else one.set_of()
        self.carrier = estimator if isinstance(estimator, Carrier) else None

    @classmethod
    def learned(
        cls,
        estimator: Estimator | Carrier,
        problem: Problem,
        known: Weights,
        *,
        key: Key,
        units: int = 4096,
        nonfinite: NonFinite = "error",
        chunk_size: int | None = None,
    ) -> "Average":
        """An average with weights that are learned from simulations: see `weights` of the result.

        Each measurement counts by the precision of its estimate, a smooth function of what is known
        of it beforehand, such as the quality of a sensor or the size of a set. That keeps the
        average of unbiased estimates unbiased.

        Args:
            estimator: as above.
            problem: simulates measurements. What is known of them is a part of theta.
            known: ``known(x)`` of one measurement: one or more numbers that are known whatever the
                noise in x; this is checked.
            key: for the simulations.
            units: how many values of theta to simulate, eight measurements of each.
            nonfinite: as above.
            chunk_size: as above.
        """
        weights = learn_weights(as_estimator(estimator), problem, known, key=key, units=units)
        return cls(estimator, weights, nonfinite, chunk_size)

    def __call__(self, x: Measurement, *, weights: Any = None, mask: Any = None) -> Array:
        """The averaged estimate, (d,), or those of several sets, (n, d); see `averaged`."""
        found = self._averaged(x, weights, mask, warn=True, stacklevel=6)
        return jnp.asarray(found.estimate)

    def predict(
        self, x: Measurement, *, warn: bool = True, weights: Any = None, mask: Any = None
    ) -> np.ndarray:
        """The averaged estimates of many sets, (n, d), in NumPy.

        Args:
            x: the sets, with a leading axis, or a list of sets.
            warn: look for measurements that the estimator is not made for, and tell how many
                estimates were left out, with ``nonfinite="skip"``.
            weights: as in `averaged`.
            mask: as in `averaged`.
        """
        if self.set_spec is not None and not isinstance(x, list):
            x = self.set_spec.batch(x)
        found = self._averaged(x, weights, mask, warn=warn, stacklevel=7)
        skipped = int(np.sum(found.skipped))
        if skipped and warn:
            warnings.warn(
                f"{skipped:,} estimates were not finite and were left out of the averages",
                NonFiniteWarning,
                stacklevel=2,
            )
        return np.asarray(found.estimate)

    @property
    def function(self) -> Estimator:
        """The averaged estimate of one set."""
        return self

    @property
    def _spec(self) -> MeasurementSpec | None:
        return self.set_spec

    def averaged(self, x: Measurement, *, weights: Any = None, mask: Any = None) -> RunningAverage:
        """The averaged estimate with its standard error, ready to be merged with others.

        Args:
            x: the set; leaves of shape (M, ...), or (n, M, ...) for n sets.
            weights: shape (M,), or (M, d) for weights by component; instead of a function. Of n
                sets, with an axis more in front.
            mask: True for the measurements that are there, (M,). The others may be anything.
        """
        return self._averaged(x, weights, mask, warn=True, stacklevel=7)

    def _averaged(
        self, x: Measurement, weights: Any, mask: Any, *, warn: bool, stacklevel: int
    ) -> RunningAverage:
        axis = 0
        if self.set_spec is not None and not isinstance(x, list):
            x = self.set_spec.arrays(x)
            axis = int(self.set_spec.is_batch(x))
        return _average(
            self.estimator,
            x,
            axis,
            weights=self._weights(weights),
            mask=mask,
            nonfinite=self.nonfinite,
            chunk_size=self.chunk_size,
            carrier=self.carrier if warn else None,
            stacklevel=stacklevel,
        )

    def _weights(self, given: Any) -> Any:
        if given is None:
            return self.weights
        if self.weights is not None:
            raise ValueError("weights must be given once: Average already has a function for them")
        return given


def average(
    estimator: Estimator | Carrier,
    x: Any,
    axis: int = 0,
    *,
    weights: Any = None,
    mask: Any = None,
    nonfinite: NonFinite = "error",
    chunk_size: int | None = None,
    warn: bool = True,
    progress: bool | None = None,
) -> RunningAverage:
    """Average an estimator over the measurements of one parameter, or of many parameters.

    The result has the estimate, its standard error and the number of measurements; results of
    several calls can be merged, so that a stream needs no more memory than one piece of it.

    Args:
        estimator: of one measurement, a `Fit` or a `Model`.
        x: an array or pytree whose leaves have the measurements of one parameter along `axis`; axes
            in front of it are for different parameters. Or a list of sets of different sizes, one
            for each parameter, with `axis` 0.
        axis: counted from the front, as the shape of one measurement follows it.
        weights: shape (..., M), or (..., M, d) for weights by component, a list of such for a list
            of sets; or ``weights(x)`` of one measurement. Equal by default. Weights that depend on
            the noise in x make the average biased.
        mask: True for measurements that are there, (..., M), or a list; the others may be anything,
            and outside of compiled functions nothing is estimated from them.
        nonfinite: what to do about an estimate that is not finite and not masked: "error", or
            "skip" to leave it out and count it.
        chunk_size: how many measurements to estimate from at a time; chosen by default.
        warn: look for measurements that a `Fit` or a `Model` is not made for, as its `predict`
            does; compiled functions do not.
        progress: as in `fit`. Compiled functions show none.
    """
    return _average(
        estimator,
        x,
        axis,
        weights=weights,
        mask=mask,
        nonfinite=nonfinite,
        chunk_size=chunk_size,
        progress=progress,
        carrier=estimator if warn and isinstance(estimator, Carrier) else None,
        stacklevel=4,
    )


def _average(
    estimator: Estimator | Carrier,
    x: Any,
    axis: int,
    *,
    weights: Any,
    mask: Any,
    nonfinite: NonFinite,
    chunk_size: int | None,
    progress: bool | None = None,
    carrier: Carrier | None,
    stacklevel: int,
) -> RunningAverage:
    """Average an estimator; its carrier, if there is one, tells measurements it is not for."""
    spec = spec_of(estimator)
    if spec is not None:
        for table in x if isinstance(x, list) else [x]:
            spec.check_columns(table)
    estimator = as_estimator(estimator)
    if chunk_size is not None:
        check_count("chunk_size", chunk_size)
    check_count("axis", axis, least=0)
    function = weights if callable(weights) else None
    if isinstance(x, list):
        if axis != 0:
            raise ValueError(f"axis must be 0 for a list of sets, got {axis}")
        sets = Sets(x, weights, mask)
        rows, there = sets.rows, sets.there
        _check_rows(spec, rows, axis)
        values, weighed = _evaluate(estimator, function, rows, there, chunk_size, progress)
        found = sets.averaged(values, weighed, nonfinite)
    else:
        lead = leading_shape(x, axis)
        if 0 in lead:
            raise ValueError(f"x must hold at least one measurement, got axes of sizes {lead}")
        present = None if mask is None else checked_mask("mask", mask, lead)
        there = None if present is None else present.reshape(-1)
        x = all_as_numbers("x", x)
        rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[axis + 1 :]), x)
        _check_rows(spec, rows, axis)
        values, weighed = _evaluate(estimator, function, rows, there, chunk_size, progress)
        if weighed is not None:
            weights = weighed.reshape(*lead, *weighed.shape[1:])
        by_set = values.reshape(*lead, -1)
        found = RunningAverage.of(by_set, weights, present, nonfinite=nonfinite)
    if not is_traced(found):
        _check_any_left(found)
        if carrier is not None:
            seen = np.isfinite(values).all(axis=1)  # the others are counted already
            rows = jax.tree.map(np.asarray, rows)
            seen = seen if there is None else seen & np.asarray(there)
            strange = carrier.outside(jax.tree.map(lambda leaf: leaf[seen], rows))
            carrier._warn_of(int(strange.sum()), len(strange), stacklevel=stacklevel)
    return found


def _check_rows(spec: MeasurementSpec | None, rows: Any, axis: int) -> None:
    """Refuse measurements of another shape than the estimator knows."""
    if spec is None or is_traced(rows):
        return
    try:
        fits = spec.is_batch(spec.arrays(rows))
    except ValueError:
        fits = False
    if not fits:
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), rows)
        raise ValueError(
            f"x must have measurements of {describe_shapes(spec.x)} along axis {axis}, got some of "
            f"{describe_shapes(one)}: is axis the right one? A single measurement needs no "
            "average, and is x[None] as a set"
        )


def _evaluate(
    estimator: Estimator,
    weights: Weights | None,
    rows: Any,
    there: Any,
    chunk: int | None,
    progress: bool | None,
) -> tuple[Any, Any]:
    """Estimates (rows, d), and weights (rows,) or (rows, d) where there is a function for them."""
    functions = (estimator,) if weights is None else (estimator, weights)
    if not is_traced(rows):
        one = _one_of(rows)
        for name, function in zip(("estimator", "weights"), functions, strict=False):
            if not isinstance(function, eqx.Module):  # a network would take long to trace
                refuse_frozen_draws(name, function, one)
    _check_outputs(functions, rows)
    # A module that closes over traced arrays makes traced estimates from whatever x.
    if is_traced(functions, rows, there):
        if progress:
            raise ValueError("progress cannot be shown in a compiled function, got progress=True")
        values, *weighed = _traced(functions, rows, there, chunk)
    else:
        values, *weighed = _on_host(functions, rows, there, chunk, progress_for(progress))
    if not weighed:
        return values, None
    return values, weighed[0][:, 0] if weighed[0].shape[1] == 1 else weighed[0]


def _on_host(
    functions: tuple[Estimator, ...],
    rows: Any,
    there: np.ndarray | None,
    chunk: int | None,
    progress: Progress,
) -> list[np.ndarray]:
    """What the functions return for every row that is there, a chunk at a time; 0 elsewhere."""
    leaves, structure = jax.tree.flatten(rows)
    count = leaves[0].shape[0]
    wanted = np.arange(count) if there is None else np.flatnonzero(there)
    size = _chunk_size(leaves, chunk)
    outputs: list[np.ndarray] = []
    with progress.stage("averaging", len(wanted) if len(wanted) > size else None) as advance:
        for start in range(0, max(len(wanted), 1), size):
            index = wanted[start : start + size]
            # One program for all chunks, the last one included.
            filled = np.resize(index if len(index) else np.zeros(1, int), size)
            part = structure.unflatten([leaf[filled] for leaf in leaves])
            for i, output in enumerate(_compiled(functions, part)):
                if i == len(outputs):
                    outputs.append(np.zeros((count, output.shape[1])))
                outputs[i][index] = np.asarray(output, np.float64)[: len(index)]
            advance(start + len(index))
    return outputs


def _traced(
    functions: tuple[Estimator, ...], rows: Any, there: Array | None, chunk: int | None
) -> list[Array]:
    """What the functions return for every row, inside of a compiled function."""
    rows = jax.tree.map(jnp.asarray, rows)
    if there is not None:
        # Rows that are not there may be anything, also to be differentiated: take a good one.
        good = jnp.argmax(there)

        def filled(leaf: Array) -> Array:
            keep = there.reshape(-1, *(1,) * (leaf.ndim - 1))
            return jnp.where(keep, leaf, leaf[good][None])

        rows = jax.tree.map(filled, rows)
    leaves = jax.tree.leaves(rows)
    size = _chunk_size(leaves, chunk)
    if leaves[0].shape[0] <= size:
        return _vectors_of(functions, rows)
    return jax.lax.map(lambda row: _vectors(functions, row), rows, batch_size=size)


def _vectors(functions: tuple[Estimator, ...], row: Measurement) -> list[Float[Array, " q"]]:
    return [jnp.reshape(function(row), (-1,)) for function in functions]


def _vectors_of(functions: tuple[Estimator, ...], rows: Measurement) -> list[Float[Array, "b q"]]:
    return jax.vmap(lambda row: _vectors(functions, row))(rows)


_compiled = eqx.filter_jit(_vectors_of)


def _chunk_size(leaves: list[Any], chunk: int | None) -> int:
    """How many rows to take at a time."""
    count = leaves[0].shape[0]
    numbers = sum(int(np.prod(leaf.shape[1:])) for leaf in leaves)
    return int(np.clip(chunk or CHUNK_NUMBERS // max(numbers, LEAST_NUMBERS), 1, count))


def _check_outputs(functions: tuple[Estimator, ...], rows: Any) -> None:
    """Refuse functions that do not return a number or a vector for one measurement."""
    one = _one_of(rows)
    for name, function in zip(("estimator", "weights"), functions, strict=False):
        try:
            output = eqx.filter_eval_shape(function, one)
        except Exception as error:
            raise ValueError(
                f"{name} failed on one measurement of {describe_shapes(one)}: "
                f"{type(error).__name__}: {error}. A function that JAX cannot trace can be called "
                "beforehand, and what it returns averaged with mvue.RunningAverage.of"
            ) from error
        shape = getattr(output, "shape", None)
        if shape is None or len(shape) > 1:
            got = type(output).__name__ if shape is None else f"shape {shape}"
            raise ValueError(
                f"{name} must return a number or a vector for one measurement, of "
                f"{describe_shapes(one)} here; it returned {got}. Is axis the right one?"
            )
        if jnp.issubdtype(output.dtype, jnp.complexfloating):
            raise TypeError(
                f"{name} must return real numbers, got {output.dtype}: average real and imaginary "
                "parts as two components"
            )


def _one_of(rows: Any) -> Any:
    """The shapes of one measurement."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), rows)


def _check_any_left(found: RunningAverage) -> None:
    empty = np.asarray(found.count) == 0
    if empty.any():
        where = "" if empty.ndim == 0 else f" for {int(empty.sum())} of {empty.size} parameters"
        raise ValueError(
            f"no estimate is left to average{where}: all are masked, of no weight or not finite"
        )
