"""Pools that steps draw from: parts of fixed data, or batches that are simulated ahead of them."""

import math
from numbers import Real
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .._core.sampling import Batches, Simulations
from .._core.types import Key
from .._data.repeats import Pool, Repeats, pool_of
from .._data.shards import Shard
from .._data.simulated import SimulatedData

POOL_BYTES = 2**28  # of measurements on the device at a time
HELD_OUT_ROWS = 2**16  # at most

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
    shards: "ShardPools | None"
    """Where the data do not fit on the device."""

    def feed(self, step: int, steps: int) -> tuple[PyTree, int]:
        """The pool for a step, and where the next one begins."""
        if self.shards is None:
            return padded_pool(self.training), steps
        return self.shards.at(step)


def prepare(
    data: Repeats | SimulatedData,
    validation: float,
    split: Split,
    batch_units: int,
    rng: np.random.Generator,
) -> Prepared:
    """Hold out a part of the data, and see whether the rest fits on the device."""
    if not (isinstance(validation, Real) and 0 <= validation < 1):
        raise ValueError(f"validation must be a share from 0 to below 1, got {validation!r}")
    if split not in ("units", "rows"):
        raise ValueError(f"split must be 'units' or 'rows', got {split!r}")
    if isinstance(data, SimulatedData) and _bytes_of(data) > POOL_BYTES:
        return _prepare_shards(data, validation, split, batch_units, rng)
    if isinstance(data, SimulatedData):
        data = repeats_of(data.load())
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
        count = max(1, round(validation * units))
        if count >= units:
            raise ValueError(
                f"a validation share of {validation:g} leaves none of {units} units to train on: "
                "hold out less, or nothing"
            )
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


class ShardPools:
    """Pools of random shards, each used for about one pass over its units.

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
        self.data, self.shards, self.count, self.steps, self.seed = data, shards, count, steps, seed
        units = len(data.shard(0).y)  # only the last one may be smaller
        self.units, self.rows = units * count, units * count * data.repeats

    def at(self, step: int) -> tuple[Pool, int]:
        """The pool for a step, and where the next one begins."""
        number = step // self.steps
        pool = pool_of(self.repeats(number), rows=self.rows, units=self.units)
        return pool, (number + 1) * self.steps

    def repeats(self, number: int) -> Repeats:
        """The data of a pool, which depend on its number alone."""
        places = number * self.count + np.arange(self.count)
        chosen = []
        for place in places:
            epoch, i = divmod(int(place), len(self.shards))
            chosen.append(np.random.default_rng([self.seed, epoch]).permutation(self.shards)[i])
        whole = _joined([repeats_of(self.data.shard(int(i))) for i in chosen])
        return whole.shuffled(np.random.default_rng([self.seed, number]))


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
    return Repeats(x, y, starts)


def repeats_of(shard: Shard) -> Repeats:
    """The measurements of a shard that are there."""
    present = np.asarray(shard.present, bool)
    sizes = present.sum(axis=1)
    some = sizes > 0
    x = np.asarray(shard.x)[present].astype(np.float32)
    y = np.asarray(shard.y)[some].astype(np.float32)
    return Repeats(x, y, np.concatenate([[0], np.cumsum(sizes[some])]))


def padded_pool(data: Repeats) -> Pool:
    """Data on the device, in a round number of rows and units."""
    return pool_of(data, rows=rounded_up(len(data.x), 128), units=rounded_up(len(data.y), 32))


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


def _bytes_of(data: SimulatedData) -> int:
    """As single precision."""
    return 4 * data.n_units * data.repeats * int(np.prod(data.x_shape, dtype=int))
