"""Information by simulation: how far means of statistics move with theta, against their noise."""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from .._core.keys import host_random
from .._core.problem import Problem
from .._core.ranges import OPEN_EDGE, Ranges, is_defined
from .._core.types import Key, Measurement
from .._information.pairs import Slopes, linear_information, slopes_of
from .._runtime.jit import as_array, held, jit, on_host
from .._runtime.memory import vmap_in_pieces
from .._runtime.threads import in_threads
from .cost import affordable
from .settings import Recipe

MOST_POINTS = 32  # values of theta in one call
LARGEST_CHUNK = 2**25  # numbers simulated in one call


@dataclasses.dataclass(frozen=True)
class SdProfile:
    """Standard deviations of one coordinate along its axis."""

    values: np.ndarray
    sd: np.ndarray


class Inside(NamedTuple):
    """What was found within the range of interest."""

    lines: list[SdProfile]
    """One for each coordinate."""
    ends: np.ndarray
    """The first and the last values of the lines, (2, p)."""
    typical: np.ndarray
    """How far apart to look from where slopes are taken, (p,)."""


class Look:
    """Standard deviations of theta from simulations around given values."""

    def __init__(
        self,
        problem: Problem,
        ranges: Ranges,
        summary: Callable[[Measurement], Array],
        key: Key,
        recipe: Recipe,
        seconds: float,
    ) -> None:
        self.recipe = recipe
        s, model = recipe.survey, recipe.error_model
        self.problem, self.ranges, self.summary = problem, ranges, summary
        self.key, self.calls = key, 0
        self.p = p = len(ranges.low)
        x, _ = problem.shapes()
        numbers = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(x))
        # Large simulators are looked at from fewer points, each with fewer simulations; slow ones
        # from fewer points alone, for with few simulations noise looks like information.
        looks = s.contexts * (2 * s.nodes + 2 * p * s.reach / s.step)
        wanted = (looks + model.points) * s.simulations
        share = s.budget / (numbers * wanted)
        fewest = min(s.fewest_simulations, s.simulations)
        self.simulations = 2 * (int(np.clip(s.simulations * share, fewest, s.simulations)) // 2)
        thin = np.clip(share * s.simulations / fewest, 0.0, 1.0) ** 0.5
        thin *= affordable(wanted * min(share, 1.0), seconds, s.seconds) ** 0.5
        self.contexts = max(1, round(s.contexts * thin))
        self.nodes = max(min(s.fewest_nodes, s.nodes), round(s.nodes * thin))
        self.points = max(min(model.fewest_points, model.points), round(model.points * thin))
        self.chunk = int(np.clip(LARGEST_CHUNK // (numbers * self.simulations), 1, MOST_POINTS))
        self.rng = host_random(key)
        self._slopes = jit(self._slopes_around)

    def _slopes_around(self, down: Array, up: Array, key: Key) -> Slopes:
        """How the means of the statistics change between two values of theta, and their noise."""
        pairs = self.simulations // 2
        keys = jr.split(key, self.chunk)
        sign_keys, noise_keys = jax.vmap(jr.split)(keys).T
        signs = jax.vmap(lambda key: jr.rademacher(key, (pairs, self.p), up.dtype))(sign_keys)

        def simulated(down: Array, up: Array, key: Key, signs: Array) -> Measurement:
            middle, half = (up + down) / 2, (up - down) / 2
            rows = middle[None, None, :] + half[None, None, :] * jnp.stack([signs, -signs])
            theta = jax.vmap(jax.vmap(self.ranges.coordinates.to_theta))(rows)
            of_signs = jax.vmap(jax.vmap(self.problem.simulate), in_axes=(None, 0))
            return of_signs(jr.split(key, pairs), theta)

        x = held(lambda _: jax.vmap(simulated)(down, up, noise_keys, signs), key)
        found = vmap_in_pieces(jax.vmap(jax.vmap(self.summary)), x)
        return jax.vmap(slopes_of)(found, signs)

    def _information(self, seen: Slopes, half: np.ndarray) -> np.ndarray:
        """Information about theta, (p, p), from what was seen at one point."""
        information, _ = linear_information(seen, self.recipe.survey.least_shown)
        # A step that rounding takes to nothing tells nothing: the point is left out.
        with np.errstate(divide="ignore", invalid="ignore"):
            return information / np.outer(half, half)

    def _informations(self, points: list[tuple[Slopes, np.ndarray]]) -> list[np.ndarray]:
        return [self._information(*point) for point in points]

    def covariance(
        self, theta: np.ndarray, reach: np.ndarray, low: np.ndarray, high: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Covariances of theta at values (B, p), (B, p, p), and which can be trusted, (B,).

        Slopes are taken over theta ± reach, within low and high.
        """
        up, down = np.minimum(theta + reach, high), np.maximum(theta - reach, low)
        if self.ranges.whole:
            up = np.minimum(np.ceil(np.maximum(up, np.round(theta) + 1)), np.floor(high))
            down = np.maximum(np.floor(np.minimum(down, up - 1)), np.ceil(low))
        information, good = [], []
        for start in range(0, len(theta), self.chunk):
            rows = np.arange(start, start + self.chunk) % len(theta)
            self.calls += 1
            key = jr.fold_in(self.key, self.calls)
            parts = (as_array(part[rows]) for part in (down, up))
            found = Slopes(*map(np.asarray, self._slopes(*parts, key)))
            halves = (up[rows] - down[rows]) / 2
            points = [(Slopes(*(part[i] for part in found)), halves[i]) for i in range(len(rows))]
            for some in in_threads(self._informations, points):
                information += some
            good.append(found.good)
        matrix = np.stack(information)[: len(theta)]
        diagonal = np.sqrt(np.maximum(np.einsum("bii->bi", matrix), 0))
        trusted = np.concatenate(good)[: len(theta)]
        trusted &= np.isfinite(matrix).all(axis=(1, 2)) & (diagonal > 0).all(axis=1)
        matrix[~trusted], diagonal[~trusted] = np.eye(self.p), 1.0
        unit = diagonal[:, :, None] * diagonal[:, None, :]
        return np.linalg.inv(matrix / unit + 1e-3 * np.eye(self.p)) / unit, trusted

    def _along(
        self, values: np.ndarray, reach: np.ndarray, ends: np.ndarray, typical: np.ndarray
    ) -> Any:
        """Deviations (p, G) at values (p, G) of each coordinate, the others from the prior.

        Of many coordinates all take one of their values at each point, in an order of their own.
        """
        p, count = values.shape
        if p > self.recipe.survey.most_alone and count > 2:
            return self._along_all(values, reach, ends)
        theta = self.rng.choice(self.ranges.draws, (p, count, self.contexts))
        theta = np.clip(theta, ends[0], ends[1])
        steps = np.broadcast_to(typical, theta.shape).copy()
        for k in range(p):
            theta[k, :, :, k], steps[k, :, :, k] = values[k, :, None], reach[k, :, None]
        sd, good = self._deviations(theta, steps, ends)
        own = np.stack([sd[k, :, :, k] for k in range(p)])
        return _typical(own), good.all(axis=2), theta

    def _along_all(self, values: np.ndarray, reach: np.ndarray, ends: np.ndarray) -> Any:
        p, count = values.shape
        order = self.rng.permuted(np.tile(np.arange(count), (self.contexts, p, 1)), axis=2)
        theta = np.take_along_axis(values[None], order, axis=2).transpose(0, 2, 1)
        steps = np.take_along_axis(reach[None], order, axis=2).transpose(0, 2, 1)
        sd, good = self._deviations(theta, steps, ends)
        place = np.argsort(order, axis=2)
        own = np.take_along_axis(sd.transpose(0, 2, 1), place, axis=2)
        fine = np.take_along_axis(np.repeat(good[:, None, :], p, axis=1), place, axis=2)
        own = np.where(fine, own, np.nan)
        return _typical(own.transpose(1, 2, 0)), fine.any(axis=0), theta

    def _deviations(
        self, theta: np.ndarray, steps: np.ndarray, ends: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of all coordinates at points (..., p), (..., p), and which can be trusted, (...)."""
        flat = theta.reshape(-1, self.p)
        low, high = np.minimum(ends[0], flat), np.maximum(ends[1], flat)
        covariance, good = self.covariance(flat, steps.reshape(-1, self.p), low, high)
        sd = np.sqrt(np.einsum("bii->bi", covariance)).reshape(theta.shape)
        return sd, good.reshape(theta.shape[:-1])

    def inside(self) -> Inside:
        """Standard deviations within the range of interest."""
        r = self.ranges
        ends = np.stack([r.low, r.high])
        typical = (ends[1] - ends[0]) / 8
        _, good, _ = self._along(ends.T, np.stack([typical] * 2, axis=1), ends, typical)
        inner = np.stack([r.quantile(OPEN_EDGE), r.quantile(1 - OPEN_EDGE)])
        ends = np.where(good.T, ends, inner)
        values = np.linspace(ends[0], ends[1], self.nodes, axis=1)
        reach = np.broadcast_to(typical[:, None], values.shape)
        sd, good, _ = self._along(values, reach, ends, typical)
        lines = [SdProfile(values[k][good[k]], sd[k][good[k]]) for k in range(self.p)]
        if any(len(line.values) < 2 for line in lines):
            lines = [SdProfile(ends[:, k], np.full(2, typical[k])) for k in range(self.p)]
        else:
            same = self.recipe.survey.same
            for _ in range(self.recipe.survey.most_looks):
                before, (lines, typical) = lines, self._again(lines, ends)
                if all(_alike(*pair, same) for pair in zip(before, lines, strict=True)):
                    break
        return Inside(
            lines, np.stack([[line.values[i] for line in lines] for i in (0, -1)]), typical
        )

    def _again(
        self, lines: list[SdProfile], ends: np.ndarray
    ) -> tuple[list[SdProfile], np.ndarray]:
        """The same at values spread evenly in standard deviations, with steps of that size."""
        step = self.recipe.survey.step
        lines = [refined(line, self.recipe.survey.between) for line in lines]
        values = np.stack([np.interp(*even(line, self.nodes)) for line in lines])
        local = np.stack(
            [
                np.exp(np.interp(v, line.values, np.log(line.sd)))
                for v, line in zip(values, lines, strict=True)
            ]
        )
        quarter = (ends[1] - ends[0]) / 4
        typical = np.minimum(step * np.median(local, axis=1), quarter)
        reach = np.minimum(step * local, quarter[:, None])
        sd, good, _ = self._along(values, reach, ends, typical)
        found = [
            SdProfile(values[k][good[k]], sd[k][good[k]]) if good[k].sum() > 1 else lines[k]
            for k in range(self.p)
        ]
        return found, typical

    def outside(self, inside: Inside) -> tuple[list[SdProfile], list[SdProfile]]:
        """Standard deviations on the way out of the range of interest, below and above."""
        p, r, s = self.p, self.ranges, self.recipe.survey
        here = inside.ends.copy()
        sd = np.stack([[line.sd[i] for line in inside.lines] for i in (0, -1)])
        positive = r.positive & ~self._passes_zero(sd[0], inside)
        widths = np.array([distance_along(line)[-1] for line in inside.lines])
        reach = np.clip(s.reach_share * widths, s.reach, max(s.reach, s.farthest_reach))
        largest = np.broadcast_to(s.step * reach / max(s.reach, s.step), (2, p))
        step, left = largest.copy(), np.broadcast_to(reach, (2, p)).copy()
        found: list[list[list[tuple[float, float]]]] = [[[] for _ in range(p)] for _ in range(2)]
        sign = np.array([[-1.0], [1.0]])
        for _ in range(2 * round(s.reach / s.step)):
            if (left <= 0).all():
                break
            relative = np.minimum(step * sd / np.maximum(np.abs(here), 1e-30), 1.0)
            there = np.where(positive, here * np.exp(sign * relative), here + sign * step * sd)
            if r.whole:
                there = np.where(sign < 0, np.floor(there), np.ceil(there))
            values, good, theta = self._along(there.T, (s.step * sd).T, inside.ends, inside.typical)
            for side, k in np.ndindex(2, p):
                if left[side, k] <= 0:
                    continue
                thetas = [r.coordinates.to_theta(on_host(t)) for t in theta[k, side]]
                if not (good[k, side] and is_defined(self.problem, thetas)):
                    # The end of where the simulator is defined: come closer in smaller steps.
                    step[side, k] /= 2
                    left[side, k] = 0.0 if step[side, k] < largest[side, k] / 8 else left[side, k]
                    continue
                here[side, k] = there[side, k]
                sd[side, k] = np.clip(values[k, side], sd[side, k] / 2, 2 * sd[side, k])
                left[side, k] -= step[side, k]
                found[side][k].append((here[side, k], sd[side, k]))
        lines = [[SdProfile(*np.array(line).reshape(-1, 2).T) for line in side] for side in found]
        return lines[0], lines[1]

    def _passes_zero(self, sd: np.ndarray, inside: Inside) -> np.ndarray:
        """Which coordinates, (p,), are not at an end where they reach zero.

        Below zero the data of a location go on changing as they do above. Those of a size that
        may have either sign change back, and those of what is cut off at zero do not change.
        """
        r, p, passes = self.ranges, self.p, np.zeros(self.p, bool)
        s, ends = self.recipe.survey, inside.ends
        near = r.positive & (ends[0] < s.reach * sd)
        for k in np.flatnonzero(near & (not r.whole)):
            theta = self.rng.choice(r.draws, self.contexts)
            theta[:, k] = 0.0
            reach = np.broadcast_to(inside.typical, theta.shape).copy()
            reach[:, k] = sd[k]
            across, above = (np.where(np.arange(p) == k, low, ends[0]) for low in (-sd[k], 0))
            both, trusted = self.covariance(theta, reach, across, ends[1])
            upper, trusted_above = self.covariance(theta, reach, above, ends[1])
            theta[:, k] = -sd[k]
            below = [r.coordinates.to_theta(on_host(t)) for t in theta]
            passes[k] = (
                (trusted & trusted_above).all()
                and np.median(both[:, k, k] / upper[:, k, k]) < s.goes_on**2
                and all(bool(jnp.isfinite(self.problem.y_of(t)).all()) for t in below)
                and is_defined(self.problem, below)
            )
        return passes


def _typical(sd: np.ndarray) -> np.ndarray:
    """The geometric median over the last axis, of what is known."""
    with np.errstate(invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where nothing is known
        return np.exp(np.nanmedian(np.log(sd), axis=-1))


def _alike(before: SdProfile, after: SdProfile, same: float) -> bool:
    """Whether a second look found about the same deviations as the first."""
    guess = np.exp(np.interp(after.values, before.values, np.log(before.sd)))
    return bool(np.abs(np.log(after.sd / guess)).max() < np.log(same))


def even(line: SdProfile, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Arguments of np.interp for values at equal distances in standard deviations."""
    distance = distance_along(line)
    return np.linspace(0, distance[-1], count), distance, line.values


def distance_along(line: SdProfile) -> np.ndarray:
    """Length along the axis in standard deviations, from the first value."""
    rate = 1 / line.sd
    return np.concatenate([[0.0], np.cumsum(np.diff(line.values) * (rate[1:] + rate[:-1]) / 2)])


def refined(line: SdProfile, between: int) -> SdProfile:
    """The same with so many values in between, on which the deviation grows by equal factors.

    In between it is taken to be linear, as it is along the axis of a scale: the steps between
    values may then span powers of ten.
    """
    share = np.linspace(0, 1, between, endpoint=False)
    factor = (line.sd[1:] / line.sd[:-1])[:, None]
    # Equal factors of the deviation are equal steps of the value where the factor is one.
    grown = np.expm1(share * np.log(factor))
    near = np.abs(factor - 1) < 1e-6
    place = np.where(near, share, grown / np.where(near, 1.0, factor - 1))
    values = line.values[:-1, None] + np.diff(line.values)[:, None] * place
    sd = line.sd[:-1, None] * (1 + grown)
    return SdProfile(np.append(values, line.values[-1]), np.append(sd, line.sd[-1]))
