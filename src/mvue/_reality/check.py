"""`check`: are measurements plausible under the simulator, at the values estimated from them?"""

import functools
from typing import Any

import jax
import numpy as np

from .._core.checks import check_count
from .._core.estimators import Carrier, MeasurementSpec
from .._core.keys import key_for, several
from .._core.problem import Problem, check_problem
from .._core.sampling import pilot_draw
from .._core.types import Estimator, Key, Measurement
from .._intervals.host import as_jax_function, example_of, own_errors
from .._recipe.settings import Recipe
from .._recipe.survey import Survey, checked_summaries
from .._summaries.families import Families
from .._summaries.layout import Layout, layout_of
from .compare import compared
from .guard import families_at_fault
from .result import Check
from .simulated import Machine

FEWEST = 1000  # simulations that may be asked for
FEWEST_DATA_SETS = 99
FEWEST_REPLICATES = 32  # of one measurement


def check(
    estimator: Estimator | Carrier,
    problem: Problem,
    x: Measurement,
    *,
    key: Key,
    summaries: Any = None,
    simulations: int = 2**16,
    data_sets: int = 999,
) -> Check:
    """Compare measurements with simulations at the values that are estimated from them.

    Each measurement may have another theta. Summaries of the measurements, family by family, are
    compared with those of simulated data sets of the same size. A summary counts by what is left of
    it when theta is accounted for, so that the p-values are valid although theta was estimated, and
    although theta may be distributed otherwise than in the prior. Simulated data sets with one
    theta throughout show whether they are; families for which they are not are left out, with a
    note, and if none remains it is an error.

    Args:
        estimator: a function of one measurement that returns y, a `Fit` or a `Model`. A poor one
            makes the check less sharp, not wrong.
        problem: the simulator, and which theta it may have been.
        x: N measurements, with a leading axis.
        key: decides all random numbers.
        summaries: a function of one measurement, or several, in JAX: a family of your own.
        simulations: about how many measurements to simulate at the estimated values, besides those
            that the comparison is learned from and tried with.
        data_sets: how many simulated data sets the measurements are compared with; the smallest
            possible p-value is 1 / (1 + data_sets).

    Returns:
        A p-value for each family, and for all together.
    """
    check_problem(problem)
    check_count("simulations", simulations, FEWEST)
    check_count("data_sets", data_sets, FEWEST_DATA_SETS)
    spec, y = problem.shapes()
    x = _checked_measurements(MeasurementSpec(spec), x)
    function = as_jax_function("estimator", estimator, example_of(problem), y.shape[0])
    own = checked_summaries(summaries)
    keys = several(key_for("check", key), 7)
    families = Families(_layout(estimator, problem, keys[0]), own)
    columns = families.columns(spec)
    with own_errors({"estimator": function}):
        machine = Machine.of(problem, function, families, keys)
        seen = machine.see_all(x)
        interest = _interest(estimator, machine)
        replicates = int(np.clip(simulations // len(seen[0]), FEWEST_REPLICATES, data_sets))
        wrong = families_at_fault(machine, columns, seen, simulations, keys[6])
        return compared(machine, columns, seen, interest, replicates, data_sets, keys[4:6], wrong)


def _layout(estimator: Any, problem: Problem, key: Key) -> Layout:
    """Of a measurement; as the survey of a fit found it, if there was one."""
    known = getattr(estimator, "survey", None)
    if isinstance(known, Survey):
        return known.layout
    recipe = Recipe()
    pilot = pilot_draw(problem, key, recipe.survey.pilot, recipe.survey.pilot_repeats)
    return layout_of(problem, pilot, recipe.exchangeability, recipe.summaries)


def _interest(estimator: Any, machine: Machine) -> np.ndarray:
    """The range of y that is of interest, (2, d): that of the prior."""
    known = getattr(estimator, "survey", None)
    if isinstance(known, Survey):
        y = np.asarray(known.pilot.y, np.float64)
        return np.stack([y.min(axis=0), y.max(axis=0)])
    return machine.y_range


def _checked_measurements(spec: MeasurementSpec, x: Measurement) -> Any:
    """Measurements as they should be, or an error."""
    x = spec.arrays(x)
    if not spec.is_batch(x):
        raise ValueError(
            "x must be measurements with a leading axis, got one measurement: give x[None]; one "
            "alone shows large discrepancies only"
        )
    x = spec.cast(x, xp=np)
    leaves = jax.tree.leaves(x)
    if not len(leaves[0]):
        raise ValueError("x must hold at least one measurement, got none")
    bad = functools.reduce(
        np.logical_or,
        [~np.isfinite(leaf).reshape(len(leaf), -1).all(axis=1) for leaf in leaves],
    )
    if bad.any():
        raise ValueError(
            f"x must be finite, and {bad.sum():,} of {len(bad):,} measurements have numbers that "
            f"are not, the first is number {int(bad.argmax())}: leave these out, x[good]"
        )
    return x
