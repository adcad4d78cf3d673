"""Identities of traced programs and of arrays, which tell training runs apart.

Floating-point numbers differ in their last digits between machines, even if everything else is the
same. So they are no part of a digest: an identity is a digest of all else and a list of numbers,
which `same_identity` compares with a tolerance.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

TOLERANCE = 1e-4  # of numbers that are the same but for rounding
ROUNDING = 16  # last digits of the largest number in an array: where it is zero but for rounding
MOST_NUMBERED = 256  # numbers of a constant, which may have units of their own

_ARRAYS = (np.ndarray, jax.Array)


def program_identity(program: Any) -> dict[str, Any]:
    """The operations of a traced program and the numbers in it, those of constants included.

    They change with the prior, the simulator, the network, the loss and the optimizer. The text
    that JAX prints would not do: it tells whether two nested programs are one object, which
    depends on what else the process has traced.
    """
    known: dict[int, str] = {}
    listed: set[tuple[str, ...]] = set()

    def described(node: Any, numbers: list[float]) -> str:
        if isinstance(node, (list, tuple)):
            return f"({' '.join(described(child, numbers) for child in node)})"
        if isinstance(node, (*_ARRAYS, float, np.floating)):
            found = arrays_identity(node, each=MOST_NUMBERED)
            numbers += found["numbers"]
            return found["exact"]
        if hasattr(node, "jaxpr"):  # closed
            return described(node.jaxpr, numbers) + described(node.consts, numbers)
        if hasattr(node, "eqns"):
            if id(node) not in known:
                own: list[float] = []
                known[id(node)] = digest = _text_digest(operations(node, own))
                # One that was traced twice is listed once, as if it had been traced once.
                name = (digest, *map(str, own))
                numbers += [] if name in listed else own
                listed.add(name)
            return known[id(node)]
        return re.sub(r"0x[0-9a-f]+", "", str(node))  # addresses differ between processes

    def operations(jaxpr: Any, numbers: list[float]) -> str:
        names: dict[Any, int] = {}

        def named(variables: Iterable[Any]) -> str:
            return " ".join(
                f"{described(v.val, numbers) if hasattr(v, 'val') else place(v)}:{v.aval}"
                for v in variables
            )

        def place(variable: Any) -> int:
            return names.setdefault(variable, len(names))

        lines = [named([*jaxpr.constvars, *jaxpr.invars])]
        for equation in jaxpr.eqns:
            settings = [(k, equation.params[k]) for k in sorted(equation.params)]
            lines.append(
                f"{named(equation.outvars)} = {equation.primitive} {described(settings, numbers)} "
                f"{named(equation.invars)}"
            )
        return "\n".join([*lines, named(jaxpr.outvars)])

    numbers: list[float] = []
    return {"exact": _text_digest(described(program, numbers)), "numbers": numbers}


def arrays_identity(tree: PyTree, each: int = 1) -> dict[str, Any]:
    """Shapes, dtypes and whole numbers of all arrays in a tree, and two numbers for each other.

    Args:
        tree: the arrays.
        each: up to which size all numbers of an array stand for themselves, however small some are
            beside others.
    """
    digest, numbers = hashlib.sha256(), []
    for leaf in jax.tree.leaves(tree):
        if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        array = np.asarray(leaf)
        digest.update(f"{array.shape} {array.dtype} ".encode())
        if not jnp.issubdtype(array.dtype, np.inexact):
            digest.update(array.tobytes())
            continue
        if np.iscomplexobj(array):
            array = np.stack([np.real(array), np.imag(array)])
        flat = array.astype(np.float64).ravel()
        finite = np.isfinite(flat)
        digest.update(f"{np.flatnonzero(~finite).tolist()} ".encode())
        flat = np.where(finite, flat, 0.0)
        if flat.size > each:
            numbers += _typical(flat)
        else:
            noise = ROUNDING * np.finfo(array.dtype).eps * np.abs(flat).max(initial=0.0)
            numbers += np.where(np.abs(flat) > noise, flat, 0.0).tolist()
    return {"exact": digest.hexdigest()[:16], "numbers": numbers}


def _typical(flat: np.ndarray) -> list[float]:
    """The size of some numbers, and a sum that differs if any of them does, of the same order."""
    size = float(np.sqrt(np.mean(flat**2)))
    weights = np.random.default_rng(flat.size).normal(size=flat.size)
    return [size, 5 * size + float(flat @ weights) / flat.size**0.5]


def same_identity(one: Any, other: Any, tolerance: float = TOLERANCE) -> bool:
    """Whether two identities differ in the last digits of floating-point numbers at most."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            same_identity(one[name], other[name], tolerance) for name in one
        )
    if isinstance(one, list) and isinstance(other, list):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(same_identity(*pair, tolerance) for pair in pairs)
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= tolerance * max(abs(one), abs(other))
    return one == other


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def constants_of(node: Any) -> Iterator[Any]:
    """All that a program closes over, arrays and literals, those of nested programs too."""
    if isinstance(node, (list, tuple)):
        for child in node:
            yield from constants_of(child)
    elif hasattr(node, "jaxpr"):  # closed
        yield from node.consts
        yield from constants_of(node.jaxpr)
    elif hasattr(node, "eqns"):
        for equation in node.eqns:
            yield from (v.val for v in equation.invars if hasattr(v, "val"))
            yield from constants_of(list(equation.params.values()))
        yield from (v.val for v in node.outvars if hasattr(v, "val"))


def arrays_digest(tree: PyTree) -> str:
    """A digest of the values of all arrays in a tree."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()[:16]
