"""What one worker does: simulate the repeats of some units, with retries, and check the results."""

import dataclasses
import time
import traceback
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._core.theta import Columns, describe_theta, theta_of_unit
from .._data.shards import Failure, Kind, absent
from ..exceptions import SimulatorError
from .time_limit import OverTimeError, time_limited

_PURPOSE = zlib.crc32(b"mvue.simulate")
_MESSAGE_LENGTH = 500


@dataclasses.dataclass(frozen=True)
class Task:
    """Consecutive units to simulate."""

    simulator: Callable[[Any, np.random.Generator], Any]
    columns: Columns
    """Theta of the units."""
    first: int
    repeats: int
    seed: int
    retries: int
    stop: bool
    """End at the first measurement that cannot be simulated."""
    kind: Kind | None
    """None where nothing has been simulated yet: the first draw decides."""
    time_limit: float | None

    @property
    def n_units(self) -> int:
        """Number of units."""
        return len(next(iter(self.columns.values())))


class Result(NamedTuple):
    """Simulated units; fewer than the task asked for where it was stopped."""

    first: int
    x: np.ndarray | None  # (units, repeats, ...), None where no draw has succeeded
    present: np.ndarray  # (units, repeats)
    failures: list[Failure]
    error: SimulatorError | None
    """Why it was stopped."""
    seconds: float
    used_rng: bool
    """Whether any draw has taken random numbers from its generator."""

    @property
    def n_units(self) -> int:
        """Number of units."""
        return len(self.present)


class _UnusableDrawError(Exception):
    """The simulator returned something that cannot be used."""


def stream(seed: int, unit: int, number: int, attempt: int = 0) -> np.random.Generator:
    """Random numbers that no other unit, number or attempt shares.

    Number 0 is for theta, the others for its measurements.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(_PURPOSE, unit, number, attempt))
    # By name: the default generator may change, the data of a seed must not.
    return np.random.Generator(np.random.PCG64(sequence))


def run_task(task: Task) -> Result:
    """Simulate the units of a task."""
    began = time.perf_counter()
    kind, x = task.kind, None
    present = np.zeros((task.n_units, task.repeats), bool)
    failures: list[Failure] = []
    used = False
    for i, repeat in np.ndindex(present.shape):
        if x is None and kind is not None:
            x = absent((task.n_units, task.repeats), kind)
        drawn, used_now = _draw(task, i, repeat, kind)
        used |= used_now
        if isinstance(drawn, np.ndarray):
            if x is None:
                kind = Kind(drawn.shape, drawn.dtype)
                x = absent((task.n_units, task.repeats), kind)
            x[i, repeat], present[i, repeat] = drawn, True
            continue
        failure, trace = drawn
        if task.stop:
            error = _stop_error(task, i, failure, trace)
            x = None if x is None else x[:i]
            return Result(task.first, x, present[:i], [], error, time.perf_counter() - began, used)
        failures.append(failure)
    return Result(task.first, x, present, failures, None, time.perf_counter() - began, used)


def _draw(task: Task, index: int, repeat: int, kind: Kind | None) -> tuple[Any, bool]:
    """One measurement, or the failure and its traceback; and whether the generator was used."""
    unit, message, trace, used = task.first + index, "", "", False
    for attempt in range(task.retries + 1):
        theta = theta_of_unit(task.columns, index)
        rng = stream(task.seed, unit, repeat + 1, attempt)
        untouched = rng.bit_generator.state
        try:
            with time_limited(task.time_limit):
                output = task.simulator(theta, rng)
            used |= _was_used(rng, untouched)
            return _checked(output, kind), used
        except OverTimeError:
            message = f"it took longer than time_limit={task.time_limit:g} seconds"
        except _UnusableDrawError as error:
            message, trace = str(error), ""
        except (Exception, SystemExit) as error:
            message = f"it raised {type(error).__name__}: {error}".removesuffix(": ")
            trace = traceback.format_exc()
    return (Failure(unit, repeat, message[:_MESSAGE_LENGTH]), trace), used


def _was_used(rng: np.random.Generator, untouched: Any) -> bool:
    sequence: Any = rng.bit_generator.seed_seq
    return rng.bit_generator.state != untouched or sequence.n_children_spawned > 0


def _checked(output: Any, kind: Kind | None) -> np.ndarray:
    if isinstance(output, np.ma.MaskedArray) and np.ma.is_masked(output):
        raise _UnusableDrawError("it returned an array with masked numbers")
    try:
        x = np.array(output)  # a copy: libraries use their buffers again
    except Exception as error:
        raise _UnusableDrawError(
            f"it returned a {type(output).__name__} that is no array: {error}"
        ) from None
    if x.dtype.kind not in "biufc" or not x.size:
        what = f"an array of {x.dtype}" if x.ndim and x.size else f"a {type(output).__name__}"
        what = what if x.size else f"an empty array of shape {x.shape}"
        raise _UnusableDrawError(f"it returned {what}, where an array or a number is expected")
    if x.ndim == 0 and x.dtype.kind in "biu":
        x = x.astype(np.float64)  # max(0, value) is an integer every now and then
    if not np.isfinite(x).all():
        raise _UnusableDrawError("it returned NaN or infinity")
    if kind is not None:
        if x.shape != kind.shape:
            raise _UnusableDrawError(
                f"it returned shape {x.shape}, where the first draw had {kind.shape}"
            )
        if not np.can_cast(x.dtype, kind.dtype, "safe"):
            raise _UnusableDrawError(
                f"it returned {x.dtype}, where the first draw had {kind.dtype}: return the same "
                "dtype every time"
            )
    return x


def _stop_error(task: Task, index: int, failure: Failure, trace: str) -> SimulatorError:
    attempts = f"{task.retries + 1} times" if task.retries else "once"
    theta = describe_theta(theta_of_unit(task.columns, index))
    error = SimulatorError(
        f"simulator(theta, rng) failed for unit {failure.unit}, repeat {failure.repeat}, tried "
        f"{attempts}: {failure.message}; theta was {theta}. Mend the simulator, narrow the prior, "
        'or leave such measurements out with failures="record"'
    )
    if trace:
        error.add_note(f"\nIn the simulator:\n{trace}")
    return error
