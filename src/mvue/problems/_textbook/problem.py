"""`Textbook`: a problem whose minimum-variance unbiased estimator is known exactly."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array

from ..._core.problem import Problem
from ..._core.types import Estimator, Key, Measurement, Theta

VALUES = 9

Kind = Literal[
    "regular", "irregular", "discrete", "nonparametric", "no-uniform-mvue", "control", "open"
]


@dataclasses.dataclass(frozen=True, eq=False)
class Textbook:
    """A problem together with what theory says about unbiased estimators of its parameter."""

    name: str
    """For example "exponential-rate"."""
    title: str
    """The model and the parameter, in a line."""
    problem: Problem
    """Simulator, range of the parameter (a uniform prior), likelihood and bound if they exist."""
    second: Any
    """Another prior over the same range: the best unbiased estimator does not depend on it."""
    at: Theta
    """Values of theta that span the range, its ends included; leaves of shape (K, ...)."""
    kind: Kind
    """"regular": the Cramér-Rao bound applies. "irregular": it does not, the support depends on
    the parameter. "discrete": that is a whole number. "nonparametric": best among estimators that
    are unbiased for every law. "no-uniform-mvue": unbiased estimators exist, none of them is
    best everywhere. "control": no unbiased estimator exists. "open": no exact answer is known."""
    notes: str
    """What to expect, in a sentence or two."""
    mvue: Estimator | None = None
    """The minimum-variance unbiased estimator of one measurement."""
    reference: Estimator | None = None
    """Where there is no such estimator: a sensible one to compare with."""
    variance: Callable[[Theta], np.ndarray] | None = None
    """``variance(at)``, (K, d): exact variances of `mvue`, or else of `reference`."""
    attained: bool | None = None
    """Whether the variance equals the bound; None where one of them is not known."""
    core: bool = False
    """One of the few that make a good benchmark."""

    def crb(self, at: Theta) -> np.ndarray | None:
        """Cramér-Rao bounds on the variances, (K, d), in double precision; None without a bound.

        Args:
            at: values of theta, such as the field `at`.
        """
        bound = self.problem.crb
        if bound is None:
            return None
        with jax.enable_x64(True):
            exact = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, np.float64)), at)
            return np.asarray(jax.vmap(lambda theta: jnp.diagonal(bound(theta)))(exact))

    def with_prior(self, prior: Any = None) -> "Textbook":
        """The same under another prior.

        Args:
            prior: as in `Problem`, by default `second`.
        """
        problem = dataclasses.replace(self.problem, prior=self.second if prior is None else prior)
        return dataclasses.replace(self, problem=problem)

    def __repr__(self) -> str:
        return f"Textbook({self.name!r}: {self.title})"


class Span(NamedTuple):
    """The range of a parameter."""

    low: float
    high: float
    shape: tuple[int, ...] = ()
    whole: bool = False

    def prior(self) -> dist.Distribution:
        """Uniform."""
        if self.whole:
            return dist.DiscreteUniform(int(self.low), int(self.high))
        return dist.Uniform(self.low, self.high).expand(self.shape)

    def second(self) -> Any:
        """Leans towards the low end, without leaving out the high one."""
        if self.whole:
            return LogUniformInteger(int(self.low), int(self.high))
        if self.low > 0:
            return dist.LogUniform(self.low, self.high).expand(self.shape)
        unit = dist.Kumaraswamy(0.5, 1.0)  # the density falls as the inverse square root
        into = dist.transforms.AffineTransform(
            self.low, self.high - self.low, domain=dist.constraints.unit_interval
        )
        return dist.TransformedDistribution(unit, into).expand(self.shape)

    def values(self, turn: int) -> np.ndarray:
        """Evenly spaced values with both ends, each parameter in another order."""
        values = np.linspace(self.low, self.high, VALUES)
        if self.whole:
            values = np.rint(values).astype(int)
        count = int(np.prod(self.shape))
        strides = [(1, 2, 4, 7, 5, 8)[(turn + i) % 6] for i in range(count)]
        columns = [values[np.arange(VALUES) * stride % VALUES] for stride in strides]
        return np.stack(columns, axis=-1).reshape(VALUES, *self.shape)


class LogUniformInteger(NamedTuple):
    """The whole number below a log-uniform number; a prior."""

    low: int
    high: int

    @property
    def support(self) -> Any:
        """From low to high, both included."""
        return dist.constraints.integer_interval(self.low, self.high)

    def sample(self, key: Key) -> Array:
        """One number."""
        shift = max(0, 1 - self.low)  # logarithms need a positive number
        ends = np.log([self.low + shift, self.high + shift + 1])
        logs = jr.uniform(key, (), minval=ends[0], maxval=ends[1])
        number = jnp.floor(jnp.exp(logs)).astype(int) - shift
        return jnp.clip(number, self.low, self.high)


def make(
    name: str,
    title: str,
    spans: Span | Mapping[str, Span],
    *,
    parameter: str,
    notes: str,
    likelihood: Callable[[Theta], Any] | None = None,
    simulate: Callable[[Key, Theta], Measurement] | None = None,
    log_likelihood: Callable[[Theta, Measurement], Any] | None = None,
    target: Callable[[Theta], Any] | None = None,
    names: tuple[str, ...] | None = None,
    exchangeable: bool = True,
    crb: Callable[[Theta], Any] | None = None,
    mvue: Estimator | None = None,
    reference: Estimator | None = None,
    variance: Callable[[Theta], Any] | None = None,
    attained: bool | None = None,
    kind: Kind = "regular",
    core: bool = False,
) -> Textbook:
    """A textbook problem from the ranges of its parameters, and a likelihood or a simulator.

    `variance` takes stacked values of theta in NumPy; `crb` takes one theta, in JAX, and may
    return a scalar.
    """
    if likelihood is not None:
        simulate = lambda key, theta: likelihood(theta).sample(key)  # noqa: E731
        log_likelihood = lambda theta, x: jnp.sum(likelihood(theta).log_prob(x))  # noqa: E731
    assert simulate is not None
    if isinstance(spans, Span):
        prior, second, at = spans.prior(), spans.second(), spans.values(0)
    else:
        prior = {key: span.prior() for key, span in spans.items()}
        second = {key: span.second() for key, span in spans.items()}
        at = spread_over(spans)
    problem = Problem(
        prior=prior,
        simulate=simulate,
        log_likelihood=log_likelihood,
        target=target,
        names=names or (parameter,),
        exchangeable=exchangeable,
        crb=None if crb is None else lambda theta: _matrix(crb(theta)),
    )
    return Textbook(
        name=name,
        title=title,
        problem=problem,
        second=second,
        at=at,
        kind=kind,
        notes=notes,
        mvue=None if mvue is None else lambda x: jnp.reshape(mvue(x), (-1,)),
        reference=None if reference is None else lambda x: jnp.reshape(reference(x), (-1,)),
        variance=None if variance is None else lambda at: _stacked(variance, at),
        attained=attained,
        core=core,
    )


def spread_over(spans: Mapping[str, Span]) -> dict[str, np.ndarray]:
    """Values that span all ranges: the last parameter in order, the others not."""
    names = list(spans)
    return {name: spans[name].values(turn) for turn, name in enumerate(reversed(names))}


def _matrix(value: Array) -> Array:
    return value if value.ndim == 2 else jnp.reshape(value, (1, 1))


def _stacked(variance: Callable[[Theta], Any], at: Theta) -> np.ndarray:
    exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), at)
    count = len(jax.tree.leaves(exact)[0])
    result = np.asarray(variance(exact), np.float64)
    return np.array(
        np.broadcast_to(result.reshape(-1, 1), (count, 1)) if result.ndim < 2 else result
    )
