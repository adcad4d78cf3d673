"""Fisher information of independent scalar draws, by integration or summation over one draw.

Where the n elements of x are independent and identically distributed, the log-density of one of
them at t is ``log_likelihood(theta, [t, ..., t]) / n``. Neither the support nor the shape of the
density is known: simulated draws say where the bulk is, an adaptive rule does the rest, and the
answer counts only if the density has mass 1 and the score mean 0.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._core.keys import fold_in_each
from .._core.priors import element_support, support_ends
from .._core.problem import Problem
from .._core.theta import ThetaLayout
from .._core.types import Key
from .._runtime.jit import forgetful_jit, in_double_precision
from ..exceptions import BoundError, IrregularModelError
from .quadrature import DensityIntegrals, integrate, summed
from .regularity import cannot_tell
from .result import Informations

METHOD = "quadrature"
PILOT_DRAWS = 4096
BLOCK_NUMBERS = 2**17  # numbers of x in one block of nodes
TOLERANCE = 1e-7  # of mass and of mean score in units of the root of the information
EDGE_TOLERANCE = 1e-8  # share of the information where t cannot be resolved
CLEAR = 1e-3  # a mean score beyond this is no numerical error
NATURAL_ENDS = [
    *((0.0, 1.0), (-1.0, 1.0), (-np.pi, np.pi), (0.0, 2 * np.pi), (1.0, np.inf), (0.0, np.inf)),
    *((-np.inf, 0.0), (-np.inf, np.inf)),
]


@np.errstate(over="ignore", invalid="ignore")  # of what is no density: refused below
def integrated_informations(
    problem: Problem, layout: ThetaLayout, flat: np.ndarray, *, key: Key
) -> Informations:
    """Information at K values of theta, flat (K, p), or why quadrature cannot give it."""
    found = Informations.empty(*flat.shape)
    try:
        density = in_double_precision(lambda: _Density(problem, layout, flat, key))
    except BoundError:
        raise
    except Exception as error:
        raise BoundError(
            f"log_likelihood cannot be evaluated in double precision: {type(error).__name__}: "
            f"{error}"
        ) from error
    found.fail(range(len(flat)), BoundError("quadrature failed: no known support holds the draws"))
    distance = np.full(len(flat), np.inf)  # of the best mass from 1: its failure is the one to tell
    for lower, upper in density.candidates():
        # The narrowest domain that holds all simulated draws comes first; a mass of 1 decides.
        open_ = np.array([isinstance(f, BoundError) for f in found.failure])
        open_ &= [not isinstance(f, IrregularModelError) for f in found.failure]
        inside = (density.pilot >= lower[:, None]) & (density.pilot <= upper[:, None])
        which = np.flatnonzero(open_ & inside.all(axis=1))
        if which.size:
            rule = summed if density.discrete else integrate
            totals = rule(
                lambda j, t, which=which: density(which[j], t),
                flat.shape[1],
                lower[which],
                upper[which],
                density.pilot[which],
            )
            _judge(found, which, totals, density.n, layout, distance)
    return found


def _judge(
    found: Informations,
    which: np.ndarray,
    totals: DensityIntegrals,
    n: int,
    layout: ThetaLayout,
    distance: np.ndarray,
) -> None:
    """Enter what passes the checks, and reasons for what does not."""
    mean, edge = totals.score / totals.root(), totals.edge_share()
    for j, k in enumerate(which.tolist()):
        worst = np.abs(mean[j]).argmax()
        score, name = abs(mean[j][worst]), layout.names[worst]
        if totals.failure[j]:
            reason = totals.failure[j]
        elif abs(totals.mass[j] - 1) > TOLERANCE:
            reason = f"the density of one draw has mass {totals.mass[j]:.9g}"
        elif edge[j] > EDGE_TOLERANCE:
            reason = "the information does not converge at the ends of the support"
        elif score > CLEAR:
            message = (
                "the support of the data depends on theta: the mean score of "
                f"{name} is not 0 but {score:.3g} times its root mean square"
            )
            found.fail([k], IrregularModelError(message))
            continue
        elif score > TOLERANCE:
            reason = f"the mean score of {name} is not 0 but {score:.2g} times its root mean square"
        else:
            found.put(k, n * totals.matrix[j], METHOD, mean_score=mean[j])
            continue
        off = np.inf if totals.failure[j] else abs(totals.mass[j] - 1)
        if off < distance[k] or np.isinf(distance[k]):
            found.fail([k], BoundError(f"quadrature failed: {reason}"))
            distance[k] = off


class _Density:
    """The density of one draw at K values of theta, and its score, evaluated at many t."""

    def __init__(self, problem: Problem, layout: ThetaLayout, flat: np.ndarray, key: Key) -> None:
        self.problem, self.layout, self.flat = problem, layout, flat
        x, _ = problem.shapes()
        shapes = [leaf.shape for leaf in jax.tree.leaves(x)]
        first = 0 if problem.exchangeable is False else 1
        scalar = len(shapes) == 1 and np.prod(shapes[0][first:]) == 1
        if not scalar or x is not jax.tree.leaves(x)[0]:
            raise BoundError(
                "quadrature needs x to be one scalar, or independent scalars: an array of shape "
                "(n,) of a problem without exchangeable=False"
            )
        self.shape, self.n = shapes[0], int(np.prod(shapes[0]))
        draws = max(1, -(-PILOT_DRAWS // self.n))
        pilot = _pilot(problem, layout, jnp.asarray(flat), key, draws)
        self.dtype = pilot.dtype
        pilot = np.asarray(pilot, np.float64).reshape(len(flat), -1)
        if not np.isfinite(pilot).all():
            raise BoundError("some simulated draws are not finite")
        self.pilot = np.sort(pilot[:, :: max(1, pilot.shape[1] // PILOT_DRAWS)], axis=1)
        self.discrete = bool((pilot == np.rint(pilot)).all())
        self.block = int(np.clip(BLOCK_NUMBERS // self.n, 16, 1024))
        self._check_additive()

    def _check_additive(self) -> None:
        """Refuse a likelihood that is not a sum of one function of each element."""
        values = self.pilot[:, np.linspace(0, self.pilot.shape[1] - 1, 8).astype(int)]
        if self.discrete:  # draws may all be the same; what is next to them may be impossible
            values = np.concatenate([values, self.pilot[:, :1] + np.arange(8)], axis=1)
        every, size = np.arange(len(self.flat)), values.shape[1]
        single, _ = self(np.repeat(every, size), values.ravel())
        single = single.reshape(-1, size)
        possible = np.isfinite(single)
        possible[:, :8] = True
        rng = np.random.default_rng(0)
        choice = np.stack([rng.choice(np.flatnonzero(row), self.n) for row in possible])
        whole, _ = self.evaluate(every, np.take_along_axis(values, choice, axis=1))
        parts = np.take_along_axis(single, choice, axis=1)
        error = np.abs(whole - parts.mean(axis=1))
        if not (error <= 1e-6 * (1 + np.abs(parts).mean(axis=1))).all():
            raise BoundError(
                "log_likelihood is not the sum of one function of each element of x, or not finite"
            )

    def __call__(self, k: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log-density (m,) and score (m, p) of one draw at m pairs of a value k and a t."""
        return self.evaluate(k, np.broadcast_to(t[:, None], (len(t), self.n)))

    def evaluate(self, k: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log-likelihood and score of x (m, n), divided by n; in blocks of one compiled size."""
        log_density, score = np.empty(len(x)), np.empty((len(x), self.flat.shape[1]))
        for start in range(0, len(x), self.block):
            index = np.minimum(np.arange(start, start + self.block), len(x) - 1)
            with jax.enable_x64(True):
                block = jnp.asarray(x[index].reshape(-1, *self.shape)).astype(self.dtype)
                theta = jnp.asarray(self.flat[k[index]])
                values = _evaluated(self.problem, self.layout, theta, block)
            used = slice(start, min(start + self.block, len(x)))
            for whole, part in zip((log_density, score), values, strict=True):
                whole[used] = np.asarray(part)[: used.stop - start] / self.n
        return log_density, score

    def candidates(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Domains to try, each as lower and upper ends (K,)."""
        known = None
        if self.problem.likelihood is not None:
            with jax.enable_x64(True):
                known = _support(self.problem, self.layout, jnp.asarray(self.flat))
        natural = [tuple(np.full(len(self.flat), e) for e in ends) for ends in NATURAL_ENDS]
        return [*([known] if known is not None else []), *natural]  # type: ignore[list-item]


@forgetful_jit
def _pilot(problem: Problem, layout: ThetaLayout, flat: Array, key: Key, draws: int) -> Array:
    # One call of the generator for all keys: it is most of what there is to compile.
    keys = fold_in_each(key, jnp.arange(len(flat) * draws)).reshape(len(flat), draws)
    simulate = jax.vmap(jax.vmap(problem.simulate, in_axes=(0, None)))
    return jnp.asarray(simulate(keys, jax.vmap(layout.to_theta)(flat)))


@forgetful_jit
def _evaluated(problem: Problem, layout: ThetaLayout, flat: Array, x: Array) -> tuple[Array, Array]:
    def log_likelihood(flat: Array, x: Array) -> Array:
        assert problem.log_likelihood is not None
        return jnp.reshape(problem.log_likelihood(layout.to_theta(flat), x), ())

    return jax.vmap(jax.value_and_grad(log_likelihood))(flat, x)


def _support(
    problem: Problem, layout: ThetaLayout, flat: Array
) -> tuple[np.ndarray, np.ndarray] | None:
    """The ends of the distribution's own support, where it says so."""

    def ends(flat: Array) -> tuple[Array, Array] | None:
        assert problem.likelihood is not None
        known = support_ends(element_support(problem.likelihood(layout.to_theta(flat))))
        if known is None:
            return None
        return jnp.min(jnp.asarray(known[0])), jnp.max(jnp.asarray(known[1]))

    try:
        found = jax.jit(jax.vmap(ends))(flat)
    except (NotImplementedError, jax.errors.JAXTypeError):
        return None  # it does not know its support, or only by a look at the numbers of one theta
    except Exception as error:
        raise cannot_tell(error) from error
    if found is None:
        return None
    return np.asarray(found[0], np.float64), np.asarray(found[1], np.float64)
