"""The machine that a run is on: free memory, signals to stop, and the progress bar."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def bytes_needed(executable: Any) -> int:
    """What a compiled program takes besides its arguments, on each device; 0 if not known."""
    found = executable.memory_analysis()
    return 0 if found is None else int(found.temp_size_in_bytes + found.output_size_in_bytes)


def bytes_free() -> int | None:
    """Memory that a device may still use; None if that is not known."""
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        limit = stats.get("bytes_limit")
        return None if limit is None else int(limit - stats.get("bytes_in_use", 0))
    free = [value for value in (_machine_free(), _group_free()) if value is not None]
    # All devices of a processor share its memory.
    return min(free) // len(jax.local_devices()) if free else None


def require_memory(needed: int, arguments: dict[str, int]) -> None:
    """Refuse a program that does not fit, and say what would.

    Args:
        needed: bytes.
        arguments: the sizes that the user chose, which the need grows with.
    """
    free = bytes_free()
    if free is None or needed <= free:
        return
    share = 0.8 * free / needed  # not everything shrinks with the batch
    smaller = " and ".join(
        f"{name}={max(1, int(share * value)):,}" for name, value in arguments.items()
    )
    given = " and ".join(f"{name}={value:,}" for name, value in arguments.items())
    raise MemoryError(
        f"a step with {given} needs about {needed / 2**30:.3g} GiB, and {free / 2**30:.3g} GiB are "
        f"free: {smaller} would fit"
    )


def _machine_free() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return 1024 * int(value.split()[0])
    return None


def _group_free() -> int | None:
    """Within the limit of a container, if there is one."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        used = int((group / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(0, int(limit) - used)


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


Advance = Callable[[int, str], None]
"""``advance(completed, message)``."""


@contextmanager
def progress_bar(label: str, total: int, *, show: bool | None, start: int = 0) -> Iterator[Advance]:
    """A bar with count, message and time left, on standard error.

    Args:
        label: what is going on.
        total: how many steps there are.
        show: whether to show it; None shows it on a terminal only.
        start: how many steps were done before.
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda *_: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[message]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total, completed=start, message="")
        yield lambda completed, message: bar.update(task, completed=completed, message=message)
