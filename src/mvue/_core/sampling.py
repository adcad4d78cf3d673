"""Draws from a problem: compiled, and checked before anything is trained on them."""

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from .._runtime.jit import as_array, forgetful_jit, held, in_either_precision
from .._runtime.programs import Compiled, compiled
from ..exceptions import NoiselessWarning, SimulatorError
from .checks import checked_names
from .problem import Draw, Problem
from .types import Key, Measurement, Theta

NONFINITE_LIMIT = 0.01
"""The largest fraction of simulations that may be non-finite before training is refused."""


NONFINITE_FROM = 1_000
"""So many units must have been simulated before a fraction is judged."""

FROZEN_SHARE = 0.5
"""Of units that must differ in a number for it to change with theta: rare events do in few."""

SQUARE_SHARE = 1e-3
"""Of the largest number that can be squared: sums of many squares must be in range, too."""

POOL_NUMBERS = 2**23  # simulated or kept at a time
MOST_BATCHES = 64  # simulated at a time


def pilot_draw(problem: Problem, key: Key, n: int, m: int) -> Draw:
    """A first look at the simulator: refuses one that cannot be trained on.

    Units with a non-finite measurement are left out, if they are few.
    """
    draw = jax.tree.map(np.asarray, compiled_draw(problem, key, n, max(m, 2)))
    finite = finite_units(draw)
    failing = nonfinite_error(n - int(finite.sum()), n)
    if failing:
        raise failing
    draw = jax.tree.map(lambda leaf: leaf[finite], draw)
    if bool((draw.y == draw.y[:1]).all()):
        raise SimulatorError(
            "prior.sample ignores its key: all parameters are equal; draw them from the key that "
            "sample is given"
        )
    constant = np.flatnonzero((draw.y == draw.y[:1]).all(axis=0))
    if constant.size:
        name = checked_names(problem.names, draw.y.shape[1])[constant[0]]
        raise SimulatorError(
            f"{name} is the same for all parameters that the prior draws, so "
            "that there is nothing to estimate: leave it out of y with "
            "target=lambda theta: ..., which returns what varies"
        )
    if all(bool((leaf == leaf[:, :1]).all()) for leaf in jax.tree.leaves(draw.x)):
        raise SimulatorError(
            "simulate ignores its key: repeated measurements of one theta are all equal, so there "
            "is no noise to average over; draw the noise from the key that simulate is given, with "
            "jax.random: NumPy draws it once, when the simulator is compiled (or run a simulator "
            "in NumPy with mvue.simulate and train with mvue.fit_data)"
        )
    leaves = jax.tree.leaves(draw.x)
    _check_squares(leaves)
    warn_of_noiseless(sum(map(_frozen, leaves)), sum(leaf[0, 0].size for leaf in leaves), 3)
    draw = draw._replace(x=jax.tree.map(lambda leaf: leaf[:, :m], draw.x))
    return jax.device_put(draw)


def _check_squares(leaves: list[np.ndarray]) -> None:
    """Refuse numbers that are too large to be squared and summed."""
    for leaf in leaves:
        if leaf.dtype.kind not in "fc":
            continue
        largest = float(np.abs(leaf).max(initial=0.0))
        if largest > SQUARE_SHARE * math.sqrt(np.finfo(leaf.dtype).max):
            raise SimulatorError(
                f"simulate returns numbers of up to {largest:.3g}, whose squares are beyond the "
                f"range of {leaf.dtype}: give x in other units, for example divided by "
                f"{10 ** math.floor(math.log10(largest)):.0g}"
            )


def _frozen(x: np.ndarray) -> int:
    """How many numbers are the same in all measurements of a unit, and not in all units."""
    still = (x == x[:, :1]).all(axis=(0, 1))
    differs = (x[:, 0] != x[:1, 0]).mean(axis=0) > FROZEN_SHARE
    return int((still & differs).sum())


def warn_of_noiseless(frozen: int, numbers: int, stacklevel: int) -> None:
    """Say that some numbers of x have no noise.

    Noise that was drawn once and a function of theta without noise look the same in simulations:
    both are constant for one theta. Either way the numbers tell theta exactly, which is seldom
    meant where others are noisy.
    """
    if 0 < frozen < numbers:
        warnings.warn(
            f"{frozen} of {numbers} numbers of x never differ between repeated measurements of one "
            "theta, though they differ from theta to theta and other numbers have noise: an "
            "estimator learns that they tell theta exactly. If they are known without noise, as a "
            "setting of the experiment is, all is well; if not, their noise was drawn only once: "
            "draw it from the key or rng that the simulator is given",
            NoiselessWarning,
            stacklevel=stacklevel + 1,
        )


def compiled_draw(problem: Problem, key: Key, n: int, m: int) -> Draw:
    """`Problem.draw`, compiled."""
    return in_either_precision(lambda: _draw(problem, key, n, m))


@forgetful_jit
def _draw(problem: Problem, key: Key, n: int, m: int) -> Draw:
    return problem.draw(key, n, m)


class Batches(NamedTuple):
    """K batches of N units and M measurements of each, and what was made of them."""

    draw: Draw
    """Leaves have a leading axis K; without x, if only `seen` is kept."""
    seen: PyTree
    """What was made of each measurement, (K, N, M, ...)."""
    noise: Float[Array, "k n m d"] | None
    """A part of its error that is known and has mean zero."""
    finite: Bool[Array, "k n"]
    """Which units could be simulated."""

    def at(self, k: Array) -> tuple[PyTree, ...]:
        """The parts of one batch."""
        return jax.tree.map(lambda leaf: leaf[k], tuple(self))

    def drawn(self, key: Key) -> tuple[PyTree, ...]:
        """The parts of a batch of units at random from all of them."""
        k, n = self.finite.shape
        which = jr.randint(key, (n,), 0, k * n)
        return jax.tree.map(lambda leaf: leaf.reshape(k * n, *leaf.shape[2:])[which], tuple(self))


class Simulations:
    """Batches of simulations of which only that is kept which a function makes of them.

    One program, compiled once, serves all that needs simulations of a problem. Batch number b
    depends on the key and b alone; its units and their measurements as those of `Problem.draw`.

    Args:
        problem: what to simulate.
        units: N.
        repeats: M.
        see: ``see(constants, x)`` of one measurement.
        noise: ``noise(theta, x)``, if a part of the error is known.
        keeps_x: whether x is kept, too.
        constants: arrays that `see` takes.
    """

    def __init__(
        self,
        problem: Problem,
        units: int,
        repeats: int,
        see: Callable[[PyTree, Measurement], PyTree],
        *,
        noise: Callable[[Theta, Measurement], Array] | None = None,
        keeps_x: bool = False,
        constants: PyTree = (),
    ) -> None:
        self.problem, self.units, self.repeats = problem, units, repeats
        self.see, self.noise, self.keeps_x = see, noise, keeps_x
        self.constants = constants
        theta = jax.eval_shape(self._theta, jr.key(0))
        one = jax.eval_shape(self._batch, jr.key(0), theta, constants)
        x, _ = problem.shapes()
        parts = jax.tree.leaves(one)
        numbers = sum(math.prod(leaf.shape) for leaf in parts)
        simulated = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(x)) * units * repeats
        self.count = int(np.clip(POOL_NUMBERS // max(numbers, simulated, 1), 1, MOST_BATCHES))
        """K, batches at a time."""
        self._programs: list[Compiled] = []

    def _theta(self, key: Key) -> Theta:
        return jax.vmap(self.problem.theta_of_unit, in_axes=(None, 0))(key, jnp.arange(self.units))

    def _batch(self, key: Key, theta: Theta, constants: PyTree) -> Batches:
        """One batch, without the axis K."""
        problem = self.problem

        def measure(key: Key) -> Measurement:
            of_unit = jax.vmap(problem.measure_unit, in_axes=(None, 0, 0, None))
            return of_unit(key, jnp.arange(self.units), theta, self.repeats)

        x = held(measure, key)
        draw = Draw(theta, jax.vmap(problem.y_of)(theta), x)
        seen = jax.vmap(jax.vmap(lambda one: self.see(constants, one)))(x)
        noise = None
        if self.noise is not None:
            noise = jax.vmap(jax.vmap(self.noise, in_axes=(None, 0)))(theta, x)
            # What is not finite tells nothing of the error.
            noise = jnp.where(jnp.isfinite(noise).all(axis=2, keepdims=True), noise, 0.0)
        return Batches(
            draw if self.keeps_x else draw._replace(x=()), seen, noise, finite_units(draw)
        )

    def thetas(self, key: Key, numbers: Array) -> Theta:
        """The theta of all units of these batches, (K, N, ...)."""
        return jax.vmap(lambda number: self._theta(jr.fold_in(key, number)))(numbers)

    def simulate(self, key: Key, numbers: Array, theta: Theta, constants: PyTree) -> Batches:
        """These batches."""

        def one(of: tuple[Array, Theta]) -> Batches:
            number, theta = of
            return self._batch(jr.fold_in(key, number), theta, constants)

        return jax.lax.map(one, (numbers, theta))

    def shapes(self) -> Batches:
        """Of K batches."""
        numbers = self._numbers(0)
        theta = jax.eval_shape(self.thetas, jr.key(0), numbers)
        return jax.eval_shape(self.simulate, jr.key(0), numbers, theta, self.constants)

    def trace(self) -> Any:
        """What is simulated, not compiled."""
        numbers = self._numbers(0)
        theta = jax.eval_shape(self.thetas, jr.key(0), numbers)
        both = lambda key, numbers, theta, constants: (  # noqa: E731
            self.thetas(key, numbers),
            self.simulate(key, numbers, theta, constants),
        )
        return jax.jit(both).trace(jr.key(0), numbers, theta, self.constants)

    def prepare(self) -> Any:
        """Compile; the executable, which knows what memory it needs."""
        if not self._programs:
            numbers = self._numbers(0)
            thetas = compiled(self.thetas, jr.key(0), numbers)
            theta = jax.eval_shape(self.thetas, jr.key(0), numbers)
            simulate = compiled(self.simulate, jr.key(0), numbers, theta, self.constants)
            self._programs = [thetas, simulate]
        return self._programs[1].executable

    def _numbers(self, first: int) -> Array:
        return as_array(first + np.arange(self.count), int)

    def at(self, key: Key, first: int, theta: Theta | None = None) -> Batches:
        """K batches from a number on, of units from the prior or of given ones, (K, N, ...)."""
        self.prepare()
        numbers = self._numbers(first)
        thetas, simulate = self._programs
        given = thetas.run(key, numbers) if theta is None else theta
        return simulate.run(key, numbers, given, self.constants)


def finite_units(draw: Draw) -> Any:
    """Which units have finite y and measurements throughout, (N,); on the host, if these are."""
    n = draw.y.shape[0]
    xp = np if isinstance(draw.y, np.ndarray) else jnp
    checks = [
        xp.isfinite(leaf).reshape(n, -1).all(axis=1)
        for leaf in jax.tree.leaves((draw.y, draw.x))
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
    ]
    return xp.stack(checks).all(axis=0)


def nonfinite_error(bad: int, total: int, expected: float = 0.0) -> SimulatorError | None:
    """What to raise for a simulator that fails too often, beyond what chance explains.

    A share of failures may be expected, where it is known not to be defined everywhere.
    """
    allowed = (NONFINITE_LIMIT + 2 * expected) * total
    if total < NONFINITE_FROM or bad <= allowed + 3 * allowed**0.5:
        return None
    return SimulatorError(
        f"{bad / total:.2%} of the simulated units have a non-finite measurement, more than the "
        f"{NONFINITE_LIMIT:.0%} that may be left out: mend simulate, or narrow the prior to where "
        "it is defined"
    )
