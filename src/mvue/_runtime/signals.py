"""Signals to stop, heard by a run at its next convenient moment."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_signals() -> Iterator[Callable[[], int]]:
    """Turn the first Ctrl-C or SIGTERM into a number to be asked for; a second one acts at once.

    Yields:
        A function that says which signal has come, 0 for none.
    """
    received = 0
    previous: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def handler(number: int, _: Any) -> None:
        nonlocal received
        if received:
            restore()
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            signal.raise_signal(number)
        received = number

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, handler)
    try:
        yield lambda: received
    finally:
        restore()
