"""Measures of a student: accuracy against the number of crops, bias and variance."""

from collections.abc import Mapping
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from .images import random_crop
from .students import TEMPERATURE, Student

IMAGES_AT_ONCE = 25
AVERAGED = ("soft labels", "probabilities", "logits")
"""What is averaged over crops: class probabilities at temperature 20 or 1, or logits."""


@eqx.filter_jit
def _logits(student: Student, images: Array, key: Array, crops: int) -> Array:
    """Of random crops of images, (n, crops, 10); crop j of image i depends on the key, i and j."""

    def of_image(pair: tuple[Array, Array]) -> Array:
        number, image = pair
        keys = jr.split(jr.fold_in(key, number), crops)
        return jax.vmap(lambda k: student.logits(random_crop(k, image)))(keys)

    rows = jnp.arange(len(images))
    return jax.lax.map(of_image, (rows, images), batch_size=IMAGES_AT_ONCE)


def crop_logits(student: Student, images: np.ndarray, key: Array, crops: int) -> np.ndarray:
    """Logits of random crops, (n, crops, 10), the same crops for every student."""
    return np.asarray(_logits(student, jnp.asarray(images), key, crops))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Class probabilities."""
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def accuracy_by_crops(
    logits: Float[np.ndarray, "n c 10"], labels: np.ndarray
) -> Mapping[str, np.ndarray]:
    """Share of images that are classified rightly by 1, 2, ... crops, for each way to average.

    For m crops, a mean over as many disjoint sets of m crops as there are.
    """
    crops = logits.shape[1]
    scores = {
        "soft labels": softmax(logits / TEMPERATURE),
        "probabilities": softmax(logits),
        "logits": logits,
    }
    return {
        way: np.array([_accuracy(values, labels, m) for m in range(1, crops + 1)])
        for way, values in scores.items()
    }


def _accuracy(scores: np.ndarray, labels: np.ndarray, m: int) -> float:
    n, crops, classes = scores.shape
    sets = crops // m
    averages = scores[:, : sets * m].reshape(n, sets, m, classes).mean(axis=2)
    return float((averages.argmax(axis=-1) == labels[:, None]).mean())


class SoftLabelMoments(NamedTuple):
    """Of the soft labels that a student estimates, over crops of each image; sums over classes."""

    squared_bias: float
    squared_bias_se: float
    variance: float
    variance_se: float

    def error_of_mean(self, crops: int) -> float:
        """Mean squared error of the average of so many crops."""
        return self.squared_bias + self.variance / crops


def soft_label_moments(
    logits: Float[np.ndarray, "n c 10"], soft_labels: np.ndarray
) -> SoftLabelMoments:
    """Squared bias, without the share of the variance that a mean over crops has, and variance."""
    q = softmax(logits.astype(np.float64) / TEMPERATURE)
    variance = q.var(axis=1, ddof=1).sum(axis=-1)
    bias2 = np.square(q.mean(axis=1) - soft_labels).sum(axis=-1) - variance / q.shape[1]
    return SoftLabelMoments(*_mean_and_se(bias2), *_mean_and_se(variance))


def _mean_and_se(values: np.ndarray) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5)
