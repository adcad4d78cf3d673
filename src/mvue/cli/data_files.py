"""Tables of measurements in files, read and written a piece at a time."""

import csv
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from .._serialise.files import opened

ROWS = 8192
KINDS = (".csv", ".npy", ".parquet")


class Piece(NamedTuple):
    """Some rows of a file."""

    values: np.ndarray
    names: list[str] | None
    """Of the columns, where the file has any."""


def read_pieces(path: str | Path, rows: int = ROWS) -> Iterator[Piece]:
    """The rows of a CSV, NumPy or Parquet file, in pieces: memory does not grow with their number.

    A CSV file may begin with a line of names.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    kind = path.suffix.lower()
    if kind == ".npy":
        return _numpy_pieces(path, rows)
    if kind == ".parquet":
        return _parquet_pieces(path, rows)
    if kind == ".csv":
        return _csv_pieces(path, rows)
    raise ValueError(f"data must be a file of the kind {', '.join(KINDS)}, got {path.name}")


def to_measurements(piece: Piece, x: Any, features: Sequence[str] | None = None) -> Any:
    """Rows as measurements of the shapes in x: each row is one, its numbers in order.

    Columns are taken by name where the estimator knows names and the file has some.
    """
    values = piece.values
    if features is not None and piece.names is not None:
        missing = [name for name in features if name not in piece.names]
        if missing:
            raise ValueError(f"data has no column {', '.join(missing)}; it has {piece.names}")
        values = values[:, [piece.names.index(name) for name in features]]
    leaves, structure = jax.tree.flatten(x)
    if len(leaves) == 1 and values.shape[1:] == leaves[0].shape:
        return jax.tree.unflatten(structure, [values])
    sizes = [int(np.prod(leaf.shape)) * (2 if leaf.dtype.kind == "c" else 1) for leaf in leaves]
    if values.ndim != 2 or values.shape[1] != sum(sizes):
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves)
        raise ValueError(
            f"each row of the data must be one measurement of shape {shapes}, {sum(sizes)} numbers "
            f"in all, got rows of shape {values.shape[1:]}"
        )
    parts = []
    for leaf, part in zip(leaves, np.split(values, np.cumsum(sizes)[:-1], axis=1), strict=True):
        if leaf.dtype.kind == "c":
            real, imaginary = np.split(part, 2, axis=1)
            part = real + 1j * imaginary
        parts.append(part.reshape(len(values), *leaf.shape))
    return jax.tree.unflatten(structure, parts)


def _numpy_pieces(path: Path, rows: int) -> Iterator[Piece]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is not a NumPy file of numbers, or was cut short") from error
    if array.ndim == 0 or array.dtype.kind not in "biufc":
        raise ValueError(f"{path} must hold rows of numbers, got {array.dtype} {array.shape}")
    for start in range(0, max(len(array), 1), rows):
        yield Piece(np.asarray(array[start : start + rows]), None)


def _csv_pieces(path: Path, rows: int) -> Iterator[Piece]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        lines = ((number, line) for number, line in enumerate(stream, 1) if line.strip())
        try:
            first = next(lines, None)
            if first is None:
                raise ValueError(f"{path} is empty")
            names: list[str] | None = _cells(first[1])
            if all(not cell or _is_number(cell) for cell in names):
                lines, names = chain([first], lines), None
            elif len(names) == 1 and any(mark in first[1] for mark in ";\t"):
                raise ValueError(f"{path} must have commas between columns, got {first[1]!r:.80}")
            width = None if names is None else len(names)
            block = list(islice(lines, rows))
            if not block:
                yield Piece(np.empty((0, width or 0)), names)
            while block:
                values = _csv_values(path, block, width)
                width = values.shape[1]
                yield Piece(values, names)
                block = list(islice(lines, rows))
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not a text in UTF-8: {error.reason}") from error


def _csv_values(path: Path, block: list[tuple[int, str]], width: int | None) -> np.ndarray:
    """Lines as numbers; an empty cell is NaN."""
    try:
        values = np.loadtxt([line for _, line in block], delimiter=",", ndmin=2, comments=None)
    except ValueError:
        values = None
    if values is not None and width in (None, values.shape[1]):
        return values
    parsed = []
    for number, line in block:  # slow, but knows quotes and gaps, and where something is wrong
        cells = _cells(line)
        width = len(cells) if width is None else width
        wrong = [i for i, cell in enumerate(cells) if cell and not _is_number(cell)]
        if wrong:
            raise ValueError(
                f"{path} must have numbers only, got {cells[wrong[0]]!r:.80} in column "
                f"{wrong[0] + 1} of line {number}"
            )
        if len(cells) != width:
            raise ValueError(
                f"{path} must have {width} numbers in every line, got {len(cells)} in line {number}"
            )
        parsed.append([float(cell or "nan") for cell in cells])
    return np.array(parsed)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in next(csv.reader([line]))]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parquet_pieces(path: Path, rows: int) -> Iterator[Piece]:
    pyarrow, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=rows):
                columns = [column.to_numpy(zero_copy_only=False) for column in batch.columns]
                wrong = [
                    n
                    for n, c in zip(batch.schema.names, columns, strict=True)
                    if c.dtype.kind not in "biuf"
                ]
                if wrong:
                    raise ValueError(f"{path} must have columns of numbers, not {', '.join(wrong)}")
                yield Piece(np.column_stack(columns), list(batch.schema.names))
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path} is not a Parquet file: {error}") from error


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow: pip install 'mvue[parquet]'") from error
    return pyarrow, parquet


@contextmanager
def writing(path: str | Path | None, names: Sequence[str]) -> Iterator["Writer"]:
    """A table of numbers, written a piece at a time; to standard output if there is no path.

    A file appears under its name when it is complete; before the first rows nothing is written.
    """
    kind = ".csv" if path is None else Path(path).suffix.lower()
    if kind not in KINDS:
        raise ValueError(f"out must be a file of the kind {', '.join(KINDS)}, got {path}")
    writer = {".csv": CSVWriter, ".npy": NumPyWriter, ".parquet": ParquetWriter}[kind]
    file = nullcontext(sys.stdout) if path is None else opened(path, "t" if kind == ".csv" else "b")
    with file as stream, closing(writer(stream, names)) as table:
        yield table
        table.finish()


class Writer:
    """Writes rows of numbers to a stream."""

    def __init__(self, stream: Any, names: Sequence[str]) -> None:
        self.stream, self.names, self.rows = stream, list(names), 0

    def write(self, values: np.ndarray) -> None:
        """Add rows, shape (n, columns)."""
        if not self.rows:
            self.begin()
        self.rows += len(values)
        self.add(values)

    def begin(self) -> None:
        """Write what comes before all rows."""

    def add(self, values: np.ndarray) -> None:
        """Write rows."""
        raise NotImplementedError

    def finish(self) -> None:
        """Write what comes after all rows."""
        if not self.rows:
            self.begin()

    def close(self) -> None:
        """Let go of what is open, whether it is finished or not."""


class CSVWriter(Writer):
    """Numbers with commas between them, below a line of names."""

    def begin(self) -> None:
        """The names."""
        csv.writer(self.stream, lineterminator="\n").writerow(self.names)

    def add(self, values: np.ndarray) -> None:
        """One line for each row."""
        np.savetxt(self.stream, values, fmt="%.9g", delimiter=",")


class NumPyWriter(Writer):
    """An array as NumPy saves it."""

    def begin(self) -> None:
        """The header, which always has the same length: NumPy leaves room for the count."""
        header = {"descr": "<f8", "fortran_order": False, "shape": (self.rows, len(self.names))}
        np.lib.format.write_array_header_1_0(self.stream, header)

    def add(self, values: np.ndarray) -> None:
        """The bytes of the rows."""
        self.stream.write(np.ascontiguousarray(values, "<f8").tobytes())

    def finish(self) -> None:
        """The header again, now that the count is known."""
        self.stream.seek(0)
        self.begin()


class ParquetWriter(Writer):
    """A Parquet file with columns of float64."""

    def __init__(self, stream: Any, names: Sequence[str]) -> None:
        super().__init__(stream, names)
        self.pyarrow, parquet = _pyarrow()
        schema = self.pyarrow.schema([(name, self.pyarrow.float64()) for name in self.names])
        self.table = parquet.ParquetWriter(stream, schema)

    def add(self, values: np.ndarray) -> None:
        """Columns of the rows."""
        columns = [self.pyarrow.array(np.asarray(column, np.float64)) for column in values.T]
        self.table.write_batch(self.pyarrow.record_batch(columns, schema=self.table.schema))

    def close(self) -> None:
        """Write the end of the file."""
        self.table.close()
