"""The scheduler of black-box simulations: which units are missing, and the tasks that fill them."""

import dataclasses
import time
from collections.abc import Iterator

import numpy as np

from .._core.theta import Columns, theta_tree
from .._data.shards import Failure, Part, Shard, ShardLayout, Shards
from .._data.simulated import look_at, shard_sizes
from ..exceptions import SimulatorError
from .unknowns import Unknowns
from .worker import Result, Task

TASK_SECONDS = 0.5
"""What a task should take: long beside the cost of sending it, short enough to lose."""
TASK_BYTES = 2**24
FLUSH_SECONDS = 10.0
"""Work that is older than this survives whatever ends the process."""
FAILING_UNITS = 20
"""So many units without one measurement are a simulator that does not work."""
NOISELESS_UNITS = 64
"""So many units whose measurements are all equal are a simulator that ignores its rng."""


class _OpenShard:
    """A shard that is not complete."""

    def __init__(self, layout: ShardLayout, columns: Columns, y: np.ndarray) -> None:
        self.columns, self.y = columns, y
        self.x, self.present = layout.empty(len(y))
        self.failures: list[Failure] = []
        self.done, self.saved = np.zeros(len(y), bool), np.zeros(len(y), bool)

    def put(self, part: Part, *, saved: bool) -> None:
        """Add units."""
        self.x[part.units], self.present[part.units] = part.x, part.present
        self.failures += part.failures
        self.saved[part.units] = saved
        self.done[part.units] = True

    def gaps(self) -> list[tuple[int, int]]:
        """Ranges of units that are to be simulated."""
        edges = np.flatnonzero(np.diff(np.concatenate([[True], self.done, [True]])))
        return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


class Filling:
    """All shards of a data set, as far as they are there.

    Args:
        shards: where they are kept.
        layout: what they look like.
        units: how many units there shall be.
        unknowns: theta and y of the units.
        template: a task of which units and kind are still to be filled in.
    """

    def __init__(
        self,
        shards: Shards,
        layout: ShardLayout,
        units: int,
        unknowns: Unknowns,
        template: Task,
    ) -> None:
        self._shards, self._layout, self._unknowns = shards, layout, unknowns
        self._template = dataclasses.replace(template, kind=layout.kind)
        self._sizes = shard_sizes(layout, units)
        self._open: dict[int, _OpenShard] = {}
        self._chunk, self._flushed = 1, time.monotonic()
        self._doubtful: list[Result] | None = []
        self._there, self.damaged = look_at(shards, layout, units)
        self.done = sum(self._there)
        """Number of units that are there."""
        self.folder = shards.path

    def tasks(self, skip: int = 0) -> Iterator[Task]:
        """What is to be simulated, in order; tasks grow with the speed of the simulator.

        Args:
            skip: so many of the first units have been simulated already.
        """
        for index, size in enumerate(self._sizes):
            if self._there[index] == size:
                continue
            first = index * self._layout.shard_units
            shard = self._opened(index)
            for start, stop in shard.gaps():
                start = max(start, skip - first)
                while start < stop:
                    count = min(self._chunk, stop - start)
                    yield self._task(first, slice(start, start + count), shard.columns)
                    start += count
            self._close_if_complete(index)  # all of it was in parts

    def _task(self, first: int, units: slice, columns: Columns) -> Task:
        taken = {path: column[units] for path, column in columns.items()}
        first += units.start
        return dataclasses.replace(self._template, columns=taken, first=first)

    def put(self, result: Result) -> None:
        """Add what a task has returned.

        Nothing is kept before the simulator has shown that it works, so that it may be mended
        without traces in the data.

        Raises:
            SimulatorError: the task was stopped, or the simulator does not work.
        """
        if result.n_units:
            self._adapt(result.seconds / result.n_units)
            if self._doubtful is None:
                self._keep(result)
            else:
                self._doubtful.append(result)
                if shows_noise(result):
                    self.trust()
                else:
                    check_doubtful(self._doubtful)
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()
        if result.error is not None:
            raise result.error

    def trust(self) -> None:
        """Keep what there is and what will come."""
        doubtful, self._doubtful = self._doubtful or [], None
        for result in doubtful:
            self._keep(result)

    def flush(self) -> None:
        """Save what has not filled a shard."""
        for index, shard in self._open.items():
            units = np.flatnonzero(shard.done & ~shard.saved)
            if units.size:
                first = index * self._layout.shard_units
                new = set((units + first).tolist())
                failures = [f for f in shard.failures if f.unit in new]
                part = Part(units, shard.x[units], shard.present[units], failures)
                self._shards.write_part(index, part)
                shard.saved[units] = True
        self._flushed = time.monotonic()

    def _opened(self, index: int) -> _OpenShard:
        if index in self._open:
            return self._open[index]
        first, size = index * self._layout.shard_units, self._sizes[index]
        columns, y = self._unknowns.take(first, size)
        shard = self._open[index] = _OpenShard(self._layout, columns, y)
        if there := self._there[index]:  # it was the last one before there were more units
            kept = self._shards.read(index, self._layout)
            failures = self._shards.failures(index)
            units = np.arange(there)
            shard.put(Part(units, kept.x[:there], kept.present[:there], failures), saved=True)
        for part in self._shards.read_parts(index):
            if part.units[-1] < size:  # more units may have been asked for than now
                self.done += int((~shard.done[part.units]).sum())
                shard.put(part, saved=True)
        return shard

    def _close_if_complete(self, index: int) -> None:
        shard = self._open.get(index)
        if shard is None or not shard.done.all():
            return
        del self._open[index]
        whole = Shard(shard.y, shard.x, shard.present, theta_tree(shard.columns))
        failures = sorted(set(shard.failures))
        self._shards.write(index, self._layout, whole, shard.columns, failures)
        self._there[index] = self._sizes[index]

    def _keep(self, result: Result) -> None:
        index, start = divmod(result.first, self._layout.shard_units)
        units = np.arange(start, start + result.n_units)
        x = self._layout.empty(result.n_units)[0] if result.x is None else result.x
        part = Part(units, x, result.present, result.failures)
        self._opened(index).put(part, saved=False)
        self.done += result.n_units
        self._close_if_complete(index)

    def _adapt(self, seconds: float) -> None:
        """Choose how many units the next tasks have."""
        if self._template.time_limit is not None:
            return  # one: what hangs shall hold up as little as possible
        fast = int(TASK_SECONDS / max(seconds, 1e-9))
        size = self._layout.repeats * int(np.prod(self._layout.kind.shape))
        small = TASK_BYTES // (size * self._layout.kind.dtype.itemsize)
        self._chunk = max(1, min(fast, small, 4 * self._chunk))


def shows_noise(result: Result) -> bool:
    """Whether some unit has two measurements that differ; one will do where there is no other."""
    if result.x is None or result.present.shape[1] == 1:
        return bool(result.present.any())
    return any(
        len(x := unit[present]) > 1 and bool((x[1:] != x[0]).any())
        for unit, present in zip(result.x, result.present, strict=True)
    )


def check_doubtful(results: list[Result]) -> None:
    """Refuse a simulator that has shown for many units that it does not work."""
    counts = np.concatenate([result.present.sum(axis=1) for result in results])
    if (failing := int((counts == 0).sum())) >= FAILING_UNITS:
        raise failing_error(failing, results[-1])
    if int((counts > 1).sum()) >= NOISELESS_UNITS:
        raise SimulatorError(
            "simulator ignores its rng: repeated measurements of one theta are all equal, so there "
            "is no noise to average over; draw the noise from the rng that it is given"
        )


def failing_error(units: int, result: Result) -> SimulatorError:
    """Nothing succeeds."""
    return SimulatorError(
        f"simulator(theta, rng) failed for every measurement of {units} units; the last time "
        f"{result.failures[-1].message}"
    )
