"""Where soft labels come from: the packaged teacher, a file, or hard labels."""

import zipfile
import zlib
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...datasets import CIFAR10
from .._common import OptionError
from .students import CLASSES, TEMPERATURE

SMOOTHING = 0.1
PACKAGED, HARD = "packaged", "hard"
LABELS_FILE = "cifar10-teacher.npz"
HELP = (
    f"whose soft labels: {PACKAGED} (a residual network), {HARD} (smoothed one-hot labels), or an "
    ".npz file with an array 'logits' or 'soft_labels', a row for each of the 50 000 training "
    "images"
)


class SoftLabels(NamedTuple):
    """Class probabilities at temperature 20."""

    values: np.ndarray
    """(n, 10)."""
    source: str
    """Where they come from, in words."""


def softened(logits: np.ndarray) -> np.ndarray:
    """Class probabilities at temperature 20."""
    z = logits.astype(np.float64) / TEMPERATURE
    z = np.exp(z - z.max(axis=1, keepdims=True))
    return (z / z.sum(axis=1, keepdims=True)).astype(np.float32)


def smoothed_one_hot(labels: np.ndarray) -> SoftLabels:
    """A teacher that gives the right class the probability 0.91 and each other one 0.01."""
    p = np.full((len(labels), CLASSES), SMOOTHING / CLASSES)
    p[np.arange(len(labels)), labels] += 1 - SMOOTHING
    return SoftLabels(softened(np.log(p)), "smoothed one-hot labels")


def soft_labels(teacher: str, data: CIFAR10) -> SoftLabels:
    """The soft labels of all training images that a teacher gives; see `HELP`."""
    if teacher == HARD:
        return smoothed_one_hot(data.y_train)
    if teacher == PACKAGED:
        inside = resources.files("mvue.experiments.cifar10") / "data" / LABELS_FILE
        with resources.as_file(inside) as path:
            found = read_labels(path, len(data.x_train))
            with np.load(path) as file:
                accuracy = float(file["test_accuracy"])
        return found._replace(source=f"a residual network, test accuracy {accuracy:.4f}")
    return read_labels(Path(teacher), len(data.x_train))


def read_labels(path: Path, rows: int) -> SoftLabels:
    """The soft labels in a file."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: np.asarray(file[name]) for name in file.files}
    except (OSError, EOFError, ValueError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise OptionError(
            f"teacher must be {PACKAGED}, {HARD} or the path of an .npz file; {path} "
            f"cannot be read ({type(error).__name__}: {error})"
        ) from error
    name = next((name for name in ("logits", "soft_labels") if name in arrays), None)
    if name is None:
        raise OptionError(
            f"teacher: {path} must have an array 'logits' or 'soft_labels', got {sorted(arrays)}"
        )
    values = arrays[name]
    if values.shape != (rows, CLASSES) or not np.issubdtype(values.dtype, np.floating):
        raise OptionError(
            f"teacher: {name!r} in {path} must be floating-point numbers of shape "
            f"({rows}, {CLASSES}), a row for each training image, got {values.dtype} of shape "
            f"{values.shape}"
        )
    if not np.isfinite(values).all():
        raise OptionError(f"teacher: {name!r} in {path} must be finite")
    return SoftLabels(softened(values) if name == "logits" else values, f"{name} in {path}")
