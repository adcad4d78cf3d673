"""`simulate`: run any Python function as a simulator, in parallel, into a folder that resumes."""

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._core.checks import check_count
from .._core.sampling import FROZEN_SHARE, warn_of_noiseless
from .._core.theta import theta_columns
from .._data.shards import (
    FORMAT,
    Kind,
    MemoryShards,
    ShardFolder,
    ShardLayout,
    Shards,
    shard_units_for,
)
from .._data.simulated import SimulatedData, check_shard, layout_of, look_at, manifest_of
from .._runtime.locks import FolderInUseError, only_one
from .._runtime.progress import progress_for
from ..exceptions import FailedDrawsWarning, SimulatedDataError, SimulatorError
from .executors import Runner, runner_for
from .filling import Filling
from .noise import check_doubtful, failing_error
from .unknowns import Unknowns, other_unknowns
from .worker import Result, Task

MOST_COMPARED = 2**17
"""Units of a folder whose theta are all drawn again and compared."""
FEWEST_COMPARED = 64
"""Of each shard of a larger one."""
SHOWN = {"first_unknowns": "first parameters"}  # in messages; folders keep the name they have


def simulate(
    simulator: Callable[[Any, np.random.Generator], Any],
    prior: Any,
    *,
    units: int = 10_000,
    repeats: int = 8,
    seed: int = 0,
    executor: Any = None,
    target: Callable[[Any], Any] | None = None,
    names: Sequence[str] | None = None,
    folder: str | Path | None = None,
    retries: int = 2,
    failures: str = "raise",
    time_limit: float | None = None,
    progress: bool | None = None,
) -> SimulatedData:
    """Simulate units and repeated measurements of each with any Python function.

    Every draw has random numbers of its own, which depend on the seed, the unit, the repeat and
    the attempt alone: the data are the same bit by bit whatever the executor, and more units or
    repeats begin with the fewer. The same call goes on where an interrupted one has stopped; with
    more units it adds those that are missing.

    Args:
        simulator: ``simulator(theta, rng) -> x``, ONE measurement: a number or an array of always
            the same shape and dtype. All noise must come from `rng`, a
            ``numpy.random.Generator``.
        prior: as in `Problem`, or a function ``prior(rng) -> theta``, where theta is a number, an
            array or a dict of these. It is drawn in this process.
        units: number of units.
        repeats: measurements of each.
        seed: of all random numbers, at least 0.
        executor: where the simulator runs: None for this process; any executor with ``submit``,
            as those of ``concurrent.futures``, Dask, MPI or loky; or a ``joblib.Parallel``.
        target: ``target(theta) -> y``, what is estimated; by default theta itself, which must then
            be a number or a vector. It is called in this process.
        names: one name for each component of y.
        folder: where to keep the data; None for in memory. Choose another when you change the
            simulator, which is not compared.
        retries: how often a draw that fails is tried again, with other random numbers. It fails if
            the simulator raises, takes too long, or returns NaN, infinity or another shape.
        failures: ``"raise"`` stops at a draw that fails in all attempts, ``"record"`` leaves that
            measurement out and lists it in the `failures` of the data.
        time_limit: seconds for one call of the simulator. It holds in the main thread of a
            process, here or in a worker; threads cannot be interrupted.
        progress: as in `fit`.

    Raises:
        SimulatorError: a draw has failed, or the simulator cannot be used; what is complete has
            been saved.
        SimulatedDataError: the folder holds other data, or another process is filling it.
    """
    _check_settings(simulator, target, units, repeats, seed, retries, failures, time_limit)
    if folder is not None and not (isinstance(folder, (str, Path)) and str(folder)):
        raise TypeError(
            f"folder must be the name of a folder, or None to keep the data in memory, got "
            f"{folder!r}"
        )
    unknowns = Unknowns(prior, target, names, int(seed))
    shards: Shards = MemoryShards() if folder is None else ShardFolder(folder)
    template = Task(
        simulator,
        columns={},
        first=0,
        repeats=int(repeats),
        seed=int(seed),
        retries=int(retries),
        stop=failures == "raise",
        kind=None,
        time_limit=time_limit,
    )
    runner = runner_for(executor, simulator)
    with _alone_in(shards):
        data = _simulated(shards, unknowns, template, runner, int(units), progress)
    if data.failures:
        warnings.warn(
            f"{len(data.failures):,} of {units * repeats:,} measurements could not be simulated "
            f"and are absent; the first, of unit {data.failures[0].unit}: "
            f"{data.failures[0].message}. All of them are in data.failures",
            FailedDrawsWarning,
            stacklevel=2,
        )
    return data


@contextlib.contextmanager
def _alone_in(shards: Shards) -> Iterator[None]:
    """Nobody else fills the same folder."""
    if shards.path is None:
        yield
        return
    shards.manifest()  # refuses a folder of something else before anything is written into it
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(only_one(shards.path))
        except FolderInUseError as error:
            raise SimulatedDataError(
                f"folder {shards.path} is being filled: {error}. Wait until it has finished, or "
                "choose another folder"
            ) from None
        yield


def _simulated(
    shards: Shards,
    unknowns: Unknowns,
    template: Task,
    runner: Runner,
    units: int,
    progress: bool | None,
) -> SimulatedData:
    """The data of a folder, after what is missing there has been simulated."""
    repeats = template.repeats
    identity = {
        "format": FORMAT,
        "seed": template.seed,
        "repeats": repeats,
        "names": list(unknowns.names),
        "theta": [list(path) for path in unknowns.paths],
        "first_unknowns": unknowns.fingerprint(),
    }
    shards.recover()
    manifest = shards.manifest()
    if manifest is not None:
        _check_identity(identity, manifest, shards)
    first: list[Result] = []
    if manifest is None:
        kind, first = _first_results(runner, unknowns, template, units)
        layout = ShardLayout(
            repeats, unknowns.names, kind, unknowns.paths, shard_units_for(kind, repeats)
        )
    else:
        layout = layout_of(manifest)
        _check_unknowns(shards, layout, max(units, manifest["units"]), unknowns, manifest)
    _write_manifest(shards, layout, units, identity, manifest)
    filling = Filling(shards, layout, units, unknowns, template)
    if filling.damaged:
        which = ", ".join(map(str, filling.damaged))
        warnings.warn(
            f"shard {which} in {shards.path} is damaged and is simulated again", stacklevel=3
        )
    if filling.done < units:
        _fill(filling, first, runner, units, progress)
        shards.tidy()
        numbers = math.prod(layout.kind.shape)
        warn_of_noiseless(filling.noise.frozen(FROZEN_SHARE), numbers, 3)
    return SimulatedData(shards, layout, units)


def _fill(
    filling: Filling, first: list[Result], runner: Runner, units: int, progress: bool | None
) -> None:
    with progress_for(progress).stage("simulating", units, filling.done) as advance:
        try:
            for result in first:
                filling.put(result)
            for result in runner.results(filling.tasks(skip=len(first))):
                filling.put(result)
                advance(filling.done)
            filling.finish()
        except BaseException as error:
            for result in runner.abandon():
                with contextlib.suppress(SimulatorError, OSError):
                    filling.put(result)
            with contextlib.suppress(OSError):  # the disk may be full
                filling.flush()
            if filling.folder:
                error.add_note(
                    f"{filling.kept:,} of {units:,} units are in {filling.folder}: the same call "
                    "goes on from there."
                )
            raise


def _first_results(
    runner: Runner, unknowns: Unknowns, template: Task, units: int
) -> tuple[Kind, list[Result]]:
    """Simulate units one by one until a draw succeeds and shows what all others must look like."""
    results: list[Result] = []
    for unit in range(units):
        columns, _ = unknowns.take(unit, 1)
        task = dataclasses.replace(template, columns=columns, first=unit)
        try:
            result = next(runner.results(iter([task])))
        except BaseException:
            runner.abandon()
            raise
        if result.error is not None:
            raise result.error
        results.append(result)
        if result.x is not None:
            return Kind(result.x.shape[2:], result.x.dtype), results
        check_doubtful(results)
    raise failing_error(units, results[-1])


def _check_settings(
    simulator: Any,
    target: Any,
    units: Any,
    repeats: Any,
    seed: Any,
    retries: Any,
    failures: Any,
    time_limit: Any,
) -> None:
    if not callable(simulator):
        raise TypeError(f"simulator must be callable, got {type(simulator).__name__}")
    if target is not None and not callable(target):
        raise TypeError(f"target must be callable, got {type(target).__name__}")
    check_count("units", units)
    check_count("repeats", repeats)
    check_count("seed", seed, 0)
    check_count("retries", retries, 0)
    if failures not in ("raise", "record"):
        raise ValueError(f'failures must be "raise" or "record", got {failures!r}')
    if time_limit is not None:
        wanted = f"time_limit must be a number of seconds above 0, got {time_limit!r}"
        if isinstance(time_limit, bool) or not isinstance(time_limit, (int, float)):
            raise TypeError(wanted)
        if not 0 < time_limit < math.inf:
            raise ValueError(wanted)


def _write_manifest(
    shards: Shards,
    layout: ShardLayout,
    units: int,
    identity: dict[str, Any],
    before: dict[str, Any] | None,
) -> None:
    """Say how many units there will be: those asked for, or more if more are complete."""
    if before is not None and before["units"] > units:
        there, _ = look_at(shards, layout, before["units"])
        if sum(there) == before["units"]:
            return
    manifest = manifest_of(layout, units, identity)
    if manifest != before:
        shards.write_manifest(manifest)


def _check_unknowns(
    shards: Shards, layout: ShardLayout, units: int, unknowns: Unknowns, manifest: dict[str, Any]
) -> None:
    """Refuse a folder whose units have other theta than those of this call.

    Of very large folders some units of each shard are compared; all of those to which anything
    is added.
    """
    there, _ = look_at(shards, layout, units)
    share = min(1.0, MOST_COMPARED / max(sum(there), 1))
    for index, count in enumerate(there):
        if not count:
            continue
        assert isinstance(shards, ShardFolder)
        check_shard(shards, index, layout, manifest)
        size = min(count, max(FEWEST_COMPARED, math.ceil(share * count)))
        is_full = count == layout.shard_units  # nothing can be added to it
        chosen = slice(count - size if is_full else 0, count)
        # Theta and y are compared, which is a small part of what checksums are of.
        kept, first = shards.read(index, layout, check=False), index * layout.shard_units
        found = dict(theta_columns(kept.theta))
        columns, y = unknowns.take(first + chosen.start, chosen.stop - chosen.start)
        same = np.array_equal(y, kept.y[chosen]) and all(
            np.array_equal(column, found[path][chosen]) for path, column in columns.items()
        )
        if not same:
            shards.read(index, layout)  # tells if it is damaged
            which = f"units {first + chosen.start} to {first + chosen.stop - 1}"
            raise other_unknowns(shards.path, which)


def _check_identity(asked: dict[str, Any], found: dict[str, Any], shards: Shards) -> None:
    lines = "\n".join(
        f"  {SHOWN.get(name, name)}: {found.get(name)!r} there, {value!r} here"
        for name, value in asked.items()
        if value != found.get(name)
    )
    if lines:
        raise SimulatedDataError(
            f"the data in {shards.path} are not those asked for:\n{lines}\n"
            "Nothing was changed. Choose another folder, or delete this one to start afresh."
        )
