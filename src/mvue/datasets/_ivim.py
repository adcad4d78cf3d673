"""Results of public algorithms for intravoxel incoherent motion, on simulated signals."""

import csv
import dataclasses

import numpy as np

from ._fetch import SourceFile, fetch

SOURCE = SourceFile(
    name="ivim",
    file="reference_output.csv",
    sha256="1f0902ae9560d238b4f6c6189d2239988d69b6887bc52c766fdd65764f4905e2",
    url="https://raw.githubusercontent.com/OSIPI/TF2.4_IVIM-MRI_CodeCollection/"
    "f91b53cefa1c25495516d165b55a16117da4f8dc/tests/IVIMmodels/unit_tests/reference_output.csv",
)
COLUMNS = ("D", "f", "Dp")


@dataclasses.dataclass(frozen=True, eq=False)
class IVIMResults:
    """Mean and spread of 300 fits, row by row; columns are D, f and D*; see `ivim_results`."""

    algorithm: np.ndarray
    """Names of the algorithms, (2565,)."""
    tissue: np.ndarray
    """What was simulated, (2565,), such as ``Liver``."""
    snr: np.ndarray
    """Signal at b = 0 over the standard deviation of the noise, (2565,)."""
    truth: np.ndarray
    """D in mm²/s, perfusion fraction, and D* in mm²/s, (2565, 3)."""
    mean: np.ndarray
    """Of the estimates, (2565, 3)."""
    sd: np.ndarray
    """Of the estimates, (2565, 3)."""

    def __repr__(self) -> str:
        return (
            f"IVIMResults({len(np.unique(self.algorithm))} algorithms, "
            f"{len(np.unique(self.tissue))} tissues, SNR "
            f"{', '.join(f'{snr:g}' for snr in np.unique(self.snr))})"
        )


def ivim_results() -> IVIMResults:
    """What 19 public algorithms estimate for 27 tissues at five signal-to-noise ratios.

    From the code collection of OSIPI's task force 2.4, OSIPI/TF2.4_IVIM-MRI_CodeCollection,
    licence Apache 2.0. Absolute values of a signal with normal noise, at 18 b-values.

    The file is looked for at ``ivim/reference_output.csv`` in the folder that the environment
    variable ``MVUE_DATA_DIR`` names, then in the user's cache, and is otherwise downloaded to
    there, for which pooch is needed (``pip install 'mvue[data]'``). Its checksum is verified.

    Raises:
        DatasetError: if the file is not to be had or is not what it should be.
    """
    with fetch(SOURCE).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))

    def numbers(suffix: str) -> np.ndarray:
        return np.array([[float(row[name + suffix]) for name in COLUMNS] for row in rows])

    return IVIMResults(
        algorithm=np.array([row["Algorithm"] for row in rows]),
        tissue=np.array([row["Region"] for row in rows]),
        snr=np.array([float(row["SNR"]) for row in rows]),
        truth=numbers(""),
        mean=numbers("_mu"),
        sd=numbers("_std"),
    )
