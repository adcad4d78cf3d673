"""Checked tables of targets."""

from typing import Any

import numpy as np
from sklearn.utils import check_array

from .._core.checks import refuse_masked


def as_table(values: Any, name: str) -> np.ndarray:
    """Values of shape (n,) or (n, d) as float64 of shape (n, d), all finite."""
    refuse_masked(name, values)
    array = check_array(
        values,
        ensure_2d=False,
        allow_nd=True,
        dtype="float64",
        ensure_all_finite=False,
        input_name=name,
    )
    if array.ndim > 2:
        raise ValueError(f"{name} must have shape (n,) or (n, d), got {array.shape}")
    table = array.reshape(len(array), -1)
    if not np.isfinite(table).all():
        bad = np.count_nonzero(~np.isfinite(table).all(axis=1))
        raise ValueError(
            f"{name} must be finite, got NaN or infinity in {bad} of {len(table)} rows: leave "
            "these rows out"
        )
    return table
