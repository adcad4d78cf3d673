"""Collective operations: values of each process, gathered in all processes of a job."""

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

import jax
import numpy as np

from .._serialise.container import Contents, read_stream, to_bytes
from .._serialise.tree import Decoder, Encoder
from .devices import agreed, from_process

T = TypeVar("T")


def own_share(items: Iterable[T]) -> Iterator[T]:
    """The items that this process is to work on: all are dealt out in turn, each once."""
    return islice(items, jax.process_index(), None, jax.process_count())


def from_each(value: T) -> Iterator[T]:
    """The value of every process in turn, the same in all of them, one at a time in memory.

    All processes must ask for it, and read to the end.

    Args:
        value: made of registered classes, arrays and plain values, as what `save` takes.
    """
    if jax.process_count() == 1:
        yield value
        return
    encoder = Encoder()
    own = to_bytes(Contents({"value": encoder.node(value, "value")}, encoder.tensors))
    sizes = agreed(len(own))[:, 0].astype(int)
    padded = np.zeros(sizes.max(), np.uint8)  # of one size: one program for all
    padded[: len(own)] = np.frombuffer(own, np.uint8)
    for process, size in enumerate(sizes):
        data = from_process(process, padded)[:size].tobytes()
        contents = read_stream(io.BytesIO(data), size)
        yield Decoder(contents.tensors).value(contents.header["value"])


@contextmanager
def failing_together() -> Iterator[None]:
    """What fails in one process fails in all, so that none waits for one that has given up."""
    error = None
    try:
        yield
    except Exception as failed:
        error = failed
    where = np.flatnonzero(agreed(float(error is not None))[:, 0])
    if error is not None:
        raise error
    if where.size:
        raise RuntimeError(
            f"process {where[0]} of {jax.process_count()} failed on its share of the work; its own "
            "message says why"
        )
