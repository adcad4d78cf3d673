"""What a likelihood tells the training: the error that an efficient estimator would make.

At the parameter that a measurement was simulated with, J F⁻¹ score, with the Fisher information F
and the derivative J of y, is the error that an efficient estimator would make of it. Its mean is
zero at each theta, and the rest of the error of any unbiased estimator is uncorrelated with it. It
is a control variate of errors and bias, and of the targets of least squares: what is left to learn
has little noise, or none where an efficient estimator exists. The trained estimator does not need
the likelihood.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from .._bounds.regularity import refuse_moving_support
from .._bounds.result import Informations
from .._core.coordinates import Coordinates
from .._core.keys import host_random, several
from .._core.problem import Problem
from .._core.sampling import NONFINITE_LIMIT
from .._core.theta import ThetaLayout, theta_rows
from .._core.types import Key, Measurement, Theta
from .._runtime.jit import as_array, held, jit
from .._runtime.memory import vmap_in_pieces
from ..exceptions import BoundError, SimulatorError
from .sensitivity import Look
from .settings import LikelihoodSettings
from .smooth import Smooth, smooth
from .training_prior import TrainingPrior

EfficientError = Callable[[Theta, Measurement], Float[Array, " d"]]

ASKED = 8  # values at which it is asked whether the support moves
SQUARINGS, TERMS = 8, 5  # of exponentials
RIDGE = 1e-4  # share of the largest information that is none


class LikelihoodUse(NamedTuple):
    """What came of a likelihood."""

    error: EfficientError | None
    """Of an efficient estimator of y."""
    note: str
    """Why there is none, if there is a likelihood."""


class _Seen(NamedTuple):
    """Scores at one value of theta, in typical deviations of theta; and the slopes of y."""

    mean: Any
    """(p,)."""
    information: Any
    """(p, p)."""
    slopes: Any
    """(d, p), in units of the expected error."""
    draws: Any
    """How many were finite."""
    good: Any
    """Whether nearly all were."""


def efficient_error(
    look: Look,
    prior: TrainingPrior,
    widths: np.ndarray,
    log_sd: Callable[[Theta], Array],
    key: Key,
) -> LikelihoodUse:
    """The error of an efficient estimator at one theta and measurement.

    Args:
        look: at the problem.
        prior: what is trained on.
        widths: of its ranges in standard deviations.
        log_sd: logarithm of the error to expect of y.
        key: for simulations.

    Raises:
        SimulatorError: if the likelihood is not that of the simulator.
    """
    problem, settings = look.problem, look.recipe.likelihood
    if problem.log_likelihood is None or not settings.used:
        return LikelihoodUse(None, "")
    if look.ranges.whole:
        return LikelihoodUse(None, "theta is of whole numbers")
    line = Line.of(problem, prior, widths)
    try:
        jax.eval_shape(line.scores, *_shapes(problem))
        jax.eval_shape(line.slopes, _shapes(problem)[0])
    except Exception as failure:
        reason = f"{type(failure).__name__}: {failure}"
        return LikelihoodUse(None, f"it cannot be differentiated ({reason})")
    place_key, draw_key, support_key = several(key, 3)
    places = host_random(place_key).uniform(size=(look.points, look.p)) * widths
    seen = _look(look, line, places, log_sd, draw_key)
    interest = np.stack([look.ranges.low, look.ranges.high])
    rows = line.rows(places)
    within = ((rows >= interest[0]) & (rows <= interest[1])).all(axis=1) & seen.good
    if not within.any() or seen.good.mean() < settings.fewest_good:
        return LikelihoodUse(None, "its score is not finite for many measurements")
    size = np.trace(seen.information, axis1=1, axis2=2)[:, None, None] / look.p
    inverse = np.linalg.inv(seen.information + RIDGE * size * np.eye(look.p))
    freedom = 1 - (look.p + 1) / np.maximum(seen.draws, look.p + 2)
    gain = (seen.slopes @ inverse) * freedom[:, None, None]
    off = np.einsum("ndp,np->nd", gain, seen.mean)
    noise = np.sqrt(np.maximum(np.einsum("ndp,npq,ndq->nd", gain, seen.information, gain), 0))
    noise /= np.sqrt(seen.draws)[:, None]
    wrong = _wrong(off, noise, seen.good, settings) | _wrong(off, noise, within, settings)
    if wrong.any():
        note = "its score does not have mean zero"
        inside = np.flatnonzero(wrong.any(axis=1) & within)
        if not len(inside):
            return LikelihoodUse(None, note + " beyond the range of interest")
        if _moves(problem, look, rows[inside[:ASKED]], support_key):
            return LikelihoodUse(None, "the support of the data depends on theta")
        size = np.where(wrong & within[:, None], np.abs(off), 0)
        k, j = np.unravel_index(np.argmax(size), size.shape)
        raise SimulatorError(
            "log_likelihood and simulate disagree: the mean of its derivative at the parameter "
            f"that was simulated must be zero, and at theta = {rows[k].round(6).tolist()} it is "
            f"off by what moves estimates of {(problem.names or ())[j]} by {off[k, j]:.2g} ± "
            f"{noise[k, j]:.1g} standard deviations. Correct one of them, or leave log_likelihood "
            "out: fit does not need it"
        )
    # The logarithm of a matrix is a matrix: whatever smooth one is found, information is positive.
    values, vectors = np.linalg.eigh(seen.information[seen.good])
    values = np.maximum(values, RIDGE * values[:, -1:])
    logs = vectors * np.log(values)[:, None, :] @ vectors.swapaxes(1, 2)
    upper = np.triu_indices(look.p)
    fitted = smooth(places[seen.good], logs[:, upper[0], upper[1]], look.recipe.error_model)
    return LikelihoodUse(OfLikelihood(line, fitted), "")


def _exponential(matrix: Float[Array, "p p"]) -> Float[Array, "p p"]:
    """Of a matrix, by scaling and squaring: products alone, which batches of small ones do fast."""
    small = matrix / 2**SQUARINGS
    one = jnp.eye(matrix.shape[0], dtype=matrix.dtype)
    power = one
    for order in range(TERMS, 0, -1):
        power = one + small @ power / order
    for _ in range(SQUARINGS):
        power = power @ power
    return power


def _wrong(
    off: np.ndarray, noise: np.ndarray, where: np.ndarray, settings: LikelihoodSettings
) -> np.ndarray:
    """Where means (n, d) that should be zero are not: one by one, or all of them on average."""
    alone = (np.abs(off) > settings.surely * noise) & (np.abs(off) > settings.least_off)
    mean = off[where].mean(axis=0)
    error = np.sqrt((noise[where] ** 2).sum(axis=0)) / where.sum()
    together = (np.abs(mean) > settings.surely * error) & (np.abs(mean) > settings.least_off)
    return (alone | together[None, :]) & where[:, None]


@dataclasses.dataclass(frozen=True, eq=False)
class Line:
    """Coordinates of theta in standard deviations, from the lower end of what is trained on."""

    problem: Problem
    prior: TrainingPrior
    widths: Float[Array, " p"]
    unit: Float[Array, " p"]
    """One for all of a range: local ones change by leaps."""

    @classmethod
    def of(cls, problem: Problem, prior: TrainingPrior, widths: np.ndarray) -> "Line":
        """The coordinates of a prior whose ranges have these widths."""
        tables = np.asarray(prior.tables, np.float64)
        step = widths / (tables.shape[1] - 1)
        unit = np.median(np.diff(tables, axis=1) / step[:, None], axis=1)
        return cls(problem, prior, as_array(widths), as_array(unit))

    @property
    def coordinates(self) -> Coordinates:
        """Of theta."""
        return self.prior.coordinates

    def rows(self, places: np.ndarray) -> np.ndarray:
        """Coordinates (n, p) at places (n, p)."""
        tables = np.asarray(self.prior.tables)
        grid = np.linspace(0, 1, tables.shape[1])
        columns = zip(places.T, np.asarray(self.widths), tables, strict=True)
        return np.stack([np.interp(at / width, grid, table) for at, width, table in columns], 1)

    def place_of(self, theta: Theta) -> Float[Array, " p"]:
        return (self.prior.places(theta) + 1) / 2 * self.widths

    def scores(self, theta: Theta, x: Measurement) -> Float[Array, " p"]:
        """The derivative of the log-likelihood at the theta of one measurement."""
        row = self.coordinates.from_theta(theta)

        def log_likelihood(row: Array) -> Array:
            assert self.problem.log_likelihood is not None
            value = self.problem.log_likelihood(self.coordinates.to_theta(row), x)
            return jnp.reshape(value, ())

        return jax.grad(log_likelihood)(row) * self.unit

    def slopes(self, theta: Theta) -> Float[Array, "d p"]:
        """The derivative of y."""
        row = self.coordinates.from_theta(theta)
        of_row = jax.jacfwd(lambda row: self.problem.y_of(self.coordinates.to_theta(row)))(row)
        return of_row * self.unit[None, :]


@dataclasses.dataclass(frozen=True, eq=False)
class OfLikelihood:
    """The error that an efficient estimator makes of one measurement, from the likelihood."""

    line: Line
    logarithm: Smooth
    """Of the information, its upper triangle."""

    def __call__(self, theta: Theta, x: Measurement) -> Float[Array, " d"]:
        """At the theta that a measurement was simulated with."""
        p, line = self.line.widths.shape[0], self.line
        entries = self.logarithm(line.place_of(theta))
        half = jnp.zeros((p, p), entries.dtype).at[np.triu_indices(p)].set(entries)
        logarithm = jnp.where(np.eye(p, dtype=bool), half, half + half.T)
        return line.slopes(theta) @ (_exponential(-logarithm) @ line.scores(theta, x))


def _look(
    look: Look, line: Line, places: np.ndarray, log_sd: Callable[[Theta], Array], key: Key
) -> _Seen:
    """Scores at places (n, p), simulated some places at a time."""
    problem = line.problem
    size = look.simulations // 2

    @jit
    def some(rows: Array, key: Key) -> _Seen:
        keys = jr.split(key, look.chunk)
        theta = jax.vmap(line.coordinates.to_theta)(rows)

        def simulated(keys: Key) -> Measurement:
            draw = lambda key, theta: jax.vmap(problem.simulate, in_axes=(0, None))(  # noqa: E731
                jr.split(key, size), theta
            )
            return jax.vmap(draw)(keys, theta)

        x = held(lambda _: simulated(keys), key)

        def at(theta: Theta, x: Measurement) -> _Seen:
            scores = jax.vmap(line.scores, in_axes=(None, 0))(theta, x)
            finite = jnp.isfinite(scores).all(axis=1)
            scores = jnp.where(finite[:, None], scores, 0.0)
            draws = jnp.maximum(finite.sum(), 1)
            slopes = line.slopes(theta) * jnp.exp(-log_sd(theta))[:, None]
            good = (draws > (1 - NONFINITE_LIMIT) * size) & jnp.isfinite(slopes).all()
            return _Seen(
                scores.mean(axis=0) * size / draws,
                scores.T @ scores / draws,
                jnp.where(good, slopes, 0.0),
                draws,
                good,
            )

        return vmap_in_pieces(at, theta, x)

    found = []
    for start in range(0, len(places), look.chunk):
        which = np.arange(start, start + look.chunk) % len(places)
        rows = as_array(line.rows(places[which]))
        parts = some(rows, jr.fold_in(key, start))
        found.append([np.asarray(part) for part in parts])
    parts = [np.concatenate(part)[: len(places)] for part in zip(*found, strict=True)]
    return _Seen(*(part.astype(np.float64) for part in parts))._replace(good=parts[-1])


def _moves(problem: Problem, look: Look, rows: np.ndarray, key: Key) -> bool:
    """Whether the support of the data moves with theta at any of some values."""
    theta = jax.vmap(look.ranges.coordinates.to_theta)(as_array(rows))
    flat = theta_rows(theta)
    layout = ThetaLayout.of(jax.tree.map(lambda leaf: leaf[0], theta))
    found = Informations.empty(*flat.shape)
    try:
        refuse_moving_support(problem, layout, flat, found, key)
    except BoundError:
        return True
    return any(failure is not None for failure in found.failure)


def _shapes(problem: Problem) -> tuple[Any, Any]:
    theta = jax.eval_shape(problem.sample_prior, jr.key(0))
    return theta, problem.shapes()[0]
