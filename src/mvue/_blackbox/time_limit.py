"""A time limit for one call of a simulator, as far as Python can enforce it."""

import faulthandler
import multiprocessing
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

HARD_FACTOR = 2.0
HARD_EXTRA = 1.0
"""A worker process that has not come back after so many time limits, and seconds, is ended."""


class OverTimeError(BaseException):
    """A call took too long.

    Not an `Exception`, so that a simulator that catches those cannot go on.
    """


@contextmanager
def time_limited(seconds: float | None) -> Iterator[None]:
    """Interrupt what takes longer.

    Only the main thread of a process can be interrupted, and only where the interpreter gets its
    turn. A worker process that stays inside a library is ended; a thread is left alone.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    is_worker = multiprocessing.parent_process() is not None
    try:
        if is_worker:
            faulthandler.dump_traceback_later(HARD_FACTOR * seconds + HARD_EXTRA, exit=True, file=2)
        with _alarm(seconds):
            yield
    finally:
        if is_worker:
            faulthandler.cancel_dump_traceback_later()


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    if not hasattr(signal, "setitimer"):
        yield
        return
    active = True

    def ring(*_: Any) -> None:
        if active:
            raise OverTimeError

    before, began = signal.signal(signal.SIGALRM, ring), time.monotonic()
    # It rings again and again, in case the first time falls where exceptions are lost.
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        try:
            yield
        finally:
            active = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        if left:
            left = max(left - (time.monotonic() - began), 1e-3)
            signal.setitimer(signal.ITIMER_REAL, left, interval)
