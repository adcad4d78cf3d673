"""Parameters of a black-box simulator: theta and y of a unit from its number and the seed."""

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from .._core.checks import checked_names, refuse_masked
from .._core.priors import prior_leaves
from .._core.problem import Problem
from .._core.theta import (
    Columns,
    column_name,
    describe_theta,
    theta_columns,
    theta_of_unit,
    theta_tree,
)
from ..exceptions import SimulatedDataError, SimulatorError
from .worker import stream

BLOCK = 256
"""Units of which a JAX prior is drawn at once; always the same, so that no bit depends on it."""
FINGERPRINT_UNITS = 8
DRAWN_TWICE = 4
"""First units whose theta is drawn twice: a prior must take its random numbers from its rng."""
REMEMBERED = 64
"""Units whose theta is not drawn again."""


class Unknowns:
    """Theta and y of each unit, which depend on the seed and its number alone.

    Args:
        prior: as in `Problem`, or a function ``prior(rng) -> theta``.
        target: ``target(theta) -> y``, or None for theta itself.
        names: of the components of y, or None for the default ones.
        seed: of all random numbers.
    """

    def __init__(
        self,
        prior: Any,
        target: Callable[[Any], Any] | None,
        names: Sequence[str] | None,
        seed: int,
    ) -> None:
        self._target = target
        self._draw = _drawing(prior, seed)
        columns = self._draw(0, 1)
        _check_finite(columns, 0)
        if target is None and (() not in columns or columns[()].ndim > 2):
            shapes = {column_name(path): c.shape[1:] for path, c in columns.items()}
            raise SimulatorError(
                f"theta is not a number or a vector, it has shapes {shapes}: say with target what "
                "is estimated, for example target=lambda theta: theta['name']"
            )
        self.paths = tuple(columns)
        """The keys that lead to each column of theta."""
        self._d: int | None = None
        self._d = self._y_of(theta_of_unit(columns, 0)).size
        self.names = checked_names(names, self._d)

    def take(self, first: int, count: int) -> tuple[Columns, np.ndarray]:
        """Theta and y of consecutive units."""
        columns = self._draw(first, count)
        _check_finite(columns, first)
        return columns, np.stack([self._y_of(theta_of_unit(columns, i)) for i in range(count)])

    def fingerprint(self) -> str:
        """A digest of the first units: it changes with the prior, the target and the seed."""
        columns, y = self.take(0, FINGERPRINT_UNITS)
        return unknowns_digest(columns, y)

    def _y_of(self, theta: Any) -> np.ndarray:
        try:
            y = theta if self._target is None else self._target(theta)
            refuse_masked("y", y)
            y = np.asarray(y)
            if y.dtype.kind not in "biuf":
                raise TypeError(f"y must be real numbers, got {y.dtype}")
            y = y.astype(np.float64)
        except Exception as error:
            raise SimulatorError(
                f"target(theta) failed for theta = {describe_theta(theta)}; it must return a "
                f"number or a vector: {type(error).__name__}: {error}"
            ) from error
        right_size = y.size == self._d if self._d else y.size > 0
        if y.ndim > 1 or not right_size or not np.isfinite(y).all():
            raise SimulatorError(
                "y must be a finite number or vector, of the same length for all theta; target "
                f"gave {describe_theta(y)} for theta = {describe_theta(theta)}"
            )
        return y.reshape(-1)


def unknowns_digest(columns: Columns, y: np.ndarray, units: Any = slice(None)) -> str:
    """A digest of theta and y of units."""
    digest = hashlib.sha256(repr(list(columns)).encode())
    for array in (column[units] for column in (*columns.values(), y)):
        digest.update(f"{array.shape}{array.dtype}".encode() + array.tobytes())
    return digest.hexdigest()[:16]


def other_unknowns(folder: Any, which: str) -> SimulatedDataError:
    """The parameters that were simulated are not those of the call."""
    return SimulatedDataError(
        f"the data in {folder} are not those asked for: {which} have other values of theta or y "
        "there, so the prior or the target is another one. Nothing was changed. Choose another "
        "folder, or delete this one to start afresh."
    )


def _drawing(prior: Any, seed: int) -> Callable[[int, int], Columns]:
    """A function of the first unit and their number that draws theta."""
    if isinstance(prior, Mapping) or callable(getattr(prior, "sample", None)):
        return _jax_drawing(prior, seed)
    if callable(prior):
        return _function_drawing(prior, seed)
    raise TypeError(
        "prior must be a numpyro distribution, an object with a method sample(key), a dict of "
        f"these, or a function prior(rng); got {type(prior).__name__}"
    )


def _function_drawing(
    prior: Callable[[np.random.Generator], Any], seed: int
) -> Callable[[int, int], Columns]:
    def one(unit: int) -> Columns:
        try:
            found = theta_columns(prior(stream(seed, unit, 0)))
            return {path: leaf.copy() for path, leaf in found.items()}  # a prior may reuse them
        except SimulatorError:
            raise
        except Exception as error:
            raise SimulatorError(
                f"prior(rng) failed for unit {unit}: {type(error).__name__}: {error}"
            ) from error

    expected = _kinds(one(0))
    for unit in range(DRAWN_TWICE):
        first, again = one(unit), one(unit)
        if first.keys() == again.keys() and not all(
            np.array_equal(first[path], again[path], equal_nan=True) for path in first
        ):
            raise SimulatorError(
                "prior(rng) must take all of its random numbers from rng, a "
                "numpy.random.Generator that depends on the seed and the unit, but gave two values "
                f"for unit {unit}, "
                f"{describe_theta(theta_tree(first))} and {describe_theta(theta_tree(again))}: "
                "write rng.uniform() where it has np.random.uniform()"
            )
    # A unit is simulated, and later stored, with the same draw.
    remembered = functools.lru_cache(REMEMBERED)(one)

    def draw(first: int, count: int) -> Columns:
        thetas = [remembered(first + i) for i in range(count)]
        for i, theta in enumerate(thetas):
            if _kinds(theta) != expected:
                raise SimulatorError(
                    "prior(rng) must return the same shapes and dtypes every time: unit 0 has "
                    f"{expected}, unit {first + i} has {_kinds(theta)}"
                )
        return {path: np.stack([theta[path] for theta in thetas]) for path in thetas[0]}

    return draw


def _kinds(theta: Columns) -> dict[str, str]:
    return {column_name(p): f"{leaf.dtype}{leaf.shape}" for p, leaf in theta.items()}


def _jax_drawing(prior: Any, seed: int) -> Callable[[int, int], Columns]:
    for leaf in prior_leaves(prior):
        if not callable(getattr(leaf, "sample", None)):
            raise TypeError(
                "every entry of a dict of priors must be a numpyro distribution or have a method "
                f"sample(key), got {type(leaf).__name__}: a function prior(rng) returns the whole "
                "theta"
            )
    problem = Problem(prior, lambda key, _: jr.normal(key), target=lambda _: jnp.zeros(1))
    words = np.random.SeedSequence(seed).generate_state(2)
    key = jr.fold_in(jr.key(int(words[0])), words[1])

    @jax.jit
    def sample(first: jax.Array) -> Any:
        units = first + jnp.arange(BLOCK, dtype=jnp.uint32)
        return jax.vmap(lambda unit: problem.sample_prior(jr.fold_in(key, unit)))(units)

    @functools.lru_cache(maxsize=2)
    def block(index: int) -> Columns:
        flat = theta_columns(jax.tree.map(np.asarray, sample(np.uint32(index * BLOCK))))
        # The simulator is no JAX program: it gets the precision of NumPy.
        wide = {"f": np.float64, "i": np.int64}
        return {p: c.astype(wide.get(c.dtype.kind, c.dtype)) for p, c in flat.items()}

    def draw(first: int, count: int) -> Columns:
        blocks = range(first // BLOCK, (first + count - 1) // BLOCK + 1)
        drawn = [block(index) for index in blocks]
        start = first - blocks[0] * BLOCK
        return {
            path: np.concatenate([columns[path] for columns in drawn])[start : start + count]
            for path in drawn[0]
        }

    return draw


def _check_finite(columns: Columns, first: int) -> None:
    for column in columns.values():
        finite = np.isfinite(column).reshape(len(column), -1).all(axis=1)
        if not finite.all():
            bad = int(np.flatnonzero(~finite)[0])
            raise SimulatorError(
                f"prior gave NaN or infinity for unit {first + bad}: "
                f"{describe_theta(theta_of_unit(columns, bad))}"
            )
