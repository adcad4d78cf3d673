"""Tables of measurements in files, read and written a piece at a time."""

import csv
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from itertools import chain, islice
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._serialise.files import opened

ROWS = 8192
KINDS = (".csv", ".npy", ".parquet")
PARQUET = b"PAR1"  # at both ends of a file


MISSING = {"na", "n/a", "n.a.", "nat", "null", "nil", "none", "missing"}
"""How programs write that there is no number, in small letters; none of these is a name."""
NAME = re.compile(r"[\s\"'(\[{|$\\]*[^\W\d]")
"""How a name begins: with a letter. What begins otherwise may be a number in another notation."""
COMPLEX = re.compile(r"\(?\s*([^\s()]*[\d.nf])[ij]\s*\)?", re.IGNORECASE)
"""A complex number as Python, NumPy, MATLAB and R write it."""


class FileRows(NamedTuple):
    """Some rows of a file."""

    values: np.ndarray
    names: list[str] | None
    """Of the columns, where the file has any."""


def read_pieces(
    path: str | Path,
    columns: Sequence[str] | None = None,
    *,
    header: bool | None = None,
    rows: int = ROWS,
) -> Iterator[FileRows]:
    """The rows of a CSV, NumPy or Parquet file, in pieces: memory does not grow with their number.

    Args:
        path: the file.
        columns: names of those to take from a file that has names; the others are not looked at.
        header: whether the first line of a CSV file has names; by default if all of its cells
            begin with a letter.
        rows: how many at a time.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    kind = path.suffix.lower()
    if header is not None and kind != ".csv":
        raise ValueError(f"only a .csv file can be read with or without a header, got {path.name}")
    if kind == ".npy":
        return _numpy_pieces(path, rows)
    if kind == ".parquet":
        return _parquet_pieces(path, columns, rows)
    if kind == ".csv":
        return _csv_pieces(path, columns, header, rows)
    raise ValueError(f"data must be a file of the kind {', '.join(KINDS)}, got {path.name}")


def _places(path: Path, names: list[str], columns: Sequence[str] | None) -> list[int]:
    """Which columns of a file to take, in order."""
    twice = next((name for i, name in enumerate(names) if name and name in names[:i]), None)
    if twice is not None:
        raise ValueError(f"{path} must have a name of its own for each column, got {twice!r} twice")
    missing = [name for name in columns or () if name not in names]
    if missing:
        raise ValueError(f"{path} has no column {', '.join(missing)}; it has {names}")
    return list(range(len(names))) if columns is None else [names.index(name) for name in columns]


def _numpy_pieces(path: Path, rows: int) -> Iterator[FileRows]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is not a NumPy file of numbers, or was cut short") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise ValueError(f"{path} must hold one array, got an archive of {len(array)}: save one")
    if array.ndim == 0 or array.dtype.kind not in "biufc":
        raise ValueError(f"{path} must hold rows of numbers, got {array.dtype} {array.shape}")
    rest = path.stat().st_size - array.offset - array.nbytes if isinstance(array, np.memmap) else 0
    if rest:
        raise ValueError(
            f"{path} must hold one array, got {rest:,} bytes after that of shape {array.shape}: "
            "save all rows as one"
        )
    for start in range(0, max(len(array), 1), rows):
        yield FileRows(np.asarray(array[start : start + rows]), None)


def _csv_pieces(
    path: Path, columns: Sequence[str] | None, header: bool | None, rows: int
) -> Iterator[FileRows]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        lines = enumerate(stream, 1)
        try:
            first = next(lines, None)
            if first is None:
                raise ValueError(f"{path} is empty")
            cells = _cells(path, *first)
            names, places = None, list(range(len(cells)))
            if _has_names(path, first[1], cells) if header is None else header:
                names, places = cells, _places(path, cells, columns)
            else:
                lines = chain([first], lines)
            chosen = names and [names[i] for i in places]
            block = list(islice(lines, rows))
            if not block:
                yield FileRows(np.empty((0, len(places))), chosen)
            while block:
                following = list(islice(lines, rows))
                block = block if following else _without_empty_end(block, len(cells))
                yield FileRows(_csv_values(path, block, len(cells), places), chosen)
                block = following
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not a text in UTF-8: {error.reason}") from error


def _has_names(path: Path, line: str, cells: list[str]) -> bool:
    """Whether the first line has names of columns: then all of its cells are.

    What is neither a name nor a number for certain is an error: taken for names, a row were lost.
    """
    if all(not cell or _is_number(cell) for cell in cells):
        return False
    if len(cells) == 1 and any(mark in line for mark in ";\t"):
        raise ValueError(f"{path} must have commas between columns, got {line!r:.80}")
    # A table that was written with its index has no name above that.
    is_name = [_is_name(cell) for cell in (cells[0].lstrip("#"), *cells[1:])]  # as NumPy marks it
    if all(is_name[1:]) and (is_name[0] or (len(cells) > 1 and not cells[0])):
        return True
    others = [i for i, cell in enumerate(cells) if cell and not _is_number(cell)]
    wrong = next((i for i in others if not is_name[i]), others[0])
    raise ValueError(
        f"{path} must have numbers only or names only in line 1, got {cells[wrong]!r:.80} in "
        f"column {wrong + 1} of line 1: write a number or leave it empty, or give --header if "
        "these are names"
    )


def _without_empty_end(block: list[tuple[int, str]], width: int) -> list[tuple[int, str]]:
    """Lines without the empty ones that end a file; where lines have one cell, they are rows."""
    while width > 1 and block and not block[-1][1].strip():
        block = block[:-1]
    return block


def _csv_values(
    path: Path, block: list[tuple[int, str]], width: int, places: list[int]
) -> np.ndarray:
    """Some of the cells in lines as numbers; an empty cell is NaN."""
    lines = [line for _, line in block]
    # Without quotes and gaps, commas tell the cells: NumPy is fast, but would pass over the rest.
    if lines and all(
        line.count(",") == width - 1 and '"' not in line and line.strip() for line in lines
    ):
        with suppress(ValueError):
            values = np.loadtxt(lines, delimiter=",", ndmin=2, comments=None, usecols=places)
            if len(values) == len(lines):
                return values
    return np.array([_csv_row(path, *line, width, places) for line in block]).reshape(
        len(block), len(places)
    )


def _csv_row(path: Path, number: int, line: str, width: int, places: list[int]) -> list[Any]:
    """One line as numbers: slow, but knows quotes and gaps, and where something is wrong."""
    if not line.strip() and width > 1:
        raise ValueError(
            f"{path} must have a measurement in every line, but line {number} is empty"
        )
    cells = _cells(path, number, line)
    if len(cells) != width:
        raise ValueError(
            f"{path} must have {width} numbers in every line, got {len(cells)} in line {number}"
        )
    wrong = next((i for i in places if cells[i] and not _is_number(cells[i])), None)
    if wrong is not None:
        raise ValueError(
            f"{path} must have numbers only, got {cells[wrong]!r:.80} in column {wrong + 1} of "
            f"line {number}"
        )
    return [_number(cells[i] or "nan") for i in places]


def _cells(path: Path, number: int, line: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], strict=True))] or [""]
    except csv.Error as error:  # a quote that is not closed, or a cell without end
        raise ValueError(
            f"{path} must have cells that end in their line, and quotes in pairs, got {line!r:.80} "
            f"in line {number} ({error})"
        ) from None


def _is_name(cell: str) -> bool:
    word = cell.strip().lower()
    no_number = word in MISSING or word.startswith("nan(") or word.endswith(("!", "?"))
    return bool(NAME.match(word)) and not _is_number(word) and not no_number


def _is_number(text: str) -> bool:
    try:
        _number(text)
    except ValueError:
        return False
    return "_" not in text  # Python reads 1_0 as ten; in a table it is a mistake


def _number(text: str) -> float | complex:
    written = COMPLEX.fullmatch(text)
    return float(text) if written is None else complex(f"{written[1]}j")


def _parquet_pieces(path: Path, columns: Sequence[str] | None, rows: int) -> Iterator[FileRows]:
    pyarrow, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(path) as file:
            _refuse_joined(path, file.metadata)
            names = list(file.schema_arrow.names)
            if columns is None:
                index = _index_of(file.schema_arrow)
                columns = [name for name in names if name not in index]
            chosen = [names[i] for i in _places(path, names, columns)]
            for batch in file.iter_batches(batch_size=rows, columns=chosen):
                arrays = {n: batch.column(n).to_numpy(zero_copy_only=False) for n in chosen}
                wrong = [name for name, array in arrays.items() if array.dtype.kind not in "biuf"]
                if wrong:
                    raise ValueError(f"{path} must have columns of numbers, not {', '.join(wrong)}")
                yield FileRows(np.column_stack(list(arrays.values())), chosen)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a sound Parquet file: {error}") from error


def _index_of(schema: Any) -> set[str]:
    """Columns that pandas has written for its index, and would take for it again."""
    written = (schema.pandas_metadata or {}).get("index_columns", [])
    return {name for name in written if isinstance(name, str)}  # a range is no column


def _refuse_joined(path: Path, metadata: Any) -> None:
    """Refuse files that were appended to each other: the rows of one of them would be lost."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
    ends = [_first_page(chunk) + chunk.total_compressed_size for chunk in chunks]
    footer = path.stat().st_size - metadata.serialized_size - 2 * len(PARQUET)
    with path.open("rb") as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as data:
        # Between pages and footer indices of columns may be, but not the end of another file.
        if data.find(PARQUET, max(ends, default=len(PARQUET)), footer) >= 0:
            raise ValueError(f"{path} must be one Parquet file, got several that were joined")


def _first_page(chunk: Any) -> int:
    places = chunk.dictionary_page_offset, chunk.data_page_offset
    return min(place for place in places if place is not None)


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
