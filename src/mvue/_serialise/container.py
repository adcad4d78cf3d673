"""The bytes of a model file: a safetensors file whose metadata hold a JSON header.

Reading allocates nothing that the file does not have: sizes are compared with the size of the file
first. A digest of the header and of all tensors tells a damaged file from a sound one.

The library of safetensors writes the file, but does not read it: its readers need twice the memory
of the file, have no float8 for NumPy, and accept empty tensors of any shape that a file claims.
"""

import hashlib
import json
import math
import os
import stat
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from safetensors.numpy import save

from ..exceptions import ModelFileError
from .files import write_bytes

FORMAT = 1
KEY = "mvue"
LARGEST_HEADER = 2**23
LARGEST_FILE = 2**33
LARGEST_EMPTY = 2**10  # of the sizes of an array without elements, which costs no bytes

_DTYPES = {
    "BOOL": np.bool_,
    "I8": np.int8,
    "I16": np.int16,
    "I32": np.int32,
    "I64": np.int64,
    "U8": np.uint8,
    "U16": np.uint16,
    "U32": np.uint32,
    "U64": np.uint64,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F32": np.float32,
    "F64": np.float64,
}
DTYPES = {name: np.dtype(dtype) for name, dtype in _DTYPES.items()}
CODES = {dtype: name for name, dtype in DTYPES.items()}


class Contents(NamedTuple):
    """What a file holds."""

    header: dict[str, Any]
    tensors: dict[str, np.ndarray]


def write(path: str | Path, contents: Contents) -> None:
    """Write a file whole or not at all."""
    write_bytes(path, to_bytes(contents))


def check_path(path: Any) -> None:
    """Refuse what does not name a file."""
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise TypeError(f"path must be the name of a file, got {path!r:.80}")
    if not str(path) or Path(path) == Path():
        raise ValueError(f"path must be the name of a file, got {path!r}")


def to_bytes(contents: Contents) -> bytes:
    """The bytes of a file."""
    tensors = {}
    for name, array in contents.tensors.items():
        plain = np.asarray(array, array.dtype.newbyteorder("="), order="C")
        if plain.dtype not in CODES:
            raise TypeError(f"{name} has the dtype {array.dtype}, which files cannot hold")
        tensors[name] = plain
    header = {**contents.header, "format": FORMAT}
    header["sha256"] = _digest(header, tensors)
    text = json.dumps(header, allow_nan=False)
    if len(text) > LARGEST_HEADER // 2:
        raise ValueError(
            f"the description of the model takes {len(text):,} bytes, more than the "
            f"{LARGEST_HEADER // 2:,} that a file may have"
        )
    return save(tensors, {KEY: text})


def read(path: str | Path) -> Contents:
    """Read a file that is sound, or raise `ModelFileError`; OSError if it cannot be opened."""
    path = Path(path)
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(f"{path} is a folder, not a model file")
    if not stat.S_ISREG(status.st_mode):
        raise ModelFileError(f"{path} is not a file on disk")
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > LARGEST_FILE:
            raise ModelFileError(f"{path} has {size:,} bytes, more than {LARGEST_FILE:,}")
        try:
            return read_stream(stream, size)
        except RecursionError:
            raise ModelFileError(f"{path} cannot be read: it is nested too deep") from None
        except ModelFileError as error:
            raise ModelFileError(f"{path} cannot be read: {error}") from None


def read_stream(stream: Any, size: int) -> Contents:
    """Read so many bytes that are sound, or raise `ModelFileError`."""
    outer, start = _outer_header(stream.read(8), stream, size)
    table = _table(outer, size - start)
    header = _inner_header(outer)
    data = stream.read(size - start)
    if len(data) != size - start:
        raise ModelFileError("it was cut while it was read")
    tensors = {
        name: np.frombuffer(data, dtype, math.prod(shape), begin).reshape(shape)
        for name, (dtype, shape, begin) in table.items()
    }
    if header.pop("sha256", None) != _digest(header, tensors):
        raise ModelFileError("it is damaged: its contents do not match its checksum")
    return Contents(header, tensors)


def _outer_header(first: bytes, stream: Any, size: int) -> tuple[dict[str, Any], int]:
    """The header of the safetensors file, and where the tensors start."""
    length = int.from_bytes(first, "little")
    if len(first) < 8 or length > size - 8 or length < 2:
        raise ModelFileError("it is not a model file, or was cut short")
    if length > LARGEST_HEADER:
        raise ModelFileError(f"its header has {length:,} bytes, more than {LARGEST_HEADER:,}")
    outer = _json(stream.read(length))
    if not isinstance(outer, dict):
        raise ModelFileError("it is not a model file: its header is no object")
    return outer, 8 + length


def _inner_header(outer: dict[str, Any]) -> dict[str, Any]:
    metadata = outer.get("__metadata__")
    text = metadata.get(KEY) if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        raise ModelFileError("it is a safetensors file, but was not written by mvue.save")
    header = _json(text)
    version = header.get("format") if isinstance(header, dict) else None
    if type(version) is not int or version < 1:
        raise ModelFileError("its header has no format version")
    if version > FORMAT:
        raise ModelFileError(
            f"it has the format version {version}, made by a newer mvue; this one reads versions "
            f"up to {FORMAT}: upgrade mvue"
        )
    return header


def _table(
    outer: dict[str, Any], available: int
) -> dict[str, tuple[np.dtype[Any], tuple[int, ...], int]]:
    """Dtype, shape and place of each tensor; together they fill the file exactly."""
    table: dict[str, tuple[np.dtype[Any], tuple[int, ...], int]] = {}
    places = []
    for name, entry in outer.items():
        if name == "__metadata__":
            continue
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise ModelFileError(f"its tensor {name[:80]!r} is not described")
        shape, offsets = entry["shape"], entry["data_offsets"]
        code = entry["dtype"]
        dtype = DTYPES.get(code) if isinstance(code, str) else None
        if dtype is None:
            raise ModelFileError(f"its tensor {name[:80]!r} has an unknown dtype")
        if not _sizes(shape) or len(shape) > 32 or not _sizes(offsets) or len(offsets) != 2:
            raise ModelFileError(f"its tensor {name[:80]!r} has no shape or no place")
        begin, end = offsets
        if math.prod(shape) * dtype.itemsize != end - begin:
            raise ModelFileError(f"its tensor {name[:80]!r} has another size than its shape says")
        if begin == end and max(shape, default=0) > LARGEST_EMPTY:
            raise ModelFileError(f"its tensor {name[:80]!r} is empty and claims a large shape")
        places.append((begin, end))
        table[name] = dtype, tuple(shape), begin
    reached = 0
    for begin, end in sorted(places):
        if begin != reached:
            raise ModelFileError("its tensors overlap or leave gaps")
        reached = end
    if reached != available:
        raise ModelFileError(f"it has {available:,} bytes of tensors and should have {reached:,}")
    return table


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**53 for n in value)


def _json(text: str | bytes) -> Any:
    try:
        text = text.decode() if isinstance(text, bytes) else text
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise
    except ValueError as error:
        raise ModelFileError("its header is not JSON") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _digest(header: dict[str, Any], tensors: dict[str, np.ndarray]) -> str:
    try:
        digest = hashlib.sha256(
            json.dumps(header, sort_keys=True, allow_nan=False, separators=(",", ":")).encode()
        )
    except ValueError as error:
        raise ModelFileError("its header has a number that is not finite") from error
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(json.dumps([name, CODES[array.dtype], list(array.shape)]).encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
