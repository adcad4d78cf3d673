"""Whether a simulator works: it returns measurements, and those of one theta differ."""

import numpy as np

from ..exceptions import SimulatorError
from .worker import Result

FAILING_UNITS = 20
"""So many units without one measurement are a simulator that does not work."""
NOISELESS_UNITS = 64
"""So many units whose measurements are all equal are a simulator that ignores its rng."""
WATCHED_UNITS = 1024


class NoiseWatch:
    """Which numbers of x have noise, from the first units.

    Args:
        shape: of one measurement.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._still = np.ones(shape, bool)
        self._differs = np.zeros(shape, int)
        self._first: np.ndarray | None = None
        self.units = 0

    def see(self, x: np.ndarray, present: np.ndarray) -> None:
        """Look at units of which there are two measurements or more."""
        if self.units >= WATCHED_UNITS or present.shape[1] < 2:
            return
        x = x[present.all(axis=1)]
        if not len(x):
            return
        self._first = x[0, 0] if self._first is None else self._first
        self._still &= (x == x[:, :1]).all(axis=(0, 1))
        self._differs += (x[:, 0] != self._first).sum(axis=0)
        self.units += len(x)

    def frozen(self, share: float) -> int:
        """How many numbers never differ within a unit, but from the first in this share of them."""
        if self.units < NOISELESS_UNITS:
            return 0
        return int((self._still & (self._differs > share * self.units)).sum())


def shows_noise(result: Result) -> bool:
    """Whether some unit has two measurements that differ; one will do where there is no other."""
    if result.x is None or result.present.shape[1] == 1:
        return bool(result.present.any())
    return any(
        len(x := unit[present]) > 1 and bool((x[1:] != x[0]).any())
        for unit, present in zip(result.x, result.present, strict=True)
    )


def check_doubtful(results: list[Result]) -> None:
    """Refuse a simulator that has shown for many units that it does not work."""
    counts = np.concatenate([result.present.sum(axis=1) for result in results])
    if (failing := int((counts == 0).sum())) >= FAILING_UNITS:
        raise failing_error(failing, results[-1])
    if int((counts > 1).sum()) >= NOISELESS_UNITS:
        raise noiseless_error()


def failing_error(units: int, result: Result) -> SimulatorError:
    """Nothing succeeds."""
    return SimulatorError(
        f"simulator(theta, rng) failed for every measurement of {units} units; the last time "
        f"{result.failures[-1].message}"
    )


def noiseless_error() -> SimulatorError:
    """All measurements of one theta are equal."""
    return SimulatorError(
        "simulator ignores its rng: repeated measurements of one theta are all equal, so there is "
        "no noise to average over; draw the noise from the rng that it is given"
    )
