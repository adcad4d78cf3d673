"""`information_bound`: an estimate of the Cramér-Rao bound for simulators without a likelihood."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from .._bounds.crb import REPORT_NUMBERS, NotedBounds, bound_from, first_line, jacobians
from .._bounds.regularity import outside_of_model
from .._bounds.result import Information, layout_of, one_theta
from .._core.checks import check_count, describe_shapes
from .._core.estimators import Predictor
from .._core.keys import key_for, several
from .._core.problem import Problem, check_problem
from .._core.sampling import pilot_draw
from .._core.theta import theta_rows
from .._core.types import Key, Measurement, Theta
from .._display.tables import html_of, text_of
from .._runtime.jit import as_array, jit, on_host
from .._runtime.progress import SILENT, Progress, progress_for
from ..exceptions import BoundError
from ..nn._measurements import flatten
from .features import Features
from .score import learn, measure
from .simulated import Around
from .smoothness import refuse_jumps

ESTIMATED = "estimated bound"
"""What it is called wherever it is shown."""
MEANING = (
    "estimated bound: an upper estimate of the Cramér-Rao bound, from the information that "
    "functions of simulated data were seen to have, which never exceeds the true one"
)
METHODS = "statistics", "learned score"
DEFAULT_SAMPLES = 2**17
FEWEST_SAMPLES = 2**12
PILOT = (512, 4)  # values of theta and measurements of each, that show the layout
REPORT_SAMPLES = (2**14, 2**16)
SEEN = 4.0  # standard errors of information from which on a direction of theta is told
LOST = 0.02  # share of a gradient in directions that are not told, from which on y is not
LEAST_SEEN = 0.02  # of the information that a pilot saw


@dataclasses.dataclass(frozen=True)
class EstimatedBound:
    """An upper estimate of the Cramér-Rao bound, from simulations alone.

    It is the variance that the best locally unbiased estimator among those that were learned has.
    The Cramér-Rao bound may be below it, and is not above it but for the standard error.
    """

    matrix: np.ndarray
    """The estimate, (d, d). Where a component cannot be identified its variance is infinite and its
    covariances are nan."""
    se: np.ndarray
    """Standard errors, (d, d), of chance alone: not of what the functions do not tell."""
    names: tuple[str, ...]
    """Names of the components of y."""
    method: str
    """Which functions of the data told most: ``statistics`` or ``learned score``."""
    information: Information
    """The information about theta in these functions, at most the Fisher information."""
    of_statistics: np.ndarray
    """The bound from what is linear in the statistics alone, (d, d)."""
    of_statistics_se: np.ndarray
    """Standard errors."""
    unidentifiable: tuple[str, ...] = ()
    """Directions in which theta can move without any change of the data that was seen."""

    def _rows(self) -> list[list[str]]:
        rows = [["", ESTIMATED, "± s.e.", "of statistics", "± s.e."]]
        for j, name in enumerate(self.names):
            parts = self.matrix, self.se, self.of_statistics, self.of_statistics_se
            numbers = (float(part[j, j]) for part in parts)
            rows.append([name, *(f"{v:.{d}g}" for v, d in zip(numbers, (5, 2, 5, 2), strict=True))])
        return rows

    def _parts(self) -> list[Any]:
        free = (
            [f"the data were not seen to tell {', '.join(self.unidentifiable)}"]
            if self.unidentifiable
            else []
        )
        head = f"{MEANING}; {self.method}, {self.information.samples:,} simulations"
        return [head, self._rows(), *free]

    def __str__(self) -> str:
        return text_of(*self._parts())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_of(*self._parts())


def information_bound(
    problem: Problem,
    theta: Theta,
    *,
    statistics: Any = None,
    key: Key | None = None,
    samples: int = DEFAULT_SAMPLES,
    progress: bool | None = None,
) -> EstimatedBound:
    """Estimated bound: an upper estimate of the Cramér-Rao bound, for simulators alone.

    Any function of the data tells at most the Fisher information, (∂E[g]/∂θ)² / var g. One half of
    the simulations chooses functions: the best combination of summary statistics, and the score,
    learned by least squares among many functions. The other half measures what these tell. The
    inverse is J F⁻¹ Jᵀ as in `crb`, nuisances included, and not below the Cramér-Rao bound but
    for its standard error.

    Args:
        problem: any; a likelihood or a known bound is not used.
        theta: where; one value, as the prior draws it.
        statistics: a function of one measurement, or several, written in JAX, that are statistics
            besides those that the layout of x suggests: a trained estimator, for example.
        key: decides the simulations; by default ``jax.random.key(0)``.
        samples: simulations for the bound; 50,000 to 100,000 more find the unit of theta, and
            whether the model is regular.
        progress: as in `fit`.

    Raises:
        IrregularModelError: if the density of the data has jumps that move with theta, as at the
            end of a support: there is no bound then.
        BoundError: if theta is discrete, tied (a simplex), outside of the prior's support or at the
            end of where the simulator is defined, or the data do not change with it.
        SimulatorError: if the simulator returns the same data always, or numbers that are not
            finite.
    """
    check_problem(problem)
    check_count("samples", samples, least=FEWEST_SAMPLES)
    own = _functions(problem, statistics)
    found = estimated_bounds(
        problem,
        one_theta(problem, theta),
        own=own,
        key=jr.key(0) if key is None else key,
        samples=samples,
        progress=progress_for(progress),
    )
    one = found[0]
    if isinstance(one, BoundError):
        raise one
    return one


def estimated_bounds(
    problem: Problem,
    thetas: Theta,
    *,
    own: tuple[Callable[[Measurement], Any], ...] = (),
    transform: Callable[[Any], Any] | None = None,
    key: Key,
    samples: int,
    progress: Progress = SILENT,
) -> list[EstimatedBound | BoundError]:
    """Estimated bounds at K values of theta, leaves (K, ...), or why there is none."""
    pilot_key, at_key = several(key_for("information bound", key), 2)
    layout = layout_of(problem)
    pilot = pilot_draw(problem, pilot_key, *PILOT)
    features = Features(problem, pilot, own)
    _check_own(pilot.x, own)
    around = Around(problem, layout, features, pilot)
    flats = theta_rows(thetas)
    slopes = jacobians(problem, layout, flats, transform)
    found: list[EstimatedBound | BoundError] = []
    with progress.stage("estimating the bound", len(flats)) as advance:
        for k, flat in enumerate(flats):
            try:
                one = _at(around, flat, slopes[k], jr.fold_in(at_key, k), samples)
            except BoundError as error:
                one = error
            found.append(one)
            advance(k + 1, "")
    return found


def _at(
    around: Around, flat: np.ndarray, slopes: np.ndarray, key: Key, samples: int
) -> EstimatedBound:
    """The bound at one value of theta."""
    outside = around.refuse_outside(flat)
    outside = outside or outside_of_model(around.problem, around.layout.to_theta(on_host(flat)))
    if outside:
        raise outside
    if not np.isfinite(slopes).all():
        raise BoundError("the derivative of target(theta) is not finite")
    unit_key, bends_key, learn_key, jump_key, measure_key = several(key, 5)
    unit = around.unit(flat, unit_key)
    bends = around.bends(flat, unit, bends_key)
    pairs = samples // 4  # a half of two
    learned = learn(around, bends, flat, unit, pairs, learn_key)
    irregular = refuse_jumps(around, bends, flat, unit, learned, pairs, jump_key)
    if irregular:
        raise irregular
    measured = measure(around, bends, flat, unit, learned, pairs, measure_key)
    best = int(learned.sharper)
    back = np.linalg.inv(unit.root)
    names = around.layout.names
    # What no statistic was seen to tell, in any of its directions, is not known.
    kept = _told(measured[best].value, measured[best].parts)

    def information(value: np.ndarray) -> np.ndarray:
        return back.T @ kept @ value @ kept @ back

    def bound(value: np.ndarray) -> np.ndarray:
        return bound_from(information(value), slopes, names, LOST).matrix

    matrix, se = measured[best].of(information)
    whole = bound_from(matrix, slopes, names, LOST)
    values = [one.of(bound) for one in measured]
    method = METHODS[best]
    return EstimatedBound(
        *values[best],
        names=around.problem.names or (),
        method=method,
        information=Information(matrix, names, method, se, samples=samples),
        of_statistics=values[0][0],
        of_statistics_se=values[0][1],
        unidentifiable=whole.unidentifiable,
    )


def _told(value: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """The projection on the directions whose information is more than chance, (p, p)."""
    values, vectors = np.linalg.eigh((value + value.T) / 2)
    each = np.einsum("ij,bik,kj->bj", vectors, parts, vectors)
    error = np.sqrt((len(parts) - 1) * each.var(axis=0))
    good = vectors[:, (values > SEEN * error) & (values > LEAST_SEEN)]
    return good @ good.T


def note_estimated_bounds(
    problem: Problem, thetas: Theta, transform: Callable[[Any], Any] | None, key: Key
) -> NotedBounds:
    """Estimated bounds at K values for a report; whatever goes wrong becomes a note."""
    x, _ = problem.shapes()
    numbers = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(x))
    values = len(jax.tree.leaves(thetas)[0])
    samples = int(np.clip(REPORT_NUMBERS // (values * numbers), *REPORT_SAMPLES))
    try:
        found = estimated_bounds(problem, thetas, transform=transform, key=key, samples=samples)
    except Exception as error:
        kind = "" if isinstance(error, BoundError) else f"{type(error).__name__}: "
        return NotedBounds(None, None, f"no {ESTIMATED}: {kind}{first_line(error)}")
    failures = [one for one in found if isinstance(one, BoundError)]
    if len(failures) == len(found):
        return NotedBounds(None, None, f"no {ESTIMATED}: {first_line(failures[0])}")
    (size,) = {one.matrix.shape for one in found if isinstance(one, EstimatedBound)}
    none = np.full(size, np.nan)
    notes = [f"{MEANING}; {samples:,} simulations at each value"]
    if failures:
        notes.append(f"none at {len(failures)} of {values} values: {first_line(failures[0])}")
    free = [d for one in found if isinstance(one, EstimatedBound) for d in one.unidentifiable]
    if free:
        notes.append(f"the data were not seen to tell {', '.join(dict.fromkeys(free))}")
    matrix, se = (
        np.stack([getattr(one, name) if isinstance(one, EstimatedBound) else none for one in found])
        for name in ("matrix", "se")
    )
    return NotedBounds(matrix, se, "; ".join(notes))


@dataclasses.dataclass(frozen=True, eq=False)
class _Given:
    """A function that a user gave, as one of a measurement in JAX."""

    function: Callable[[Measurement], Any]

    def __call__(self, x: Measurement) -> Any:
        return flatten(jnp.asarray(self.function(x), jnp.result_type(float)))


def _functions(problem: Problem, statistics: Any) -> tuple[Callable[[Measurement], Any], ...]:
    """The statistics that a user gave as a tuple of functions of one measurement."""
    if statistics is None:
        return ()
    given = (statistics,)
    if not callable(statistics):
        given = tuple(statistics) if isinstance(statistics, Iterable) else given
    functions = []
    for one in given:
        function = one.function if isinstance(one, Predictor) else one
        if not callable(function):
            raise TypeError(
                "statistics must be a function of one measurement or several, a Fit or a Model, "
                f"got {one!r}: give for example statistics=lambda x: x.mean()"
            )
        functions.append(_Given(function))
    x, _ = problem.shapes()
    for number, function in enumerate(functions):
        try:
            jax.eval_shape(function, x)
        except Exception as error:
            raise ValueError(
                f"statistics[{number}] failed on a measurement of {describe_shapes(x)}; it must be "
                "written in JAX and return an array of one shape: "
                f"{type(error).__name__}: {str(error).splitlines()[0]}"
            ) from error
    return tuple(functions)


def _check_own(x: Measurement, own: tuple[Callable[[Measurement], Any], ...]) -> None:
    """Refuse statistics that are not finite on simulations."""
    for number, function in enumerate(own):
        values = jit(jax.vmap(jax.vmap(function)))(jax.tree.map(as_array, x))
        bad = ~np.isfinite(np.asarray(values)).all(axis=2)
        if bad.any():
            raise ValueError(
                f"statistics[{number}] is not finite on {bad.mean():.2%} of the simulations: it "
                "must be finite wherever the simulator is"
            )
