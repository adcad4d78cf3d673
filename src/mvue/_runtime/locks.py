"""Folders that one process at a time may change."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

NAME = ".lock"
_HELD: set[Path] = set()
_GUARD = threading.Lock()


class FolderInUseError(RuntimeError):
    """Another process, or another thread of this one, is changing a folder."""


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Keep all others that ask from changing a folder; refuse if somebody has asked before.

    The lock is one of the operating system, which a process loses when it ends, however it ends:
    the file may stay. It belongs to the process and not to the workers that it has forked.
    """
    folder = Path(folder).resolve()
    with _GUARD:
        if folder in _HELD:
            raise FolderInUseError(f"this process (id {os.getpid()}) is already working in it")
        _HELD.add(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / NAME).open("a+", encoding="utf-8") as file:
            _take(file)
            yield
    finally:
        _HELD.discard(folder)


def _take(file: IO[Any]) -> None:
    try:
        if fcntl is not None:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            _take_on_windows(file)
    except OSError:
        file.seek(0)
        owner = file.readline().strip() or "another process"
        raise FolderInUseError(f"{owner} is working in it") from None
    file.seek(0)
    file.truncate()
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()


def _take_on_windows(file: IO[Any]) -> None:
    import msvcrt

    beyond_the_text: Any = msvcrt
    file.seek(2**20)
    beyond_the_text.locking(file.fileno(), beyond_the_text.LK_NBLCK, 1)
