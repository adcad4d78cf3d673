"""The transformers of scikit-learn that may stand in model files, and what they do, in JAX.

Each is saved as its parameters and fitted attributes, without a pickle. What is loaded is the
object of scikit-learn again.
"""

import inspect
import itertools
import math
from collections.abc import Callable
from functools import reduce
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

from .._serialise.registry import check_shapes, register
from .._training.input_range import InputRange

HIGHEST_DEGREE = 16
MOST_COLUMNS = 2**24
OUTPUTS = (None, "default", "pandas", "polars")

Row = Callable[[Array], Array]


class Known(NamedTuple):
    """What the use of a fitted transformer needs to know about its class."""

    fitted: tuple[str, ...]
    """Attributes beyond the parameters; some may be absent."""
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


def known(transformer: Any) -> Known | None:
    """What is known about a transformer."""
    return KNOWN.get(type(transformer))


def constant(values: Any) -> Array:
    """In the precision of JAX."""
    return jnp.asarray(np.asarray(values), jnp.result_type(float))


def _complete(estimator: Any) -> None:
    """Check what was loaded, whose constructor has not run."""
    for name, parameter in inspect.signature(type(estimator)).parameters.items():
        if name not in vars(estimator):  # another version of scikit-learn had no such parameter
            setattr(estimator, name, parameter.default)
    estimator._validate_params()
    output = getattr(estimator, "_sklearn_output_config", {})
    if type(output) is not dict or any(kind not in OUTPUTS for kind in output.values()):
        raise ValueError("the kind of output is not one")
    if not hasattr(estimator, "n_features_in_"):
        return  # not fitted: a part that was cloned before it was fitted
    p = estimator.n_features_in_
    if type(p) is not int or not 0 < p <= MOST_COLUMNS:
        raise ValueError(f"n_features_in_ must be a number of columns, got {p!r}"[:200])
    names = getattr(estimator, "feature_names_in_", np.empty(p, object))
    if not isinstance(names, np.ndarray) or names.dtype != object or names.shape != (p,):
        raise ValueError("feature_names_in_ must have one name for each column")


def _check(transformer: Any) -> None:
    _complete(transformer)
    if hasattr(transformer, "n_features_in_"):
        KNOWN[type(transformer)].columns(transformer)


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
    for name in ("_fit_dtype", "_fill_dtype"):
        if not isinstance(getattr(t, name, None), np.dtype) or getattr(t, name).kind != "f":
            raise ValueError(f"{name} of a SimpleImputer must be that of numbers")
    return int(_kept(t).sum())


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _kept(t: Any) -> np.ndarray:
    """Which columns it returns: those of which something was seen."""
    empty = np.isnan(t.statistics_.astype(np.float64))
    return np.ones(t.n_features_in_, bool) if t.keep_empty_features else ~empty


def _imputed(t: Any) -> Row:
    kept = np.flatnonzero(_kept(t))
    fill = constant(t.statistics_[kept].astype(t._fill_dtype))
    whole = kept.size == t.n_features_in_

    def row(x: Array) -> Array:
        x = x if whole else x[kept]
        return jnp.where(jnp.isnan(x), fill, x)

    return row


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
    count = {
        start: t._num_combinations(
            n_features=t.n_features_in_,
            min_degree=start,
            max_degree=high,
            interaction_only=t.interaction_only,
            include_bias=t.include_bias,
        )
        for start in {0, low}
    }
    given = [getattr(t, name, None) for name in ("_min_degree", "_max_degree")]
    sizes = [getattr(t, name, None) for name in ("n_output_features_", "_n_out_full")]
    if given != [low, high] or sizes != [count[low], count[0]] or count[0] > MOST_COLUMNS:
        raise ValueError("the number of columns is not that of the degree")
    return count[low]


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
    k = t.n_components
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
        ("statistics_", "indicator_", "_fit_dtype", "_fill_dtype"),
        _imputed_columns,
        _imputed,
        _not_imputed,
    ),
    PolynomialFeatures: Known(
        ("n_output_features_", "_min_degree", "_max_degree", "_n_out_full"),
        _polynomial_columns,
        _polynomial,
        _not_polynomial,
    ),
    PCA: Known(
        (
            *("components_", "explained_variance_", "explained_variance_ratio_", "n_components_"),
            *("singular_values_", "mean_", "n_samples_", "noise_variance_", "_fit_svd_solver"),
        ),
        _component_columns,
        _components,
        _taken_back,
    ),
    RBFSampler: Known(
        ("random_weights_", "random_offset_", "_gamma", "_n_features_out"),
        _wave_columns,
        _waves,
        lambda *_: None,
    ),
    Nystroem: Known(
        ("components_", "component_indices_", "normalization_", "_n_features_out"),
        _kernel_columns,
        _kernels,
        lambda t, values: np.resize(t.components_, (len(values), t.n_features_in_)),
    ),
}

SHARED = ("n_features_in_", "feature_names_in_", "_sklearn_output_config")
for _class, _about in KNOWN.items():
    register(
        _class,
        name=f"sklearn.{_class.__name__}",
        fields=(*inspect.signature(_class).parameters, *SHARED, *_about.fitted),
        check=_check,
    )
