"""Digests of traced programs and of arrays, which identify a training run."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

_ARRAYS = (np.ndarray, jax.Array)


def program_digest(program: Any) -> str:
    """A digest of a traced program: its operations and the constants it closes over.

    It changes with the prior, the simulator, the network, the loss and the optimizer. The text
    that JAX prints would not do: it tells whether two nested programs are one object, which
    depends on what else the process has traced.
    """
    known: dict[int, str] = {}

    def described(node: Any) -> str:
        if isinstance(node, (list, tuple)):
            return f"({' '.join(map(described, node))})"
        if isinstance(node, _ARRAYS):
            return arrays_digest(node)
        if hasattr(node, "jaxpr"):  # closed
            return described(node.jaxpr) + described(node.consts)
        if hasattr(node, "eqns"):
            if id(node) not in known:
                known[id(node)] = _text_digest(operations(node))
            return known[id(node)]
        return re.sub(r"0x[0-9a-f]+", "", str(node))  # addresses differ between processes

    def operations(jaxpr: Any) -> str:
        names: dict[Any, int] = {}

        def named(variables: Iterable[Any]) -> str:
            return " ".join(
                f"{described(v.val) if hasattr(v, 'val') else names.setdefault(v, len(names))}"
                f":{v.aval}"
                for v in variables
            )

        lines = [named([*jaxpr.constvars, *jaxpr.invars])]
        for equation in jaxpr.eqns:
            settings = [(k, equation.params[k]) for k in sorted(equation.params)]
            lines.append(
                f"{named(equation.outvars)} = {equation.primitive} {described(settings)} "
                f"{named(equation.invars)}"
            )
        return "\n".join([*lines, named(jaxpr.outvars)])

    return _text_digest(described(program))


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def constants_of(node: Any) -> Iterator[Any]:
    """All arrays that a program closes over, those of nested programs too."""
    if isinstance(node, (list, tuple)):
        for child in node:
            yield from constants_of(child)
    elif hasattr(node, "jaxpr"):  # closed
        yield from node.consts
        yield from constants_of(node.jaxpr)
    elif hasattr(node, "eqns"):
        for equation in node.eqns:
            yield from (
                v.val for v in equation.invars if isinstance(getattr(v, "val", None), _ARRAYS)
            )
            yield from constants_of(list(equation.params.values()))


def arrays_digest(tree: PyTree) -> str:
    """A digest of the values of all arrays in a tree."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()[:16]
