"""Pools that steps draw from: parts of fixed data, or batches that are simulated ahead of them."""

import abc
import hashlib
import math
from numbers import Real
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .._core.sampling import Batches, Simulations
from .._core.types import Key
from .._data.repeats import Pool, Repeats, pool_of
from .._data.shards import Shard
from .._data.simulated import SimulatedData
from .._data.theta_basis import ThetaBasis

POOL_BYTES = 2**28  # of measurements on the device at a time
HELD_OUT_ROWS = 2**16  # at most
DIGESTED = 2**24  # bytes at a time

Split = Literal["units", "rows"]


class SimulatedPools:
    """Batches of simulations, in order.

    Args:
        simulations: what to simulate.
        key: of the simulations.
    """

    def __init__(self, simulations: Simulations, key: Key) -> None:
        self._simulations, self._key = simulations, key

    def feed(self, step: int) -> tuple[Batches, int]:
        """The pool for a step, and where the next one begins."""
        count = self._simulations.count
        first = step - step % count
        return self._simulations.at(self._key, first), first + count


class RenewedPools:
    """Simulations that are kept and used several times, of which the oldest are always renewed.

    Steps draw their units from a pool of blocks. At each turn a new block takes the place of the
    oldest one.

    Args:
        simulations: what to simulate, in blocks of `simulations.count` batches.
        key: of the simulations.
        steps: of training.
        uses: of each simulation, on average.
        kept: numbers that are kept at most.
    """

    def __init__(
        self, simulations: Simulations, key: Key, steps: int, uses: int, kept: int
    ) -> None:
        self._simulations, self._key = simulations, key
        numbers = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(simulations.shapes()))
        total = math.ceil(steps / (uses * simulations.count))
        self._blocks = max(1, min(kept // numbers, (total + 1) // 2))
        self._turn = math.ceil(steps / (total - self._blocks + 1))
        self._held: dict[int, Batches] = {}

    def feed(self, step: int) -> tuple[Batches, int]:
        """The pool for a step, and where the next one begins."""
        turn = step // self._turn
        count = self._simulations.count
        wanted = range(turn, turn + self._blocks)
        self._held = {
            i: self._held[i] if i in self._held else self._simulations.at(self._key, i * count)
            for i in wanted
        }
        return joined(list(self._held.values())), (turn + 1) * self._turn


@jax.jit
def joined(blocks: list[Batches]) -> Batches:
    """All batches of some blocks."""
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *blocks)


class Prepared(NamedTuple):
    """Data that are ready to be trained on."""

    training: Repeats
    """All of the training data, or as much as is on the device at a time."""
    held_out: Repeats
    rows: int
    """Rows of all training data."""
    shards: "PartPools | None"
    """Where the data do not fit on the device."""
    basis: ThetaBasis | None = None
    """Functions of theta that show the bias, where nothing was measured twice."""

    def feed(self, step: int, steps: int) -> tuple[PyTree, int]:
        """The pool for a step, and where the next one begins."""
        if self.shards is None:
            return padded_pool(self.training, self.basis), steps
        return self.shards.at(step, self.basis)


def prepare(
    data: Repeats | SimulatedData,
    validation: float,
    split: Split,
    batch_units: int,
    rng: np.random.Generator,
    *,
    pairs: int | None = None,
) -> Prepared:
    """Hold out a part of the data, and see whether the rest fits on the device.

    `batch_units` are units in a batch, and `pairs` those where each has one row.
    """
    if not (isinstance(validation, Real) and 0 <= validation < 1):
        raise ValueError(f"validation must be a share from 0 to below 1, got {validation!r}")
    if split not in ("units", "rows"):
        raise ValueError(f"split must be 'units' or 'rows', got {split!r}")
    single = data.repeats == 1 if isinstance(data, SimulatedData) else len(data.x) == len(data.y)
    if single and pairs is not None:
        batch_units = pairs
    if isinstance(data, SimulatedData) and _bytes_of(data) > POOL_BYTES:
        return _prepare_shards(data, validation, split, batch_units, rng)
    if isinstance(data, SimulatedData):
        data = repeats_of(data.load())
    elif single and 4 * data.x.size > POOL_BYTES:
        return _prepare_rows(data, validation, split, batch_units, rng)
    training, held_out = split_data(data.shuffled(rng), validation, split, rng)
    return Prepared(training, _at_most(held_out, HELD_OUT_ROWS, rng), len(training.x), None)


def split_data(
    data: Repeats, validation: float, split: Split, rng: np.random.Generator
) -> tuple[Repeats, Repeats]:
    """Data to train on and data to hold out; the same twice if nothing is held out."""
    if not validation:
        return data, data
    if split == "units":
        units = len(data.y)
        count = held_out_count(units, validation)
        order = rng.permutation(units)
        return data.take_units(np.sort(order[count:])), data.take_units(np.sort(order[:count]))
    sizes = data.sizes
    # Two rows at least of a unit show its bias, and two at least must stay. Where units are too
    # small for that, single rows are held out.
    each = np.where(sizes >= 4, np.maximum(2, np.round(validation * sizes)), 1) * (sizes > 1)
    order = np.lexsort((rng.random(len(sizes)), sizes < 4))
    wanted = validation * len(data.x)
    chosen = order[np.cumsum(each[order]) - each[order] < wanted]
    held = np.zeros(len(sizes))
    held[chosen] = each[chosen]
    place = np.arange(len(data.x)) - np.repeat(data.starts[:-1], sizes)
    out = place < np.repeat(held, sizes)
    if not out.any():
        raise ValueError("no rows can be held out: every unit has only one, and it has to stay")
    return data.take_rows(np.flatnonzero(~out)), data.take_rows(np.flatnonzero(out))


def held_out_count(units: int, validation: float) -> int:
    """How many whole units are held out."""
    count = max(1, round(validation * units)) if validation else 0
    if count >= units:
        raise ValueError(
            f"a validation share of {validation:g} leaves none of {units} units to train on: "
            "hold out less, or nothing"
        )
    return count


class PartPools(abc.ABC):
    """Pools of random parts of the data, each used for about one pass over its units.

    Args:
        rows: of a pool at most.
        units: of a pool at most.
        steps: for which one pool serves.
        seed: decides the order.
    """

    def __init__(self, rows: int, units: int, steps: int, seed: int) -> None:
        self.rows, self.units, self.steps, self.seed = rows, units, steps, seed

    @abc.abstractmethod
    def repeats(self, number: int) -> Repeats:
        """The data of a pool, which depend on its number alone."""

    def at(self, step: int, basis: ThetaBasis | None = None) -> tuple[Pool, int]:
        """The pool for a step, and where the next one begins."""
        number = step // self.steps
        pool = pool_of(self.repeats(number), rows=self.rows, units=self.units, basis=basis)
        return pool, (number + 1) * self.steps


class ShardPools(PartPools):
    """Pools of random shards.

    Args:
        data: the data set.
        shards: which of its shards to use.
        count: shards in a pool.
        steps: for which one pool serves.
        seed: decides the order.
    """

    def __init__(
        self, data: SimulatedData, shards: np.ndarray, count: int, steps: int, seed: int
    ) -> None:
        units = len(data.shard(0).y) * count  # only the last one may be smaller
        super().__init__(units * data.repeats, units, steps, seed)
        self.data, self.shards, self.count = data, shards, count

    def repeats(self, number: int) -> Repeats:
        """The data of a pool, which depend on its number alone."""
        chosen = _of_epochs(self.shards, self.count, number, self.seed)
        whole = _joined([repeats_of(self.data.shard(int(i))) for i in chosen])
        return whole.shuffled(np.random.default_rng([self.seed, number]))


class RowPools(PartPools):
    """Pools of random rows of data without repeats, which may be mapped from a file.

    Args:
        data: the data.
        units: which of its units to use.
        count: units in a pool.
        steps: for which one pool serves.
        seed: decides the order.
    """

    def __init__(self, data: Repeats, units: np.ndarray, count: int, steps: int, seed: int) -> None:
        super().__init__(count, count, steps, seed)
        self.data, self.chosen = data, units

    def repeats(self, number: int) -> Repeats:
        """The data of a pool, which depend on its number alone."""
        chosen = _of_epochs(self.chosen, self.units, number, self.seed)
        return self.data.take_units(np.sort(chosen))


def _of_epochs(parts: np.ndarray, count: int, number: int, seed: int) -> list[int]:
    """So many parts for a pool: all of them in random order, then again in another one."""
    epochs, places = np.divmod(number * count + np.arange(count), len(parts))
    return [
        int(part)
        for epoch in np.unique(epochs)
        for part in np.random.default_rng([seed, int(epoch)]).permutation(parts)[
            places[epochs == epoch]
        ]
    ]


def _prepare_rows(
    data: Repeats,
    validation: float,
    split: Split,
    batch_units: int,
    rng: np.random.Generator,
) -> Prepared:
    if split == "rows":
        raise ValueError("split='rows' needs several rows of a unit, got one of each: use 'units'")
    units = len(data.y)
    out = held_out_count(units, validation)
    order = rng.permutation(units)
    row_bytes = 4 * int(np.prod(data.x.shape[1:], dtype=int))
    count = int(np.clip(POOL_BYTES // row_bytes, 1, units - out))
    steps = max(1, -(-count // batch_units))
    pools = RowPools(data, np.sort(order[out:]), count, steps, int(rng.integers(2**31)))
    training = held_out = pools.repeats(0)
    if out:
        held_out = data.take_units(np.sort(order[:out][:HELD_OUT_ROWS]))
    return Prepared(training, held_out, units - out, pools)


def _prepare_shards(
    data: SimulatedData,
    validation: float,
    split: Split,
    batch_units: int,
    rng: np.random.Generator,
) -> Prepared:
    count = data.shard_count
    if split == "rows":
        raise ValueError("split='rows' needs data that fit into memory, got more: use 'units'")
    out = max(1, round(validation * count)) if validation else 0
    if out >= count:
        raise ValueError(
            f"a validation share of {validation:g} leaves none of {count} shards of the data to "
            "train on: hold out less, or nothing"
        )
    order = rng.permutation(count)
    held, shards = order[:out], order[out:]
    per_pool = int(np.clip(POOL_BYTES * count // _bytes_of(data), 1, len(shards)))
    units = data.n_units // count * per_pool
    steps = max(1, -(-units // batch_units))
    pools = ShardPools(data, shards, per_pool, steps, int(rng.integers(2**31)))
    training = held_out = pools.repeats(0)
    if out:
        enough = 1 + HELD_OUT_ROWS * count // (data.n_units * data.repeats)
        held_out = _joined([repeats_of(data.shard(int(i))) for i in held[:enough]])
    rows = round(len(training.x) / per_pool * len(shards))
    return Prepared(training, _at_most(held_out, HELD_OUT_ROWS, rng), rows, pools)


def _joined(parts: list[Repeats]) -> Repeats:
    starts = np.concatenate([[0], np.cumsum(np.concatenate([part.sizes for part in parts]))])
    x, y = (np.concatenate([getattr(part, name) for part in parts]) for name in ("x", "y"))
    theta = [part.theta for part in parts if part.theta is not None]
    return Repeats(x, y, starts, np.concatenate(theta) if theta else None)


def repeats_of(shard: Shard) -> Repeats:
    """The measurements of a shard that are there."""
    present = np.asarray(shard.present, bool)
    sizes = present.sum(axis=1)
    some = sizes > 0
    x = np.asarray(shard.x)[present].astype(np.float32)
    y = np.asarray(shard.y)[some].astype(np.float32)
    # With repeats nobody asks for it.
    theta = _real_rows(shard.theta) if present.shape[1] == 1 else None
    starts = np.concatenate([[0], np.cumsum(sizes[some])])
    return Repeats(x, y, starts, None if theta is None else theta[some])


def _real_rows(theta: Any) -> np.ndarray | None:
    """The numbers in theta, (units, k), those of complex ones apart."""
    parts: list[np.ndarray] = []
    for leaf in map(np.asarray, jax.tree.leaves(theta)):
        rows: Any = leaf.reshape(len(leaf), -1)
        parts += [rows.real, rows.imag] if np.iscomplexobj(rows) else [rows]
    return np.concatenate(parts, axis=1).astype(np.float64) if parts else None


def padded_pool(data: Repeats, basis: ThetaBasis | None = None) -> Pool:
    """Data on the device, in a round number of rows and units."""
    rows, units = rounded_up(len(data.x), 128), rounded_up(len(data.y), 32)
    return pool_of(data, rows=rows, units=units, basis=basis)


def rounded_up(count: int, least: int) -> int:
    """To a multiple of `least`, and of an eighth of the largest power of two in the number."""
    unit = max(least, 2 ** (count.bit_length() - 4)) if count >= 8 else least
    return -(-count // unit) * unit


def _at_most(data: Repeats, rows: int, rng: np.random.Generator) -> Repeats:
    """All of the data, or random units with about so many rows."""
    if len(data.x) <= rows:
        return data
    units = max(1, len(data.y) * rows // len(data.x))
    return data.take_units(np.sort(rng.permutation(len(data.y))[:units]))


def digest_of(data: Repeats | SimulatedData) -> str:
    """Of all the numbers in the data, read piece by piece."""
    digest = hashlib.blake2b(digest_size=8)

    def add(array: np.ndarray) -> None:
        digest.update(f"{array.shape} {array.dtype.str} ".encode())
        rows = max(1, DIGESTED // max(1, array[:1].nbytes))
        for first in range(0, len(array), rows):
            digest.update(np.ascontiguousarray(array[first : first + rows]).data)

    if isinstance(data, Repeats):
        for part in (data.x, data.y, data.starts, data.theta):
            add(np.zeros(0) if part is None else np.asarray(part))
        return digest.hexdigest()
    for index in range(data.shard_count):
        for part in jax.tree.leaves(data.shard(index)):
            add(part)
    return digest.hexdigest()


def _bytes_of(data: SimulatedData) -> int:
    """As single precision."""
    return 4 * data.n_units * data.repeats * int(np.prod(data.x_shape, dtype=int))
