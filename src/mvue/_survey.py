"""A look at the problem before training: where to draw unknowns, and how large errors are there.

The unit of everything is the standard deviation with which theta can be told from the data. It is
measured on simulations alone, from how far the means of some statistics move against their noise:
the information in those statistics, a lower bound on Fisher's that needs no likelihood and holds
for irregular models, too. Unknowns are drawn evenly in this unit (Jeffreys' prior, coordinate by
coordinate) and beyond the ends of the range of interest by a few units, because estimates near an
end are made from data that also come from beyond it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from ._problem import Problem, finite_units, key_for, pilot_draw
from ._smooth import smooth
from ._statistics import Statistics, choose_statistics
from ._theta_range import OPEN_EDGE, Coordinates, coordinates_of, is_defined
from ._types import Key, Theta

REACH = 2.5  # standard deviations by which training goes beyond the range of interest
STEP = 0.5  # standard deviations between looks on the way out
NODES = 11  # values of each coordinate inside the range of interest
CONTEXTS = 3  # values of the other coordinates for each
POINTS = 256  # at which the size of errors is measured
SIMULATIONS = 512  # at each value of theta
FEWEST_SIMULATIONS = 96
BUDGET = 2**28  # simulated numbers of a whole survey
CHUNK = 32  # values of theta in one call
TABLE = 65  # entries of the tables of training values
SPREAD = 128  # values of theta around each point that tell how much y varies
PILOT = 1024


@dataclasses.dataclass(frozen=True)
class Range:
    """One coordinate of theta: what the prior asks for and what training covers."""

    name: str
    interest: tuple[float, float]
    training: tuple[float, float]
    width: float
    """The training range in standard deviations."""


class TrainingPrior:
    """Independent coordinates of theta, drawn from tables of equally likely steps."""

    def __init__(self, coordinates: Coordinates, tables: np.ndarray) -> None:
        self.coordinates, self.tables = coordinates, jnp.asarray(tables, jnp.result_type(float))

    def sample(self, key: Key) -> Theta:
        """One theta."""
        p, size = self.tables.shape
        place = jr.uniform(key, (p,)) * (size - 1)
        grid = jnp.arange(size, dtype=place.dtype)
        values = jax.vmap(lambda at, table: jnp.interp(at, grid, table))(place, self.tables)
        return self.coordinates.theta(values)


@dataclasses.dataclass(frozen=True, eq=False)
class Survey:
    """What a look at a problem decided about training; see `survey`."""

    training_prior: Any
    """Where to draw unknowns: an object with ``sample(key)``, or the prior of the problem."""
    log_sd: Callable[[Theta], Float[Array, " d"]]
    """Logarithm of the standard deviation to expect of an estimate of y, at one theta."""
    ranges: tuple[Range, ...]
    """The coordinates of theta; empty if the prior was left as it is."""
    statistics: Statistics
    note: str

    def weight(self, theta: Theta) -> Float[Array, " d"]:
        """One over the variance to expect of an estimate of y: makes errors comparable."""
        return jnp.exp(-2 * self.log_sd(theta))

    def __str__(self) -> str:
        lines = [
            f"{r.name} {r.training[0]:.3g} … {r.training[1]:.3g} (of interest: "
            f"{r.interest[0]:.3g} … {r.interest[1]:.3g}), {r.width:.1f} standard deviations wide"
            for r in self.ranges
        ]
        return "\n".join([*lines, self.note])


def survey(problem: Problem, *, key: Key) -> Survey:
    """Look at a problem by simulation and decide where to train and how to weight errors.

    `fit` does this by itself; call it to see or use its decisions elsewhere. The range of interest
    is the support of the prior, or all but its tails. Training goes beyond it, where the simulator
    is defined: not below zero if the prior is positive; not where the simulator returns non-finite
    numbers or the same ones always; not where a numpyro likelihood refuses its parameters.

    Args:
        problem: the problem.
        key: for the simulations.
    """
    keys = jr.split(key_for("survey", key), 6)
    pilot = pilot_draw(problem, keys[0], PILOT, 4)
    statistics = choose_statistics(
        jax.tree.map(lambda leaf: leaf[:, 0], pilot.x), exchangeable=problem.exchangeable
    )
    found = coordinates_of(problem, keys[1])
    if isinstance(found, str):
        return _of_unknown_coordinates(problem, pilot, statistics, found)
    look = _Look(problem, found, statistics, keys[2])
    inside = look.inside()
    below, above = look.outside(inside)
    for share in (1.0, 0.5, 0.0):
        tables, widths = _tables(inside, below, above, share)
        prior = TrainingPrior(found, tables)
        trial = dataclasses.replace(problem, prior=prior, crb=None).draw(keys[3], PILOT, 1)
        if bool(finite_units(trial).all()):
            break
    log_sd = _expected_error(problem, look, prior, keys[4], widths)
    ranges = tuple(
        Range(
            name, (found.low[k], found.high[k]), (tables[k, 0].item(), tables[k, -1].item()), width
        )
        for k, (name, width) in enumerate(zip(found.names, widths.tolist(), strict=True))
    )
    note = "drawn evenly in standard deviations, fewer towards the ends"
    return Survey(prior, log_sd, ranges, statistics, note)


@dataclasses.dataclass(frozen=True)
class _Line:
    """Standard deviations of one coordinate along its axis."""

    values: np.ndarray
    sd: np.ndarray


class _Look:
    """Standard deviations of theta from simulations around given values."""

    def __init__(
        self, problem: Problem, coordinates: Coordinates, statistics: Statistics, key: Key
    ) -> None:
        self.problem, self.coordinates, self.statistics = problem, coordinates, statistics
        self.key, self.calls = key, 0
        self.p = p = len(coordinates.low)
        x, _ = problem.shapes()
        numbers = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(x)) * (2 * p + 1)
        # Large simulators are looked at from fewer points, each with fewer simulations.
        points = 2 * p * CONTEXTS * (NODES + REACH / STEP) + POINTS
        share = BUDGET / (numbers * points * SIMULATIONS)
        self.simulations = int(np.clip(SIMULATIONS * share, FEWEST_SIMULATIONS, SIMULATIONS))
        thin = np.clip(share * SIMULATIONS / FEWEST_SIMULATIONS, 0.0, 1.0) ** 0.5
        self.contexts = max(1, round(CONTEXTS * thin))
        self.nodes = max(5, round(NODES * thin))
        self.points = max(64, round(POINTS * thin))
        self.rng = np.random.default_rng(np.asarray(jr.key_data(key)).ravel().tolist())
        self._information = jax.jit(jax.vmap(self._information_at, in_axes=(0, 0, 0, 0)))

    def _information_at(self, theta: Array, down: Array, up: Array, key: Key) -> tuple[Array, Any]:
        """Information about theta in the statistics, from simulations at theta and around."""
        p = self.p
        corners = [theta]
        for k in range(p):
            corners += [theta.at[k].set(up[k]), theta.at[k].set(down[k])]

        def seen(values: Array, key: Key) -> Array:
            at = self.coordinates.theta(values)
            keys = jr.split(key, self.simulations)
            return jax.vmap(lambda k: self.statistics.inputs(self.problem.simulate(k, at)))(keys)

        found = jax.lax.map(
            lambda pair: seen(*pair), (jnp.stack(corners), jr.split(key, 2 * p + 1))
        )
        mean = jnp.mean(found, axis=1)
        centred = found - mean[:, None, :]
        deviation = jnp.sqrt(jnp.mean(centred**2, axis=(0, 1)))
        varies = deviation > 1e-7 * jnp.abs(mean[0]) + jnp.finfo(found.dtype).tiny
        unit = jnp.where(varies, 1 / jnp.where(varies, deviation, 1.0), 0.0)
        centred = centred * unit[None, None, :]
        count = centred.shape[0] * centred.shape[1]
        covariance = jnp.einsum("ari,arj->ij", centred, centred) / count
        slopes = (mean[1::2] - mean[2::2]) * unit[None, :] / (up - down)[:, None]
        # The floor keeps the noise of nearly redundant statistics out.
        floor = 1e-4 + centred.shape[2] / count
        solved = jnp.linalg.solve(covariance + floor * jnp.eye(covariance.shape[0]), slopes.T)
        noisy = (jnp.std(found[0], axis=0) > 1e-7 * jnp.abs(mean[0])).any()
        return slopes @ solved, jnp.isfinite(found).all() & noisy

    def covariance(
        self, theta: np.ndarray, reach: np.ndarray, low: np.ndarray, high: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Covariances of theta at values (B, p), (B, p, p), and which can be trusted, (B,).

        Slopes are taken over theta ± reach, within low and high.
        """
        up, down = np.minimum(theta + reach, high), np.maximum(theta - reach, low)
        if self.coordinates.whole:
            up = np.minimum(np.ceil(np.maximum(up, np.round(theta) + 1)), np.floor(high))
            down = np.maximum(np.floor(np.minimum(down, up - 1)), np.ceil(low))
        information, good = [], []
        for start in range(0, len(theta), CHUNK):
            rows = np.arange(start, start + CHUNK) % len(theta)
            self.calls += 1
            keys = jr.split(jr.fold_in(self.key, self.calls), CHUNK)
            parts = (jnp.asarray(part[rows], jnp.result_type(float)) for part in (theta, down, up))
            matrix, ok = self._information(*parts, keys)
            information.append(np.asarray(matrix, np.float64))
            good.append(np.asarray(ok))
        matrix = np.concatenate(information)[: len(theta)]
        diagonal = np.sqrt(np.maximum(np.einsum("bii->bi", matrix), 0))
        trusted = np.concatenate(good)[: len(theta)]
        trusted &= np.isfinite(matrix).all(axis=(1, 2)) & (diagonal > 0).all(axis=1)
        matrix[~trusted], diagonal[~trusted] = np.eye(self.p), 1.0
        unit = diagonal[:, :, None] * diagonal[:, None, :]
        return np.linalg.inv(matrix / unit + 1e-3 * np.eye(self.p)) / unit, trusted

    def _along(self, values: np.ndarray, reach: np.ndarray, ends: np.ndarray) -> Any:
        """Deviations (p, G) at values (p, G) of each coordinate, the others from the prior."""
        p, count = values.shape
        theta = self.rng.choice(self.coordinates.draws, (p, count, self.contexts))
        theta = np.clip(theta, ends[0], ends[1])
        steps = np.broadcast_to(self._typical, theta.shape).copy()
        for k in range(p):
            theta[k, :, :, k], steps[k, :, :, k] = values[k, :, None], reach[k, :, None]
        flat = theta.reshape(-1, p)
        low, high = np.minimum(ends[0], flat), np.maximum(ends[1], flat)
        covariance, good = self.covariance(flat, steps.reshape(-1, p), low, high)
        sd = np.sqrt(np.einsum("bii->bi", covariance)).reshape(p, count, self.contexts, p)
        good = good.reshape(p, count, self.contexts)
        own = np.stack([sd[k, :, :, k] for k in range(p)])
        with np.errstate(invalid="ignore"):
            middle = np.exp(np.median(np.log(own), axis=2))
        return middle, good.all(axis=2), theta

    def inside(self) -> list[_Line]:
        """Standard deviations within the range of interest."""
        c = self.coordinates
        ends = np.stack([c.low, c.high])
        self._typical = (ends[1] - ends[0]) / 8
        _, good, _ = self._along(ends.T, np.stack([self._typical] * 2, axis=1), ends)
        inner = np.stack([c.quantile(OPEN_EDGE), c.quantile(1 - OPEN_EDGE)])
        ends = np.where(good.T, ends, inner)
        values = np.stack([np.linspace(*ends[:, k], self.nodes) for k in range(self.p)])
        reach = np.broadcast_to(self._typical[:, None], values.shape)
        sd, good, _ = self._along(values, reach, ends)
        lines = []
        for _ in range(1):
            # Again, at values spread evenly in standard deviations, with steps of that size.
            lines = [_Line(values[k][good[k]], sd[k][good[k]]) for k in range(self.p)]
            if any(len(line.values) < 2 for line in lines):
                lines = [_Line(ends[:, k], np.full(2, self._typical[k])) for k in range(self.p)]
                break
            tables = [np.interp(*_even(line, self.nodes)) for line in lines]
            values = np.stack(tables)
            local = np.stack(
                [
                    np.exp(np.interp(v, line.values, np.log(line.sd)))
                    for v, line in zip(values, lines, strict=True)
                ]
            )
            self._typical = np.minimum(STEP * np.median(local, axis=1), (ends[1] - ends[0]) / 4)
            reach = np.minimum(STEP * local, (ends[1] - ends[0])[:, None] / 4)
            sd, good, _ = self._along(values, reach, ends)
        else:
            lines = [
                _Line(values[k][good[k]], sd[k][good[k]]) if good[k].sum() > 1 else lines[k]
                for k in range(self.p)
            ]
        self.ends = np.stack([[line.values[i] for line in lines] for i in (0, -1)])
        return lines

    def outside(self, inside: list[_Line]) -> tuple[list[_Line], list[_Line]]:
        """Standard deviations on the way out of the range of interest, below and above."""
        p, c = self.p, self.coordinates
        here = self.ends.copy()
        sd = np.stack([[line.sd[i] for line in inside] for i in (0, -1)])
        step = np.full((2, p), STEP)
        left = np.full((2, p), REACH)
        found: list[list[list[tuple[float, float]]]] = [[[] for _ in range(p)] for _ in range(2)]
        sign = np.array([[-1.0], [1.0]])
        for _ in range(2 * round(REACH / STEP)):
            if (left <= 0).all():
                break
            relative = np.minimum(step * sd / np.maximum(np.abs(here), 1e-30), 1.0)
            there = np.where(c.positive, here * np.exp(sign * relative), here + sign * step * sd)
            if c.whole:
                there = np.where(sign < 0, np.floor(there), np.ceil(there))
            values, good, theta = self._along(there.T, (STEP * sd).T, self.ends)
            for side, k in np.ndindex(2, p):
                if left[side, k] <= 0:
                    continue
                thetas = [c.theta(jnp.asarray(t, jnp.result_type(float))) for t in theta[k, side]]
                if not (good[k, side] and is_defined(self.problem, thetas)):
                    # The end of where the simulator is defined: come closer in smaller steps.
                    step[side, k] /= 2
                    left[side, k] = 0.0 if step[side, k] < STEP / 8 else left[side, k]
                    continue
                here[side, k] = there[side, k]
                sd[side, k] = np.clip(values[k, side], sd[side, k] / 2, 2 * sd[side, k])
                left[side, k] -= step[side, k]
                found[side][k].append((here[side, k], sd[side, k]))
        lines = [[_Line(*np.array(line).reshape(-1, 2).T) for line in side] for side in found]
        return lines[0], lines[1]


def _even(line: _Line, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Arguments of np.interp for values at equal distances in standard deviations."""
    distance = _distance(line)
    return np.linspace(0, distance[-1], count), distance, line.values


def _distance(line: _Line) -> np.ndarray:
    """Length along the axis in standard deviations, from the first value."""
    rate = 1 / line.sd
    return np.concatenate([[0.0], np.cumsum(np.diff(line.values) * (rate[1:] + rate[:-1]) / 2)])


def _tables(
    inside: list[_Line], below: list[_Line], above: list[_Line], share: float
) -> tuple[np.ndarray, np.ndarray]:
    """Tables of training values, (p, TABLE), and their lengths in standard deviations, (p,).

    Values beyond the range of interest are the less likely the further out.
    """
    tables, widths = [], []
    for inner, low, high in zip(inside, below, above, strict=True):
        low_count, high_count = (round(share * len(part.values)) for part in (low, high))
        line = _Line(
            *(
                np.concatenate([b[:low_count][::-1], i, a[:high_count]])
                for b, i, a in zip(
                    (low.values, low.sd),
                    (inner.values, inner.sd),
                    (high.values, high.sd),
                    strict=True,
                )
            )
        )
        distance = _distance(line)
        start, stop = distance[low_count], distance[len(distance) - 1 - high_count]
        fine = np.linspace(0, distance[-1], 8 * TABLE)
        density = np.interp(
            fine,
            [0, start, stop, distance[-1] + 1e-9],
            [0.05 if start > 0 else 1.0, 1.0, 1.0, 0.05],
        )
        if stop >= distance[-1]:
            density[-1] = 1.0
        mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
        even = np.interp(np.linspace(0, mass[-1], TABLE), mass, fine)
        tables.append(np.interp(even, distance, line.values))
        widths.append(distance[-1])
    return np.stack(tables), np.array(widths)


def _expected_error(
    problem: Problem, look: _Look, prior: TrainingPrior, key: Key, widths: np.ndarray
) -> Callable[[Theta], Array]:
    """Logarithm of the standard deviation of y that the one of theta causes, smooth in theta."""
    tables = np.asarray(prior.tables, np.float64)
    p, c = look.p, look.coordinates
    place = np.asarray(jr.uniform(key, (look.points, p)), np.float64) * (TABLE - 1)
    grid = np.arange(TABLE)
    theta = np.stack([np.interp(place[:, k], grid, tables[k]) for k in range(p)], axis=1)
    slopes = np.gradient(tables, axis=1) / (widths / (TABLE - 1))[:, None]
    local = np.stack([np.interp(place[:, k], grid, slopes[k]) for k in range(p)], axis=1)
    covariance, good = look.covariance(theta, STEP * np.abs(local), tables[:, 0], tables[:, -1])
    theta, covariance, place = theta[good], covariance[good], place[good]
    noise = look.rng.normal(size=(SPREAD // 2, p))
    noise = np.concatenate([noise, -noise])
    noise /= np.sqrt(np.mean(noise**2, axis=0))
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0))[:, None, :]
    around = theta[:, None, :] + np.einsum("bij,ej->bei", root, noise)
    around = np.clip(around, tables[:, 0], tables[:, -1])

    @jax.jit
    def y_at(values: Array) -> Array:
        flat = jax.vmap(lambda one: problem.y_of(c.theta(one)))(values.reshape(-1, p))
        return flat.reshape(*values.shape[:-1], -1)

    centre, varied = (
        np.asarray(y_at(jnp.asarray(part, jnp.result_type(float))), np.float64)
        for part in (theta, around)
    )
    sd = np.sqrt(np.mean((varied - centre[:, None, :]) ** 2, axis=1))
    model = smooth(place / (TABLE - 1) * widths, np.log(sd + 1e-3 * np.median(sd, axis=0)))
    spans = jnp.asarray(widths, jnp.result_type(float))

    def log_sd(theta: Theta) -> Array:
        flat = jax.flatten_util.ravel_pytree(theta)[0].astype(float)
        grid = jnp.linspace(0.0, 1.0, TABLE)
        share = jax.vmap(lambda value, table: jnp.interp(value, table, grid))(flat, prior.tables)
        return model(share * spans)

    return log_sd


def _of_unknown_coordinates(
    problem: Problem, pilot: Any, statistics: Statistics, reason: str
) -> Survey:
    """Leave the prior alone; the size of errors is that of a least-squares fit, smooth in y."""
    seen = jax.jit(jax.vmap(jax.vmap(statistics.inputs)))(pilot.x)
    values, y = np.asarray(seen, np.float64), np.asarray(pilot.y, np.float64)
    deviation = values.std(axis=(0, 1))
    deviation = np.where(deviation > 0, deviation, np.inf)
    rows = (values - values.mean(axis=(0, 1))) / deviation
    rows = np.concatenate([rows, np.ones((*rows.shape[:2], 1))], axis=2)
    flat = rows.reshape(-1, rows.shape[2])
    gram = flat.T @ flat / len(flat) + 1e-3 * np.eye(flat.shape[1])
    coefficients = np.linalg.solve(gram, np.einsum("nmf,nd->fd", rows, y) / len(flat))
    estimates = rows @ coefficients
    sd = estimates.std(axis=1, ddof=1)
    centre, unit = y.mean(axis=0), y.std(axis=0) + np.finfo(float).tiny
    half = slice(0, POINTS)
    model = smooth(3 * (y[half] - centre) / unit, np.log(sd[half] + 1e-3 * np.median(sd, axis=0)))
    centre, unit = (jnp.asarray(part, jnp.result_type(float)) for part in (centre, unit))

    def log_sd(theta: Theta) -> Array:
        return model(3 * (problem.y_of(theta) - centre) / unit)

    note = f"drawn from the prior itself: {reason}"
    return Survey(problem.prior, log_sd, (), statistics, note)
