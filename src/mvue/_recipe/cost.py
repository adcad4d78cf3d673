"""What a simulation costs, and how many of them a part of a fit can pay for.

Every part of a fit has an allowance in seconds of processor time. Where its simulations would take
longer, there are half of them, or a quarter, and so on. Halves, because times vary from run to run:
the numbers of a fit depend on them only where simulations are slow.
"""

import math
import time
from collections.abc import Callable
from typing import TypeVar

import jax

from .settings import ScheduleSettings

T = TypeVar("T")


def processor_seconds(function: Callable[[], T]) -> tuple[T, float]:
    """What a function returns, and the time that all cores spent on it.

    Other processes that keep the machine busy do not count.
    """
    begun = time.process_time()
    found = jax.block_until_ready(function())
    return found, time.process_time() - begun


def affordable(count: float, seconds: float, allowance: float) -> float:
    """The share of so many measurements, 1, 1/2, 1/4 …, that an allowance pays for.

    Args:
        count: how many are wanted.
        seconds: that one takes.
        allowance: for all of them.
    """
    needed = count * seconds / allowance
    return 1.0 if needed <= 1 else 0.5 ** math.ceil(math.log2(needed))


def uses_of(wanted: int, seconds: float, weights: int, settings: ScheduleSettings) -> int:
    """How many times training uses each simulation: once, unless they would take too long.

    Args:
        wanted: simulations, if each is used once.
        seconds: that one takes.
        weights: of the network, which must not learn the noise of those that are kept.
        settings: of the schedule.
    """
    needed = 1 / affordable(wanted, seconds, settings.seconds)
    most = min(settings.most_uses, wanted / (settings.fewest_simulations * max(weights, 1)))
    return 2 ** int(math.log2(max(1.0, min(needed, most))))


def describe_uses(uses: int, seconds: float) -> str:
    """The same in words; nothing where each is used once."""
    if uses == 1:
        return ""
    return f"; each simulation takes {1e6 * seconds:,.3g} µs and is used {uses} times on average"
