"""Rows of a table as measurements of the shapes and the kinds of numbers that a model takes."""

import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

PART = re.compile(r"(?:(?<![A-Za-z])|(?=[A-Z][a-z]))(?i:(re|real)|im|imag|imaginary)(?![a-z])")
"""The word in the name of a column for real or imaginary parts."""


def to_measurements(
    values: np.ndarray, x: Any, names: Sequence[str] | None = None, first: int = 0
) -> Any:
    """Rows as measurements of the shapes in x: each row is one, its numbers in order.

    A complex number is one in the data, too, or a real and an imaginary part side by side, as in
    ONNX files; where names of columns tell which is which, they decide.

    Args:
        values: the rows.
        x: shapes and dtypes of one measurement.
        names: of the columns, where there are any.
        first: the number of rows before these, for messages.
    """
    leaves, structure = jax.tree.flatten(x)
    is_complex = values.dtype.kind == "c"
    if is_complex and not any(leaf.dtype.kind == "c" for leaf in leaves):
        raise ValueError(
            f"the data must be real numbers, as the model takes them, got complex ones from row "
            f"{first + 1} on"
        )
    if (
        len(leaves) == 1
        and values.shape[1:] == leaves[0].shape
        and (is_complex or leaves[0].dtype.kind != "c")
    ):
        return jax.tree.unflatten(structure, [_whole(values, leaves[0].dtype, first)])
    in_pairs = not is_complex
    if in_pairs and len(leaves) == 1 and values.shape[1:] == (*leaves[0].shape, 2):
        values = values.reshape(len(values), -1)
    each = [2 if in_pairs and leaf.dtype.kind == "c" else 1 for leaf in leaves]
    sizes = [int(np.prod(leaf.shape)) * n for leaf, n in zip(leaves, each, strict=True)]
    if values.ndim != 2 or values.shape[1] != sum(sizes):
        raise ValueError(_other_shape(values, leaves, sizes))
    parts, begin = [], 0
    for leaf, size in zip(leaves, sizes, strict=True):
        part = values[:, begin : begin + size]
        if leaf.dtype.kind == "c" and in_pairs:
            re_, im = _pairs(size, None if names is None else names[begin : begin + size])
            part = part[:, re_] + 1j * part[:, im]
        elif is_complex and leaf.dtype.kind != "c":
            if np.imag(part).any():
                raise ValueError(
                    f"the data must be real numbers in column {begin + 1} to {begin + size}, as "
                    "the model takes them, got complex ones"
                )
            part = np.real(part)
        begin += size
        parts.append(_whole(part, leaf.dtype, first).reshape(len(values), *leaf.shape))
    return jax.tree.unflatten(structure, parts)


def _other_shape(values: np.ndarray, leaves: list[Any], sizes: list[int]) -> str:
    shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves)
    complex_ones = ""
    if any(leaf.dtype.kind == "c" for leaf in leaves):
        complex_ones = (
            ", for complex numbers"
            if values.dtype.kind == "c"
            else ", for each complex one its real part and then its imaginary part (or write it as "
            "0.5-0.3j)"
        )
    return (
        f"each row of the data must be one measurement of shape {shapes}, {sum(sizes)} numbers "
        f"in all{complex_ones}, got rows of shape {values.shape[1:]}"
    )


def _pairs(size: int, names: Sequence[str] | None) -> tuple[list[int], list[int]]:
    """Which columns are real parts, and which the imaginary parts of the same numbers."""
    side_by_side = list(range(0, size, 2)), list(range(1, size, 2))
    found = [list(PART.finditer(name)) for name in names or ()]
    if not any(found):
        return side_by_side
    places: tuple[dict[str, int], dict[str, int]] = {}, {}
    for i, (name, words) in enumerate(zip(names or (), found, strict=True)):
        if len(words) == 1:
            (word,) = words
            rest = name[: word.start()] + name[word.end() :]
            places[word.group(1) is None][rest.strip(" _.-")] = i
    real, imaginary = places
    if real.keys() != imaginary.keys() or 2 * len(real) != size:
        raise ValueError(
            "names of columns must tell the real and the imaginary part of each complex number, "
            f"such as re1, im1, re2, im2, or of none, got {', '.join(names or ())!r:.200}"
        )
    return list(real.values()), [imaginary[rest] for rest in real]


def _whole(values: np.ndarray, dtype: Any, first: int) -> np.ndarray:
    """The same numbers; refuses fractions where the model takes whole ones."""
    if dtype.kind not in "iu" or values.dtype.kind != "f":
        return values
    limits = np.iinfo(dtype)
    with np.errstate(invalid="ignore"):
        wrong = (np.rint(values) != values) | (values < limits.min) | (values > limits.max)
    wrong &= np.isfinite(values)
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0])
        raise ValueError(
            f"the data must be whole numbers that {dtype.name} can hold, as the model takes them, "
            f"got {values[place]:.9g} in row {first + place[0] + 1}"
        )
    return values
