"""Simulated data in a folder: shards that are written whole or not at all.

``manifest.json`` says what the data are. Each shard is a folder with one NPY file for x, for y,
for the mask of present measurements and for every column of theta, and ``shard.json`` with their
sizes and checksums. Work that has not filled a shard yet waits in ``parts``.
"""

import dataclasses
import json
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from .._core.theta import Columns, theta_tree
from .._serialise.files import opened, replacing, sync, write_text
from ..exceptions import SimulatedDataError


class Failure(NamedTuple):
    """A measurement that could not be simulated."""

    unit: int
    repeat: int
    message: str
    """What went wrong at the last attempt."""


class Kind(NamedTuple):
    """What all measurements have in common."""

    shape: tuple[int, ...]
    dtype: np.dtype


def absent(shape: tuple[int, int], kind: Kind) -> np.ndarray:
    """Measurements that are not there: NaN where the dtype has it, else zero."""
    fill = np.nan if kind.dtype.kind in "fc" else 0
    return np.full(shape + kind.shape, fill, kind.dtype)


FORMAT = 1
SHARD_BYTES = 2**25
SHARD_UNITS = 4096


class Shard(NamedTuple):
    """Consecutive units of simulated data."""

    y: np.ndarray
    """The parameters, shape (units, d)."""
    x: np.ndarray
    """The measurements, shape (units, repeats, ...); NaN, or 0 for integers, where absent."""
    present: np.ndarray
    """Which measurements there are, shape (units, repeats)."""
    theta: Any
    """What the simulator was given: an array of shape (units, ...) or a dict of these."""


@dataclasses.dataclass(frozen=True)
class ShardLayout:
    """What every shard of a data set looks like."""

    repeats: int
    names: tuple[str, ...]
    kind: Kind
    theta: tuple[tuple[str, ...], ...]
    """The keys that lead to each column of theta."""
    shard_units: int

    def file_names(self) -> list[str]:
        """The files of a shard."""
        return ["x.npy", "y.npy", "present.npy", *self.theta_files()]

    def theta_files(self) -> list[str]:
        """The files of the columns of theta."""
        return [f"theta{i}.npy" for i in range(len(self.theta))]

    def empty(self, units: int) -> tuple[np.ndarray, np.ndarray]:
        """Measurements and mask of units that are still to be simulated."""
        shape = (units, self.repeats)
        return absent(shape, self.kind), np.zeros(shape, bool)


def shard_units_for(kind: Kind, repeats: int) -> int:
    """How many units go into one shard."""
    size = repeats * int(np.prod(kind.shape)) * kind.dtype.itemsize
    return max(1, min(SHARD_UNITS, SHARD_BYTES // size))


class Part(NamedTuple):
    """Some units of a shard that is not complete."""

    units: np.ndarray  # places in the shard
    x: np.ndarray
    present: np.ndarray
    failures: list[Failure]
    unknowns: str | None = None
    """A digest of theta and y of the units; None in folders of earlier versions."""


class ShardFolder:
    """The files of one data set.

    Args:
        path: the folder; made when something is written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()
        if self.path.exists() and not self.path.is_dir():
            raise SimulatedDataError(f"folder must be a folder, got the file {self.path}")
        self._sidecars: dict[int, dict[str, Any]] = {}
        self._sound: set[int] = set()
        """Shards whose checksums were compared."""

    def manifest(self) -> dict[str, Any] | None:
        """What the data are, or None in an empty folder."""
        file = self.path / "manifest.json"
        if not file.exists():
            others = [p.name for p in self.path.glob("*") if not p.name.startswith(".")]
            if others:
                raise SimulatedDataError(
                    f"folder must be empty or hold simulated data, but {self.path} holds "
                    f"{', '.join(sorted(others)[:3])}: choose another"
                )
            return None
        try:
            manifest = json.loads(file.read_text())
            found = manifest["format"]
            if found == FORMAT:
                _check_manifest(manifest)
        except Exception as error:
            raise SimulatedDataError(
                f"{file} cannot be read ({error}): delete the folder or choose another"
            ) from error
        if found != FORMAT:
            raise SimulatedDataError(
                f"the data in {self.path} have format {found}, this version of mvue reads {FORMAT}"
            )
        return manifest

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Say what the data are."""
        write_text(self.path / "manifest.json", json.dumps(manifest, indent=2) + "\n")

    def write(
        self,
        index: int,
        layout: ShardLayout,
        shard: Shard,
        columns: Columns,
        failures: list[Failure],
    ) -> None:
        """Write a complete shard, over one that is damaged or shorter."""
        arrays = dict(zip(layout.theta_files(), columns.values(), strict=True))
        arrays |= {"x.npy": shard.x, "y.npy": shard.y, "present.npy": shard.present}
        with self._replacing_shard(index) as folder:
            folder.mkdir()
            files = {}
            for name, array in arrays.items():
                np.save(folder / name, array, allow_pickle=False)
                sync(folder / name)
                files[name] = _file_record(folder / name) | {"crc32": _checksum(folder / name)}
            of = {"index": index, "of": identity_of(self.manifest() or {})}
            sidecar = {"units": len(shard.y), "files": files, "failures": failures} | of
            (folder / "shard.json").write_text(json.dumps(sidecar))
            sync(folder / "shard.json")
        self._sidecars.pop(index, None)
        self._sound.discard(index)
        for part in self._parts(index):
            if _last_unit(part) < len(shard.y):  # others hold units that are asked for later
                part.unlink(missing_ok=True)

    def read(self, index: int, layout: ShardLayout, *, check: bool = True) -> Shard:
        """A shard whose arrays are mapped from the files.

        Checksums are compared where it is read for the first time: what a disk has changed has the
        size and the time that it had before.
        """
        folder = self._shard(index)
        if check:
            self._compare_checksums(index, layout)
        try:
            load = {name: np.load(folder / name, mmap_mode="r") for name in layout.file_names()}
        except ValueError:
            self._compare_checksums(index, layout)
            raise
        columns = dict(
            zip(layout.theta, (load[name] for name in layout.theta_files()), strict=True)
        )
        return Shard(load["y.npy"], load["x.npy"], load["present.npy"], theta_tree(columns))

    def _compare_checksums(self, index: int, layout: ShardLayout) -> None:
        if index in self._sound:
            return
        self._sidecars.pop(index, None)  # the shard may have grown since it was looked at
        folder, files = self._shard(index), self.sidecar(index)["files"]
        for name in layout.file_names():
            # Without a checksum there is nothing to compare.
            expected = files.get(name, {}).get("crc32")
            if expected is not None and _checksum(folder / name) != expected:
                raise SimulatedDataError(
                    f"{folder / name} is damaged: its contents do not match its checksum. "
                    f"Delete the folder {folder}, and the same call of mvue.simulate makes it "
                    "again"
                )
        self._sound.add(index)

    def units_in(self, index: int, layout: ShardLayout) -> int | None:
        """How many units a shard holds; 0 where it is not there, None where it is damaged.

        Files of the right size that nobody touched since they were written are taken to be good
        until they are read; of others the checksum is compared.
        """
        folder = self._shard(index)
        if not folder.exists():
            return 0
        try:
            sidecar = self.sidecar(index)
            _failures(sidecar)
            for name in layout.file_names():
                expected, found = sidecar["files"][name], _file_record(folder / name)
                if found["size"] != expected["size"]:
                    return None
                if found["mtime_ns"] != expected["mtime_ns"] and (
                    _checksum(folder / name) != expected["crc32"]
                ):
                    return None
            return int(sidecar["units"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def failures(self, index: int) -> list[Failure]:
        """The measurements of a shard that could not be simulated."""
        return _failures(self.sidecar(index))

    def write_part(self, index: int, part: Part) -> None:
        """Keep some units of a shard until it is complete."""
        name = f"{index:05d}-{int(part.units[0]):06d}.npz"
        failures = np.asarray(json.dumps(part.failures))
        with opened(self.path / "parts" / name) as stream:
            np.savez(
                stream,
                units=part.units,
                x=part.x,
                present=part.present,
                failures=failures,
                unknowns=np.asarray(part.unknowns or ""),
            )

    def read_parts(self, index: int) -> Iterator[Part]:
        """What is known of a shard that is not complete; files that are damaged are left out."""
        for file in self._parts(index):
            try:
                with np.load(file, allow_pickle=False) as arrays:
                    failures = [Failure(*f) for f in json.loads(str(arrays["failures"]))]
                    unknowns = str(arrays["unknowns"]) if "unknowns" in arrays else ""
                    x, present = arrays["x"], arrays["present"]
                    part = Part(arrays["units"], x, present, failures, unknowns or None)
            except Exception:  # whatever a damaged archive may raise
                file.unlink(missing_ok=True)
                continue
            yield part

    def recover(self) -> None:
        """Put right what a process has left that was killed while it wrote."""
        for before in self.path.glob(".*.before"):
            shard = self.path / before.name.removeprefix(".").removesuffix(".before")
            if shard.exists():
                shutil.rmtree(before, ignore_errors=True)
            else:
                before.rename(shard)
        for leftover in [*self.path.glob(".*.part"), *self.path.glob("parts/.*.part")]:
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove the folder of parts once there are none."""
        with suppress(OSError):  # there are some
            (self.path / "parts").rmdir()

    @contextmanager
    def _replacing_shard(self, index: int) -> Iterator[Path]:
        """Where to write a shard, which takes its place once it is whole.

        A folder cannot take the place of another in one step. The one before waits under another
        name for that moment, where `recover` finds it.
        """
        target, before = self._shard(index), self.path / f".{index:05d}.before"
        with replacing(target) as folder:
            yield folder
            sync(folder)
            if target.exists():
                target.rename(before)
        shutil.rmtree(before, ignore_errors=True)

    def _shard(self, index: int) -> Path:
        return self.path / f"{index:05d}"

    def _parts(self, index: int) -> list[Path]:
        return sorted(self.path.glob(f"parts/{index:05d}-*.npz"))

    def sidecar(self, index: int) -> dict[str, Any]:
        """What a shard tells of itself."""
        if index not in self._sidecars:
            self._sidecars[index] = json.loads((self._shard(index) / "shard.json").read_text())
        return self._sidecars[index]


class MemoryShards:
    """The same in memory."""

    path = None

    def __init__(self) -> None:
        self._shards: dict[int, tuple[Shard, list[Failure]]] = {}

    def manifest(self) -> None:
        """Nothing is there before it is simulated."""

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Nothing needs to be said of data that do not outlive the process."""

    def write(
        self,
        index: int,
        layout: ShardLayout,
        shard: Shard,
        columns: Columns,
        failures: list[Failure],
    ) -> None:
        """Keep a complete shard."""
        del layout
        for array in (shard.y, shard.x, shard.present, *columns.values()):
            array.setflags(write=False)
        self._shards[index] = (shard, failures)

    def read(self, index: int, layout: ShardLayout, *, check: bool = True) -> Shard:
        """A shard."""
        del layout, check
        return self._shards[index][0]

    def units_in(self, index: int, layout: ShardLayout) -> int:
        """How many units a shard holds; 0 where it is not there."""
        del layout
        return len(self._shards[index][0].y) if index in self._shards else 0

    def failures(self, index: int) -> list[Failure]:
        """The measurements of a shard that could not be simulated."""
        return self._shards[index][1]

    def write_part(self, index: int, part: Part) -> None:
        """Units of a shard that is not complete are lost with the process."""

    def read_parts(self, index: int) -> Iterator[Part]:
        """None."""
        del index
        return iter(())

    def recover(self) -> None:
        """Nothing outlives a process."""

    def tidy(self) -> None:
        """Nothing is left behind."""


Shards: TypeAlias = ShardFolder | MemoryShards


def identity_of(manifest: dict[str, Any]) -> dict[str, Any]:
    """What a manifest tells that holds for all shards, however many units there will be."""
    return {name: value for name, value in manifest.items() if name != "units"}


def _failures(sidecar: dict[str, Any]) -> list[Failure]:
    return [Failure(*entry) for entry in sidecar["failures"]]


def holds_simulations(folder: Path) -> bool:
    """Whether a folder has been filled by `mvue.simulate`."""
    return (folder / "manifest.json").is_file()


def _check_manifest(manifest: dict[str, Any]) -> None:
    """Refuse what no manifest says."""

    def are(kind: type, values: Any) -> bool:
        return isinstance(values, list) and all(type(value) is kind for value in values)

    def is_count(value: Any) -> bool:
        return type(value) is int and value > 0

    sound = {
        "units": is_count,
        "repeats": is_count,
        "shard_units": is_count,
        "names": lambda value: are(str, value),
        "theta": lambda value: isinstance(value, list) and all(are(str, path) for path in value),
        "x_shape": lambda value: are(int, value) and all(size >= 0 for size in value),
        "x_dtype": lambda value: isinstance(value, str) and np.dtype(value).kind != "O",
    }
    for name, is_sound in sound.items():
        if not is_sound(manifest[name]):
            raise ValueError(f"{name} cannot be {manifest[name]!r:.80}")


def _last_unit(part: Path) -> int:
    """The last place in its shard of which a part tells; -1 if it cannot be read."""
    try:
        with np.load(part, allow_pickle=False) as arrays:
            return int(arrays["units"][-1])
    except Exception:  # whatever a damaged archive may raise
        return -1


def _file_record(file: Path) -> dict[str, int]:
    status = file.stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _checksum(file: Path) -> int:
    value = 0
    with file.open("rb") as stream:
        while block := stream.read(2**20):
            value = zlib.crc32(block, value)
    return value
