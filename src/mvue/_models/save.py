"""Saving estimators to a file and loading them, without running anything that a file says."""

import math
import platform
import warnings
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from .._assessment.report import Report
from .._core.checks import check_estimator, checked_names
from .._core.keys import key_for
from .._core.problem import Problem
from .._linear.known_model import LinearEstimator
from .._serialise.container import Contents, read, write
from .._serialise.tree import BrokenTreeError, Decoder, Encoder, UnsavableError
from .._training.input_range import InputRange, Scale, TrainedOn, trained_on_problem
from .._training.result import Fit
from .._version import __version__
from ..exceptions import ModelFileError
from .model import Model, as_function, is_front


def save(
    estimator: Any,
    path: str | Path,
    *,
    problem: Problem | None = None,
    assessment: Report | dict[str, Any] | None = None,
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
    """
    if problem is not None and not isinstance(problem, Problem):
        raise TypeError(f"problem must be a Problem, got {type(problem).__name__}")
    model = _model_of(estimator, problem, assessment)
    encoder = Encoder()
    header: dict[str, Any] = {"versions": model.versions, "needs": None}
    try:
        header["estimator"] = encoder.node(model.estimator, "estimator")
    except UnsavableError as error:
        if is_front(model.estimator):
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
    for name in ("trained_on", "training", "assessment"):
        try:
            header[name] = encoder.node(getattr(model, name), name)
        except UnsavableError as error:
            raise TypeError(f"cannot be saved: {error}; see mvue.register") from None
    write(path, Contents(header, encoder.tensors))


def load(path: str | Path, *, like: Any = None) -> Model:
    """Load what `save` has written.

    Nothing in a file is executed or imported: names of classes and functions are looked up among
    those that are registered, and arrays are read as numbers. A file that is damaged, cut short,
    of a newer format or inconsistent is refused with a `ModelFileError`, one that cannot be opened
    with an OSError.

    Args:
        path: the file.
        like: an estimator of the same structure, for files whose classes are not registered; its
            arrays are replaced by those of the file, which must have the same places, shapes and
            dtypes. `jax.ShapeDtypeStruct` will do for arrays.
    """
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


def _front_versions() -> dict[str, str]:
    import sklearn

    return {"scikit-learn": sklearn.__version__}


def _model_of(estimator: Any, problem: Problem | None, assessment: Any) -> Model:
    """What is to be saved, with all that is known about it."""
    trained_on, training = None, {}
    if isinstance(assessment, Report):
        if len(assessment.estimators) != 1:
            raise ValueError(
                f"assessment must be of one estimator, got {list(assessment.estimators)}: give "
                "report.summary(name)"
            )
        (name,) = assessment.estimators
        assessment = assessment.summary(name) | {"repeats": assessment.repeats}
    if isinstance(estimator, Model):
        trained_on, training = estimator.trained_on, estimator.training
        assessment = estimator.assessment if assessment is None else assessment
        estimator = estimator.estimator
    if isinstance(estimator, Fit):
        problem = estimator.problem if problem is None else problem
        trained_on, training = estimator.trained_on, _training(estimator)
        estimator = estimator.estimator
    elif is_front(estimator):
        trained_on = trained_on or _of_front(estimator)
        training = training or _training_of_front(estimator)
    elif isinstance(estimator, LinearEstimator) and problem is None and trained_on is None:
        dtype = jax.dtypes.canonicalize_dtype(np.asarray(estimator.weight).dtype)
        d, m = np.shape(estimator.weight)
        trained_on = TrainedOn(
            checked_names(None, d), jax.ShapeDtypeStruct((m,), dtype), None, None
        )
    if not callable(estimator) and not is_front(estimator):
        raise TypeError(
            f"estimator must be a Fit, a function of one measurement or an estimator of "
            f"mvue.sklearn, got {type(estimator).__name__}"
        )
    if problem is not None:
        x, y = problem.shapes()
        check_estimator("estimator", estimator, x, y.shape[0])
        trained_on = trained_on_problem(problem, key_for("save", jr.key(0)))
    made_with = versions() | (_front_versions() if is_front(estimator) else {})
    return Model(estimator, trained_on, training, _plain(assessment), made_with)


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


def _of_front(estimator: Any) -> TrainedOn:
    """What an estimator of scikit-learn knows about its training."""
    from sklearn.utils.validation import check_is_fitted

    from ..sklearn._fronts import check_savable, natural_units, parts_of

    check_is_fitted(estimator)
    check_savable(estimator)
    front, parts = estimator, parts_of(estimator)
    estimator = parts.regressor
    x = jax.ShapeDtypeStruct((parts.columns,), np.dtype(np.float64))
    known = getattr(estimator, "target_names_", None)
    if hasattr(estimator, "fit_"):
        seen, (x_units, y_units) = estimator.fit_.trained_on, estimator._units
        inputs = seen.inputs.in_units(x_units.shift, x_units.scale)
        y_range = natural_units(front, y_units.natural(seen.y_range))
        return TrainedOn(seen.names, x, inputs, y_range)
    inputs = None
    if hasattr(estimator, "moments_"):
        moments = estimator.moments_.summary()
        inputs = InputRange.of_moments(moments.mean_x, np.diag(moments.scatter_xx) / moments.weight)
    d = np.size(estimator.intercept_)
    names = checked_names(None if known is None else list(map(str, known)), d)
    return TrainedOn(names, x, inputs, None)


def _training_of_front(estimator: Any) -> dict[str, Any]:
    from ..sklearn._fronts import parts_of

    regressor = parts_of(estimator).regressor
    return _training(regressor.fit_) if hasattr(regressor, "fit_") else {}


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
    if set(header) != needed:
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
    made_with = header["versions"]
    wrong = (
        (needs is not None and not isinstance(needs, str))
        or not isinstance(parts["trained_on"], (TrainedOn, type(None)))
        or not isinstance(parts["training"], dict)
        or not isinstance(parts["assessment"], (dict, type(None)))
        or not isinstance(made_with, dict)
        or not all(isinstance(text, str) for text in made_with.values())
    )
    if wrong or decoder.tensors:
        raise BrokenTreeError("its header is not that of a model, or has tensors left over")
    if like is not None:
        leaves = estimator.get("leaves") if needs is not None else _leaves(estimator)
        estimator = _filled(like, leaves)
    model = Model(estimator, versions=made_with, **parts)
    _check(model)
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


def _check(model: Model) -> None:
    """Refuse a model that fails on the very measurements that it says it is for."""
    known = model.trained_on
    estimator: Any = model.estimator
    try:
        if not callable(estimator) and not is_front(estimator):
            raise TypeError(f"a {type(estimator).__name__} is not a function")
        if known is None:
            return
        _check_trained_on(known, _seen_shapes(estimator, known.x))
        x = known.x
        if is_front(estimator):
            x = jax.ShapeDtypeStruct(x.shape, jnp.result_type(float))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if is_front(estimator) and _has_no_form(estimator, x.shape, len(known.names)):
                return
            # Linear models with complex matrices are saved without a problem.
            check_estimator(
                "the estimator", as_function(estimator), x, len(known.names), may_be_complex=True
            )
    except Exception as error:
        raise BrokenTreeError(f"it is inconsistent: {error}") from error


def _has_no_form(front: Any, shape: tuple[int, ...], d: int) -> bool:
    """Whether it can be used in Python only; then it is tried there."""
    from ..sklearn._fronts import without_form

    if not without_form(front):
        return False
    found = np.size(front.predict(np.zeros((1, *shape))))
    if found != d:
        raise ValueError(f"it returns {found} numbers for {d} unknowns")
    return True


def _seen_shapes(estimator: Any, x: Any) -> Any:
    """Shapes of what the range of training is about: what a regressor sees, within a pipeline."""
    if not is_front(estimator):
        return x
    from ..sklearn._fronts import check_front, parts_of

    check_front(estimator)
    parts = parts_of(estimator)
    if getattr(x, "shape", None) != (parts.columns,):
        raise ValueError("the number of columns is not that of a measurement")
    return jax.ShapeDtypeStruct((parts.regressor.n_features_in_,), x.dtype)


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
    scales = [(seen.usual, columns)]
    if seen.summaries is not None:
        scales.append((seen.summaries, 2 * (columns if seen.is_set else 1)))
    for scale, size in scales:
        if not isinstance(scale, Scale):
            raise TypeError("a scale is not one")
        _check_numbers(scale.centre, (size,))
        _check_numbers(scale.spread, (size,))
    _check_numbers(seen.limits, (1 if seen.summaries is None else 3,))


def _check_numbers(value: Any, shape: tuple[int, ...]) -> None:
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or value.shape != shape:
        raise ValueError(f"numbers of shape {shape} are missing")
