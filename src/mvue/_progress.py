"""One progress bar for everything that takes long."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
