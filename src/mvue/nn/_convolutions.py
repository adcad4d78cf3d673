"""Convolutions and pooling of images that are fast on a CPU too; all about that stands here.

What XLA makes of them on a CPU has slow paths: a convolution without any padding, one of few
channels, the gradient of the kernel, which becomes a convolution with a window as large as the
image, and the gradient of a pooling. Matrix products do the same. How the pixels are laid out for
them decides the speed: a product should have at least some 50 columns, and what is copied should
stay in the cache, so that few images at a time are worked on. Gradients are those that automatic
differentiation makes of the products. Other devices take XLA's own. `benchmarks/cnn.py` has the
measurements.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

FEW, NARROW = 4, 64  # channels of images, of outputs
PIXELS = 2048  # of the images that are worked on at a time


def by_image(function: Callable[..., Array]) -> Callable[..., Array]:
    """A function of images and weights, as a function of one image and weights.

    Under `jax.vmap` over the images, it is evaluated for a few of them at a time on a CPU. What is
    between its convolutions, forward and backward, is then still in the cache when it is needed.
    Only the batched function has a gradient.
    """

    def alone(image: Array, *weights: Array) -> Array:
        return function(image[None], *weights)[0]

    one = jax.custom_batching.custom_vmap(alone)

    @one.def_vmap
    def _many(size: int, batched: list[bool], images: Array, *weights: Array) -> tuple[Array, bool]:
        del size
        if not batched[0] or any(batched[1:]):
            axes = tuple(0 if b else None for b in batched)
            return jax.vmap(alone, axes)(images, *weights), True

        def on_cpu(images: Array, *weights: Array) -> Array:
            found = lax.map(lambda some: function(some, *weights), _pieces(images))
            return found.reshape(len(images), *found.shape[2:])

        return lax.platform_dependent(images, *weights, cpu=on_cpu, default=function), True

    return one


def convolve(
    images: Float[Array, "n h w c"], kernel: Float[Array, "i j c o"], margin: int = 0
) -> Float[Array, "n h2 w2 o"]:
    """Cross-correlation of images with kernels, of odd or even size.

    Args:
        images: with their channels last.
        kernel: for each pixel, channel of the images and channel of the output.
        margin: so many pixels around the images are taken to be zero.
    """
    return _convolved(images, kernel, margin)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _convolved(images: Array, kernel: Array, margin: int) -> Any:
    on_cpu, plain = (functools.partial(f, margin=margin) for f in (_convolve_on_cpu, _convolve))
    return lax.platform_dependent(images, kernel, cpu=on_cpu, default=plain)


def _forward(images: Array, kernel: Array, margin: int) -> tuple[Array, tuple[Array, Array]]:
    return convolve(images, kernel, margin), (images, kernel)


def _backward(margin: int, kept: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    def plain(images: Array, kernel: Array, grad: Array) -> tuple[Array, Array]:
        return jax.vjp(functools.partial(_convolve, margin=margin), images, kernel)[1](grad)

    on_cpu = functools.partial(_gradients_on_cpu, margin=margin)
    return lax.platform_dependent(*kept, grad, cpu=on_cpu, default=plain)


_convolved.defvjp(_forward, _backward)


@jax.custom_vjp
def max_pool(images: Float[Array, "n h w c"]) -> Float[Array, "n h2 w2 c"]:
    """The largest of every 2 x 2 pixels; a last row or column that is left over is not used."""
    return functools.reduce(jnp.maximum, _quarters(images))


def _pool(images: Array) -> tuple[Array, tuple[Array, Array]]:
    largest, place = max_pool(images), jnp.uint8(3)
    for i in (2, 1, 0):
        place = jnp.where(_quarters(images)[i] == largest, jnp.uint8(i), place)
    return largest, (place, jnp.zeros((0, *images.shape[1:3])))


def _unpool(kept: tuple[Array, Array], grad: Array) -> tuple[Array]:
    """To the first of the largest."""
    place, (_, height, width) = kept[0], kept[1].shape
    (h, w, c), corner = grad.shape[1:], jnp.arange(4, dtype=jnp.uint8).reshape(1, 2, 1, 2, 1)

    def unpool(one: tuple[Array, Array]) -> Array:
        place, grad = (a[:, None, :, None] for a in one)
        return jnp.where(place == corner, grad, 0).reshape(2 * h, 2 * w, c)

    # On a CPU one image after the other: otherwise a convolution that follows does it many times.
    in_turn = functools.partial(lax.map, unpool)
    found = lax.platform_dependent((place, grad), cpu=in_turn, default=jax.vmap(unpool))
    return (jnp.pad(found, ((0, 0), (0, height - 2 * h), (0, width - 2 * w), (0, 0))),)


max_pool.defvjp(_pool, _unpool)


def _quarters(images: Array) -> list[Array]:
    h, w = (size // 2 * 2 for size in images.shape[1:3])
    return [images[:, i:h:2, j:w:2] for i in (0, 1) for j in (0, 1)]


def _pieces(images: Array, pixels: int = PIXELS) -> Array:
    """Some images at a time, all the same number."""
    n, h, w = images.shape[:3]
    most = max(pixels // (h * w), 1)
    at_once = max((k for k in range(1, min(n, most) + 1) if n % k == 0), default=1)
    return images.reshape(n // at_once, at_once, *images.shape[1:])


def _convolve(images: Array, kernel: Array, margin: int = 0) -> Array:
    return _padded(images, kernel, ((margin, margin), (margin, margin)))


def _padded(images: Array, kernel: Array, padding: Any) -> Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(images, kernel, (1, 1), padding, dimension_numbers=layout)


def _convolve_on_cpu(images: Array, kernel: Array, margin: int) -> Array:
    if images.shape[3] <= FEW:
        found = lax.map(lambda some: _by_pairs(_around(some, margin), kernel), _pieces(images))
        return found.reshape(len(images), *found.shape[2:])
    if margin:
        return _convolve(images, kernel, margin)
    # Without padding that takes a slow path, which a single column of zeros avoids.
    return _padded(images, kernel, ((0, 0), (0, 1)))[:, :, :-1]


def _gradients_on_cpu(
    images: Array, kernel: Array, grad: Array, margin: int
) -> tuple[Array, Array]:
    height, width, c, o = kernel.shape
    few, narrow = c <= FEW, o < NARROW
    product = _by_pairs if few else _by_columns if narrow else _by_patches

    def add(total: Array, some: tuple[Array, Array]) -> tuple[Array, Array]:
        back = jax.vjp(lambda x, k: product(_around(x, margin), k), some[0], kernel)[1]
        to_images, to_kernel = back(some[1])
        return total + to_kernel, to_images

    x = _pieces(images, PIXELS if few or narrow else 256)
    g = grad.reshape(*x.shape[:2], *grad.shape[1:])
    to_kernel, to_images = lax.scan(add, jnp.zeros_like(kernel), (x, g))
    if few or (narrow and not margin):
        return to_images.reshape(images.shape), to_kernel
    turned = jnp.flip(kernel, (0, 1)).swapaxes(2, 3)
    around = [(size - 1 - margin, size - 1 - margin) for size in (height, width)]
    return _padded(grad, turned, around), to_kernel


def _around(images: Array, margin: int) -> Array:
    return jnp.pad(images, ((0, 0), (margin, margin), (margin, margin), (0, 0)))


def _by_pairs(images: Array, kernel: Array) -> Array:
    """For few channels: a row of the product has what two pixels of the output see."""
    (n, h, w, c), (height, width, _, o) = images.shape, kernel.shape
    h, w = h - height + 1, w - width + 1
    pairs, seen = (w + 1) // 2, (width + 2) // 2  # seen: so many pairs of pixels of an image
    images = jnp.pad(
        images, ((0, 0), (0, 0), (0, 2 * (pairs + seen - 1) - images.shape[2]), (0, 0))
    )
    x = images.reshape(n, images.shape[1], -1, 2 * c)
    x = jnp.stack([x[:, i : i + h, j : j + pairs] for i in range(height) for j in range(seen)], 3)
    shifts = [((0, 0), (a, 2 * seen - width - a), (0, 0), (0, 0)) for a in (0, 1)]
    both = jnp.stack([jnp.pad(kernel, shift) for shift in shifts], 3)
    found = x.reshape(n * h * pairs, -1) @ both.reshape(-1, 2 * o)
    return found.reshape(n, h, 2 * pairs, o)[:, :, :w]


def _by_columns(images: Array, kernel: Array) -> Array:
    """For few outputs: what a row of the kernel sees, times all rows of it, summed afterwards."""
    (n, h, w, c), (height, width, _, o) = images.shape, kernel.shape
    w = w - width + 1
    x = jnp.stack([images[:, :, j : j + w] for j in range(width)], 3).reshape(n * h * w, -1)
    rows = (x @ kernel.transpose(1, 2, 0, 3).reshape(width * c, -1)).reshape(n, h, w, -1)
    h = h - height + 1
    parts = [rows[:, i : i + h, :, i * o : (i + 1) * o] for i in range(height)]
    return functools.reduce(jnp.add, parts)


def _by_patches(images: Array, kernel: Array) -> Array:
    """For many outputs: what a pixel of the output sees, times the kernel."""
    (n, h, w, _), (height, width, _, o) = images.shape, kernel.shape
    h, w = h - height + 1, w - width + 1
    x = images.transpose(3, 0, 1, 2)  # as rows of a matrix, patches need not be transposed
    x = [x[:, :, i : i + h, j : j + w] for i in range(height) for j in range(width)]
    x = jnp.stack(x).reshape(-1, n * h * w)
    return (x.T @ kernel.reshape(-1, o)).reshape(n, h, w, o)
