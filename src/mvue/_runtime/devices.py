"""Data parallelism: the units of a batch are divided over devices and processes.

The work of a batch is divided along its first axis; everything else is replicated. What a part
computes depends on its place in the whole batch alone, so that any number of devices draws the
same random numbers.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import PyTree

from .jit import jit

AXIS = "units"


def mesh_for(count: int) -> Mesh | None:
    """The devices that share a batch of so many evenly; None if there is but one.

    Within one process, a batch that all devices cannot share is shared by fewer.
    """
    devices = jax.devices()
    if jax.process_count() > 1:
        if count % len(devices):
            raise ValueError(
                f"a batch of {count:,} cannot be divided evenly over the {len(devices)} devices of "
                f"{jax.process_count()} processes: make it a multiple of {len(devices)}"
            )
    elif jax.config.jax_default_device is not None:  # type: ignore[attr-defined]
        return None
    size = next(k for k in range(len(devices), 0, -1) if count % k == 0)
    return Mesh(np.array(devices[:size]), (AXIS,)) if size > 1 else None


def whole_shares(count: int) -> int:
    """The number from `count` on that all devices can share evenly."""
    return -(-count // len(jax.devices())) * len(jax.devices())


def divided(
    function: Callable[..., PyTree], mesh: Mesh | None, count: int, *shared: PyTree
) -> PyTree:
    """``function(number, *shared)`` for the numbers from 0 to `count`, stacked.

    Args:
        function: of one number and what all have in common.
        mesh: the devices to divide the numbers over.
        count: how many.
        shared: what all have in common.
    """
    part = count if mesh is None else count // mesh.size

    def mine(*shared: PyTree) -> PyTree:
        first = 0 if mesh is None else jax.lax.axis_index(AXIS) * part
        return jax.vmap(lambda number: function(number, *shared))(first + jnp.arange(part))

    return mine(*shared) if mesh is None else _on(mesh, mine, (P(),) * len(shared))(*shared)


def mapped(
    function: Callable[[PyTree, PyTree], PyTree], mesh: Mesh | None, shared: PyTree, x: PyTree
) -> PyTree:
    """``function(shared, part of x)``, whose first axis is divided over the devices."""
    if mesh is None or len(jax.tree.leaves(x)[0]) % mesh.size:
        return function(shared, x)
    return _on(mesh, function, (P(), P(AXIS)))(shared, x)


def same_everywhere(function: Callable[..., PyTree], mesh: Mesh | None, **settings: Any) -> Any:
    """`jit` whose outputs are the same on all devices."""
    if mesh is not None:
        settings["out_shardings"] = NamedSharding(mesh, P())
    return jit(function, **settings)


def everywhere(function: Callable[..., PyTree], mesh: Mesh | None) -> Callable[..., PyTree]:
    """A compiled function of arrays of this process, run by all devices of a mesh."""
    if mesh is None:
        return function

    def call(*args: PyTree) -> PyTree:
        return jax.tree.map(_own, function(*replicated(args, mesh)))

    return call


def replicated(tree: PyTree, mesh: Mesh | None) -> PyTree:
    """The same arrays on all devices of a mesh."""
    if mesh is None:
        return tree
    sharding = NamedSharding(mesh, P())
    own = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]

    def replicate(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and leaf.sharding == sharding:
            return leaf
        copies = [jax.device_put(leaf, SingleDeviceSharding(device)) for device in own]
        return jax.make_array_from_single_device_arrays(jnp.shape(leaf), sharding, copies)

    return jax.tree.map(replicate, tree)


def is_first_process() -> bool:
    """Whether this process reads and writes for all."""
    return jax.process_index() == 0


def agreed(*values: float) -> np.ndarray:
    """The numbers of all processes, a row for each."""
    own = np.array(values, np.float64)
    if jax.process_count() == 1:
        return own[None]
    # As bytes: without double precision, numbers would be rounded on the way.
    rows = multihost_utils.process_allgather(own.view(np.uint8))
    return np.asarray(rows).view(np.float64).reshape(jax.process_count(), -1)


def from_first(tree: PyTree) -> PyTree:
    """The arrays of the first process, bit by bit, in all of them."""
    if jax.process_count() == 1:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    arrays = [np.asarray(leaf, order="C") for leaf in leaves]
    own = np.concatenate([np.zeros(0, np.uint8), *(a.reshape(-1).view(np.uint8) for a in arrays)])
    first = from_process(0, own)
    parts = np.split(first, np.cumsum([a.nbytes for a in arrays])[:-1])
    return jax.tree.unflatten(
        structure,
        [
            jnp.asarray(part.view(a.dtype).reshape(a.shape))
            if isinstance(leaf, jax.Array)
            else part.view(a.dtype).reshape(a.shape)
            for part, a, leaf in zip(parts, arrays, leaves, strict=True)
        ],
    )


def from_process(process: int, own: np.ndarray) -> np.ndarray:
    """The bytes of one process in all of them, which must have as many."""
    said = multihost_utils.broadcast_one_to_all(own, is_source=jax.process_index() == process)
    return np.asarray(said)


def own_rows(tree: PyTree) -> PyTree:
    """What this process has of arrays whose first axis is divided over devices, on the host."""

    def rows(leaf: jax.Array) -> np.ndarray:
        if leaf.is_fully_addressable:
            return np.asarray(leaf)
        shards = sorted(leaf.addressable_shards, key=lambda shard: shard.index[0].start or 0)
        return np.concatenate([np.asarray(shard.data) for shard in shards])

    return jax.tree.map(rows, tree)


def _own(leaf: Any) -> Any:
    """What this process has of an array that is the same everywhere."""
    return leaf.addressable_data(0)


def _on(mesh: Mesh, function: Callable[..., PyTree], specs: tuple[P, ...]) -> Any:
    return jax.shard_map(
        function,
        mesh=mesh,
        in_specs=specs,
        out_specs=P(AXIS),
        check_vma=False,
    )
