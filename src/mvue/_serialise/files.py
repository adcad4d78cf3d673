"""Files and folders that are written whole or not at all.

What is written has a name of its own beside the target until it is complete and on disk. So two
writers of one target never mix, and a failure leaves what was there before.
"""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Where to make a file or folder that takes the place of `path` when the block ends well.

    Folders on the way are made. A link is followed: what it leads to is replaced.
    """
    target = Path(path).resolve()
    if target.exists() and not (target.is_file() or target.is_dir()):
        raise FileExistsError(errno.EEXIST, "is neither a file nor a folder", str(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(f".mvue-{secrets.token_hex(8)}.part")
    try:
        yield new
        sync(new)
        new.replace(target)
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(new)):
            error.filename = str(path)
        raise
    finally:
        _remove(new)


@contextmanager
def opened(path: str | Path, mode: Literal["b", "t"] = "b") -> Iterator[IO[Any]]:
    """A stream of bytes, or of text in UTF-8, into a file that is written whole or not at all."""
    encoding, newline = ("utf-8", "") if mode == "t" else (None, None)
    with replacing(path) as new, new.open(f"x{mode}", -1, encoding, None, newline) as stream:
        yield stream


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    with opened(path) as stream:
        stream.write(data)


def write_text(path: str | Path, text: str) -> None:
    """Write a file in UTF-8 whole or not at all."""
    with opened(path, "t") as stream:
        stream.write(text)


def sync(path: Path) -> None:
    """Wait until it is on disk: a power cut must not leave a file of zeros under a good name."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):  # there may be none, and an error on the way matters more
            path.unlink()
