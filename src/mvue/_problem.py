"""What is to be estimated: a prior to train on, a simulator, and what is known besides."""

import dataclasses
import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
from jaxtyping import Array, ArrayLike, Float, Int, PyTree

from ._jit import jit
from ._types import Key, Measurement, SimulatorError, Theta

NONFINITE_LIMIT = 0.01
"""The largest fraction of simulations that may be non-finite before training is refused."""


NONFINITE_FROM = 1_000
"""So many unknowns must have been simulated before a fraction is judged."""


class Draw(NamedTuple):
    """N unknowns and M measurements of each."""

    theta: Theta
    """What the simulator was given; leaves of shape (N, ...)."""
    y: Float[Array, "n d"]
    """The unknowns to estimate."""
    x: Measurement
    """The measurements; leaves of shape (N, M, ...)."""


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """An estimation problem: unknowns are drawn from a prior and measured by a simulator.

    The prior says which unknowns to train on. It need not be believed: the estimator of large
    bias weight does not depend on it, only its range matters.

    Args:
        prior: a numpyro distribution, any object with ``sample(key)``, or a dict of these, in
            which case theta is a dict too. One sample is one theta.
        simulate: ``simulate(key, theta) -> x``, ONE measurement; an array or a pytree. Written
            in JAX; batching happens outside.
        log_likelihood: optional ``log_likelihood(theta, x) -> scalar``.
        target: ``target(theta) -> y``, what is estimated; the rest of theta is a nuisance that
            all measurements of one unknown share. By default theta itself, which must then be
            one array.
        names: one name for each component of y.
        exchangeable: whether the leading axis of x indexes independent, identically distributed
            draws, whose order carries no information. None leaves that open: the default network
            judges by simulations; whatever else needs such draws wants to be told.
        crb: optional ``crb(theta) -> (d, d)``, a known lower bound on the covariance of
            unbiased estimators of y.
        likelihood: optional ``likelihood(theta)``, the distribution of one measurement that
            `from_likelihood` was given; it must agree with `log_likelihood`.
    """

    prior: Any
    simulate: Callable[[Key, Theta], Measurement]
    log_likelihood: Callable[[Theta, Measurement], Any] | None = None
    target: Callable[[Theta], Any] | None = None
    names: tuple[str, ...] | None = None
    exchangeable: bool | None = None
    crb: Callable[[Theta], Any] | None = None
    likelihood: Callable[[Theta], Any] | None = None

    def __post_init__(self) -> None:
        for name in ("simulate", "log_likelihood", "target", "crb", "likelihood"):
            value = getattr(self, name)
            if not callable(value) and (value is not None or name == "simulate"):
                raise TypeError(f"{name} must be callable, got {type(value).__name__}")
        jax.tree.map(_check_prior, self.prior, is_leaf=_is_prior_leaf)
        x, y = self.shapes()
        object.__setattr__(self, "names", checked_names(self.names, y.shape[0]))
        if self.crb is not None:
            self._check_crb(y.shape[0])
        if self.exchangeable:
            lengths = {leaf.shape[:1] for leaf in jax.tree.leaves(x)}
            if len(lengths) != 1 or lengths == {()}:
                raise SimulatorError(
                    "exchangeable=True needs an x whose leaves all have the same leading axis, "
                    f"the index of the independent draws; got {describe_shapes(x)}"
                )

    @classmethod
    def from_likelihood(
        cls,
        prior: Any,
        likelihood: Callable[[Theta], Any],
        *,
        target: Callable[[Theta], Any] | None = None,
        names: tuple[str, ...] | None = None,
        exchangeable: bool | None = None,
        crb: Callable[[Theta], Any] | None = None,
    ) -> "Problem":
        """A problem whose simulator and log-likelihood are one numpyro distribution.

        Args:
            prior: as in `Problem`.
            likelihood: ``likelihood(theta)``, the distribution of one measurement x.
            target: as in `Problem`.
            names: as in `Problem`.
            exchangeable: as in `Problem`.
            crb: as in `Problem`.
        """

        def simulate(key: Key, theta: Theta) -> Array:
            return likelihood(theta).sample(key)

        def log_likelihood(theta: Theta, x: Array) -> Array:
            return jnp.sum(likelihood(theta).log_prob(x))

        return cls(prior, simulate, log_likelihood, target, names, exchangeable, crb, likelihood)

    def sample_prior(self, key: Key) -> Theta:
        """One theta."""
        leaves, structure = jax.tree.flatten(self.prior, is_leaf=_is_prior_leaf)
        keys = [key] if len(leaves) == 1 else list(jr.split(key, len(leaves)))
        samples = [prior.sample(k) for prior, k in zip(leaves, keys, strict=True)]
        return jax.tree.map(jnp.asarray, jax.tree.unflatten(structure, samples))

    def y_of(self, theta: Theta) -> Float[Array, " d"]:
        """The unknown in one theta, as a vector."""
        y = theta if self.target is None else self.target(theta)
        if not hasattr(y, "shape"):
            y = jnp.asarray(y)
        if y.ndim > 1:
            raise SimulatorError(
                f"y must be a scalar or a vector of shape (d,), got shape {y.shape}: give a "
                "target that flattens it"
            )
        return jnp.reshape(jnp.asarray(y, dtype=jnp.result_type(float)), (-1,))

    def draw(self, key: Key, n: int, m: int) -> Draw:
        """N unknowns from the prior and M measurements of each, all with noise of their own.

        Unknown i and its measurement j depend on the key, i and j alone, so a larger draw
        begins with the smaller one.
        """
        check_count("n", n)
        check_count("m", m)
        return jax.vmap(lambda i: self.draw_unit(key, i, m))(jnp.arange(n))

    def draw_unit(self, key: Key, i: Int[ArrayLike, ""], m: int) -> Draw:
        """Unknown number i of `draw` alone, without the axis of unknowns."""
        # Number 0 of the unknown's keys is for theta, the others for its measurements.
        keys = fold_in_each(jr.fold_in(key, i), jnp.arange(m + 1))
        theta = self.sample_prior(keys[0])
        x = jax.vmap(self.simulate, in_axes=(0, None))(keys[1:], theta)
        return Draw(theta, self.y_of(theta), x)

    def shapes(self) -> tuple[Any, Any]:
        """Shapes and dtypes of one measurement and of y, without simulating."""
        key = jr.key(0)
        try:
            theta = jax.eval_shape(self.sample_prior, key)
        except Exception as error:
            raise SimulatorError(
                f"prior.sample(key) failed; it must return one theta as arrays: {error}"
            ) from error
        if self.target is None and not hasattr(theta, "shape"):
            raise SimulatorError(
                f"theta is not one array, {describe_shapes(theta)}: say with target what is "
                "estimated, for example target=lambda theta: theta['name']"
            )
        try:
            y = jax.eval_shape(self.y_of, theta)
        except SimulatorError:
            raise
        except Exception as error:
            raise SimulatorError(
                f"target(theta) failed for a theta of {describe_shapes(theta)}: {error}"
            ) from error
        try:
            x = jax.eval_shape(
                lambda k, t: jax.tree.map(jnp.asarray, self.simulate(k, t)), key, theta
            )
        except Exception as error:
            raise SimulatorError(
                f"simulate(key, theta) failed for the theta that the prior gives, "
                f"{describe_shapes(theta)}: {type(error).__name__}: {error}"
            ) from error
        if not jax.tree.leaves(x):
            raise SimulatorError("simulate(key, theta) returned no arrays")
        return x, y

    def _check_crb(self, d: int) -> None:
        assert self.crb is not None
        theta = jax.eval_shape(self.sample_prior, jr.key(0))
        try:
            shape = jax.eval_shape(self.crb, theta).shape
        except Exception as error:
            raise ValueError(
                f"crb(theta) failed for a theta of {describe_shapes(theta)}: "
                f"{type(error).__name__}: {error}"
            ) from error
        if shape != (d, d):
            raise ValueError(f"crb(theta) must return a matrix of shape ({d}, {d}), got {shape}")

    def __repr__(self) -> str:
        x, _ = self.shapes()
        kind = "exchangeable " if self.exchangeable else ""
        known = [name for name in ("log_likelihood", "crb") if getattr(self, name) is not None]
        return f"Problem(y = ({', '.join(self.names or ())}), x = {kind}{describe_shapes(x)}" + (
            f", known: {', '.join(known)})" if known else ")"
        )


def refusal(problem: Problem, theta: Theta) -> str | None:
    """Why the likelihood, if it is a numpyro distribution, refuses one theta, if it does."""
    if problem.likelihood is None:
        return None
    with numpyro.validation_enabled():
        try:
            problem.likelihood(jax.tree.map(jnp.asarray, theta))
        except ValueError as error:
            return str(error)
    return None


def check_problem(problem: Any) -> None:
    """Refuse what is not a problem."""
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a Problem, got {type(problem).__name__}")


def pilot_draw(problem: Problem, key: Key, n: int, m: int) -> Draw:
    """A first look at the simulator: refuses one that cannot be trained on.

    Unknowns with a non-finite measurement are left out, if they are few.
    """
    draw = compiled_draw(problem, key, n, max(m, 2))
    finite = finite_units(draw)
    failing = nonfinite_error(n - int(finite.sum()), n)
    if failing:
        raise failing
    draw = jax.tree.map(lambda leaf: leaf[np.asarray(finite)], draw)
    if bool((draw.y == draw.y[:1]).all()):
        raise SimulatorError(
            "prior.sample ignores its key: all unknowns are equal; draw them from the key that "
            "sample is given"
        )
    if all(bool((leaf == leaf[:, :1]).all()) for leaf in jax.tree.leaves(draw.x)):
        raise SimulatorError(
            "simulate ignores its key: repeated measurements of one theta are all equal, so there "
            "is no noise to average over; draw the noise from the key that simulate is given"
        )
    return draw._replace(x=jax.tree.map(lambda leaf: leaf[:, :m], draw.x))


def compiled_draw(problem: Problem, key: Key, n: int, m: int) -> Draw:
    """`Problem.draw`, compiled."""
    return _draw_program()(problem, key, n, m)


@functools.cache
def _draw_program() -> Any:
    return jit(Problem.draw, static_argnums=(0, 2, 3))


def key_for(purpose: str, key: Key) -> Key:
    """A key that no other function derives from the same one: they never share random numbers."""
    kind = getattr(key, "dtype", None)
    if kind is None or not (kind == np.uint32 or jnp.issubdtype(kind, jax.dtypes.prng_key)):
        raise TypeError(f"key must be a random key such as jax.random.key(0), got {key!r}")
    return jr.fold_in(key, zlib.crc32(purpose.encode()))


def fold_in_each(key: Key, numbers: Array) -> Key:
    """One key for each number, which depends on the key and that number alone."""
    return jax.vmap(lambda number: jr.fold_in(key, number))(numbers)


def finite_units(draw: Draw) -> Array:
    """Which unknowns have finite y and finite measurements throughout, (N,)."""
    n = draw.y.shape[0]
    checks = [
        jnp.isfinite(leaf).reshape(n, -1).all(axis=1)
        for leaf in jax.tree.leaves((draw.y, draw.x))
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
    ]
    return jnp.stack(checks).all(axis=0)


def nonfinite_error(bad: int, total: int) -> SimulatorError | None:
    """What to raise for a simulator that fails too often, beyond what chance explains."""
    allowed = NONFINITE_LIMIT * total
    if total < NONFINITE_FROM or bad <= allowed + 3 * allowed**0.5:
        return None
    return SimulatorError(
        f"{bad / total:.2%} of the simulated unknowns have a non-finite measurement, more than the "
        f"{NONFINITE_LIMIT:.0%} that may be left out: mend simulate, or narrow the prior to where "
        "it is defined"
    )


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def checked_names(names: Sequence[str] | None, d: int) -> tuple[str, ...]:
    """One name for each component of y; the default ones where none are given."""
    if names is None:
        return ("y",) if d == 1 else tuple(f"y{i + 1}" for i in range(d))
    if isinstance(names, str):
        raise TypeError(f"names must be a sequence of names, got the string {names!r}")
    if len(names) != d:
        raise ValueError(
            f"names must have one entry for each of the {d} components of y, got {len(names)}: "
            f"{tuple(names)}"
        )
    return tuple(names)


def check_estimator(
    name: str, estimator: Any, x: Any, d: int, *, may_be_complex: bool = False
) -> None:
    """Refuse what does not map one measurement, given by its shapes, to y."""
    if not callable(estimator):
        raise TypeError(f"{name} must be callable, got {type(estimator).__name__}")
    try:
        output = eqx.filter_eval_shape(estimator, x)
    except Exception as error:
        raise ValueError(
            f"{name} failed on one measurement of {describe_shapes(x)}: {type(error).__name__}: "
            f"{error}"
        ) from error
    check_output(name, output, d, may_be_complex=may_be_complex)


def check_output(name: str, output: Any, d: int, *, may_be_complex: bool = False) -> None:
    """Refuse an estimate whose shape is not that of y; a scalar will do for one component."""
    shape = getattr(output, "shape", None)
    is_complex = (
        not may_be_complex
        and shape is not None
        and jnp.issubdtype(output.dtype, jnp.complexfloating)
    )
    if is_complex or (shape != (d,) and not (d == 1 and shape == ())):
        got = type(output).__name__ if shape is None else f"shape {shape}"
        got += " of complex numbers" if is_complex else ""
        raise ValueError(
            f"{name} must return an array of the shape of y, ({d},), for one measurement; it "
            f"returned {got}"
        )


def describe_shapes(tree: PyTree) -> str:
    """The shapes in a pytree, for a message."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    if len(leaves) == 1 and not leaves[0][0]:
        return f"shape {tuple(leaves[0][1].shape)}"
    parts = (f"{jax.tree_util.keystr(path)} {tuple(leaf.shape)}" for path, leaf in leaves)
    return "shapes " + ", ".join(parts)


def element_support(distribution: Any) -> Any:
    """The constraint on single elements of what a distribution draws; None if it names none."""
    support = getattr(distribution, "support", None)
    while hasattr(support, "base_constraint"):
        support = support.base_constraint  # type: ignore[union-attr]
    return support


def prior_leaves(prior: Any) -> list[Any]:
    """The priors in a dict of priors, or the only one."""
    return jax.tree.leaves(prior, is_leaf=_is_prior_leaf)


def _is_prior_leaf(node: Any) -> bool:
    return not isinstance(node, Mapping)


def _check_prior(prior: Any) -> None:
    if not callable(getattr(prior, "sample", None)):
        raise TypeError(
            "prior must be a numpyro distribution, an object with a method sample(key), or a dict "
            f"of these; got {type(prior).__name__}"
        )
