"""Families of summaries with names, which say in what data differ from simulations.

`joint.py` has what estimates are made of. These have names, go without large scales, and also look
where an estimator of a set need not look: at the order of its elements, and at equal readings.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.types import Measurement
from ..nn._measurements import flatten, stack_elements
from .layout import Layout, Part
from .ordered import _bands

MOST_NUMBERS = 64  # that are looked at one by one; of more, the means of so many groups
MOST_COMPONENTS = 8  # of elements that are looked at one by one, with all of their pairs
BLOCKS = 8  # of a series or of a side of an image
QUANTILES = 9
LAGS = 4
FEWEST_ORDERED = 4  # elements in which an order can be seen
FEWEST_SPECTRUM = 32
BANDS = 8
TINY = float(np.finfo(np.float32).tiny)


class Column(NamedTuple):
    """One summary: the family that it belongs to, and what it is called."""

    family: str
    name: str


class _Family(NamedTuple):
    """Some summaries with their names."""

    name: str
    columns: list[str]
    values: list[Array]


@dataclasses.dataclass(frozen=True, eq=False)
class Families:
    """All summaries of one measurement, family by family."""

    layout: Layout
    own: tuple[Callable[[Measurement], Any], ...] = ()
    """Functions of a measurement that a user gave."""

    def __call__(self, x: Measurement) -> Float[Array, " q"]:
        """Their values for one measurement."""
        return jnp.concatenate([v.ravel() for family in self._all(x) for v in family.values])

    def columns(self, x: Any) -> tuple[Column, ...]:
        """Their names; x may be the shapes of a measurement."""
        names: list[Column] = []

        def note(x: Measurement) -> Float[Array, " q"]:
            names.extend(Column(f.name, column) for f in self._all(x) for column in f.columns)
            return self(x)

        jax.eval_shape(note, x)
        return tuple(names)

    def _all(self, x: Measurement) -> list[_Family]:
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(x)]
        arrays, found = jax.tree.leaves(x), []
        for part in self.layout.parts:
            leaves = [arrays[i] for i in part.leaves]
            several = len(self.layout.parts) > 1
            prefix = f"{', '.join(f'x{paths[i]}' for i in part.leaves)}: " if several else ""
            found += [f._replace(name=prefix + f.name) for f in _of_part(part, leaves)]
        return found + ([_own(self.own, x)] if self.own else [])


def groups_of(columns: tuple[Column, ...]) -> dict[str, np.ndarray]:
    """Numbers of the columns of each family."""
    families = dict.fromkeys(column.family for column in columns)
    return {
        family: np.flatnonzero([column.family == family for column in columns])
        for family in families
    }


def _of_part(part: Part, leaves: list[Array]) -> list[_Family]:
    if part.kind == "set":
        moved = [jnp.moveaxis(leaf, part.axis, 0) if part.axis else leaf for leaf in leaves]
        rows = stack_elements(moved)
        return _of_numbers(flatten(leaves)) if rows.shape[0] == 1 else _of_set(rows)
    if part.kind == "vector":
        return _of_numbers(flatten(leaves))
    (leaf,) = leaves
    values = leaf[..., None] if part.axis is None else jnp.moveaxis(leaf, part.axis, -1)
    both = [values.real, values.imag] if jnp.iscomplexobj(values) else [values.astype(float)]
    values = jnp.concatenate(both, axis=-1)
    return _of_series(values) if part.kind == "series" else _of_image(values)


def _own(functions: Sequence[Callable[[Measurement], Any]], x: Measurement) -> _Family:
    values = [flatten(function(x)) for function in functions]
    names = [getattr(f, "__name__", f"summaries[{i}]") for i, f in enumerate(functions)]
    pairs = zip(names, values, strict=True)
    columns = [f"{name}[{k}]" if v.size > 1 else name for name, v in pairs for k in range(v.size)]
    return _Family("own summaries", columns, values)


def _of_numbers(values: Float[Array, " n"]) -> list[_Family]:
    """Of numbers about which nothing is known."""
    n = values.shape[0]
    found = [_Family("numbers", *_grouped("number", values, MOST_NUMBERS))]
    if 1 < n <= MOST_COMPONENTS:
        i, j = np.triu_indices(n)
        names = [f"numbers {a} and {b}" for a, b in zip(i, j, strict=True)]
        found.append(_Family("products", names, [values[i] * values[j]]))
    elif n > MOST_COMPONENTS:
        size = 0.5 * jnp.log(jnp.mean(values**2) + TINY)
        found.append(_Family("size", ["log of the root mean square"], [size]))
    return found + _marginal(values[:, None])


def _of_set(rows: Float[Array, "n p"]) -> list[_Family]:
    """Of draws whose order should say nothing."""
    n, p = rows.shape
    names, means = _grouped("mean of component", jnp.mean(rows, axis=0), MOST_NUMBERS)
    found = [_Family("means", ["mean"] if p == 1 else names, means)]
    found.append(_Family("spread", *_log_spread(rows)))
    standard = _standardised(rows)
    if 1 < p <= MOST_COMPONENTS:
        i, j = np.triu_indices(p, 1)
        columns = [f"components {a} and {b}" for a, b in zip(i, j, strict=True)]
        together = jnp.mean(standard[:, i] * standard[:, j], axis=0)
        found.append(_Family("correlations", columns, [together]))
    found += _marginal(rows)
    if n >= FEWEST_ORDERED:
        found.append(_Family("lag products", *_autocorrelation(standard)))
        found.append(_trend(standard))
    return found


def _of_series(values: Float[Array, "n c"]) -> list[_Family]:
    n, _ = values.shape
    labels, weights = _blocks(n, 2 * BLOCKS)
    channels = _channels(values)
    course = jnp.asarray(weights, values.dtype) @ values
    found = [
        _Family("means", [f"mean{c}" for c in channels], [jnp.mean(values, axis=0)]),
        _Family("course", [f"samples {b}{c}" for b in labels for c in channels], [course]),
    ]
    names, parts = _log_spread(values)
    if n > 1:
        names = [*names, *(f"log of the size of differences{c}" for c in channels)]
        parts = [*parts, _log_size(jnp.diff(values, axis=0))]
    found.append(_Family("spread", names, parts))
    found += _marginal(values)
    standard = _standardised(values)
    if n >= FEWEST_ORDERED:
        names, parts = _autocorrelation(standard, 3 * LAGS)
        sizes = _standardised(jnp.abs(standard))
        more, further = _autocorrelation(sizes, LAGS, "of sizes ")
        found.append(_Family("lag products", [*names, *more], [*parts, *further]))
        found.append(_trend(standard))
    if n >= FEWEST_SPECTRUM:
        frequencies = np.arange(n // 2 + 1) / n
        centred = values - jnp.mean(values, axis=0, keepdims=True)
        power = jnp.abs(jnp.fft.rfft(centred, axis=0)) ** 2 / n
        bands = _bands(frequencies, BANDS)
        level = jnp.log(jnp.asarray(bands, power.dtype) @ power + TINY)
        names = [f"log of the power in band {k}{c}" for k in range(len(bands)) for c in channels]
        found.append(_Family("spectrum", names, [level]))
    return found


def _of_image(values: Float[Array, "h w c"]) -> list[_Family]:
    h, w, _ = values.shape
    channels = _channels(values)
    (tops, down), (lefts, right) = (_blocks(side, BLOCKS // 2) for side in (h, w))
    down, right = (jnp.asarray(part, values.dtype) for part in (down, right))
    course = jnp.einsum("ah,bw,hwc->abc", down, right, values)
    flat = values.reshape(h * w, -1)
    names = [f"rows {a}, columns {b}{c}" for a in tops for b in lefts for c in channels]
    found = [
        _Family("means", [f"mean{c}" for c in channels], [jnp.mean(flat, axis=0)]),
        _Family("course", names, [course]),
        _Family("spread", *_log_spread(flat)),
        *_marginal(flat),
    ]
    standard = _standardised(flat).reshape(values.shape)
    lags = [(0, 1), (1, 0), (1, 1), (0, 2), (2, 0)]
    lags = [(a, b) for a, b in lags if a < h and b < w]
    products = [
        jnp.mean(standard[a:, b:] * standard[: h - a, : w - b], axis=(0, 1)) for a, b in lags
    ]
    names = [f"lag {a}, {b}{c}" for a, b in lags for c in channels]
    return [*found, _Family("lag products", names, products)] if lags else found


def _marginal(columns: Float[Array, "n c"]) -> list[_Family]:
    """Of the numbers of each channel as if they were a set: shape, order and ties.

    Of many channels, on average.
    """
    n, _ = columns.shape
    if n < FEWEST_ORDERED:
        return []
    names = _channels(columns)
    few = len(names) <= MOST_COMPONENTS
    names = names if few else [""]
    standard = _standardised(columns)
    heavy = jnp.log(jnp.mean(standard**4, axis=0) + TINY)
    shape = [jnp.mean(standard**3, axis=0), heavy]
    ordered = jnp.sort(columns, axis=0)
    share = np.linspace(0, 1, min(n, QUANTILES))
    place = np.round(share * (n - 1)).astype(int)
    quantiles = jnp.sort(standard, axis=0)[place]
    equal = [
        jnp.mean(ordered[1:] == ordered[:-1], axis=0),
        jnp.mean(ordered == ordered[-1:], axis=0),
        jnp.mean(ordered == ordered[:1], axis=0),
    ]
    if not few:
        shape, equal = ([jnp.mean(part)[None] for part in parts] for parts in (shape, equal))
        quantiles = jnp.mean(quantiles, axis=1, keepdims=True)
    ties = ("equal numbers", "numbers equal to the largest", "numbers equal to the smallest")
    ends = ["smallest", *(f"quantile {s:.3g}" for s in share[1:-1]), "largest"]
    return [
        _Family(
            "shape", [f"{s}{c}" for s in ("skewness", "log of kurtosis") for c in names], shape
        ),
        _Family("order statistics", [f"{e}{c}" for e in ends for c in names], [quantiles]),
        _Family("ties", [f"share of {t}{c}" for t in ties for c in names], equal),
    ]


def _log_spread(rows: Float[Array, "n c"]) -> tuple[list[str], list[Array]]:
    centred = rows - jnp.mean(rows, axis=0, keepdims=True)
    names, values = _grouped("channel", _log_size(centred), MOST_NUMBERS)
    label = "log of the standard deviation"
    return [label] if rows.shape[1] == 1 else [f"{label}, {name}" for name in names], values


def _log_size(rows: Float[Array, "n c"]) -> Float[Array, " c"]:
    return 0.5 * jnp.log(jnp.mean(rows**2, axis=0) + TINY)


def _standardised(rows: Float[Array, "n c"]) -> Float[Array, "n c"]:
    """With mean zero and variance one; zeros where all are equal."""
    centred = rows - jnp.mean(rows, axis=0, keepdims=True)
    size = jnp.sqrt(jnp.mean(centred**2, axis=0, keepdims=True))
    return centred / jnp.where(size > 0, size, 1.0)


def _autocorrelation(
    standard: Float[Array, "n c"], most: int = LAGS, of: str = ""
) -> tuple[list[str], list[Array]]:
    """Mean products at a distance; of many channels, on average."""
    n, _ = standard.shape
    names = _channels(standard)
    lags = range(1, min(most, n // 2) + 1)
    parts = [jnp.mean(standard[k:] * standard[:-k], axis=0) for k in lags]
    if len(names) > MOST_COMPONENTS:
        names, parts = [""], [jnp.mean(part)[None] for part in parts]
    return [f"{of}at lag {k}{c}" for k in lags for c in names], parts


def _trend(standard: Float[Array, "n c"]) -> _Family:
    """How numbers grow with their place; of many channels, on average."""
    n, _ = standard.shape
    place = np.linspace(-1, 1, n)
    slope = jnp.asarray(place / np.sqrt(np.mean(place**2)) / n, standard.dtype) @ standard
    names = _channels(standard)
    if len(names) > MOST_COMPONENTS:
        names, slope = [""], jnp.mean(slope)[None]
    return _Family("trend", [f"correlation with the place{c}" for c in names], [slope])


def _channels(values: Array) -> list[str]:
    count = values.shape[-1]
    return [""] if count == 1 else [f", channel {k}" for k in range(count)]


def _grouped(label: str, values: Float[Array, " n"], most: int) -> tuple[list[str], list[Array]]:
    """Numbers, or of too many the means of neighbours."""
    names, weights = _blocks(values.shape[0], most)
    return [f"{label} {name}" for name in names], [jnp.asarray(weights, values.dtype) @ values]


def _blocks(n: int, most: int) -> tuple[list[str], np.ndarray]:
    """Names of at most so many groups of neighbours, and rows that average over them."""
    edges = np.linspace(0, n, min(n, most) + 1).round().astype(int)
    rows = np.zeros((len(edges) - 1, n))
    names = []
    for k, (a, b) in enumerate(itertools.pairwise(edges.tolist())):
        rows[k, a:b] = 1 / (b - a)
        names.append(str(a) if b == a + 1 else f"{a}–{b - 1}")
    return names, rows
