"""Free memory of the machine, and programs that would need more of it."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jaxtyping import PyTree

AT_ONCE = 2**22  # numbers that statistics are made of at a time: they take fifty times the memory


def vmap_in_pieces(function: Callable[..., PyTree], *trees: PyTree) -> PyTree:
    """`jax.vmap(function)(*trees)`; of many numbers, some rows after the others."""
    leaves = jax.tree.leaves(trees)
    count = leaves[0].shape[0]
    numbers = sum(math.prod(leaf.shape) for leaf in leaves)
    rows = max(1, AT_ONCE * count // max(numbers, 1))
    if rows >= count:
        return jax.vmap(function)(*trees)
    return jax.lax.map(lambda parts: function(*parts), trees, batch_size=rows)


def bytes_needed(executable: Any) -> int:
    """What a compiled program takes besides its arguments, on each device; 0 if not known."""
    found = executable.memory_analysis()
    return 0 if found is None else int(found.temp_size_in_bytes + found.output_size_in_bytes)


def bytes_free() -> int | None:
    """Memory that a device may still use; None if that is not known."""
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        limit = stats.get("bytes_limit")
        return None if limit is None else int(limit - stats.get("bytes_in_use", 0))
    free = [value for value in (_machine_free(), _group_free()) if value is not None]
    # All devices of a processor share its memory.
    return min(free) // len(jax.local_devices()) if free else None


def require_memory(needed: int, arguments: dict[str, int]) -> None:
    """Refuse a program that does not fit, and say what would.

    Args:
        needed: bytes.
        arguments: the sizes that the user chose, which the need grows with.
    """
    free = bytes_free()
    if free is None or needed <= free:
        return
    share = 0.8 * free / needed  # not everything shrinks with the batch
    smaller = " and ".join(
        f"{name}={max(1, int(share * value)):,}" for name, value in arguments.items()
    )
    given = " and ".join(f"{name}={value:,}" for name, value in arguments.items())
    raise MemoryError(
        f"a step with {given} needs about {needed / 2**30:.3g} GiB, and {free / 2**30:.3g} GiB are "
        f"free: {smaller} would fit"
    )


def _machine_free() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return 1024 * int(value.split()[0])
    return None


def _group_free() -> int | None:
    """Within the limit of a container, if there is one."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        used = int((group / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(0, int(limit) - used)
