"""`SimulatedData`: simulations in a folder, which need not fit into memory."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..exceptions import SimulatedDataError
from .shards import Failure, Kind, Shard, ShardFolder, ShardLayout, Shards, identity_of


class SimulatedData:
    """Units and repeated measurements of each, in a folder or in memory.

    `mvue.simulate` makes it, `SimulatedData.open` opens a finished folder. It is read in shards of
    consecutive units, whose arrays are mapped from the files, so that it may be larger than memory.

    Attributes:
        n_units: number of units.
        repeats: measurements of each.
        names: one name for each component of y.
        x_shape: shape of one measurement.
        x_dtype: its dtype.
        folder: where the data are, or None.
        failures: the measurements that could not be simulated: unit, repeat and message of each.
    """

    def __init__(self, shards: Shards, layout: ShardLayout, n_units: int) -> None:
        self._shards, self._layout = shards, layout
        self.n_units, self.repeats = n_units, layout.repeats
        self.names = layout.names
        self.x_shape, self.x_dtype = layout.kind
        self.folder: Path | None = shards.path
        found = [failure for i in range(self.shard_count) for failure in shards.failures(i)]
        self.failures: list[Failure] = [failure for failure in found if failure.unit < n_units]

    @classmethod
    def open(cls, folder: str | Path) -> "SimulatedData":
        """Open a folder that `mvue.simulate` has filled.

        Args:
            folder: as in `mvue.simulate`.
        """
        shards = ShardFolder(folder)
        manifest = shards.manifest()
        if manifest is None:
            raise SimulatedDataError(f"there are no simulated data in {shards.path}")
        layout, units = layout_of(manifest), manifest["units"]
        there, damaged = look_at(shards, layout, units)
        for index in np.flatnonzero(there).tolist():
            check_shard(shards, index, layout, manifest)
        if sum(there) < units:
            what = f"shard {damaged[0]} is damaged" if damaged else f"{sum(there):,} are there"
            raise SimulatedDataError(
                f"the data in {shards.path} are not complete: of {units:,} units, {what}. The "
                "same call of mvue.simulate goes on with them"
            )
        return cls(shards, layout, units)

    @property
    def shard_count(self) -> int:
        """Number of shards."""
        return -(-self.n_units // self._layout.shard_units)

    def shard(self, index: int) -> Shard:
        """Consecutive units: y, x, the mask of present measurements, and theta.

        Args:
            index: from 0 to `shard_count` - 1.
        """
        if not 0 <= index < self.shard_count:
            raise IndexError(f"index must be from 0 to {self.shard_count - 1}, got {index}")
        size = self.n_units - index * self._layout.shard_units
        shard = self._shards.read(index, self._layout)
        # The last one may hold more units than were asked for.
        return jax.tree.map(lambda array: array[:size], shard)

    def pieces(
        self, shards: Iterable[int] | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """The present measurements as tables: X of shape (rows, p), y (rows, d), unit ids (rows,).

        One piece for each shard, no unit in two of them: what `partial_fit` of
        `mvue.sklearn.LinearBCE` takes; its `fit_pieces` takes the data as they are.

        Args:
            shards: which ones, from 0 to `shard_count` - 1; by default all.
        """
        for index in range(self.shard_count) if shards is None else shards:
            shard = self.shard(index)
            units = index * self._layout.shard_units + np.arange(len(shard.y))
            X = np.asarray(shard.x).reshape(len(units) * self.repeats, -1)
            rows = np.asarray(shard.present).reshape(-1)
            y, ids = np.repeat(shard.y, self.repeats, axis=0), np.repeat(units, self.repeats)
            if rows.any():
                yield (X, y, ids) if rows.all() else (X[rows], y[rows], ids[rows])

    def load(self) -> Shard:
        """All of the data as arrays in memory."""
        shards = [self.shard(i) for i in range(self.shard_count)]
        return jax.tree.map(lambda *parts: np.concatenate(parts), *shards)

    def __len__(self) -> int:
        return self.n_units

    def __repr__(self) -> str:
        shape = "numbers" if self.x_shape == () else f"{self.x_dtype} of shape {self.x_shape}"
        failed = f", {len(self.failures):,} of them absent" if self.failures else ""
        return (
            f"SimulatedData({self.n_units:,} units × {self.repeats} measurements{failed}, "
            f"x = {shape}, y = ({', '.join(self.names)}), shards: {self.shard_count} in "
            f"{self.folder or 'memory'})"
        )


def shard_sizes(layout: ShardLayout, units: int) -> list[int]:
    """How many units each shard holds."""
    full, rest = divmod(units, layout.shard_units)
    return [layout.shard_units] * full + [rest] * (rest > 0)


def look_at(shards: Shards, layout: ShardLayout, units: int) -> tuple[list[int], list[int]]:
    """How many of its units each shard has, and which shards are damaged."""
    sizes = shard_sizes(layout, units)
    there = [shards.units_in(i, layout) for i in range(len(sizes))]
    damaged = [i for i, found in enumerate(there) if found is None]
    return [min(found or 0, size) for found, size in zip(there, sizes, strict=True)], damaged


def check_shard(
    shards: ShardFolder, index: int, layout: ShardLayout, manifest: dict[str, Any]
) -> None:
    """Refuse a shard that is not what the manifest says, though it may be whole in itself."""
    sidecar, shard = shards.sidecar(index), shards.read(index, layout, check=False)
    units, kind = sidecar["units"], layout.kind
    pairs = [
        ("arrays", sorted(layout.file_names()), sorted(sidecar["files"])),
        ("most units of a shard", layout.shard_units, max(layout.shard_units, units)),
        ("shape of x", (units, layout.repeats, *kind.shape), shard.x.shape),
        ("dtype of x", kind.dtype, shard.x.dtype),
        ("shape of y", (units, len(layout.names)), shard.y.shape),
        ("shape of present", (units, layout.repeats), shard.present.shape),
    ]
    if sidecar.get("of"):  # folders of earlier versions do not have it
        said, told = identity_of(manifest), sidecar["of"]
        pairs += [(name, said.get(name), told.get(name)) for name in {**said, **told}]
        pairs.append(("number of the shard", index, sidecar.get("index")))
    lines = [f"  {name}: {a!r} there, {b!r} in the shard" for name, a, b in pairs if a != b]
    if lines:
        shards.read(index, layout)  # tells if it is damaged
        raise SimulatedDataError(
            f"shard {index} in {shards.path} is not one of the data that manifest.json tells of:\n"
            + "\n".join(lines)
            + "\nPut back what was there before, or delete the folder "
            f"{shards.path / f'{index:05d}'} and call mvue.simulate again"
        )


def manifest_of(layout: ShardLayout, units: int, identity: dict[str, Any]) -> dict[str, Any]:
    """What `layout_of` needs, and what the data are."""
    return identity | {
        "units": units,
        "shard_units": layout.shard_units,
        "x_shape": list(layout.kind.shape),
        "x_dtype": layout.kind.dtype.str,
    }


def layout_of(manifest: dict[str, Any]) -> ShardLayout:
    """What the shards look like."""
    return ShardLayout(
        repeats=manifest["repeats"],
        names=tuple(manifest["names"]),
        kind=Kind(tuple(manifest["x_shape"]), np.dtype(manifest["x_dtype"])),
        theta=tuple(tuple(path) for path in manifest["theta"]),
        shard_units=manifest["shard_units"],
    )
