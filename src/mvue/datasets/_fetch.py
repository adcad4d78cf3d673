"""Where the file of a data set comes from: a folder of the user's, the cache, or a download.

A file is used only if its checksum is right. A download becomes visible under its name when it is
complete and checked, never before.
"""

import dataclasses
import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from types import ModuleType

from .._serialise.files import replacing

DATA_DIR = "MVUE_DATA_DIR"
"""The environment variable that names a folder with data sets."""

TIMEOUT = 5.0, 30.0  # seconds to reach a host, and without any answer of it


class DatasetError(RuntimeError):
    """A data set cannot be had, or is not what it should be; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class SourceFile:
    """The file of a data set."""

    name: str
    """Of the data set, and of the folder that the file is in."""
    file: str
    sha256: str
    url: str
    """Of the file, or of a zip archive with the file somewhere in it."""

    @property
    def place(self) -> Path:
        """Where the file is in the user's folder or in the cache."""
        return Path(self.name) / self.file


def fetch(source: SourceFile) -> Path:
    """The path of the file, which is downloaded if it is nowhere on this machine.

    Args:
        source: which file.

    Raises:
        DatasetError: if the file in the user's folder is not the right one, or if the download
            fails.
    """
    folder = os.environ.get(DATA_DIR)
    if folder:
        own = Path(folder).expanduser() / source.place
        if own.is_file():
            found = sha256_of(own)
            if found != source.sha256:
                raise DatasetError(
                    f"{own} is not the file of the data set {source.name!r}: its sha256 should be "
                    f"{source.sha256} but is {found}. Remove it, or replace it by {source.file} "
                    f"from {source.url}"
                )
            return own
    cached = _cache_folder() / source.place
    if cached.is_file() and sha256_of(cached) == source.sha256:
        return cached
    try:
        cached.unlink(missing_ok=True)
        _fetch_into(cached, source)
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DatasetError(
            f"{source.file} of the data set {source.name!r} is not on this machine, and could not "
            f"be fetched from {source.url} ({reason(error)}): try again when this address can be "
            f"reached, or put the file at {source.place.as_posix()} in a folder of yours and set "
            f"{DATA_DIR} to that folder"
            + (f" (it names {folder}, where the file is not)" if folder else "")
        ) from error
    return cached


def reason(error: BaseException) -> str:
    """Why a download failed, in a few words: those of the network's libraries are many."""
    from requests import exceptions

    if isinstance(error, exceptions.HTTPError) and error.response is not None:
        return f"the answer was {error.response.status_code} {error.response.reason}"
    if isinstance(error, exceptions.Timeout):
        return "no answer in time"
    if isinstance(error, exceptions.SSLError):
        return "its certificate cannot be verified"
    if isinstance(error, exceptions.ConnectionError):
        return "no connection"
    return str(error) or type(error).__name__


def sha256_of(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch_into(target: Path, source: SourceFile) -> None:
    """Download, unpack, check, and only then give the file its name."""
    download = _downloader()
    with replacing(target) as file:
        download(source.url, file)
        is_missing = False
        if zipfile.is_zipfile(file):
            content = _unpack(file, source.file)
            is_missing = content is None
            file.write_bytes(content or b"")
        found = f"missing: the archive has no {source.file}" if is_missing else sha256_of(file)
        if found != source.sha256:
            raise DatasetError(
                f"what came from {source.url} is not the data set {source.name!r}: the sha256 of "
                f"{source.file} should be {source.sha256} but is {found}. Nothing was kept. Try "
                "again; if this stays, the source has changed: put the original file at "
                f"{source.place.as_posix()} in a folder that {DATA_DIR} names"
            )


def _unpack(archive: Path | io.BytesIO, name: str) -> bytes | None:
    """The file of this name in a zip archive, or in one inside it; None if it is not there."""
    with zipfile.ZipFile(archive) as members:
        for member in members.namelist():
            if PurePosixPath(member).name == name:
                return members.read(member)
        inner = (m for m in members.namelist() if m.lower().endswith(".zip"))
        contents = (_unpack(io.BytesIO(members.read(member)), name) for member in inner)
        return next((content for content in contents if content is not None), None)


def _cache_folder() -> Path:
    return Path(_pooch().os_cache("mvue"))


def _downloader() -> Callable[[str, Path], None]:
    http = _pooch().HTTPDownloader(timeout=TIMEOUT, chunk_size=2**16)
    return lambda url, path: http(url, str(path), None)


def _pooch() -> ModuleType:
    try:
        import pooch
    except ImportError as error:
        raise ImportError(
            f"to download data sets needs pooch: pip install 'mvue[data]', or set {DATA_DIR} to a "
            "folder that has them"
        ) from error
    return pooch
