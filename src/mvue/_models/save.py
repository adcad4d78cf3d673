"""`save` and `load`: estimators in one file, read without executing anything from it."""

import platform
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from .._assessment.certificate import Certificate, Subject
from .._assessment.report import Report
from .._core.checks import check_estimator, checked_names, describe_shapes
from .._core.estimators import as_estimator
from .._core.problem import Problem
from .._finish.input_range import TrainedOn, trained_on_problem
from .._intervals.curves import IntervalCurves
from .._intervals.interval import Intervals
from .._linear.known_model import LinearEstimator
from .._serialise.container import Contents, check_path, read, write
from .._serialise.tree import BrokenTreeError, Decoder, Encoder, UnsavableError
from .._training.result import Fit
from .._version import __version__
from ..exceptions import ModelFileError
from .checks import Assessed, are_same, check_assessed, check_model
from .fronts import front_of
from .model import Model

EXAMPLES = 5  # measurements that two estimators are compared on


def save(
    estimator: Any,
    path: str | Path,
    *,
    problem: Problem | None = None,
    assessment: Report | dict[str, Any] | None = None,
    certificate: Certificate | None = None,
    intervals: Intervals | None = None,
) -> None:
    """Save an estimator in one file, for `load` and the command line.

    The file is a safetensors file with a description in JSON: no pickle, no code. It is written
    whole or not at all. Estimators are described by the classes and functions they are made of;
    those of mvue, the layers of Equinox and the usual functions of JAX are known. For your own,
    see `register`; of what is not known only the arrays are saved, and `load` needs ``like=``.

    Args:
        estimator: a `Fit`, an estimator (an Equinox module), or a fitted `LinearBCE`,
            `LinearBCECV` or `BCERegressor`, also as the last step of a pipeline of scikit-learn;
            or what `load` returned.
        path: where to; ``.mvue`` is the usual ending.
        problem: what a bare estimator was made for: tells names, the shape of a measurement, and
            what measurements look like. A `Fit` knows that by itself.
        assessment: a `Report` of this one estimator, whose summary is kept; or a summary, such as
            ``report.summary("bce")``.
        certificate: what `Report.certify` returned for this estimator; by default that of the
            assessment, if it was made with ``until=``.
        intervals: what `interval` returned for this estimator, so that ``load(path).interval(x)``
            works; by default those of a `Fit` that has been asked for intervals.
    """
    check_path(path)
    if problem is not None and not isinstance(problem, Problem):
        raise TypeError(f"problem must be a Problem, got {type(problem).__name__}")
    if certificate is not None and not isinstance(certificate, Certificate):
        raise TypeError(
            f"certificate must be what report.certify() returns, got {type(certificate).__name__}"
        )
    if intervals is not None and not isinstance(intervals, Intervals):
        raise TypeError(
            f"intervals must be what mvue.interval returns, got {type(intervals).__name__}"
        )
    model = model_of(estimator, problem, assessment, certificate, intervals)
    encoder = Encoder()
    header: dict[str, Any] = {"versions": model.versions, "needs": None}
    try:
        header["estimator"] = encoder.node(model.estimator, "estimator")
    except UnsavableError as error:
        if model.front is not None:
            raise TypeError(f"cannot save this {type(model.estimator).__name__}: {error}") from None
        encoder = Encoder()
        header["needs"] = str(error)
        leaves = _leaves(model.estimator)
        if not any(map(eqx.is_array_like, leaves.values())):
            raise TypeError(
                f"estimator has no arrays to save: {error}. Give an Equinox module, or register "
                "the function with mvue.register"
            ) from None
        header["estimator"] = encoder.node({"leaves": leaves}, "estimator")
    parts = ["trained_on", "training", "assessment"]
    for name in parts if model.curves is None else [*parts, "curves"]:
        try:
            header[name] = encoder.node(getattr(model, name), name)
        except UnsavableError as error:
            raise TypeError(f"cannot be saved: {error}; see mvue.register") from None
    write(path, Contents(header, encoder.tensors))


def load(path: str | Path, *, like: Any = None) -> Model:
    """Load what `save` has written.

    Nothing in a file is executed or imported: names of classes, functions and methods are looked
    up among those that are registered, and arrays are read as numbers. A file that is damaged, cut
    short, of a newer format or inconsistent is refused with a `ModelFileError`, one that cannot be
    opened with an OSError. Whether an estimator fits its measurements is tried on shapes alone, as
    far as that takes a fraction of a second.

    Args:
        path: the file.
        like: an estimator of the same structure, for files whose classes are not registered; its
            arrays are replaced by those of the file, which must have the same places, shapes and
            dtypes. `jax.ShapeDtypeStruct` will do for arrays.
    """
    check_path(path)
    contents = read(path)
    try:
        return _decoded(contents, like)
    except (BrokenTreeError, RecursionError, OverflowError, MemoryError) as error:
        raise ModelFileError(f"{path} cannot be loaded: {error}") from error


def versions() -> dict[str, str]:
    """Versions of what an estimator depends on."""
    return {
        "mvue": __version__,
        "jax": jax.__version__,
        "equinox": eqx.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def model_of(
    estimator: Any,
    problem: Problem | None,
    assessment: Any = None,
    certificate: Certificate | None = None,
    intervals: Intervals | None = None,
) -> Model:
    """An estimator with all that is known about it, as it is saved and exported."""
    assessed: list[Assessed] = []
    if certificate is not None:
        inside = certificate.y[certificate.covered]
        assessed.append(Assessed("certificate", certificate.names, inside, certificate.subject))
    if isinstance(assessment, Report):
        if len(assessment.estimators) != 1:
            raise ValueError(
                f"assessment must be of one estimator, got {list(assessment.estimators)}: give "
                "report.summary(name)"
            )
        (name,) = assessment.estimators
        beyond = assessment[name].outside
        inside = slice(None) if beyond is None else ~beyond
        assessed.append(
            Assessed(
                "assessment",
                assessment.names,
                assessment.y[inside],
                assessment.subjects.get(name, Subject()),
            )
        )
        certificate = certificate or assessment.certificates.get(name)
        assessment = assessment.summary(name) | {"repeats": assessment.repeats}
    trained_on, training = None, {}
    curves = None if intervals is None else intervals.curves
    if isinstance(estimator, Model):
        trained_on, training = estimator.trained_on, estimator.training
        if assessment is None:
            assessment = estimator.assessment
        elif estimator.certificate is not None:  # it is of the same estimator still
            assessment = {"certificate": estimator.certificate} | assessment
        curves = estimator.curves if curves is None else curves
        estimator = estimator.estimator
    elif isinstance(estimator, Fit):
        trained_on = estimator.range_trained_on if problem is None else None
        training = _training(estimator)
        made = vars(estimator).get("intervals")  # if they were asked for
        curves = made.curves if curves is None and made is not None else curves
        estimator = estimator.estimator
    if certificate is not None:
        assessment = (assessment or {}) | {"certificate": certificate.summary()}
    front = front_of(estimator)
    if front is not None:
        trained_on = trained_on or front.trained_on()
        fit = front.fit()
        training = training or ({} if fit is None else _training(fit))
    elif not callable(estimator):
        raise TypeError(
            f"estimator must be a Fit, a function of one measurement or an estimator of "
            f"mvue.sklearn, got {type(estimator).__name__}"
        )
    elif isinstance(estimator, LinearEstimator) and problem is None and trained_on is None:
        dtype = jax.dtypes.canonicalize_dtype(np.asarray(estimator.weight).dtype)
        d, m = np.shape(estimator.weight)
        trained_on = TrainedOn(
            checked_names(None, d), jax.ShapeDtypeStruct((m,), dtype), None, None
        )
    if problem is not None:
        x, y = problem.shapes()
        check_estimator("estimator", estimator, x, y.shape[0])
        trained_on = trained_on_problem(problem)
    if curves is not None:
        known = 0 if trained_on is None else len(trained_on.names)
        if known != len(curves.y):
            raise ValueError(
                f"intervals are for {len(curves.y)} parameters, the estimator for "
                f"{known or 'an unknown number'}: give problem="
            )
    for one in assessed:
        check_assessed(one, estimator, trained_on)
    if intervals is not None and trained_on is not None:
        _check_intervals(intervals, estimator, trained_on)
    made_with = versions() | ({} if front is None else front.versions)
    return Model(estimator, trained_on, training, _plain(assessment), made_with, curves)


def _check_intervals(intervals: Intervals, estimator: Any, known: TrainedOn) -> None:
    """Refuse intervals that were made for another estimator or another problem."""
    nameless = checked_names(None, len(known.names))
    if intervals.names != known.names and nameless not in (intervals.names, known.names):
        raise ValueError(
            f"intervals must be of this estimator, of {', '.join(known.names)}; got those of "
            f"{', '.join(intervals.names)}"
        )
    spec = intervals.predictor._spec
    shapes = [
        [leaf.shape for leaf in jax.tree.leaves(x)]
        for x in (known.x, None if spec is None else spec.x)
    ]
    if spec is not None and shapes[0] != shapes[1]:
        raise ValueError(
            f"intervals must be of this estimator, of measurements of {describe_shapes(known.x)}; "
            f"got those of measurements of {describe_shapes(spec.x)}"
        )
    if not are_same(estimator, as_estimator(intervals.predictor), _examples_like(known.x)):
        raise ValueError(
            "intervals must be of this estimator, got those of one with other weights or "
            "estimates: make them with mvue.interval(estimator, problem, key=...)"
        )


def _examples_like(x: Any) -> Any:
    """Some measurements of these shapes, to compare estimates from."""
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: rng.uniform(0.5, 3.5, size=(EXAMPLES, *leaf.shape)).astype(leaf.dtype), x
    )


def _training(fit: Fit) -> dict[str, Any]:
    ranges = [] if fit.survey is None else fit.survey.ranges
    return {
        "outcome": str(fit.outcome),
        "step": fit.step,
        "weights": fit.weights,
        "held_out": dict(fit.held_out),
        "seconds": fit.seconds,
        "nonfinite": fit.nonfinite,
        "settings": _plain(fit.settings),
        "ranges": [
            {"name": r.name, "interest": _plain(r.interest), "training": _plain(r.training)}
            for r in ranges
        ],
    }


def _plain(value: Any) -> Any:
    """Numbers and texts as Python has them."""
    if isinstance(value, dict):
        return {str(name): _plain(child) for name, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(child) for child in value]
    if isinstance(value, (np.generic, np.ndarray, jax.Array)):
        return np.asarray(value).tolist()
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _decoded(contents: Contents, like: Any) -> Model:
    header = contents.header
    needed = {"format", "versions", "needs", "estimator", "trained_on", "training", "assessment"}
    if set(header) - {"curves"} != needed:
        raise BrokenTreeError("its header is not that of a model")
    decoder = Decoder(contents.tensors)
    needs = header["needs"]
    if needs is not None and like is None:
        raise BrokenTreeError(
            f"it holds the arrays of an estimator but not its structure, because {needs}. Give "
            "load(path, like=network) a network of the same structure, or register what it is made "
            "of with mvue.register before saving"
        )
    estimator = decoder.value(header["estimator"])
    parts = {name: decoder.value(header[name]) for name in ("trained_on", "training", "assessment")}
    curves = decoder.value(header["curves"]) if "curves" in header else None
    made_with = header["versions"]
    wrong = (
        (needs is not None and not isinstance(needs, str))
        or not isinstance(parts["trained_on"], (TrainedOn, type(None)))
        or not isinstance(parts["training"], dict)
        or not isinstance(parts["assessment"], (dict, type(None)))
        or not isinstance(curves, (IntervalCurves, type(None)))
        or not isinstance(made_with, dict)
        or not all(isinstance(text, str) for text in made_with.values())
    )
    if wrong or decoder.tensors:
        raise BrokenTreeError("its header is not that of a model, or has tensors left over")
    if like is not None:
        leaves = estimator.get("leaves") if needs is not None else _leaves(estimator)
        estimator = _filled(like, leaves)
    model = Model(estimator, versions=made_with, curves=curves, **parts)
    check_model(model)
    return model


def _leaves(tree: Any) -> dict[str, Any]:
    """Arrays and numbers of a tree, by their places."""
    with_path = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path): leaf
        for path, leaf in with_path
        if eqx.is_array_like(leaf) or isinstance(leaf, (np.ndarray, jax.ShapeDtypeStruct))
    }


def _filled(like: Any, leaves: Any) -> Any:
    """The estimator `like` with the arrays of a file."""
    wanted = _leaves(like)
    if not isinstance(leaves, dict) or set(leaves) != set(wanted):
        given = set(leaves) if isinstance(leaves, dict) else set()
        lacking, extra = sorted(set(wanted) - given), sorted(given - set(wanted))
        raise BrokenTreeError(
            "it does not have the structure of like: "
            + "; ".join(
                f"{text} {', '.join(names[:5])}"
                for text, names in (("the file lacks", lacking), ("like lacks", extra))
                if names
            )
        )
    for place, want in wanted.items():
        got = leaves[place]
        if isinstance(want, (bool, int, float, complex)):
            if type(got) is not type(want) or (got != want and got == got):
                raise BrokenTreeError(f"it has {got!r} at {place}, where like has {want!r}")
        elif getattr(got, "shape", None) != want.shape or got.dtype != want.dtype:
            shown = f"{got.dtype} {got.shape}" if hasattr(got, "shape") else repr(got)[:80]
            raise BrokenTreeError(
                f"it has {shown} at {place}, where like has {want.dtype} {want.shape}"
            )

    def fill(path: Any, leaf: Any) -> Any:
        return leaves.get(jax.tree_util.keystr(path), leaf)

    return jax.tree_util.tree_map_with_path(fill, like)
