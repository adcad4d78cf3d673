"""Large arrays are worked on in pieces, to the same result."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mvue._runtime import memory


@pytest.mark.parametrize("most", [1, 30, 10**6])
def test_pieces_make_what_all_at_once_makes(monkeypatch, most):
    monkeypatch.setattr(memory, "AT_ONCE", most)
    x = {"a": jnp.arange(42.0).reshape(7, 6), "b": jnp.arange(7)}

    def function(x, y):
        return x["a"].sum() + x["b"], y[:1]

    y = jnp.ones((7, 2))
    found = memory.vmap_in_pieces(function, x, y)
    expected = jax.vmap(function)(x, y)
    assert jax.tree.all(jax.tree.map(np.array_equal, found, expected))


def test_less_memory_is_needed_in_pieces():
    def bytes_of(mapped):
        x = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)

        def statistics(row):
            return jnp.sort(jnp.outer(row[:64], row[:64]).ravel())[:3] + jnp.sort(row)[:3]

        return memory.bytes_needed(jax.jit(lambda x: mapped(statistics, x)).lower(x).compile())

    at_once = bytes_of(lambda function, x: jax.vmap(function)(x))
    assert bytes_of(memory.vmap_in_pieces) < at_once / 2
