"""Whether p-values hold: false alarms in simulated data sets with one theta throughout.

What is left of a summary should have the same mean at every theta. Where it has not, deviations add
up over measurements; most if theta is the same in all, because a mean over several theta is no
farther away than the farthest of them. Such data sets are made by the simulator, and go through the
comparison that the measurements will go through: families that they fail too often are not used.
"""

import jax.random as jr
import numpy as np
from scipy.stats import binom

from .._core.keys import host_random, several
from .._core.types import Key
from .._summaries.families import Column, groups_of
from .compare import chosen_of, distances_of, fair, members, shares
from .result import REMEDY
from .simulated import Machine

OTHERS = 99  # simulated data sets that each is compared with
FEWEST, MOST = 40, 100  # data sets with one theta
FEWEST_REPLICATES = 4
ENOUGH = 400  # replicates of all measurements of a data set together
AT_ONCE = 2**15  # measurements
LEVELS = (0.01, 0.05)  # a few theta may fail badly, or all a little
CHANCE = 1e-3  # that as many false alarms are due to chance


def families_at_fault(
    machine: Machine,
    columns: tuple[Column, ...],
    seen: tuple[np.ndarray, np.ndarray],
    simulations: int,
    key: Key,
) -> tuple[str, ...]:
    """Families whose p-values are too small where theta is the same in all measurements.

    Args:
        machine: what was learned.
        columns: of summaries.
        seen: estimates and summaries of the user's measurements.
        simulations: about how many to use, if these are enough.
        key: decides them.

    Raises:
        ValueError: if no family is without fault.
    """
    estimated = machine.residuals(*seen)[1]
    size = len(estimated)
    count = int(np.clip(-(-ENOUGH // size), FEWEST_REPLICATES, OTHERS))
    trials = int(np.clip(simulations // (size * (1 + count)), FEWEST, MOST))
    together = members(groups_of(columns))
    found, group = [], max(1, AT_ONCE // size)
    for first in range(0, trials, group):
        some = min(group, trials - first)
        one_key = jr.fold_in(key, first)
        found.append(_trials(machine, together, estimated, some, count, one_key))
    names = np.array(list(together))
    wrong = _wrong(np.concatenate(found))
    if wrong.all():
        raise ValueError(
            "x cannot be checked: p-values must hold though theta may be the same in all "
            f"measurements, and of {trials} such data sets that were simulated, too many were "
            "called misfits by each family of summaries, because summaries do not tell theta well "
            f"enough; {REMEDY}"
        )
    return tuple(names[wrong].tolist())


def _trials(
    machine: Machine,
    together: dict[str, np.ndarray],
    estimated: np.ndarray,
    trials: int,
    count: int,
    key: Key,
) -> np.ndarray:
    """Shares of data sets that are at least as far away, (trials, 1 + OTHERS, families).

    The first of each trial is that with one theta.
    """
    keys = several(key, 3)
    random, size = host_random(keys[0]), len(estimated)
    # Where the user's measurements may be from: elsewhere it does not matter.
    of = random.integers(size, size=trials)
    theta = machine.thetas_at(estimated[of], 1, random)
    t, s = machine.measured(np.repeat(theta, size, axis=0), of, keys[1])
    left, at = machine.residuals(*(part.reshape(-1, part.shape[2]) for part in (t, s)))
    totals = np.zeros((trials, OTHERS + 1, left.shape[1]))
    totals[:, 0] = left.reshape(trials, size, -1).sum(axis=1)
    for rows, ti, si in machine.replicates(at, count, keys[2], np.repeat(of, size)):
        flat = (part.reshape(-1, part.shape[2]) for part in (ti, si))
        others = machine.residuals(*flat)[0].reshape(*ti.shape[:2], -1)
        for k, one in enumerate(others, rows.start):
            totals[k // size, 1:] += one[chosen_of(random, count, OTHERS)]
    floor = machine.residuals.floor * size**0.5
    found = []
    for one in totals:
        one[0] = fair(one, count)
        distances = distances_of(one, floor, together, random).values()
        found.append(np.stack([shares(values) for values in distances], axis=1))
    return np.stack(found)


def _wrong(found: np.ndarray) -> np.ndarray:
    """Families to leave out such that neither one of the others nor all of them fail."""
    wrong = _fails(found[:, 0])
    while not wrong.all():
        least = found[:, :, ~wrong].min(axis=2)
        p = np.mean(least <= least[:, :1] * (1 + 1e-9), axis=1)
        if not _fails(p[:, None]).any():
            break
        wrong[np.argmin(np.where(wrong, np.inf, found[:, 0].mean(axis=0)))] = True
    return wrong


def _fails(p: np.ndarray) -> np.ndarray:
    """Whether more of these are small than chance allows: of p-values (trials, n), (n,)."""
    each = [
        np.sum(p <= level * (1 + 1e-9), axis=0) > binom.isf(CHANCE, len(p), level)
        for level in LEVELS
    ]
    return np.any(each, axis=0)
