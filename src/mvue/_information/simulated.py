"""Simulations around one theta: how far to move it, and what functions of the data do then."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from .._core.keys import host_random
from .._core.priors import element_support, prior_leaves, support_ends
from .._core.problem import Draw, Problem
from .._core.sampling import NONFINITE_LIMIT
from .._core.theta import ThetaLayout, theta_rows
from .._core.types import Key, Measurement
from .._runtime.jit import as_array, held, jit
from .._runtime.memory import vmap_in_pieces
from ..exceptions import BoundError
from .features import Bends, Features
from .pairs import linear_information, slopes_of

PAIRS = 1024  # of simulations in one call
NUMBERS = 2**22  # of x in one call
FEWEST_PAIRS = 64
SCALES = 8.0 ** -np.arange(6)  # of the spread of the prior, at which theta is first moved
LEAST_SHOWN = 0.01  # share of information that is left where chance may explain it
SURELY = 4.0  # times what chance adds, from which on information is there
TOO_FAR = 1e3  # information of a step beyond which it is no slope that is seen
ROUNDS = 4  # in which the unit of theta becomes that of its information
STEP = 0.75  # of that unit
SMALLEST = 2.0**-5  # share of a step that may be taken where theta has little room
NEAR_END = 0.25  # share of a step from which on it is shortened to stay within the prior
ROUNDING = 1e-6  # of a number


class Unit(NamedTuple):
    """The unit in which theta is moved: one standard deviation in all directions, about."""

    root: np.ndarray
    """Its columns are moves of theta, (p, p); root rootᵀ is about the inverse information."""
    step: float
    """How many units theta is moved at most in each of them."""


class Around:
    """Simulations at theta plus and minus the same moves, with the same random numbers."""

    def __init__(
        self, problem: Problem, layout: ThetaLayout, features: Features, pilot: Draw
    ) -> None:
        self.problem, self.layout, self.features = problem, layout, features
        self.p = len(layout.names)
        self.spread = theta_rows(pilot.theta).std(axis=0)
        self.low, self.high = _ends_of_prior(problem, layout)
        x, _ = problem.shapes()
        numbers = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(x))
        self.pairs = int(np.clip(NUMBERS // (2 * numbers), FEWEST_PAIRS, PAIRS))
        self._raw = jit(lambda *at: self._seen(self._raw_of, *at))
        self._of_bends = jit(lambda bends, *at: self._seen(lambda x: features(bends, x), *at))
        self._slopes = jit(slopes_of)

    def _raw_of(self, x: Measurement) -> tuple[Array, Array]:
        return self.features.raw(x), self.features.elements(x)

    def _seen(self, function: Any, flat: Array, moves: Array, first: Key, second: Key) -> Any:
        """A function of pairs of measurements, leaves (2, n, ...)."""
        rows = flat[None, None, :] + jnp.stack([moves, -moves])
        theta = jax.vmap(jax.vmap(self.layout.to_theta))(rows)

        def simulated(first: Key, second: Key) -> Measurement:
            keys = jnp.stack([jr.split(key, moves.shape[0]) for key in (first, second)])
            return jax.vmap(jax.vmap(self.problem.simulate))(keys, theta)

        return vmap_in_pieces(jax.vmap(function), held(simulated, first, second))

    def raw(
        self, flat: np.ndarray, root: np.ndarray, step: float, count: int, key: Key
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What is known of so many pairs before bends are chosen: signs, statistics, elements."""
        signs, parts, elements = [], [], []
        for i in range(-(-count // self.pairs)):
            sign, moves = self._moves(root, step, jr.fold_in(key, i))
            of_call = jr.fold_in(key, i)
            seen, rows = self._raw(as_array(flat), moves, of_call, of_call)
            signs.append(sign)
            parts.append(np.asarray(seen))
            elements.append(np.asarray(rows[0]))
        return np.concatenate(signs), np.concatenate(parts, axis=1), np.concatenate(elements)

    def seen(
        self, bends: Bends, flat: np.ndarray, root: np.ndarray, step: float, key: Key
    ) -> tuple[np.ndarray, np.ndarray]:
        """Signs (n, p) and features (2, n, m) of the pairs that are finite, n at most `pairs`."""
        signs, moves = self._moves(root, step, key)
        return self._finite(signs, self._of_bends(bends, as_array(flat), moves, key, key))

    def still(self, bends: Bends, flat: np.ndarray, key: Key) -> np.ndarray:
        """Features (n, m) of measurements at theta itself, with noise of their own."""
        none = as_array(np.zeros((self.pairs, self.p)))
        found = self._of_bends(bends, as_array(flat), none, key, jr.fold_in(key, 1))
        _, found = self._finite(np.asarray(none), found)
        return found.reshape(-1, found.shape[2])

    def _finite(self, signs: np.ndarray, found: Array) -> tuple[np.ndarray, np.ndarray]:
        values = np.asarray(found, np.float64)
        finite = np.asarray(np.isfinite(values).all(axis=(0, 2)))
        if not nearly_all(int(finite.sum()), finite.size):
            raise BoundError(
                f"{1 - finite.mean():.1%} of the simulations near theta are not finite: simulate "
                "must return finite numbers there"
            )
        return signs[finite], values[:, finite]

    def _moves(self, root: np.ndarray, step: float, key: Key) -> tuple[np.ndarray, Array]:
        signs = host_random(key).choice([-1.0, 1.0], size=(self.pairs, self.p))
        return signs, as_array(step * signs @ root.T)

    def unit(self, flat: np.ndarray, key: Key) -> Unit:
        """The unit at one theta: from steps of many sizes, then from steps of this unit."""
        self._refuse_noiseless(flat, jr.fold_in(key, 98))
        best = np.zeros(self.p)
        for i, scale in enumerate(SCALES):
            root = np.diag(scale * self.spread)
            found = self._linear(flat, root, self._room(flat, root), jr.fold_in(key, i))
            if found is None:
                continue
            information, chance = found
            known = np.diag(information) / np.maximum(np.diag(root), 1e-300) ** 2
            seen = (np.diag(information) > SURELY * chance) & (np.diag(information) < TOO_FAR)
            best = np.where(seen, np.fmax(best, known), best)
        if not (best > 0).any():
            raise BoundError(
                f"measurements were not seen to change with theta near {self._words(flat)}: "
                "simulate must use theta, and return finite numbers with noise"
            )
        widest = np.where(self.spread > 0, self.spread, 1.0)
        root = np.diag(np.fmin(np.where(best > 0, best, 1e-300) ** -0.5, widest))
        for i in range(ROUNDS):
            step = STEP * self._room(flat, root)
            found = self._linear(flat, step * root, 1.0, jr.fold_in(key, len(SCALES) + i))
            if found is None:
                break
            # No direction is wider than the prior is.
            precision = found[0] / step**2 + root.T @ np.diag(widest**-2.0) @ root
            values, vectors = np.linalg.eigh((precision + precision.T) / 2)
            root = root @ (vectors * np.maximum(values, 1e-3 * values.max()) ** -0.5)
        share = self._room(flat, root)
        while share >= SMALLEST:
            if self._linear(flat, STEP * share * root, 1.0, jr.fold_in(key, 99)) is not None:
                return Unit(root, STEP * share)
            share /= 2
        raise BoundError(
            f"theta = {self._words(flat)} lies at the end of where the simulator is defined: "
            "simulations a fraction of a standard deviation away are not finite, or have no "
            "noise. Choose a theta within"
        )

    def _refuse_noiseless(self, flat: np.ndarray, key: Key) -> None:
        """Refuse data with numbers that are functions of theta without any noise."""
        root = np.diag(SCALES[1] * self.spread)
        _, still, _ = self.raw(flat, root, 0.0, 2, key)
        _, moved, _ = self.raw(flat, root, self._room(flat, root), 2, key)
        constant = (still == still[:1, :1]).all(axis=(0, 1))
        finite = np.isfinite(moved).all(axis=(0, 1))
        if (constant & finite & (moved[0] != moved[1]).all(axis=0)).any():
            raise BoundError(
                "some numbers of x are functions of theta without noise, which tell it exactly: "
                "there is no bound above zero. Draw their noise from the key that simulate is given"
            )

    def _linear(
        self, flat: np.ndarray, root: np.ndarray, step: float, key: Key
    ) -> tuple[np.ndarray, float] | None:
        """Linear information in units of these moves, and what chance adds to it, if defined."""
        count = max(PAIRS, 4 * self.sizes()[0])
        signs, raw, _ = self.raw(flat, root, step, count, key)
        seen = self._slopes(as_array(raw), as_array(signs))
        if not bool(seen.good):
            return None
        information, chance = linear_information(seen, LEAST_SHOWN)
        return information / step**2, chance / step**2

    def sizes(self) -> tuple[int, int]:
        """How many raw statistics there are, and numbers of an element."""
        shapes = jax.eval_shape(self._raw_of, self.problem.shapes()[0])
        return shapes[0].shape[0], shapes[1].shape[1]

    def bends(self, flat: np.ndarray, unit: Unit, key: Key) -> Bends:
        """The functions that are particular to one theta."""
        _, raw, elements = self.raw(flat, unit.root, unit.step, PAIRS, key)
        raw = raw.reshape(-1, raw.shape[2])
        raw = raw[np.isfinite(raw).all(axis=1)]
        elements = elements[np.isfinite(elements).all(axis=(1, 2))]
        return self.features.bends(raw, elements, host_random(jr.fold_in(key, 1)))

    def _room(self, flat: np.ndarray, root: np.ndarray) -> float:
        """The share of a step that stays where the simulator is likely to be defined.

        Not across zero, where the prior ends there or above; and within the prior, where that
        costs little.
        """
        reach = STEP * np.abs(root).sum(axis=1) + np.finfo(float).tiny
        share = 1.0
        for k in range(self.p):
            inner = min(flat[k] - self.low[k], self.high[k] - flat[k]) / reach[k]
            if NEAR_END <= inner < 1:
                share = min(share, inner)
            if self.low[k] >= 0:
                share = min(share, 0.9 * flat[k] / reach[k])
        return max(share, 0.5 * SMALLEST)

    def _words(self, flat: np.ndarray) -> str:
        pairs = zip(self.layout.names, flat, strict=True)
        return ", ".join(f"{name} = {value:.6g}" for name, value in pairs)

    def refuse_outside(self, flat: np.ndarray) -> BoundError | None:
        """Why there is no bound at a theta that the prior cannot draw."""
        slack = 1e-5 * np.where(self.spread > 0, self.spread, 1.0)
        wrong = (flat < self.low - slack) | (flat > self.high + slack)
        if not wrong.any():
            return None
        k = int(wrong.argmax())
        return BoundError(
            f"theta is outside of the support of the prior, {self.layout.names[k]} = {flat[k]:.6g} "
            f"not within {self.low[k]:.6g} … {self.high[k]:.6g}, so that the simulator need not be "
            "defined there: choose one within, or give the problem a wider prior"
        )


def _ends_of_prior(problem: Problem, layout: ThetaLayout) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the support of each number in theta, infinite where open or not known."""
    sizes = [int(np.prod(shape)) for shape in layout.shapes]
    low, high = np.full(sum(sizes), -np.inf), np.full(sum(sizes), np.inf)
    priors = prior_leaves(problem.prior)
    if len(priors) != len(sizes):
        return low, high
    start = 0
    for prior, shape, size in zip(priors, layout.shapes, sizes, strict=True):
        known = support_ends(element_support(prior))
        if known is not None:
            try:
                ends = [np.broadcast_to(np.asarray(end, np.float64), shape) for end in known]
            except ValueError:
                ends = []
            for array, end in zip((low, high), ends, strict=False):
                array[start : start + size] = end.ravel()
        start += size
    return low, high


def nearly_all(found: int, wanted: int) -> bool:
    """Whether so many pairs of simulations are finite that the rest may be left out."""
    return found > (1 - 2 * NONFINITE_LIMIT) * wanted
