"""Convolutions of images that are fast on a CPU too; everything about that stands here.

XLA's convolution is fast on a CPU if there is any padding, and so is its gradient with respect to
the images if it is written as a convolution. The gradient with respect to the kernel is not: what
automatic differentiation makes of it is a convolution whose window is as large as the image,
several times slower than the matrix products that it amounts to. Here it is those products, over
a few images at a time so that their patches stay in the cache. Other devices take what XLA makes
of it. `benchmarks/cnn.py` has the measurements.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

NONE = (0, 0), (0, 0)  # padding
NARROW = 64  # output channels


@jax.custom_batching.custom_vmap
def convolve(
    image: Float[Array, "h w c"], kernel: Float[Array, "i j c o"]
) -> Float[Array, "h2 w2 o"]:
    """Cross-correlation without padding of one image with kernels, of odd or even size.

    Batch it with `jax.vmap` over images: all images then share one product with the kernels. Only
    the batched function has a gradient.
    """
    return convolve_batch(image[None], kernel)[0]


@convolve.def_vmap
def _convolve_many(
    size: int, batched: list[bool], images: Array, kernels: Array
) -> tuple[Array, bool]:
    del size
    if batched == [True, False]:
        return convolve_batch(images, kernels), True
    axes = tuple(0 if b else None for b in batched)
    return jax.vmap(lambda x, w: _padded(x[None], w, NONE)[0], axes)(images, kernels), True


@jax.custom_vjp
def convolve_batch(
    images: Float[Array, "n h w c"], kernel: Float[Array, "i j c o"]
) -> Float[Array, "n h2 w2 o"]:
    """Cross-correlation without padding of images with kernels."""
    return _correlate(images, kernel)


def _forward(images: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _correlate(images, kernel), (images, kernel)


def _backward(kept: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    images, kernel = kept
    height, width = kernel.shape[:2]
    turned = jnp.flip(kernel, (0, 1)).swapaxes(2, 3)
    margin = ((height - 1, height - 1), (width - 1, width - 1))
    to_kernel = lax.platform_dependent(
        images, grad, cpu=_kernel_gradient_by_products, default=_kernel_gradient
    )
    return _padded(grad, turned, margin), to_kernel


convolve_batch.defvjp(_forward, _backward)


def _correlate(images: Array, kernel: Array) -> Array:
    """Without padding. On a CPU that takes a slow path which a single column of zeros avoids."""
    return lax.platform_dependent(
        images,
        kernel,
        cpu=lambda x, w: _padded(x, w, ((0, 0), (0, 1)))[:, :, :-1],
        default=lambda x, w: _padded(x, w, NONE),
    )


def _padded(images: Array, kernel: Array, padding: Any) -> Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(images, kernel, (1, 1), padding, dimension_numbers=layout)


def _kernel_gradient(images: Array, grad: Array) -> Array:
    size = [images.shape[a] - grad.shape[a] + 1 for a in (1, 2)]
    shape = jax.ShapeDtypeStruct((*size, images.shape[3], grad.shape[3]), images.dtype)
    return jax.linear_transpose(lambda kernel: _padded(images, kernel, NONE), shape)(grad)[0]


def _kernel_gradient_by_products(images: Array, grad: Array) -> Array:
    """The same, summed over small numbers of images: patches times gradients.

    Where there are few output channels, only the columns of patches are taken from the images;
    gradients are shifted along the rows instead, for a product that is less narrow.
    """
    n, (h, w, o), c = len(images), grad.shape[1:], images.shape[3]
    height, width = images.shape[1] - h + 1, images.shape[2] - w + 1
    narrow = o < NARROW
    most = max((4096 if narrow else 256) // (h * w), 1)
    at_once = max(k for k in range(1, min(n, most) + 1) if n % k == 0)
    rows, columns = range(height), range(width)

    def product(x: Array, g: Array) -> Array:
        x = x.transpose(3, 0, 1, 2)  # as rows of a matrix, patches need not be transposed
        if not narrow:
            shifted = [x[:, :, i : i + h, j : j + w] for i in rows for j in columns]
            return jnp.stack(shifted).reshape(-1, at_once * h * w) @ g.reshape(-1, o)
        shifted = [x[..., j : j + w] for j in columns]
        g = jnp.pad(g, ((0, 0), (height - 1, height - 1), (0, 0), (0, 0)))
        moved = [g[:, height - 1 - i :][:, : x.shape[2]] for i in rows]
        moved = jnp.concatenate(moved, axis=-1).reshape(-1, height * o)
        return jnp.stack(shifted).reshape(width * c, -1) @ moved

    def add(total: Array, some: tuple[Array, Array]) -> tuple[Array, None]:
        return total + product(*some), None

    shape = (width * c, height * o) if narrow else (height * width * c, o)
    x, g = (a.reshape(n // at_once, at_once, *a.shape[1:]) for a in (images, grad))
    total = lax.scan(add, jnp.zeros(shape, images.dtype), (x, g))[0]
    if narrow:
        return total.reshape(width, c, height, o).transpose(2, 0, 1, 3)
    return total.reshape(height, width, c, o)
