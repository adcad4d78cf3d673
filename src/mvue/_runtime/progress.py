"""What a long call is doing, stage by stage: in a terminal, in a notebook or as lines of text."""

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, Protocol, runtime_checkable
from uuid import uuid4

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

BAR_WIDTH = 20
REDRAWN = 8  # times a second, on a terminal
NOTEBOOK_SECONDS = 0.25  # between two updates
LINE_SECONDS = 10.0  # between two lines of text


@dataclasses.dataclass
class Stage:
    """One part of a call; how much of it is done is known if there is a total."""

    name: str
    total: int | None
    done: int
    message: str = ""
    began: float = dataclasses.field(default_factory=lambda: time.monotonic())
    ended: float | None = None
    paced: tuple[float, int] | None = None
    """When something was first seen to be done, and how much: what comes before is compilation."""

    def advance(self, done: int, message: str) -> None:
        """Note how much is done."""
        if self.paced is None and done > self.done:
            self.paced = time.monotonic(), done
        self.done, self.message = done, message

    @property
    def counted(self) -> str:
        """How much is done of how much."""
        return "" if self.total is None else f"{self.done:,}/{self.total:,}"

    @property
    def timed(self) -> str:
        """The time that is left, where that can be told, or has passed."""
        now = self.ended or time.monotonic()
        if self.ended is None and self.total is not None and self.paced is not None:
            since, before = self.paced
            if self.done > before:
                left = (self.total - self.done) * (now - since) / (self.done - before)
                return f"{_clock(left)} left"
        return _clock(now - self.began)

    def __str__(self) -> str:
        parts = (self.name, self.counted, self.message, self.timed)
        return "  ".join(part for part in parts if part)


@runtime_checkable
class View(Protocol):
    """Where stages are shown."""

    def begin(self, stage: Stage) -> None:
        """Show a new one."""
        ...

    def update(self, stage: Stage) -> None:
        """Show it anew, unless that was done a moment ago."""
        ...

    def end(self, stage: Stage) -> None:
        """Leave it behind if it was counted, or else take it away."""
        ...


Advance = Callable[..., None]
"""``advance(done, message="")``."""


class Progress:
    """What a call says about itself, stage by stage, to a view or to nobody."""

    def __init__(self, view: View | None = None) -> None:
        self.view = view

    @contextmanager
    def stage(self, name: str, total: int | None = None, done: int = 0) -> Iterator[Advance]:
        """One stage.

        Args:
            name: what is going on.
            total: how much there is to do, if that is known.
            done: how much of it was done before.

        Yields:
            A function to be told how much is done, and a message to show beside it.
        """
        view = self.view
        if view is None:
            yield lambda *_: None
            return
        stage = Stage(name, total, done)

        def advance(done: int, message: str = "") -> None:
            stage.advance(done, message)
            view.update(stage)

        view.begin(stage)
        try:
            yield advance
        finally:
            stage.ended = time.monotonic()
            view.end(stage)


SILENT = Progress()


def progress_for(show: bool | None) -> Progress:
    """Progress of one call.

    Args:
        show: None shows it in a terminal and in a notebook; True also elsewhere, as lines of text
            on standard error.
    """
    if show is False:
        return SILENT
    shell = _notebook()
    if shell is not None:
        return Progress(_NotebookView(shell))
    if sys.stderr.isatty():
        return Progress(_TerminalView())
    return Progress(_LinesView()) if show else SILENT


def _notebook() -> Any:
    """The shell of the notebook that this is run in, if it is."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return shell if hasattr(shell, "kernel") else None


class _TerminalView:
    """One live line."""

    def begin(self, stage: Stage) -> None:
        spinner = Spinner("dots")
        self.live = Live(
            get_renderable=lambda: _row(stage, spinner),
            console=Console(stderr=True),
            refresh_per_second=REDRAWN,
            transient=stage.total is None,
            redirect_stdout=sys.stdout.isatty(),  # not what is written to a file
        )
        self.live.start()

    def update(self, stage: Stage) -> None:
        pass

    def end(self, stage: Stage) -> None:
        del stage
        self.live.stop()


def _row(stage: Stage, spinner: Spinner) -> Table:
    table = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=stage.total, completed=stage.done, width=BAR_WIDTH)
    words = (stage.counted, stage.message, stage.timed)
    table.add_row(
        Text(stage.name),
        spinner if stage.total is None else bar,
        *(Text(word, no_wrap=True) for word in words if word),
    )
    return table


class _NotebookView:
    """One display that is replaced; nothing but a kernel is needed."""

    def __init__(self, shell: Any) -> None:
        self.shell, self.name = shell, uuid4().hex
        self.left: list[Stage] = []
        self.updated = 0.0

    def begin(self, stage: Stage) -> None:
        self._show([*self.left, stage])

    def update(self, stage: Stage) -> None:
        if time.monotonic() - self.updated > NOTEBOOK_SECONDS:
            self._show([*self.left, stage])

    def end(self, stage: Stage) -> None:
        if stage.total is not None:
            self.left.append(stage)
        self._show(self.left)

    def _show(self, stages: list[Stage]) -> None:
        text = "\n".join(map(str, stages))
        html = "".join(map(_html_line, stages))
        self.shell.display_pub.publish(
            data={"text/plain": text, "text/html": html},
            metadata={},
            transient={"display_id": self.name},
            update=self.updated > 0,
        )
        self.updated = time.monotonic()


def _html_line(stage: Stage) -> str:
    if stage.total is None:
        return f"<div>{escape(stage.name)} …</div>"
    bar = f'<progress value="{stage.done}" max="{stage.total}"></progress>'
    words = filter(None, (stage.counted, stage.message, stage.timed))
    return f"<div>{escape(stage.name)} {bar} {' &nbsp; '.join(map(escape, words))}</div>"


class _LinesView:
    """A line for each stage, and one now and then for how far it is."""

    def begin(self, stage: Stage) -> None:
        self._print(stage.name)

    def update(self, stage: Stage) -> None:
        if time.monotonic() - self.printed > LINE_SECONDS:
            self._print(str(stage))

    def end(self, stage: Stage) -> None:
        if stage.total is not None:
            self._print(str(stage))

    def _print(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        self.printed = time.monotonic()


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
