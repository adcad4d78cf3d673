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
    if kind == np.uint32:  # as jax.random.PRNGKey makes them: programs are compiled for the others
        try:
            key = jr.wrap_key_data(jnp.asarray(key))
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"key must be a random key such as jax.random.key(0): {error}"
            ) from error
    if jnp.shape(key) != ():
        raise TypeError(
            f"key must be one random key, such as jax.random.key(0), got keys of shape {key.shape}"
        )
    return jr.fold_in(key, np.uint32(zlib.crc32(purpose.encode())))


def fold_in_each(key: Key, numbers: Array) -> Key:
    """One key for each number, which depends on the key and that number alone."""
    return jax.vmap(lambda number: jr.fold_in(key, number))(numbers)


def several(key: Key, count: int) -> list[Key]:
    """So many keys; one small program makes any number of them."""
    return [jr.fold_in(key, np.uint32(number)) for number in range(count)]


def host_random(key: Key) -> np.random.Generator:
    """Random numbers of NumPy that a key decides: nothing is compiled for them."""
    return np.random.default_rng(np.asarray(jr.key_data(key)).ravel().tolist())
