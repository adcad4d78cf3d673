"""Random keys: one for each purpose and number, never shared."""

import zlib

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from .types import Key


def key_for(purpose: str, key: Key) -> Key:
    """A key that no other function derives from the same one: they never share random numbers."""
    kind = getattr(key, "dtype", None)
    if kind is None or not (kind == np.uint32 or jnp.issubdtype(kind, jax.dtypes.prng_key)):
        raise TypeError(f"key must be a random key such as jax.random.key(0), got {key!r}")
    return jr.fold_in(key, zlib.crc32(purpose.encode()))


def fold_in_each(key: Key, numbers: Array) -> Key:
    """One key for each number, which depends on the key and that number alone."""
    return jax.vmap(lambda number: jr.fold_in(key, number))(numbers)
