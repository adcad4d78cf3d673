"""`Problem`: a prior, a simulator and, where known, a likelihood; and `Draw`, what it draws."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpyro
from jaxtyping import Array, ArrayLike, Float, Int

from .._display.tables import labelled_html
from .._runtime.jit import held
from ..exceptions import SimulatorError
from .checks import check_count, check_layout, checked_names, describe_shapes, is_not_jax
from .keys import fold_in_each
from .priors import _check_prior, _is_prior_leaf
from .types import Key, Measurement, Theta

RUN_AS_IT_IS = """run it as it is with mvue.simulate and train on its data:
    data = mvue.simulate(simulator, prior)  # any Python: simulator(theta, rng) -> x
    fit = mvue.fit_data(data, key=jax.random.key(0))"""


class Draw(NamedTuple):
    """N units and M measurements of each."""

    theta: Theta
    """What the simulator was given; leaves of shape (N, ...)."""
    y: Float[Array, "n d"]
    """The parameters to estimate."""
    x: Measurement
    """The measurements; leaves of shape (N, M, ...)."""


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """An estimation problem: parameters are drawn from a prior and measured by a simulator.

    The prior says which parameters to train on. It need not be believed: the estimator of large
    bias weight does not depend on it, only its range matters.

    Args:
        prior: a numpyro distribution, any object with ``sample(key)``, or a dict of these, in
            which case theta is a dict too. One sample is one theta.
        simulate: ``simulate(key, theta) -> x``, ONE measurement; an array or a pytree. Written
            in JAX; batching happens outside.
        log_likelihood: optional ``log_likelihood(theta, x) -> scalar``.
        target: ``target(theta) -> y``, what is estimated; the rest of theta is a nuisance that
            all measurements of one unit share. By default theta itself, which must then be
            one array.
        names: one name for each component of y.
        exchangeable: whether the leading axis of x indexes independent, identically distributed
            draws, whose order carries no information. None leaves that open: the default network
            judges by simulations; whatever else needs such draws wants to be told.
        layout: what a measurement is: ``"set"``, ``"series"``, ``"image"`` or ``"vector"``, or such
            a word for each array of x, in the structure of x. It decides what the default network
            sees. None leaves it to simulations and to the shape of x. ``"set"`` for all of x is
            the same as ``exchangeable=True``.
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
    layout: Any = None

    def __post_init__(self) -> None:
        for name in ("simulate", "log_likelihood", "target", "crb", "likelihood"):
            value = getattr(self, name)
            if not callable(value) and (value is not None or name == "simulate"):
                raise TypeError(f"{name} must be callable, got {type(value).__name__}")
        jax.tree.map(_check_prior, self.prior, is_leaf=_is_prior_leaf)
        x, y = self.shapes()
        object.__setattr__(self, "names", checked_names(self.names, y.shape[0]))
        self._check_log_likelihood(x)
        if self.crb is not None:
            self._check_crb(y.shape[0])
        check_layout(self.layout, x)
        if self.layout is not None and self.exchangeable is None:
            object.__setattr__(self, "exchangeable", self.layout == "set")
        elif self.layout is not None and self.exchangeable != (self.layout == "set"):
            raise ValueError(
                f"exchangeable is {self.exchangeable} and layout is {self.layout!r}: say one of "
                "them"
            )
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
        layout: Any = None,
    ) -> "Problem":
        """A problem whose simulator and log-likelihood are one numpyro distribution.

        Args:
            prior: as in `Problem`.
            likelihood: ``likelihood(theta)``, the distribution of one measurement x.
            target: as in `Problem`.
            names: as in `Problem`.
            exchangeable: as in `Problem`.
            crb: as in `Problem`.
            layout: as in `Problem`.
        """

        def simulate(key: Key, theta: Theta) -> Array:
            return likelihood(theta).sample(key)

        def log_likelihood(theta: Theta, x: Array) -> Array:
            return jnp.sum(likelihood(theta).log_prob(x))

        known = (log_likelihood, target, names, exchangeable, crb, likelihood, layout)
        return cls(prior, simulate, *known)

    def sample_prior(self, key: Key) -> Theta:
        """One theta."""
        leaves, structure = jax.tree.flatten(self.prior, is_leaf=_is_prior_leaf)
        keys = [key] if len(leaves) == 1 else list(jr.split(key, len(leaves)))
        samples = [prior.sample(k) for prior, k in zip(leaves, keys, strict=True)]
        return jax.tree.map(jnp.asarray, jax.tree.unflatten(structure, samples))

    def y_of(self, theta: Theta) -> Float[Array, " d"]:
        """The parameter y in one theta, as a vector."""
        y = theta if self.target is None else self.target(theta)
        if not hasattr(y, "shape"):
            y = jnp.asarray(y)
        if y.ndim > 1:
            raise SimulatorError(
                f"y must be a scalar or a vector of shape (d,), got shape {y.shape}: give a "
                "target that flattens it"
            )
        if jnp.issubdtype(y.dtype, jnp.complexfloating):
            raise SimulatorError(
                "y must be real, got complex numbers: estimate real and imaginary part (or the "
                "size and the phase, if it cannot go round), for example "
                "target=lambda theta: jnp.stack([theta.real, theta.imag])"
            )
        return jnp.reshape(jnp.asarray(y, dtype=jnp.result_type(float)), (-1,))

    def draw(self, key: Key, n: int, m: int) -> Draw:
        """N units from the prior and M measurements of each, all with noise of their own.

        Unit i and its measurement j depend on the key, i and j alone, so a larger draw
        begins with the smaller one.
        """
        check_count("n", n)
        check_count("m", m)
        unit = jax.vmap(self.draw_unit, in_axes=(None, 0, None))
        return held(lambda key: unit(key, jnp.arange(n), m), key)

    def draw_unit(self, key: Key, i: Int[ArrayLike, ""], m: int) -> Draw:
        """Unit number i of `draw` alone, without the axis of units."""
        theta = self.theta_of_unit(key, i)
        return Draw(theta, self.y_of(theta), self.measure_unit(key, i, theta, m))

    def theta_of_unit(self, key: Key, i: Int[ArrayLike, ""]) -> Theta:
        """The theta of unit number i of `draw`."""
        # Number 0 of the unit's keys is for theta, the others for its measurements.
        return self.sample_prior(jr.fold_in(jr.fold_in(key, i), 0))

    def measure_unit(self, key: Key, i: Int[ArrayLike, ""], theta: Theta, m: int) -> Measurement:
        """The measurements of unit number i of `draw`, if it has this theta."""
        keys = fold_in_each(jr.fold_in(key, i), 1 + jnp.arange(m))
        return jax.vmap(self.simulate, in_axes=(0, None))(keys, theta)

    def shapes(self) -> tuple[Any, Any]:
        """Shapes and dtypes of one measurement and of y, without simulating."""
        key = jr.key(0)
        try:
            theta = jax.eval_shape(self.sample_prior, key)
        except Exception as error:
            if is_not_jax(error):
                raise _not_jax("prior.sample(key)", error) from error
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
            if is_not_jax(error):
                raise _not_jax("target(theta)", error) from error
            raise SimulatorError(
                f"target(theta) failed for a theta of {describe_shapes(theta)}: {error}"
            ) from error
        try:
            x = jax.eval_shape(
                lambda k, t: jax.tree.map(jnp.asarray, self.simulate(k, t)), key, theta
            )
        except Exception as error:
            if _takes_rng(self.simulate):
                raise SimulatorError(
                    "simulate is called as simulate(key, theta), with a key of jax.random, but is "
                    "written as simulate(theta, rng): write it in JAX with these arguments, or "
                    + RUN_AS_IT_IS
                ) from error
            if is_not_jax(error):
                given = "simulate(key, theta)" if self.likelihood is None else "likelihood(theta)"
                raise _not_jax(given, error) from error
            raise SimulatorError(
                f"simulate(key, theta) failed for the theta that the prior gives, "
                f"{describe_shapes(theta)}: {type(error).__name__}: {error}"
            ) from error
        if not sum(leaf.size for leaf in jax.tree.leaves(x)):
            raise SimulatorError(
                f"simulate(key, theta) must return at least one number, got {describe_shapes(x)}"
                if jax.tree.leaves(x)
                else "simulate(key, theta) returned no arrays"
            )
        return x, y

    def _check_log_likelihood(self, x: Any) -> None:
        """Refuse one that is not written in JAX; what else it needs, its users check."""
        if self.log_likelihood is None:
            return
        theta = jax.eval_shape(self.sample_prior, jr.key(0))
        try:
            jax.eval_shape(self.log_likelihood, theta, x)
        except Exception as error:
            if is_not_jax(error):
                given = (
                    "log_likelihood(theta, x)" if self.likelihood is None else "likelihood(theta)"
                )
                raise _not_jax(given, error) from error

    def _check_crb(self, d: int) -> None:
        assert self.crb is not None
        theta = jax.eval_shape(self.sample_prior, jr.key(0))
        try:
            shape = jax.eval_shape(self.crb, theta).shape
        except Exception as error:
            raise ValueError(
                f"crb(theta) failed for a theta of {describe_shapes(theta)}; it must be written "
                "in JAX: "
                f"{type(error).__name__}: {error}"
            ) from error
        if shape != (d, d):
            raise ValueError(f"crb(theta) must return a matrix of shape ({d}, {d}), got {shape}")

    def _rows(self) -> list[tuple[str, str]]:
        """What is estimated, from what, and what is known, each with a label."""
        x, _ = self.shapes()
        kind = "exchangeable " if self.exchangeable else ""
        known = [name for name in ("log_likelihood", "crb") if getattr(self, name) is not None]
        rows = [("y", f"({', '.join(self.names or ())})"), ("x", f"{kind}{describe_shapes(x)}")]
        return [*rows, ("known", ", ".join(known))] if known else rows

    def __repr__(self) -> str:
        (_, y), (_, x), *known = self._rows()
        return f"Problem(y = {y}, x = {x}{''.join(f', known: {text}' for _, text in known)})"

    def _repr_html_(self) -> str:
        return labelled_html("Problem", self._rows())


def _not_jax(what: str, error: Exception) -> SimulatorError:
    """The error for a function that cannot be traced."""
    reason = str(error).split("\n", 1)[0]
    return SimulatorError(
        f"{what} is not written in JAX, which traces it once without numbers, to run it for "
        f"thousands of draws ({type(error).__name__}: {reason}). Write it with jax.numpy and "
        "jax.random instead of NumPy and without float() or if on what depends on its arguments; "
        f"or {RUN_AS_IT_IS}"
    )


def _takes_rng(simulate: Callable[..., Any]) -> bool:
    """Whether a simulator has the arguments (theta, rng) of `mvue.simulate`."""
    try:
        names = list(inspect.signature(simulate).parameters)
    except (TypeError, ValueError):
        return False
    return len(names) > 1 and names[1] == "rng"


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
