"""Work on arrays in threads that share the cores with BLAS.

Each thread multiplies matrices by itself. Work between the products then uses all cores too, and a
busy machine does not stall at the barriers at which threads of BLAS wait for each other.
"""

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, ParamSpec, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

P = ParamSpec("P")
R = TypeVar("R")


def on_one_thread(function: Callable[P, R]) -> Callable[P, R]:
    """For matrices of some hundred rows: threads of BLAS would mostly wait for each other."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with _blas().limit(limits=1):
            return function(*args, **kwargs)

    return wrapped


def in_threads(work: Callable[[list[Any]], Any], items: list[Any]) -> list[Any]:
    """Results of work on consecutive shares of the items, one for each thread of BLAS."""
    workers = min(worker_count(), len(items))
    if workers < 2:
        return [work(items)]
    borders = np.linspace(0, len(items), workers + 1).astype(int)
    shares = [items[a:b] for a, b in pairwise(borders)]
    with _blas().limit(limits=1):
        return list(_pool(os.getpid(), workers).map(work, shares))


def worker_count() -> int:
    """As many threads as BLAS is allowed to use."""
    return max((library["num_threads"] for library in _blas().info()), default=1)


@functools.cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


@functools.cache
def _pool(process: int, workers: int) -> ThreadPoolExecutor:  # noqa: ARG001
    """Threads that wait for work; a forked process does not inherit those of its parent."""
    return ThreadPoolExecutor(workers, thread_name_prefix="mvue")
