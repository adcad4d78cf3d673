"""Sums of units that may still grow while a table is read in pieces."""

from typing import Any, NamedTuple

import numpy as np

from .._serialise.registry import register


@register(name="mvue.Block")
class Block(NamedTuple):
    """Open units whose sums lie together; a unit that leaves is struck out, its sum set to zero."""

    keys: np.ndarray  # (units,)
    weight: np.ndarray  # (units,)
    y: np.ndarray  # (units, d)
    place: np.ndarray  # (units,), rows of scaled_sums
    scaled_sums: np.ndarray  # (rows, p), sums divided by the roots of weights

    def copy(self) -> "Block":
        return Block(*(array.copy() for array in self))

    def extract(self, which: np.ndarray) -> tuple["Block", "Block"]:
        """Move the chosen units into a block of their own; returns that and what is left."""
        place = self.place[which]
        moved = self._replace(place=np.arange(place.size), scaled_sums=self.scaled_sums[place])
        self.scaled_sums[place] = 0.0
        keep = ~which
        left = self._replace(place=self.place[keep])
        return moved._pick(which), left._pick(keep)

    def _pick(self, which: np.ndarray) -> "Block":
        return self._replace(keys=self.keys[which], weight=self.weight[which], y=self.y[which])


@register(name="mvue.OpenUnits", fields=("blocks", "pinned"))
class OpenUnits:
    """Sums of the units that may still grow, in blocks from the one touched first to the last.

    Units that are touched move to the last block, so that whole blocks can be folded.
    """

    SMALL = 256
    """Blocks of fewer units are joined, so that tiny pieces do not make thousands of them."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.pinned = np.empty(0, np.uint64)

    @property
    def size(self) -> int:
        return sum(block.keys.size for block in self.blocks)

    @property
    def keys(self) -> np.ndarray:
        return np.concatenate([np.empty(0, np.uint64), *(block.keys for block in self.blocks)])

    def total(self) -> tuple[float, Any]:
        """The weight and the sum of all open units."""
        weight = sum(float(block.weight.sum()) for block in self.blocks)
        return weight, sum(
            np.sqrt(block.weight) @ block.scaled_sums[block.place] for block in self.blocks
        )

    def pin(self, keys: np.ndarray) -> None:
        """Keep units open for good."""
        self.pinned = np.union1d(self.pinned, keys)

    def last(self) -> np.ndarray:
        """The key of the unit touched last, if there is one."""
        return self.blocks[-1].keys[-1:] if self.blocks else np.empty(0, np.uint64)

    def knows(self, keys: np.ndarray) -> np.ndarray:
        """Whether each unit is open."""
        return is_in(keys, np.sort(self.keys))

    def check_same_y(self, keys: np.ndarray, y: np.ndarray) -> None:
        """Refuse units that are open with another y."""
        for block in self.blocks:
            old, new = _matches(block.keys, keys)
            if (block.y[old] != y[new]).any():
                raise ValueError(
                    "y must be the same in all rows of a unit, got a unit whose y differs between "
                    "two pieces of the data: give rows with different y different unit_ids"
                )

    def push(self, new: Block) -> None:
        """Open units, together with what is known of them already."""
        left_over = []
        for block in self.blocks:
            old, into = _matches(block.keys, new.keys)
            if old.any():
                moved, left = block.extract(old)
                new = _joined(new, into, moved)
            else:
                left = block
            if left.keys.size:
                left_over.append(left)
        if left_over and left_over[-1].keys.size + new.keys.size <= self.SMALL:
            new = _stacked([left_over.pop(), new])
        self.blocks = [*left_over, new]

    def pop_oldest(self, keep: int) -> list[Block]:
        """Blocks to fold, so that not many more units than wanted stay open."""
        popped, pinned, size = [], [], self.size
        while len(self.blocks) > 1 and size - self.blocks[0].keys.size >= keep:
            block = self.blocks.pop(0)
            size -= block.keys.size
            stay = is_in(block.keys, self.pinned)
            if stay.any():
                held, block = block.extract(stay)
                pinned.append(held)
            popped.append(block)
        if pinned:
            self.blocks.insert(0, _stacked(pinned))
        return [block for block in popped if block.keys.size]

    def moved(self, step: np.ndarray) -> "OpenUnits":
        """The same units with sums about a shift that lies a step below."""
        twin = self.copy()
        for block in twin.blocks:
            block.scaled_sums[block.place] += np.sqrt(block.weight)[:, None] * step
        return twin

    def copy(self) -> "OpenUnits":
        twin = OpenUnits()
        twin.blocks = [block.copy() for block in self.blocks]
        twin.pinned = self.pinned
        return twin


def _stacked(blocks: list[Block]) -> Block:
    sums = [block.scaled_sums[block.place] for block in blocks]
    keys, weight, y = (
        np.concatenate([getattr(block, name) for block in blocks])
        for name in ("keys", "weight", "y")
    )
    return Block(keys, weight, y, np.arange(keys.size), np.concatenate(sums))


def _joined(new: Block, into: np.ndarray, old: Block) -> Block:
    """The new block with older sums of some of its units added."""
    weight = new.weight.copy()
    weight[into] += old.weight
    place = new.place[into]
    share_new, share_old = (
        np.sqrt(w / weight[into])[:, None] for w in (new.weight[into], old.weight)
    )
    new.scaled_sums[place] *= share_new
    new.scaled_sums[place] += share_old * old.scaled_sums
    return new._replace(weight=weight)


def _matches(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which of a are in b, and where in b each of these is."""
    order = np.argsort(b)
    place = np.minimum(np.searchsorted(b, a, sorter=order), b.size - 1)
    found = b[order[place]] == a
    return found, order[place[found]]


def is_in(keys: np.ndarray, in_order: np.ndarray) -> np.ndarray:
    if not in_order.size:
        return np.zeros(keys.size, bool)
    return in_order[np.minimum(np.searchsorted(in_order, keys), in_order.size - 1)] == keys
