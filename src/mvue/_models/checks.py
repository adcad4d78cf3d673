"""What a loaded model must be for `load` to return it."""

import gc
import inspect
import math
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._assessment.assess import beyond_training
from .._assessment.certificate import Subject
from .._core.checks import check_estimator, checked_names, describe_shapes
from .._core.estimators import Carrier, Predictor
from .._finish.input_range import SUMMARIES_IN_ONE_UNIT, InputRange, Scale, TrainedOn
from .._runtime.digest import arrays_identity, same_identity
from .._serialise.tree import BrokenTreeError
from .fronts import Front, front_of
from .model import Model, as_function

LARGEST_TRIED = 2**15
"""Numbers of a measurement with which an estimator is tried: statistics have tables of sizes that
grow with it, and a file may claim any."""
MOST_CALLS = 250_000
"""Calls and returns of functions while an estimator is tried; the default networks take 100,000."""


SAME = 1e-3
"""Estimates that differ by less, as a share of the largest, are the same but for rounding."""


class Assessed(NamedTuple):
    """What an assessment or a certificate is about."""

    what: str
    """Which of the two, for messages."""
    names: tuple[str, ...]
    y: np.ndarray
    """The values, without those that were outside of the prior or of training, (K, d)."""
    subject: Subject


def check_assessed(given: Assessed, estimator: Any, known: TrainedOn | None) -> None:
    """Refuse what was assessed of another estimator or another problem, as far as that is known."""
    hint = "assess the estimator that is saved, on the problem that it is for"
    # With `of`, something else than y was judged.
    of_y = not any(name.startswith("of(") for name in given.names)
    if known is not None and of_y:
        nameless = checked_names(None, len(known.names))
        if given.names != known.names and nameless not in (given.names, known.names):
            raise ValueError(
                f"{given.what} must be of this estimator, of {', '.join(known.names)}; got one of "
                f"{', '.join(given.names)}: {hint}"
            )
        beyond = beyond_training(known.y_range, given.y)
        if beyond.any():
            raise ValueError(
                f"{given.what} must be for values that the estimator was trained on, got y = "
                f"{given.y[beyond][0].tolist()}: {hint}"
            )
    examples = given.subject.examples
    if examples is None:
        return
    if known is not None:
        shapes = [leaf.shape for leaf in jax.tree.leaves(known.x)]
        if shapes != [leaf.shape[1:] for leaf in jax.tree.leaves(examples)]:
            one = jax.tree.map(lambda leaf: leaf[0], examples)
            raise ValueError(
                f"{given.what} must be of this estimator, of measurements of "
                f"{describe_shapes(known.x)}; got one of measurements of {describe_shapes(one)}: "
                f"{hint}"
            )
    theirs = given.subject.estimator
    theirs = getattr(theirs, "estimator", theirs) if isinstance(theirs, Carrier) else theirs
    if not are_same(estimator, theirs, examples):
        raise ValueError(
            f"{given.what} must be of this estimator, got that of one with other estimates: {hint}"
        )


def are_same(one: Any, other: Any, examples: Any) -> bool:
    """Whether two estimators give the same estimates, as far as that can be found out."""
    arrays = numbers_of(one), numbers_of(other)
    ours, theirs = map(arrays_identity, arrays)
    if one is other or (type(one) is type(other) and all(arrays) and same_identity(ours, theirs)):
        return True
    found = [_estimates(estimator, examples) for estimator in (one, other)]
    if any(estimates is None for estimates in found):
        return True
    ours, theirs = found
    if ours.shape != theirs.shape:
        return False
    with np.errstate(all="ignore"):
        size = np.nanmax(np.abs(found), initial=0.0)
        differ = ~(np.isclose(ours, theirs, rtol=0, atol=SAME * size, equal_nan=True).all(axis=1))
    # An estimator may jump, and one estimate with it, by rounding.
    return bool(2 * differ.sum() <= len(differ))


def _estimates(estimator: Any, examples: Any) -> Any:
    """Estimates from some measurements, (n, d); None if there is no telling."""
    try:
        front = front_of(estimator)
        if front is not None:
            found = front.predict(examples)
        elif isinstance(estimator, Predictor):
            found = estimator.predict(examples, warn=False)
        else:
            count = len(jax.tree.leaves(examples)[0])
            each = [
                jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf[i]), examples) for i in range(count)
            ]
            found = [np.ravel(estimator(one)) for one in each]
        return np.asarray(found, np.float64).reshape(len(found), -1)
    except Exception:
        return None


def numbers_of(estimator: Any) -> list[np.ndarray]:
    """The arrays of an estimator; none of a function that does not show them."""
    leaves = jax.tree.leaves(estimator)
    return [np.asarray(leaf) for leaf in leaves if isinstance(leaf, (np.ndarray, jax.Array))]


def check_model(model: Model) -> None:
    """Refuse a model that fails on the very measurements that it says it is for."""
    known = model.trained_on
    try:
        if model.curves is not None and len(model.curves.y) != len(model.names or ()):
            raise ValueError("its intervals are for another number of parameters")
        front = model.front
        if not callable(model.estimator) and front is None:
            raise TypeError(f"a {type(model.estimator).__name__} is not a function")
        if known is None:
            return
        _check_trained_on(known, known.x if front is None else front.check(known.x))
        numbers = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(known.x))
        if numbers <= LARGEST_TRIED:
            with warnings.catch_warnings(), suppress(_TooMuchWork), _limited_work(MOST_CALLS):
                warnings.simplefilter("ignore")
                _try(model, front, known)
    except Exception as error:
        raise BrokenTreeError(f"it is inconsistent: {error}") from error


def _try(model: Model, front: Front | None, known: TrainedOn) -> None:
    """Use an estimator on the shapes of a measurement."""
    x = known.x
    if front is not None:
        if not front.has_form:
            _check_size(front, x.shape, len(known.names))
            return
        x = jax.ShapeDtypeStruct(x.shape, jnp.result_type(float))
    # Linear models with complex matrices are saved without a problem.
    function = as_function(model.estimator)
    check_estimator(
        "the estimator", function, x, len(known.names), may_be_complex=True, is_fixed=True
    )


class _TooMuchWork(BaseException):
    """More than a check may take; not an Exception, so that nothing on the way answers it."""


@contextmanager
def _limited_work(calls: int) -> Iterator[None]:
    """Give up after so many calls of functions: a file must not decide how long it is checked.

    Calls are counted, not seconds, so that a file is treated alike on every machine. Somebody
    else's profiler is left alone.
    """
    if sys.getprofile() is not None:
        yield
        return
    left, collects = calls, gc.isenabled()

    def count(frame: Any, event: str, _: Any) -> None:
        nonlocal left
        left -= 1
        # What is raised while a generator is closed is lost, too.
        if left < 0 and event == "call" and not frame.f_code.co_flags & inspect.CO_GENERATOR:
            raise _TooMuchWork

    gc.disable()  # what is raised while garbage is collected is lost
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)
        if collects:
            gc.enable()


def _check_size(front: Front, shape: tuple[int, ...], d: int) -> None:
    """Try what can be used in Python only."""
    found = np.size(front.predict(np.zeros((1, *shape))))
    if found != d:
        raise ValueError(f"it returns {found} numbers for {d} parameters")


def _check_trained_on(known: TrainedOn, seen_x: Any) -> None:
    leaves = jax.tree.leaves(known.x)
    if not leaves or not all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
        raise TypeError("the shape of a measurement is missing")
    if type(known.names) is not tuple or not all(type(name) is str for name in known.names):
        raise TypeError("names must be texts")
    if known.y_range is not None:
        _check_numbers(known.y_range, (2, len(known.names)))
    seen = known.inputs
    if seen is None:
        return
    if not isinstance(seen, InputRange) or type(seen.is_set) is not bool:
        raise TypeError("the range of measurements is not one")
    leaves = jax.tree.leaves(seen_x)
    if seen.is_set and any(not leaf.shape for leaf in leaves):
        raise ValueError("a number is not a set")
    columns = sum(
        math.prod(leaf.shape[seen.is_set :]) * (2 if leaf.dtype.kind == "c" else 1)
        for leaf in leaves
    )
    scales, kinds = [(seen.usual, columns)], 0
    if seen.summaries is not None:
        columns_each = columns if seen.is_set else 1
        kinds = np.size(getattr(seen.summaries, "centre", ())) // max(columns_each, 1)
        ties = np.size(seen.limits) - 1 - kinds  # one limit more, of sets only
        if (
            not 2 <= kinds <= SUMMARIES_IN_ONE_UNIT
            or ties not in (0, 1)
            or (ties and not seen.is_set)
        ):
            raise ValueError("limits of the range of measurements are missing")
        scales.append((seen.summaries, kinds * columns_each))
    for scale, size in scales:
        if not isinstance(scale, Scale):
            raise TypeError("a scale is not one")
        _check_numbers(scale.centre, (size,))
        _check_numbers(scale.spread, (size,))
    if seen.summary_ends is not None:
        if seen.summaries is None:
            raise ValueError("the scale of summaries is missing")
        _check_numbers(seen.summary_ends, (2, np.size(seen.summaries.centre)))
    if seen.ends is not None:
        _check_numbers(seen.ends, (2, columns))
    _check_numbers(seen.limits, (np.size(seen.limits) if kinds else 1,))


def _check_numbers(value: Any, shape: tuple[int, ...]) -> None:
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or value.shape != shape:
        raise ValueError(f"numbers of shape {shape} are missing")
