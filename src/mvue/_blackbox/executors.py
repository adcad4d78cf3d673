"""Where simulations run: in this process, in an executor's workers, or through joblib."""

import concurrent.futures
import itertools
import os
import pickle
import queue
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from ..exceptions import SimulatorError
from .time_limit import HARD_EXTRA, HARD_FACTOR
from .worker import Result, Task, run_task

PER_WORKER = 2
"""Tasks in flight for each worker: one that runs and one that waits."""
UNKNOWN_WORKERS = 32
"""For executors that do not say how many workers they have."""
BATCH = 8
"""Tasks for each worker of joblib before results are saved."""
STARTUP_SECONDS = 60.0
"""What workers may take to start, beyond the time limit of what they do."""


class InOrder:
    """Tasks one after another in this process."""

    workers = 1

    def results(self, tasks: Iterator[Task]) -> Iterator[Result]:
        """Results as they come."""
        return map(run_task, tasks)

    def abandon(self) -> list[Result]:
        """Give up; returns the results that are there."""
        return []


class Futures:
    """Tasks in the workers of an executor, a limited number at a time.

    Args:
        executor: anything with ``submit`` that returns futures.
    """

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self.workers = _count_workers(executor)
        self._running: dict[Any, Task] = {}
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def results(self, tasks: Iterator[Task]) -> Iterator[Result]:
        """Results as they come, in any order."""
        startup = STARTUP_SECONDS
        while True:
            free = PER_WORKER * self.workers - len(self._running)
            for task in itertools.islice(tasks, free):
                self._submit(task)
            if not self._running:
                return
            limits = [_longest(task) for task in self._running.values()]
            try:
                patience = None if None in limits else max(filter(None, limits)) + startup
                future = self._done.get(timeout=patience)
            except queue.Empty:
                raise self._stall_error() from None
            task = self._running.pop(future)
            try:
                result = future.result()
            except Exception as error:
                raise self._explain(error, task) from error
            startup = 0.0
            yield result

    def abandon(self) -> list[Result]:
        """Cancel what has not begun; returns the results that are there."""
        for future in self._running:
            future.cancel()
        there = []
        while not self._done.empty():
            future = self._done.get()
            if not future.cancelled() and future.exception() is None:
                there.append(future.result())
        self._running.clear()
        return there

    def _submit(self, task: Task) -> None:
        try:
            future = self._executor.submit(run_task, task)
        except Exception as error:
            raise self._explain(error, task) from error
        self._running[future] = task
        future.add_done_callback(self._done.put)

    def _stall_error(self) -> SimulatorError:
        task = next(iter(self._running.values()))
        return SimulatorError(
            f"no result came within the time_limit of {task.time_limit:g} seconds for each "
            f"measurement; still running: {_describe(self._running.values())}. Threads, and "
            "libraries that do not return to Python, cannot be interrupted: a "
            "ProcessPoolExecutor can end its workers"
        )

    def _explain(self, error: Exception, task: Task) -> SimulatorError:
        check_picklable(task.simulator, error)
        if isinstance(error, concurrent.futures.BrokenExecutor):
            limit = f", or more than time_limit={task.time_limit:g}" if task.time_limit else ""
            units = _describe([task, *self._running.values()])
            return SimulatorError(
                f"a worker of executor ended abruptly with {units} in hand: {error} The cause may "
                f"be a crash in a library, too little memory{limit}, or a simulator that workers "
                "cannot import: define it in a module, and put what a script does under "
                "if __name__ == '__main__'"
            )
        return SimulatorError(
            f"executor could not run the simulator for {_describe([task])}: "
            f"{type(error).__name__}: {error}"
        )


class Batches:
    """Tasks through ``joblib.Parallel``, or anything that is called with delayed functions.

    Args:
        parallel: ``parallel(iterable of (function, args, kwargs)) -> iterable of results``.
    """

    def __init__(self, parallel: Callable[[Any], Any]) -> None:
        self._parallel = parallel
        jobs = getattr(parallel, "n_jobs", None)
        jobs = jobs if isinstance(jobs, int) and jobs else 1
        self.workers = jobs if jobs > 0 else max(1, (os.cpu_count() or 1) + 1 + jobs)

    def results(self, tasks: Iterator[Task]) -> Iterator[Result]:
        """Results as they come."""
        while batch := list(itertools.islice(tasks, BATCH * self.workers)):
            yield from self._parallel((run_task, (task,), {}) for task in batch)

    def abandon(self) -> list[Result]:
        """Give up."""
        return []


Runner: TypeAlias = InOrder | Futures | Batches


def runner_for(executor: Any, simulator: Callable[..., Any]) -> Runner:
    """How to run tasks with what the user calls an executor."""
    if executor is None:
        return InOrder()
    if not isinstance(executor, type):
        if callable(getattr(executor, "get_executor", None)):
            executor = executor.get_executor()  # a Dask client
        if isinstance(executor, concurrent.futures.ProcessPoolExecutor):
            check_picklable(simulator)
        if callable(getattr(executor, "submit", None)):
            return Futures(executor)
        if callable(executor):
            return Batches(executor)
    raise TypeError(
        "executor must be None, an object with submit(function, *args) that returns futures, such "
        "as concurrent.futures.ProcessPoolExecutor(), or a joblib.Parallel(); got "
        + (f"the class {executor.__name__}" if isinstance(executor, type) else repr(executor))
    )


def check_picklable(simulator: Callable[..., Any], cause: Exception | None = None) -> None:
    """Refuse a simulator that cannot be sent to another process, if that is what went wrong."""
    if cause is not None and not (
        isinstance(cause, pickle.PicklingError) or "pickle" in str(cause).lower()
    ):
        return
    try:
        pickle.dumps(simulator)
    except Exception as error:
        raise SimulatorError(
            f"simulator cannot be sent to another process ({error}): define it with def at the top "
            "level of a module; one that is nested in a function, a lambda, or an object that "
            "holds a connection cannot be pickled"
        ) from error


def _count_workers(executor: Any) -> int:
    for name in ("_max_workers", "num_workers", "max_workers"):
        count = getattr(executor, name, None)
        if isinstance(count, int) and count > 0:
            return count
    client: Any = getattr(executor, "_client", None)
    if client is not None and hasattr(client, "nthreads"):  # Dask, whose clusters may grow
        return max(sum(client.nthreads().values()), UNKNOWN_WORKERS)
    return UNKNOWN_WORKERS


def _longest(task: Task) -> float | None:
    """The seconds after which every attempt of a task has run out of time, or its worker ended."""
    if task.time_limit is None:
        return None
    attempts = task.n_units * task.repeats * (task.retries + 1)
    return task.time_limit * (attempts + HARD_FACTOR) + HARD_EXTRA


def _describe(tasks: Any) -> str:
    ranges = sorted((task.first, task.first + task.n_units - 1) for task in tasks)
    parts = [f"{a}" if a == b else f"{a} to {b}" for a, b in ranges[:8]]
    return "units " + ", ".join(parts) + (" …" if len(ranges) > 8 else "")
