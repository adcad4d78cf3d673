"""Signal strengths of radio beacons in a library, at known places."""

import csv
import dataclasses
import numbers
from pathlib import Path

import numpy as np

from ._fetch import SourceFile, fetch

SOURCE = SourceFile(
    name="rssi",
    file="iBeacon_RSSI_Labeled.csv",
    sha256="2be36c37b2dd34e1eb59420d358a7cc4078718f6b5d49cbf4598753a2b4fecc9",
    url="https://archive.ics.uci.edu/static/public/435/"
    "ble+rssi+dataset+for+indoor+localization+and+navigation.zip",
)
UNHEARD_BELOW = -190.0  # the mark of the file is -200, with 15 slips to -198 and -199


@dataclasses.dataclass(frozen=True, eq=False)
class RSSI:
    """Readings of 13 beacons and the places they were taken at, row by row; see `rssi`."""

    x: np.ndarray
    """Received signal strengths in dBm, (1420, 13), float32."""
    y: np.ndarray
    """Places in grid cells, (1420, 2), float32: the column, A = 1, and the row."""
    location: np.ndarray
    """Places as in the file, (1420,), such as ``K04``."""
    time: np.ndarray
    """Local time of the readings, (1420,), datetime64[s]."""
    beacons: tuple[str, ...]
    """Names of the beacons, the columns of x."""
    unit_ids: np.ndarray
    """Numbers from 0 of the places, (1420,): equal for rows of the same place."""
    heard: np.ndarray
    """Which readings were heard, (1420, 13), bool."""

    def __repr__(self) -> str:
        rows, beacons = self.x.shape
        first, last = (end.astype("datetime64[D]") for end in (self.time.min(), self.time.max()))
        return (
            f"RSSI({rows} rows of {beacons} beacons at {len(np.unique(self.unit_ids))} places, "
            f"{first} to {last}; {1 - self.heard.mean():.1%} of the readings not heard)"
        )


def rssi(*, missing: float | None = -100.0) -> RSSI:
    """Signal strengths of 13 iBeacons in Waldo Library, Western Michigan University, in 2016.

    The labelled part of the "BLE RSSI Dataset for Indoor localization and Navigation" of the UCI
    repository, by M. Mohammadi and A. Al-Fuqaha, doi 10.24432/C54G80, licence CC BY 4.0. Rows are
    in the order of the file; many follow each other within a second or two and are nearly equal.

    Beacons out of reach are 89 % of the readings. The file marks them by -200, and 15 times by
    -198 or -199; the weakest reading that was heard is -88 dBm. A mark so far away makes a network
    see little else, so all of them (whatever is below -190) are given the value `missing`.

    The file is looked for at ``rssi/iBeacon_RSSI_Labeled.csv`` in the folder that the environment
    variable ``MVUE_DATA_DIR`` names, then in the user's cache, and is otherwise downloaded to
    there, for which pooch is needed (``pip install 'mvue[data]'``). Its checksum is verified.

    Args:
        missing: the reading of a beacon that was not heard, by default just below the weakest
            one; NaN will do. None leaves -200, -198 and -199 as they are.

    Raises:
        DatasetError: if the file is not to be had or is not what it should be.
    """
    if missing is not None and not isinstance(missing, numbers.Real):
        raise TypeError(f"missing must be a number, NaN or None, got {missing!r}")
    return read(fetch(SOURCE), missing)


def read(path: Path, missing: float | None) -> RSSI:
    """The data in a file of this form."""
    with path.open(newline="", encoding="ascii") as file:
        header, *rows = csv.reader(file)
    x = np.array([row[2:] for row in rows], np.float32)
    heard = x >= UNHEARD_BELOW
    location = np.array([row[0] for row in rows])
    if missing is not None:
        x = np.where(heard, x, np.float32(missing))
    return RSSI(
        x=x,
        y=np.array([_cell(place) for place in location], np.float32),
        location=location,
        time=np.array([_time(row[1]) for row in rows], "datetime64[s]"),
        beacons=tuple(header[2:]),
        unit_ids=np.unique(location, return_inverse=True)[1],
        heard=heard,
    )


def _cell(place: str) -> tuple[int, int]:
    """Column and row of a place such as K04."""
    return ord(place[0]) - ord("A") + 1, int(place[1:])


def _time(date: str) -> str:
    """A date of the file, month-day-year, as ISO 8601."""
    day, clock = date.split()
    month, number, year = day.split("-")
    hour, minute, second = clock.split(":")
    return f"{year}-{month:0>2}-{number:0>2}T{hour:0>2}:{minute:0>2}:{second:0>2}"
