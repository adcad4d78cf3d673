"""Assessment by Monte Carlo: bias, variance and MSE of estimators at fixed parameter values."""

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from .._bounds.crb import note_bounds
from .._core.checks import check_count, refuse_masked
from .._core.estimators import Carrier
from .._core.keys import key_for
from .._core.priors import prior_leaves
from .._core.problem import Problem
from .._core.types import Estimator, Key, Theta
from .._information.bound import ESTIMATED, note_estimated_bounds
from .._intervals.coverage import Coverage, coverage_of
from .._intervals.host import as_jax_function, own_errors
from .._intervals.interval import Intervals, checked_level, interval
from .._numerics.moments import ErrorMoments, summarize
from .._runtime.progress import progress_for
from ..exceptions import ExtrapolationWarning, NonFiniteWarning
from .certificate import BiasLimit, Decision, Subject, certify
from .errors import ErrorPieces, pairs_of
from .report import CRB, Assessment, PriorAverage, Report

DEFAULT_VALUES = 13
RANGE_DRAWS = 4096
EXAMPLES = 4  # of measurements, by which estimators are told apart
LARGEST_KEPT = 2**18  # of their numbers, to be kept in a report
TRAINING_MARGIN = 0.1  # of the range of y that was drawn in training, which need not reach its ends


def assess(
    estimator: Estimator | Carrier | Intervals | Mapping[str, Estimator | Carrier | Intervals],
    problem: Problem,
    *,
    key: Key,
    at: Theta | None = None,
    repeats: int = 10_000,
    of: Callable[[Any], Any] | None = None,
    until: BiasLimit | None = None,
    level: float | None = None,
    bound: str | None = None,
    progress: bool | None = None,
) -> Report:
    """Measure bias, variance and MSE at chosen values of the parameter, with standard errors.

    Every estimator sees the same measurements, so differences between estimators are known
    better than each one alone. Memory does not grow with `repeats`.

    Args:
        estimator: a function of one measurement that returns y (NumPy functions work, slowly),
            a `Fit`, a `Model`, `Intervals` of one, or a dict of these to compare.
        problem: where the measurements come from.
        key: decides all random numbers; repeat r at value k depends on the key, k and r alone.
        at: values of theta, with one more axis in front than the prior's samples. Where theta is
            a dict, nuisance entries may be left out: each value then gets one draw of them
            from the prior. By default 13 values spread over the prior.
        repeats: measurements at each value; with `until`, the most.
        of: judge ``of(estimate)`` as an estimate of ``of(y)``, for example ``lambda y: 1 / y``.
        until: stop as soon as it is decided, for every estimator, whether its bias is within this
            limit; see `Report.certificates`. The decision holds whenever it is made.
        level: also measure how often confidence intervals of this level cover, and how wide they
            are: those of a `Fit`, a `Model` or `Intervals`, or those that `interval` makes.
        bound: "estimated" for an estimated bound, an upper estimate of the Cramér-Rao bound as
            `information_bound` makes it, where the problem has neither crb nor log_likelihood. A
            few seconds for each value.
        progress: as in `fit`.

    Returns:
        A report that prints, plots and saves.
    """
    check_count("repeats", repeats, least=2)
    if until is not None and not isinstance(until, BiasLimit):
        raise TypeError(
            f"until must be a limit such as mvue.BiasLimit(0.05, confidence=0.95), got {until!r}"
        )
    if bound not in (None, "estimated"):
        raise ValueError(
            f"bound must be 'estimated' or None, got {bound!r}: None takes the bound of the "
            "problem, or that of its likelihood"
        )
    named = estimator if isinstance(estimator, Mapping) else {"estimator": estimator}
    if not all(isinstance(name, str) for name in named):
        raise TypeError(f"estimators must be named by strings, got {list(named)}")
    if not named:
        raise ValueError("estimator must name at least one estimator, got an empty dict")
    if level is not None and of is not None:
        raise ValueError("level has no use with of: intervals are for y itself; leave one out")
    level = None if level is None else checked_level(level)
    given = named
    named = {n: e.predictor if isinstance(e, Intervals) else e for n, e in named.items()}
    _, y_shape = problem.shapes()
    stages = progress_for(progress)
    with stages.stage("preparing"):
        examples = jax.tree.map(lambda leaf: leaf[:, 0], problem.draw(jr.key(0), EXAMPLES, 1).x)
    example = jax.tree.map(lambda leaf: leaf[0], examples)
    is_small = sum(leaf.size for leaf in jax.tree.leaves(examples)) <= LARGEST_KEPT
    examples = jax.tree.map(np.asarray, examples) if is_small else None
    functions = {n: as_jax_function(n, e, example, y_shape.shape[0]) for n, e in named.items()}
    at_key, draw_key, prior_key = jr.split(key_for("assess", key), 3)
    with stages.stage("preparing"):
        theta = _values(problem, at, at_key)
        y = jax.vmap(problem.y_of)(theta)
    beyond = np.zeros(len(y), bool) if at is None else _warn_outside(problem, theta, y, at_key)
    outside = {n: beyond | _outside_of_training(e, np.asarray(y)) for n, e in named.items()}
    transform = _transform(of, y_shape.shape[0])
    truth = jax.vmap(transform)(y)

    looks = [repeats] if until is None else until.looks(repeats, truth.size)
    bare = Report(
        names=_names(problem, of, truth.shape[1]),
        y=np.asarray(truth, np.float64),
        theta=jax.tree.map(np.asarray, theta),
        repeats=repeats,
        estimators={},
        bound=None,
        squared_errors={},
        looks=len(looks),
        subjects={name: Subject(one, examples) for name, one in named.items()},
    )

    def decided(errors: ErrorMoments, repeats: int) -> bool:
        found = _with_estimators(bare, errors, repeats, outside)
        assert until is not None
        return all(
            certify(found, name, until).decision is not Decision.UNDECIDED for name in functions
        )

    pieces = ErrorPieces(problem, tuple(functions.values()), transform, len(truth), repeats, looks)
    with own_errors(functions):
        errors, squares, reached = pieces.at_values(theta, truth, draw_key, stages, decided)
        with stages.stage("averaging over the prior"):
            averages = pieces.over_prior(prior_key, reached)
    with stages.stage("computing the bound"):
        unknown = problem.crb is None and problem.log_likelihood is None
        estimated = bound == "estimated" and unknown
        of_report = note_estimated_bounds if estimated else note_bounds
        noted = of_report(problem, theta, transform if of else None, key_for("bound", key))
    report = dataclasses.replace(
        _with_estimators(bare, errors, reached, outside, averages),
        bound=noted.matrix,
        squared_errors=dict(zip(pairs_of(list(functions)), squares, strict=True)),
        bound_se=noted.se,
        bound_note=noted.note,
        bound_is=ESTIMATED if estimated else CRB,
    )
    for name, one in report.estimators.items():
        if one.failures.any() or one.prior.failures:
            warnings.warn(
                f"{name} gave {one.failures.sum():,} non-finite estimates in "
                f"{one.failures.size * reached:,}, and at least one for {one.prior.failures:,} "
                "units from the prior; they count as failures and are left out of the averages",
                NonFiniteWarning,
                stacklevel=2,
            )
    if level is not None:
        with stages.stage("measuring coverage"), own_errors(functions):
            covers = {
                name: _coverage(one, problem, theta, reached, level, key)
                for name, one in given.items()
            }
        report = dataclasses.replace(report, coverage=covers)
    if until is None:
        return report
    return dataclasses.replace(
        report, certificates={name: certify(report, name, until) for name in functions}
    )


def _coverage(
    estimator: Any, problem: Problem, theta: Theta, repeats: int, level: float, key: Key
) -> Coverage:
    """Of the intervals that an estimator has, or of new ones."""
    intervals = estimator
    if isinstance(estimator, Carrier):
        known = getattr(estimator, "problem", None) or getattr(estimator, "curves", None)
        intervals = estimator if known is None else getattr(estimator, "intervals", estimator)
    if not isinstance(intervals, Intervals):
        intervals = interval(estimator, problem, level=level, key=key_for("intervals", key))
    of_values = key_for("coverage", key)
    return coverage_of(intervals, problem, theta, repeats=repeats, key=of_values, level=level)


def _names(problem: Problem, of: Callable[[Any], Any] | None, count: int) -> tuple[str, ...]:
    """Of the components of what is judged."""
    names = problem.names or ()
    if of is None:
        return names
    if count == len(names):
        return tuple(f"of({n})" for n in names)
    return tuple(f"of(y){i + 1}" for i in range(count))


def _with_estimators(
    bare: Report,
    errors: ErrorMoments,
    repeats: int,
    outside: Mapping[str, np.ndarray],
    averages: Sequence[PriorAverage] | None = None,
) -> Report:
    """A report with what moments of errors, (E, K, d), say of each estimator."""
    assessments = {}
    for i, name in enumerate(outside):
        one = ErrorMoments(*(leaf[i] for leaf in errors))
        assessments[name] = Assessment(
            **vars(summarize(one)),
            covariance=one.covariance,
            failures=np.asarray(repeats - one.number, dtype=int),
            prior=PriorAverage.unknown() if averages is None else averages[i],
            outside=outside[name],
        )
    return dataclasses.replace(bare, repeats=repeats, estimators=assessments)


def _outside_of_training(estimator: Any, y: np.ndarray) -> np.ndarray:
    """Which values lie outside of those that an estimator was trained on, as far as it knows."""
    return beyond_training(estimator.y_range if isinstance(estimator, Carrier) else None, y)


def beyond_training(known: np.ndarray | None, y: np.ndarray) -> np.ndarray:
    """Which values lie outside of a range of y that was drawn in training, (2, d)."""
    if known is None or known.shape[1] != y.shape[1]:
        return np.zeros(len(y), bool)
    margin = TRAINING_MARGIN * (known[1] - known[0])
    return ((y < known[0] - margin) | (y > known[1] + margin)).any(axis=1)


def _transform(of: Callable[[Any], Any] | None, d: int) -> Callable[[Any], Any]:
    if of is None:
        return lambda y: y
    transform = lambda y: jnp.reshape(of(y), (-1,))  # noqa: E731
    try:
        jax.eval_shape(transform, jax.ShapeDtypeStruct((d,), jnp.result_type(float)))
    except Exception as error:
        raise ValueError(
            f"of(y) failed for a y of shape ({d},): {type(error).__name__}: {error}"
        ) from error
    return transform


def _values(problem: Problem, at: Theta | None, key: Key) -> Theta:
    """The values of theta to assess at, with a leading axis."""
    one = jax.eval_shape(problem.sample_prior, key)
    if at is None:
        return _spread(problem, key)
    if isinstance(one, Mapping):
        at = _complete(problem, at, one, key)
    leaves, structure = jax.tree.flatten(one)
    try:
        parts = structure.flatten_up_to(at)
    except ValueError as error:
        raise ValueError(f"at must have the structure of theta, {structure}: {error}") from error

    def fit_shape(value: Any, like: Any) -> Array:
        refuse_masked("at", value)
        given = np.asarray(value)
        if given.dtype.kind not in "biuf":
            raise ValueError(f"at must hold arrays of values of theta, got {given.dtype}")
        given = given.astype(np.float64)
        value = jnp.asarray(given, like.dtype)
        if (np.asarray(value, np.float64) != np.rint(given)).any() and value.dtype.kind in "iu":
            raise ValueError(f"at must hold whole numbers, as the prior does; got {given}")
        if not np.isfinite(given).all():
            raise ValueError(f"at must hold finite values of theta; got {given}")
        if value.ndim == 1 and like.shape == (1,):
            value = value[:, None]
        if value.ndim == 0 or value.shape[1:] != like.shape or value.shape[0] == 0:
            wanted = ", ".join(map(str, ("K", *like.shape)))
            raise ValueError(
                f"at must hold values of theta along a new leading axis, shape ({wanted}); got "
                f"{value.shape}"
            )
        return value

    theta = jax.tree.unflatten(structure, map(fit_shape, parts, leaves))
    lengths = {leaf.shape[0] for leaf in jax.tree.leaves(theta)}
    if len(lengths) != 1:
        raise ValueError(f"at must give equally many values of each entry, got {sorted(lengths)}")
    return theta


def _complete(problem: Problem, at: Any, one: Mapping[str, Any], key: Key) -> Any:
    """Entries of theta that `at` leaves out, drawn from the prior."""
    if not isinstance(at, Mapping) or not at:
        raise ValueError(f"at must be a dict with entries of theta, {sorted(one)}, got {at!r}")
    unknown = sorted(set(at) - set(one))
    if unknown:
        raise ValueError(f"at names {unknown}, which theta does not have: {sorted(one)}")
    missing = sorted(set(one) - set(at))
    if not missing:
        return at
    first = np.asarray(next(iter(at.values())))
    if first.ndim == 0:
        raise ValueError(f"at must hold values along a new leading axis, got the number {first}")
    count = len(first)
    drawn = jax.vmap(problem.sample_prior)(jr.split(key, count))
    return {**at, **{name: drawn[name] for name in missing}}


def _spread(problem: Problem, key: Key) -> Theta:
    """Values spread over the prior: at equal steps of rank, for one parameter; else drawn."""
    theta = jax.vmap(problem.sample_prior)(jr.split(key, RANGE_DRAWS))
    y = jax.vmap(problem.y_of)(theta)
    if y.shape[1] == 1:
        ranks = np.linspace(0, len(y) - 1, DEFAULT_VALUES).round().astype(int)
        index = jnp.argsort(y[:, 0])[ranks]
    else:
        index = jnp.arange(DEFAULT_VALUES)
    return jax.tree.map(lambda leaf: leaf[index], theta)


def _warn_outside(problem: Problem, theta: Theta, y: Array, key: Key) -> np.ndarray:
    """Warn about values that the prior cannot produce, and tell which these are, (K,)."""
    outside = np.zeros(len(y), bool)
    priors = prior_leaves(problem.prior)
    parts = [theta] if len(priors) == 1 and not isinstance(problem.prior, Mapping) else None
    parts = parts or jax.tree.leaves(theta)
    supports: list[Any] = [getattr(prior, "support", None) for prior in priors]
    if len(parts) == len(priors) and all(callable(s) for s in supports):
        for support, part in zip(supports, parts, strict=True):
            inside = np.zeros(len(y), bool)
            for slack in (1.0, 1 - 1e-5, 1 + 1e-5):  # rounding is not extrapolation
                check = np.asarray(jax.vmap(support)(part * slack))
                inside |= check.reshape(len(y), -1).all(axis=1)
            outside |= ~inside
    else:
        drawn = jax.vmap(lambda k: problem.y_of(problem.sample_prior(k)))(
            jr.split(key, RANGE_DRAWS)
        )
        low, high = drawn.min(axis=0, keepdims=True), drawn.max(axis=0, keepdims=True)
        margin = 0.01 * (high - low)
        outside = np.asarray(((y < low - margin) | (y > high + margin)).any(axis=1))
    if outside.any():
        listed = ", ".join(str(np.asarray(v).tolist()) for v in y[np.flatnonzero(outside)[:5]])
        warnings.warn(
            f"{outside.sum()} of the {len(y)} values in at lie outside the prior (y = {listed}"
            f"{', ...' if outside.sum() > 5 else ''}): a trained estimator extrapolates there",
            ExtrapolationWarning,
            stacklevel=3,
        )
    return outside
