"""Small networks that learn the soft labels of a teacher from crops of images."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, UInt8

import mvue

from ...nn._convolutions import by_image, convolve, max_pool
from .images import random_crop, standardized

CLASSES = 10
SIDE = 32
TEMPERATURE = 20.0
CHANNELS = (16, 32)
Matched = Literal["probabilities", "log-probabilities"]


@mvue.register(name="mvue.experiments.Student")
class Student(eqx.Module):
    """The student of the paper: two convolutions, pooling and one linear layer.

    It estimates the soft label of an image, its class probabilities at temperature 20, from one
    crop. Logits, up to a constant, are 20 times the logarithms of these.
    """

    first: Array
    first_bias: Array
    second: Array
    second_bias: Array
    linear: Array
    linear_bias: Array

    def __init__(self, key: Array) -> None:
        keys = jr.split(key, 3)
        a, b = CHANNELS
        pixels = ((SIDE - 4) // 2) ** 2
        self.first = _uniform(keys[0], (3, 3, 3, a), 27)
        self.second = _uniform(keys[1], (3, 3, a, b), 9 * a)
        self.linear = _uniform(keys[2], (pixels * b, CLASSES), pixels * b)
        self.first_bias, self.second_bias = jnp.zeros(a), jnp.zeros(b)
        self.linear_bias = jnp.zeros(CLASSES)

    def logits(self, image: UInt8[Array, "32 32 3"]) -> Float[Array, " 10"]:
        """Scores of the classes at temperature 1."""
        x = _pooled(standardized(image), self.first, self.first_bias, self.second)
        x = jax.nn.relu(x + self.second_bias[None, None])
        return x.reshape(-1) @ self.linear + self.linear_bias

    def __call__(self, image: UInt8[Array, "32 32 3"]) -> Float[Array, " 10"]:
        """The soft label."""
        return jax.nn.softmax(self.logits(image) / TEMPERATURE)


@by_image
def _pooled(images: Array, first: Array, bias: Array, second: Array) -> Array:
    """Both convolutions and the pooling, before the second bias, which changes nothing."""
    x = jax.nn.relu(jnp.asarray(convolve(images, first)) + bias[None, None, None])
    return jnp.asarray(max_pool(convolve(x, second)))


def _uniform(key: Array, shape: tuple[int, ...], inputs: int) -> Array:
    return jr.uniform(key, shape, minval=-1.0, maxval=1.0) * (3 / inputs) ** 0.5


class LabelledImages(eqx.Module):
    """A prior: one of these images, all equally likely, with its class and its soft label."""

    images: Array
    labels: Array
    soft_labels: Array

    def sample(self, key: Array) -> dict[str, Array]:
        """One image."""
        i = jr.randint(key, (), 0, len(self.images))
        return {
            "image": self.images[i],
            "label": self.labels[i],
            "soft_label": self.soft_labels[i],
        }


def soft_label_problem(images: Any, labels: Any, soft_labels: Any) -> mvue.Problem:
    """Estimate the soft label of an image from one random crop of it.

    Args:
        images: (n, 32, 32, 3), uint8.
        labels: numbers of their classes, (n,), from 0 to 9.
        soft_labels: their class probabilities at temperature 20, (n, 10).
    """
    images, labels, soft_labels = check_images(images, labels, soft_labels)
    prior = LabelledImages(
        jnp.asarray(images), jnp.asarray(labels, jnp.int32), jnp.asarray(soft_labels, jnp.float32)
    )
    return mvue.Problem(
        prior,
        lambda key, theta: random_crop(key, theta["image"]),
        target=lambda theta: theta["soft_label"],
    )


def check_images(
    images: Any, labels: Any, soft_labels: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The arrays, if they are what they should be."""
    images, labels, soft_labels = (np.asarray(a) for a in (images, labels, soft_labels))
    if images.dtype != np.uint8 or images.shape[1:] != (SIDE, SIDE, 3):
        raise ValueError(
            f"images must be uint8 of shape (n, {SIDE}, {SIDE}, 3), got {images.dtype} of shape "
            f"{images.shape}"
        )
    if not len(images):
        raise ValueError("images must be at least one, got none")
    if labels.shape != images.shape[:1] or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f"labels must be {len(images)} whole numbers, one for each image, got {labels.dtype} "
            f"of shape {labels.shape}"
        )
    if labels.min() < 0 or labels.max() >= CLASSES:
        raise ValueError(
            f"labels must be from 0 to {CLASSES - 1}, got {labels.min()} to {labels.max()}"
        )
    if soft_labels.shape != (len(images), CLASSES):
        raise ValueError(
            f"soft_labels must have shape ({len(images)}, {CLASSES}), a row for each image, got "
            f"{soft_labels.shape}"
        )
    off = np.abs(soft_labels.sum(axis=1, dtype=np.float64) - 1) > 1e-3
    bad = off | (soft_labels < 0).any(axis=1) | ~np.isfinite(soft_labels).all(axis=1)
    if bad.any():
        raise ValueError(
            "soft_labels must be probabilities that sum to 1 in every row; row "
            f"{int(np.argmax(bad))} is {soft_labels[np.argmax(bad)]}"
        )
    return images, labels, soft_labels


def hard_loss(q: Float[Array, "n m 10"], labels: Array) -> Array:
    """L_hard: cross-entropy of the classes at temperature 1, mean over images and crops."""
    log_p = jax.nn.log_softmax(TEMPERATURE * jnp.log(q))
    at = jnp.broadcast_to(labels[:, None, None], (*q.shape[:2], 1))
    return -jnp.take_along_axis(log_p, at, axis=-1).mean()


def mse_loss(q: Float[Array, "n m 10"], soft: Float[Array, "n 10"]) -> Array:
    """L_MSE: squared distance to the soft label, mean over images and crops."""
    return jnp.square(q - soft[:, None]).sum(-1).mean()


def bias_loss(q: Float[Array, "n m 10"], soft: Float[Array, "n 10"]) -> Array:
    """L_bias: squared distance of the mean over crops to the soft label, mean over images."""
    return jnp.square(q.mean(axis=1) - soft).sum(-1).mean()


SOFT_LOSSES: Mapping[str, Callable[[Array, Array], Array]] = {"emmse": mse_loss, "bce": bias_loss}


@dataclasses.dataclass(frozen=True)
class StudentLoss(mvue.losses.Loss):
    """L_hard + L_MSE for ``emmse``, L_hard + L_bias for ``bce``."""

    kind: str
    """Which of the two."""
    matched: Matched = "probabilities"
    """What is compared with the teacher: probabilities at temperature 20 as in the text of the
    paper, or their logarithms as in the authors' code."""
    weight: float = 1.0
    """Of the second term."""

    def __call__(self, estimates: Any, draw: mvue.Draw, progress: Any) -> Any:
        """The loss of one batch."""
        del progress
        soft_loss, q, p = SOFT_LOSSES[self.kind], estimates, draw.y
        if self.matched == "log-probabilities":
            q, p = jnp.log(q), jnp.log(p)
        return hard_loss(estimates, draw.theta["label"]) + self.weight * soft_loss(q, p)

    def describe(self, repeats: int) -> str:
        """The two terms."""
        term = "L_MSE" if self.kind == "emmse" else "L_bias"
        times = f"{self.weight:g} " if self.weight != 1 else ""
        return f"L_hard + {times}{term} of {self.matched}, M = {repeats}"
