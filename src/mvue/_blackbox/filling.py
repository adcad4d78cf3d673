"""The scheduler of black-box simulations: which units are missing, and the tasks that fill them."""

import dataclasses
import time
from collections.abc import Iterator

import numpy as np

from .._core.theta import Columns, theta_tree
from .._data.shards import Failure, Part, Shard, ShardLayout, Shards
from .._data.simulated import look_at, shard_sizes
from .noise import NoiseWatch, check_doubtful, noiseless_error, shows_noise
from .unknowns import Unknowns, other_unknowns, unknowns_digest
from .worker import Result, Task

TASK_SECONDS = 0.5
"""What a task should take: long beside the cost of sending it, short enough to lose."""
TASK_BYTES = 2**24
FLUSH_SECONDS = 10.0
"""Work that is older than this survives whatever ends the process."""


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
        self.noise = NoiseWatch(layout.kind.shape)
        self._there, self.damaged = look_at(shards, layout, units)
        self.done = sum(self._there)
        """Number of units that are there."""
        self.folder = shards.path
        self._is_new = not self.done and not any(True for _ in shards.read_parts(0))

    @property
    def kept(self) -> int:
        """Number of units that are in the folder."""
        return sum(self._there) + sum(
            int(shard.saved[self._there[index] :].sum()) for index, shard in self._open.items()
        )

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
                    self._trust()
                else:
                    check_doubtful(self._doubtful)
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()
        if result.error is not None:
            raise result.error

    def finish(self) -> None:
        """Keep what there is when all is simulated.

        Raises:
            SimulatorError: the simulator has never used its rng.
        """
        doubtful = self._doubtful or []
        is_repeated = any((result.present.sum(axis=1) > 1).any() for result in doubtful)
        if self._is_new and is_repeated and not any(result.used_rng for result in doubtful):
            raise noiseless_error()
        self._trust()

    def _trust(self) -> None:
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
                digest = unknowns_digest(shard.columns, shard.y, units)
                part = Part(units, shard.x[units], shard.present[units], failures, digest)
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
            self._check_unknowns(index, part)
            part = _first_units(part, first, size)  # more may have been asked for than now
            self.done += int((~shard.done[part.units]).sum())
            shard.put(part, saved=True)
        return shard

    def _check_unknowns(self, index: int, part: Part) -> None:
        """Refuse measurements of another theta than that of their unit."""
        first, count = index * self._layout.shard_units, int(part.units[-1]) + 1
        columns, y = self._unknowns.take(first, count)
        if part.unknowns not in (None, unknowns_digest(columns, y, part.units)):
            raise other_unknowns(self.folder, f"units {first} to {first + count - 1}")

    def _close_if_complete(self, index: int) -> None:
        shard = self._open.get(index)
        if shard is None or not shard.done.all():
            return
        whole = Shard(shard.y, shard.x, shard.present, theta_tree(shard.columns))
        failures = sorted(set(shard.failures))
        self._shards.write(index, self._layout, whole, shard.columns, failures)
        self._there[index] = self._sizes[index]
        del self._open[index]  # only now: if it cannot be written, parts of it may be

    def _keep(self, result: Result) -> None:
        index, start = divmod(result.first, self._layout.shard_units)
        units = np.arange(start, start + result.n_units)
        x = self._layout.empty(result.n_units)[0] if result.x is None else result.x
        part = Part(units, x, result.present, result.failures)
        self.noise.see(x, result.present)
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


def _first_units(part: Part, first: int, size: int) -> Part:
    """What a part tells about the first units of a shard."""
    within = part.units < size
    failures = [failure for failure in part.failures if failure.unit < first + size]
    return Part(part.units[within], part.x[within], part.present[within], failures)
