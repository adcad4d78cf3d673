"""The transformers of scikit-learn that may stand in model files, and what they do, in JAX.

Each is saved as its parameters and its public fitted attributes, without a pickle. What is loaded
is the object of scikit-learn again. Some keep in private what `transform` needs: those are fitted
to a stand-in, with parameters of ours, before they get the parameters and attributes of the file.
All sizes are checked before, so that a file cannot ask for more memory than it has itself.
"""

import inspect
import itertools
import math
import warnings
from collections.abc import Callable
from functools import partial, reduce
from operator import mul
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    PolynomialFeatures,
    RobustScaler,
    StandardScaler,
)

from sklearn import config_context

from .._finish.input_range import InputRange
from .._serialise.registry import check_shapes, register_built

HIGHEST_DEGREE = 16
MOST_COLUMNS = 2**20
MOST_PRODUCTS = 2**15  # columns of polynomials
TABLES = ("pandas", "polars")  # kinds of output other than arrays
SHARED = ("n_features_in_", "feature_names_in_")
OLDER = frozenset(  # private attributes in files of earlier versions, which are not needed
    (
        *("_fit_dtype", "_fill_dtype", "_min_degree", "_max_degree", "_n_out_full", "_gamma"),
        *("_fit_svd_solver", "_n_features_out"),
    )
)

Row = Callable[[Array], Array]


class Known(NamedTuple):
    """What the use of a fitted transformer needs to know about its class."""

    fitted: tuple[str, ...]
    """Public attributes beyond the parameters; some may be absent."""
    columns: Callable[[Any], int]
    """How many it returns; raises a ValueError where its attributes do not fit together."""
    in_jax: Callable[[Any], Row]
    """The same as a function of one row."""
    undo: Callable[[Any, np.ndarray], np.ndarray | None]
    """Rows that become those given, or nearly; None where these do not say."""
    is_affine: bool = False
    """Whether it shifts and scales each column, and can take that back."""
    trained_on: Callable[[Any], InputRange | None] = lambda _: None
    """Which rows are like those that it was fitted to, where it knows."""
    stand_in: Callable[[Any], Any] | None = None
    """Another one, fitted, whose private attributes are those of the one given; None if it has
    none that matter."""


def known(transformer: Any) -> Known | None:
    """What is known about a transformer."""
    return KNOWN.get(type(transformer))


def constant(values: Any) -> Array:
    """In the precision of JAX."""
    return jnp.asarray(np.asarray(values), jnp.result_type(float))


def _taken(transformer: Any) -> dict[str, Any]:
    """Parameters and public fitted attributes."""
    there = vars(transformer)
    names = [name for name in (*SHARED, *KNOWN[type(transformer)].fitted) if name in there]
    fields = {**transformer.get_params(deep=False), **{name: there[name] for name in names}}
    table = _table(transformer) if "n_features_in_" in there else None
    return fields if table is None else {**fields, "output": table}


def _table(transformer: Any) -> str | None:
    """The kind of table that `set_output` asked a fitted one for; None for arrays."""
    with config_context(transform_output="default"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its columns may have names
        found = transformer.transform(np.zeros((1, transformer.n_features_in_)))
    library = type(found).__module__.partition(".")[0]
    return library if library in TABLES else None


def _built(cls: type, fields: dict[str, Any]) -> Any:
    """One with the parameters and attributes of a file, checked before anything is done."""
    about = KNOWN[cls]
    older = fields.get("_sklearn_output_config") or {}
    output = fields.get("output", older.get("transform"))
    parameters = {
        name: fields[name] for name in inspect.signature(cls).parameters if name in fields
    }
    _check_parameters(cls, parameters)
    transformer = cls(**parameters)
    attributes = {name: fields[name] for name in (*SHARED, *about.fitted) if name in fields}
    if attributes:
        _set(transformer, attributes)
        _check_columns(transformer)
        about.columns(transformer)
        if about.stand_in is not None:
            transformer = about.stand_in(transformer).set_params(**parameters)
            _set(transformer, attributes)
    if output not in (None, "default", *TABLES):
        raise ValueError("the kind of output is not one")
    return transformer.set_output(transform=output)


def _set(transformer: Any, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        setattr(transformer, name, value)


def _check_parameters(cls: type, given: dict[str, Any]) -> None:
    for name, value in given.items():
        is_switch = type(inspect.signature(cls).parameters[name].default) is bool
        parts = value if type(value) in (tuple, list) else [value]
        plain = all(isinstance(part, (int, float, str, np.generic, type(None))) for part in parts)
        if not plain or (is_switch and not isinstance(value, (bool, np.bool_))):
            raise ValueError(f"{name} cannot be {value!r}"[:200])


def _check_columns(transformer: Any) -> None:
    p = getattr(transformer, "n_features_in_", None)
    if type(p) is not int or not 0 < p <= MOST_COLUMNS:
        raise ValueError(f"n_features_in_ must be a number of columns, got {p!r}"[:200])
    if not hasattr(transformer, "feature_names_in_"):
        return
    names = transformer.feature_names_in_
    if not isinstance(names, np.ndarray) or names.dtype != object or names.shape != (p,):
        raise ValueError("feature_names_in_ must have one name for each column")


def _as_many(t: Any, **needed: bool) -> int:
    """As many columns as come in; attributes that are needed have one number for each."""
    check_shapes(t, **{name: (t.n_features_in_,) for name, asked in needed.items() if asked})
    return t.n_features_in_


def _scaled(shift: Any, scale: Any) -> Row:
    """(x − shift) / scale, where None is nothing to do."""
    shift, scale = (None if part is None else constant(part) for part in (shift, scale))

    def row(x: Array) -> Array:
        x = x if shift is None else x - shift
        return x if scale is None else x / scale

    return row


def _standard_columns(t: Any) -> int:
    there = {name: getattr(t, name, None) is not None for name in ("mean_", "var_")}
    return _as_many(t, **there | {"scale_": t.with_std, "mean_": there["mean_"] or t.with_mean})


def _minmax_columns(t: Any) -> int:
    if not isinstance(t.n_samples_seen_, (int, np.integer)):
        raise ValueError("n_samples_seen_ must be a number")
    if len(t.feature_range) != 2 or not all(
        isinstance(end, (int, float)) for end in t.feature_range
    ):
        raise ValueError("feature_range must be two numbers")
    return _as_many(t, min_=True, scale_=True, data_min_=True, data_max_=True)


def _within(t: Any) -> Row:
    low, high = map(float, t.feature_range)
    start, factor = constant(t.data_min_), constant(t.scale_)

    def row(x: Array) -> Array:
        scaled = (x - start) * factor + low
        return jnp.clip(scaled, low, high) if t.clip else scaled

    return row


def _taken_back(t: Any, values: np.ndarray) -> np.ndarray:
    return t.inverse_transform(values)


def _imputed_columns(t: Any) -> int:
    if type(t.strategy) is not str or t.strategy == "most_frequent" or t.add_indicator:
        raise ValueError(
            "of a SimpleImputer, only the strategies mean, median and constant can be saved, "
            "without add_indicator"
        )
    if not _is_nan(t.missing_values):
        raise ValueError("a SimpleImputer can be saved with missing_values=nan only")
    given = getattr(t, "statistics_", None)
    if not isinstance(given, np.ndarray) or given.shape != (t.n_features_in_,):
        raise ValueError("statistics_ of a SimpleImputer must have one number for each column")
    if not all(isinstance(value, (int, float)) for value in given.tolist()):
        raise ValueError("a SimpleImputer can be saved with numbers to fill in only")
    if getattr(t, "indicator_", None) is not None:
        raise ValueError("a SimpleImputer must not have an indicator")
    return int(_kept(t).sum())


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _kept(t: Any) -> np.ndarray:
    """Which columns it returns: those of which something was seen."""
    empty = np.isnan(t.statistics_.astype(np.float64))
    return np.ones(t.n_features_in_, bool) if t.keep_empty_features else ~empty


def _imputed(t: Any) -> Row:
    kept = np.flatnonzero(_kept(t))
    fill = constant(t.statistics_[kept].astype(np.float64))
    whole = kept.size == t.n_features_in_

    def row(x: Array) -> Array:
        x = x if whole else x[kept]
        return jnp.where(jnp.isnan(x), fill, x)

    return row


def _imputer(t: Any) -> SimpleImputer:
    # What it fills in is of the precision of the data that it was fitted to. Constants do not tell.
    dtype = t.statistics_.dtype if t.statistics_.dtype.kind == "f" else np.float64
    stand_in = SimpleImputer(strategy="constant", keep_empty_features=True)
    return stand_in.fit(np.zeros((1, t.n_features_in_), dtype))


def _not_imputed(t: Any, values: np.ndarray) -> np.ndarray:
    rows = np.zeros((len(values), t.n_features_in_))
    rows[:, _kept(t)] = values
    return rows


def _degrees(t: Any) -> tuple[int, int]:
    low, high = (0, t.degree) if isinstance(t.degree, int) else t.degree
    if not all(type(n) is int for n in (low, high)) or not 0 <= low <= high <= HIGHEST_DEGREE:
        raise ValueError(f"degree must be of up to {HIGHEST_DEGREE}, got {t.degree!r}"[:200])
    return low, high


def _polynomial_columns(t: Any) -> int:
    low, high = _degrees(t)
    p, count = t.n_features_in_, {}
    for start in {0, low}:
        degrees = range(max(start, 1), high + 1)
        terms = (math.comb(p if t.interaction_only else p + k - 1, k) for k in degrees)
        count[start] = sum(terms) + bool(t.include_bias)
    if getattr(t, "n_output_features_", None) != count[low] or count[0] > MOST_PRODUCTS:
        raise ValueError("the number of columns is not that of the degree")
    return count[low]


def _polynomials(t: Any) -> PolynomialFeatures:
    degree: Any = _degrees(t)
    stand_in = PolynomialFeatures(
        degree, interaction_only=bool(t.interaction_only), include_bias=bool(t.include_bias)
    )
    return stand_in.fit(np.broadcast_to(0.0, (1, t.n_features_in_)))


def _polynomial(t: Any) -> Row:
    low, high = _degrees(t)
    choose = (
        itertools.combinations if t.interaction_only else itertools.combinations_with_replacement
    )
    p = t.n_features_in_
    terms = [np.array(list(choose(range(p), k))) for k in range(max(low, 1), high + 1)]

    def row(x: Array) -> Array:
        products = [reduce(mul, (x[place] for place in term.T)) for term in terms if term.size]
        return jnp.concatenate([*([jnp.ones(1, x.dtype)] if t.include_bias else []), *products])

    return row


def _not_polynomial(t: Any, values: np.ndarray) -> np.ndarray | None:
    low, high = _degrees(t)
    first = int(t.include_bias)
    return values[:, first : first + t.n_features_in_] if low <= 1 <= high else None


def _component_columns(t: Any) -> int:
    components = getattr(t, "components_", None)
    k = len(components) if isinstance(components, np.ndarray) and components.ndim else 0
    check_shapes(t, components_=(k, t.n_features_in_), mean_=(t.n_features_in_,))
    check_shapes(t, explained_variance_=(k,))
    return k


def _components(t: Any) -> Row:
    directions, centre = constant(t.components_), constant(t.mean_)
    spread = np.maximum(np.sqrt(t.explained_variance_), np.finfo(t.explained_variance_.dtype).eps)
    scale = constant(spread if t.whiten else np.ones_like(spread))
    return lambda x: directions @ (x - centre) / scale


def _wave_columns(t: Any) -> int:
    k = int(t.n_components)
    check_shapes(t, random_weights_=(t.n_features_in_, k), random_offset_=(k,))
    return k


def _waves(t: Any) -> Row:
    weights, offset = constant(t.random_weights_.T), constant(t.random_offset_)
    size = math.sqrt(2.0 / t.n_components)
    return lambda x: size * jnp.cos(weights @ x + offset)


def _kernel_columns(t: Any) -> int:
    if t.kernel != "rbf" or t.kernel_params is not None:
        raise ValueError("of a Nystroem, only the kernel 'rbf' can be saved, without kernel_params")
    components = getattr(t, "components_", None)
    k = len(components) if isinstance(components, np.ndarray) and components.ndim else 0
    check_shapes(t, components_=(k, t.n_features_in_), normalization_=(k, k))
    return k


def _nystroem(t: Any) -> Nystroem:
    k = len(t.components_)
    return Nystroem(n_components=k, random_state=0).fit(np.zeros((k, 1)))


def _kernels(t: Any) -> Row:
    centres, mixing = constant(t.components_), constant(t.normalization_)
    gamma = 1.0 / t.n_features_in_ if t.gamma is None else float(t.gamma)

    def row(x: Array) -> Array:
        return mixing @ jnp.exp(-gamma * ((x[None, :] - centres) ** 2).sum(axis=1))

    return row


def _usual(t: Any) -> InputRange | None:
    there = getattr(t, "mean_", None) is not None and getattr(t, "var_", None) is not None
    return InputRange.of_moments(t.mean_, t.var_) if there else None


def _between(t: Any) -> InputRange:
    return InputRange.of_extremes(t.data_min_, t.data_max_, t.n_samples_seen_)


KNOWN: dict[type, Known] = {
    StandardScaler: Known(
        ("mean_", "var_", "scale_", "n_samples_seen_"),
        _standard_columns,
        lambda t: _scaled(t.mean_ if t.with_mean else None, t.scale_ if t.with_std else None),
        _taken_back,
        is_affine=True,
        trained_on=_usual,
    ),
    MinMaxScaler: Known(
        ("min_", "scale_", "data_min_", "data_max_", "data_range_", "n_samples_seen_"),
        _minmax_columns,
        _within,
        _taken_back,
        is_affine=True,
        trained_on=_between,
    ),
    MaxAbsScaler: Known(
        ("scale_", "max_abs_", "n_samples_seen_"),
        lambda t: _as_many(t, scale_=True),
        lambda t: _scaled(None, t.scale_),
        _taken_back,
        is_affine=True,
    ),
    RobustScaler: Known(
        ("center_", "scale_"),
        lambda t: _as_many(t, center_=t.with_centering, scale_=t.with_scaling),
        lambda t: _scaled(
            t.center_ if t.with_centering else None, t.scale_ if t.with_scaling else None
        ),
        _taken_back,
        is_affine=True,
    ),
    SimpleImputer: Known(
        ("statistics_", "indicator_"),
        _imputed_columns,
        _imputed,
        _not_imputed,
        stand_in=_imputer,
    ),
    PolynomialFeatures: Known(
        ("n_output_features_",),
        _polynomial_columns,
        _polynomial,
        _not_polynomial,
        stand_in=_polynomials,
    ),
    PCA: Known(
        (
            *("components_", "explained_variance_", "explained_variance_ratio_", "n_components_"),
            *("singular_values_", "mean_", "n_samples_", "noise_variance_"),
        ),
        _component_columns,
        _components,
        _taken_back,
    ),
    RBFSampler: Known(
        ("random_weights_", "random_offset_"),
        _wave_columns,
        _waves,
        lambda *_: None,
        stand_in=lambda t: RBFSampler(n_components=len(t.random_offset_)).fit(np.zeros((1, 1))),
    ),
    Nystroem: Known(
        ("components_", "component_indices_", "normalization_"),
        _kernel_columns,
        _kernels,
        lambda t, values: np.resize(t.components_, (len(values), t.n_features_in_)),
        stand_in=_nystroem,
    ),
}

for _class, _about in KNOWN.items():
    register_built(
        _class,
        name=f"sklearn.{_class.__name__}",
        fields=(
            *(*inspect.signature(_class).parameters, *SHARED, *_about.fitted, "output"),
            *("_sklearn_output_config", *OLDER),
        ),
        taken=_taken,
        built=partial(_built, _class),
    )
