"""Images of CIFAR-10 on the device: random crops and flips, and values that networks like."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import lax
from jaxtyping import Array, Float, UInt8

PADDING = 4
"""Pixels of black around an image from which crops of its own size are taken."""
MEAN = np.array([0.4914, 0.4822, 0.4465], np.float32)
SD = np.array([0.2470, 0.2435, 0.2616], np.float32)


def random_crop(
    key: Array, image: UInt8[Array, "h w 3"], padding: int = PADDING
) -> UInt8[Array, "h w 3"]:
    """One image, moved by up to `padding` pixels each way and mirrored half of the time."""
    place_key, flip_key = jr.split(key)
    top, left = jr.randint(place_key, (2,), 0, 2 * padding + 1)
    wider = jnp.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    crop = lax.dynamic_slice(wider, (top, left, jnp.zeros_like(top)), image.shape)
    return jnp.where(jr.bernoulli(flip_key), crop[:, ::-1], crop)


def standardized(images: UInt8[Array, "*n h w 3"]) -> Float[Array, "*n h w 3"]:
    """Numbers with mean 0 and standard deviation 1 over the training images, by channel."""
    scale = jnp.asarray(1 / (255 * SD)).reshape((1,) * (images.ndim - 1) + (3,))
    shift = jnp.asarray(MEAN / SD).reshape(scale.shape)
    return images.astype(jnp.float32) * scale - shift
