"""Measurements beside simulated data sets: distances and their p-values."""

import warnings

import numpy as np

from .._core.keys import host_random
from .._core.types import Key
from .._summaries.families import Column, groups_of
from .result import ESTIMATES, SIZE, Check, FamilyCheck
from .simulated import Machine


def compared(
    machine: Machine,
    columns: tuple[Column, ...],
    seen: tuple[np.ndarray, np.ndarray],
    interest: np.ndarray,
    count: int,
    data_sets: int,
    keys: list[Key],
    left_out: tuple[str, ...] = (),
) -> Check:
    """The measurements beside so many simulated data sets, without families that are left out."""
    t, s = seen
    groups = groups_of(columns)
    left, estimated = machine.residuals(t, s)
    random = host_random(keys[0])
    totals = np.zeros((data_sets + 1, left.shape[1]))  # the measurements, then the data sets
    totals[0] = left.sum(axis=0)
    simulated, beyond = np.zeros(s.shape[1]), np.zeros(data_sets + 1)
    for of, ti, si in machine.replicates(estimated, count, keys[1]):
        flat = (part.reshape(-1, part.shape[2]) for part in (ti, si))
        others = machine.residuals(*flat)[0].reshape(*ti.shape[:2], -1)
        one, away = _beyond(t[of], ti, interest)
        beyond[0] = max(beyond[0], one.max())
        for k in range(len(ti)):
            chosen = chosen_of(random, count, data_sets)
            totals[1:] += others[k, chosen]
            beyond[1:] = np.maximum(beyond[1:], away[k, chosen])
        simulated += si.mean(axis=1).sum(axis=0)
    floor = machine.residuals.floor * len(t) ** 0.5
    names = [*columns, *(Column(family, SIZE) for family in groups)]
    totals[0] = fair(totals, count)
    together = members(groups)
    of_all = distances_of(totals, floor, together, random)
    distances = {name: values for name, values in of_all.items() if name not in left_out}
    distances[ESTIMATES] = beyond
    each = {family: shares(values) for family, values in distances.items()}
    least = np.min(list(each.values()), axis=0)
    mean = totals[1:].mean(axis=0)
    spread = np.hypot(totals[1:].std(axis=0), floor)
    with np.errstate(all="ignore"):
        differs = np.abs(totals[0] - mean) > 1e-6 * (1 + np.abs(mean))
        away = np.where(differs, (totals[0] - mean) / spread, 0.0)
    middle = np.append(s.mean(axis=0), np.full(len(groups), np.nan))
    typical = np.append(simulated / len(t), np.full(len(groups), np.nan))
    found = []
    for family, values in distances.items():
        of = together.get(family, np.zeros(0, int))
        p = each[family][0]
        adjusted = float(np.mean(least <= p * (1 + 1e-9)))
        found.append(
            FamilyCheck(
                family,
                float(p),
                adjusted,
                tuple(names[k].name for k in of),
                away[of],
                middle[of],
                typical[of],
                float(values[0]),
                values[1:],
            )
        )
    unseen = tuple(np.asarray(machine.thetas.names)[~machine.residuals.seen].tolist())
    return Check(
        tuple(found),
        float(np.mean(least <= least[0] * (1 + 1e-9))),
        len(t),
        data_sets,
        count,
        t,
        machine.problem.names or (),
        interest,
        unseen,
        left_out,
    )


def members(groups: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Numbers of the residuals of each family: its columns, then its scatter."""
    first = sum(map(len, groups.values()))
    return {name: np.append(group, first + k) for k, (name, group) in enumerate(groups.items())}


def distances_of(
    totals: np.ndarray,
    floor: np.ndarray,
    together: dict[str, np.ndarray],
    random: np.random.Generator,
) -> dict[str, np.ndarray]:
    """How far each data set is from what is typical, for each family."""
    scores = _standard(totals + floor * random.normal(size=totals.shape))
    return {family: np.abs(scores[:, group]).max(axis=1) for family, group in together.items()}


def fair(totals: np.ndarray, count: int) -> np.ndarray:
    """The first data set, brought as close to the mean of the others as they are themselves.

    They are put together from so many simulations of each measurement: they scatter about the mean
    of these, which has errors of its own.
    """
    others = len(totals) - 1
    if count >= others:
        return totals[0]
    mean = totals[1:].mean(axis=0)
    return mean + (totals[0] - mean) * ((count - 1) / (count + 1)) ** 0.5


def _standard(totals: np.ndarray) -> np.ndarray:
    """In standard units, the first row as the others, so that none is treated otherwise."""
    spread = totals.std(axis=0)
    return (totals - totals.mean(axis=0)) / np.where(spread > 0, spread, 1.0)


def shares(distances: np.ndarray) -> np.ndarray:
    """Of all data sets, the share that is at least as far away as each, (n,)."""
    ordered = np.sort(distances)
    return (len(ordered) - np.searchsorted(ordered, distances, side="left")) / len(ordered)


def chosen_of(random: np.random.Generator, count: int, data_sets: int) -> np.ndarray:
    """Which simulation of one measurement belongs to each data set: all differ, if they can."""
    if count >= data_sets:
        return random.permutation(count)[:data_sets]
    return random.integers(count, size=data_sets)


def _beyond(t: np.ndarray, ti: np.ndarray, interest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distances of estimates (n, d) from the median of simulated ones (n, M, d), in deviations.

    Of the measurements those count that are beyond the range of interest, (n,); of simulations all,
    (n, M), as if theta were at the end of the range.
    """
    usable = np.isfinite(ti)
    ti = np.where(usable, ti, np.nan)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # none of the simulated ones is finite
        middle, spread = np.nanmedian(ti, axis=1), np.nanstd(ti, axis=1)
    middle = np.where(np.isfinite(middle), middle, 0.0)
    spread = np.where(spread > 0, spread, 1e-6 * np.abs(middle) + 1e-30)
    away = np.where(usable, np.abs(ti - middle[:, None]), 0.0) / spread[:, None]
    above, below = (t > interest[1]) & (t > middle), (t < interest[0]) & (t < middle)
    excess = np.where(above | below, np.abs(t - middle), 0.0) / spread
    return excess.max(axis=1), away.max(axis=2)
