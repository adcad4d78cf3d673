"""Simulations for a check: some to learn residuals from, others beside each measurement."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array
from scipy.spatial import KDTree

from .._core.keys import host_random
from .._core.problem import Problem
from .._core.ranges import ranges_of
from .._core.sampling import Simulations, nonfinite_error
from .._core.types import Estimator, Key, Measurement, Theta
from .._recipe.training_prior import TrainingPrior
from .._runtime.jit import as_array, jit
from .._summaries.families import Families, groups_of
from ..exceptions import SimulatorError
from .residuals import Residuals, Scores, learn

LEARNED = 2**15  # simulations that residuals are learned from
FEWEST_LEARNED = 2**12
AGAIN = 0.25  # the share of these with a second measurement
LARGEST_TOTAL = 2**28  # numbers of these
NEIGHBOURS = 64  # simulations that show what theta may be, given the estimates
UNITS = 64
UNIT_NUMBERS = 2**17  # of measurements in a batch
AT_ONCE = 1024  # of the user's measurements
AT_ONCE_NUMBERS = 2**22


@dataclasses.dataclass(frozen=True, eq=False)
class Machine:
    """Simulations, and what was learned from them."""

    problem: Problem
    drawn: Simulations
    see: Callable[[Measurement], tuple[Array, Array]]
    """Estimate and summaries of one measurement."""
    thetas: "_Thetas"
    residuals: Residuals
    places: np.ndarray
    """Of the theta of simulations that neighbours are looked for in, (n, p)."""
    estimated: np.ndarray
    """The same as their measurements tell it, (n, p)."""
    tree: KDTree
    unit: np.ndarray
    """Size of the errors of these estimates, (p,)."""
    y_range: np.ndarray
    """(2, d)."""
    learned: int

    @classmethod
    def of(
        cls, problem: Problem, function: Estimator, families: Families, keys: list[Key]
    ) -> "Machine":
        def see(x: Measurement) -> tuple[Array, Array]:
            return jnp.reshape(function(x), (-1,)), families(x)

        spec, _ = problem.shapes()
        numbers = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(spec))
        units = int(np.clip(UNIT_NUMBERS // max(numbers, 1), 1, UNITS))
        drawn = Simulations(problem, units, 1, lambda _, x: see(x))
        wanted = int(np.clip(LARGEST_TOTAL // max(numbers, 1), FEWEST_LEARNED, LEARNED))
        theta, y, t, s, again = _pool(drawn, keys[1], wanted)
        thetas = _Thetas.of(problem, theta, keys[2])
        groups = groups_of(families.columns(spec))
        residuals, scores = learn(thetas.values, y, t, s, again, tuple(groups.values()))
        thetas = dataclasses.replace(thetas, scores=scores)
        half = len(y) // 2
        _, estimated = residuals(t[half:], s[half:])
        places = scores.places(thetas.values[half:])
        unit = np.sqrt(np.mean((estimated - places) ** 2, axis=0)) + 1e-9
        used = residuals.used
        tree = KDTree((estimated / unit)[:, used] if len(used) else np.zeros((len(places), 1)))
        ends = np.stack([y.min(axis=0), y.max(axis=0)])
        thetas = dataclasses.replace(thetas, first=half)
        return cls(
            problem, drawn, see, thetas, residuals, places, estimated, tree, unit, ends, len(y)
        )

    def see_all(self, x: Measurement) -> tuple[np.ndarray, np.ndarray]:
        """Estimates (N, d) and summaries (N, q) of measurements, a piece at a time."""
        program = jit(jax.vmap(self.see))
        leaves = jax.tree.leaves(x)
        count = len(leaves[0])
        size = sum(leaf[0].size for leaf in leaves)
        full = int(np.clip(AT_ONCE_NUMBERS // max(size, 1), 1, min(AT_ONCE, count)))
        parts = []
        for first in range(0, count, full):
            rows = np.minimum(np.arange(first, first + full), count - 1)
            found = program(jax.tree.map(lambda leaf, rows=rows: leaf[rows], x))
            parts.append([np.asarray(part, np.float64)[: count - first] for part in found])
        t, s = zip(*parts, strict=True)
        return np.concatenate(t), np.concatenate(s)

    def replicates(
        self, estimated: np.ndarray, count: int, key: Key, origin: np.ndarray | None = None
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Estimates and summaries of simulations at what some measurements tell of theta.

        Args:
            estimated: places of theta that the measurements tell, (N, p).
            count: M, simulations for each.
            key: decides them.
            origin: numbers of the user's measurements that these stand for, if they are others.

        Yields:
            Which measurements, and their estimates (n, M, d) and summaries (n, M, q).
        """
        random = host_random(key)
        at_once = self.drawn.count * self.drawn.units
        group, number = max(1, at_once // count), 0
        for first in range(0, len(estimated), group):
            rows = slice(first, min(first + group, len(estimated)))
            theta = self.thetas_at(estimated[rows], count, random)
            of = np.arange(rows.start, rows.stop) if origin is None else origin[rows]
            yield rows, *self.measured(theta, of, key, number)
            number += self.drawn.count * -(-len(theta) // at_once)

    def measured(
        self, theta: np.ndarray, of: np.ndarray, key: Key, first: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Estimates (n, M, d) and summaries (n, M, q) of simulations at theta, (n M, ...).

        Args:
            theta: numbers or coordinates of theta, M for each of n measurements.
            of: which measurements these are.
            key: decides the simulations.
            first: number of the first batch.
        """
        drawn, parts = self.drawn, []
        at_once = drawn.count * drawn.units
        calls = -(-len(theta) // at_once)
        rows = np.arange(calls * at_once) % len(theta)
        for k in range(calls):
            some = rows[k * at_once : (k + 1) * at_once]
            given = self.thetas.theta(theta[some], (drawn.count, drawn.units))
            parts.append(_flat(drawn.at(key, first + k * drawn.count, given)))
        finite, t, s = (np.concatenate(part)[: len(theta)] for part in zip(*parts, strict=True))
        shape = (len(of), len(theta) // len(of))
        finite = finite.reshape(shape)
        if not finite.any(axis=1).all():
            raise SimulatorError(
                f"none of {shape[1]} simulations at the values estimated from measurement "
                f"{of[np.argmin(finite.any(axis=1))]} was finite: mend simulate, or narrow the "
                "prior to where it is defined"
            )
        # Each that is not finite gives way to the next one that is.
        order = np.argsort(~finite, axis=1, kind="stable")
        place = np.arange(shape[1]) % finite.sum(axis=1)[:, None]
        again = np.where(finite, np.arange(shape[1]), np.take_along_axis(order, place, axis=1))
        t, s = (
            np.take_along_axis(part.reshape(*shape, -1), again[:, :, None], axis=1)
            for part in (t, s)
        )
        return t, s

    def thetas_at(self, wanted: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
        """What theta may be, given its estimates (n, p): numbers or coordinates of theta.

        Those of simulations with similar estimates, moved by what is left of the difference.
        """
        used = self.residuals.used
        at = (wanted / self.unit)[:, used] if len(used) else np.zeros((len(wanted), 1))
        near = min(NEIGHBOURS, len(self.places)) if len(used) else len(self.places)
        if len(used):
            _, found = self.tree.query(at, k=near)
        else:
            found = np.tile(np.arange(near), (len(wanted), 1))
        found = np.atleast_2d(found).reshape(len(wanted), near)
        chosen = np.stack([row[random.permutation(count) % near] for row in found]).ravel()
        moved = np.repeat(wanted, count, axis=0) - self.estimated[chosen]
        return self.thetas.near(chosen, self.places[chosen] + moved)


@dataclasses.dataclass(frozen=True, eq=False)
class _Thetas:
    """Theta as coordinates, or, where these are not known, those that were drawn."""

    values: np.ndarray
    """Numbers of theta of simulations, (n, p)."""
    names: tuple[str, ...]
    drawn: Theta
    """The same simulations' theta."""
    to_theta: Callable[[Any], Theta] | None
    scores: Scores | None = None
    first: int = 0
    """Simulation that neighbours are counted from."""

    @classmethod
    def of(cls, problem: Problem, theta: Theta, key: Key) -> "_Thetas":
        prior = problem.prior
        if isinstance(prior, TrainingPrior):
            coordinates = prior.coordinates
        else:
            found = ranges_of(problem, key)
            coordinates = None if isinstance(found, str) else found.coordinates
        if coordinates is not None:
            values = np.asarray(jit(jax.vmap(coordinates.from_theta))(theta), np.float64)
            if np.isfinite(values).all():
                to_theta = jit(jax.vmap(jax.vmap(coordinates.to_theta)))
                return cls(values, coordinates.names, theta, to_theta)
        paths, _ = jax.tree_util.tree_flatten_with_path(theta)
        names, rows = [], []
        for path, leaf in paths:
            parts = [leaf.real, leaf.imag] if np.iscomplexobj(leaf) else [leaf]
            for part in parts:
                flat = np.asarray(part, np.float64).reshape(len(leaf), -1)
                varies = np.ptp(flat, axis=0) > 0
                rows.append(flat[:, varies])
                name = jax.tree_util.keystr(path, simple=True, separator=".") or "theta"
                names += [f"{name}[{k}]" for k in np.flatnonzero(varies)]
        return cls(np.concatenate(rows, axis=1), tuple(names), theta, None)

    def near(self, chosen: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Coordinates at places (n, p), or the numbers of simulations, (n, 1)."""
        if self.to_theta is None:
            return (self.first + chosen)[:, None]
        assert self.scores is not None
        # What lies beyond an end is folded back: there are no other values.
        return self.scores.values(1 - np.abs(2 - np.abs(places + 1)))

    def theta(self, of: np.ndarray, shape: tuple[int, int]) -> Theta:
        """With two leading axes."""
        if self.to_theta is None:
            rows = of[:, 0].astype(int)
            return jax.tree.map(
                lambda leaf: as_array(leaf[rows].reshape(*shape, *leaf.shape[1:]), leaf.dtype),
                self.drawn,
            )
        return self.to_theta(as_array(of.reshape(*shape, -1)))


def _flat(batches: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which simulations are finite, estimates and summaries, one row each."""
    t, s = (np.asarray(part, np.float64) for part in batches.seen)
    t, s = t.reshape(-1, t.shape[-1]), s.reshape(-1, s.shape[-1])
    return np.asarray(batches.finite).ravel(), t, s


def _pool(
    drawn: Simulations, key: Key, wanted: int
) -> tuple[Theta, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Theta, y, estimates and summaries of simulations from the prior; those that are finite.

    And summaries of second measurements at the theta of the last of them.
    """
    parts: list[Any] = []
    reached = bad = 0
    while reached < wanted:
        batches = drawn.at(key, drawn.count * len(parts))
        finite, t, s = _flat(batches)
        given = batches.draw.theta
        theta, y = (
            jax.tree.map(lambda leaf: np.asarray(leaf).reshape(-1, *leaf.shape[2:]), part)
            for part in (given, batches.draw.y)
        )
        again = np.full_like(s, np.nan)
        if reached + len(finite) > wanted * (1 - AGAIN):
            repeated, _, again = _flat(
                drawn.at(jr.fold_in(key, 1), drawn.count * len(parts), given)
            )
            finite = finite & repeated
        y = np.asarray(y, np.float64)
        parts.append(jax.tree.map(lambda leaf, good=finite: leaf[good], (theta, y, t, s, again)))
        reached += len(finite)
        bad += int((~finite).sum())
    failing = nonfinite_error(bad, reached)
    if failing:
        raise failing
    *found, again = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    last = np.argmax(~np.isnan(again).all(axis=1))
    return *found, again[last:]
