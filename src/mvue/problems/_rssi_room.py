"""Position in a room from the received power of radio beacons, of which only some are heard."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import log_ndtr
from jaxtyping import Array, ArrayLike, Bool, Float

from .._core.checks import check_count
from .._core.problem import Problem
from .._core.types import Key
from .._numerics.small_matrices import invert
from .._serialise.registry import register

LOW, HIGH = (4.0, 1.0), (23.0, 15.0)
"""Opposite corners of the room of the iBeacon data, in grid cells."""

BEACONS = np.array(
    [(x, 2.5) for x in (6.0, 11.0, 16.0, 21.0)]
    + [(x, 8.0) for x in (4.5, 9.0, 13.5, 18.0, 22.5)]
    + [(x, 13.5) for x in (6.0, 11.0, 16.0, 21.0)]
)
"""13 beacons in three staggered rows."""


@register(
    fields=(
        *("n", "beacons", "low", "high", "power", "exponent", "shadowing", "threshold", "missing"),
        "height",
    ),
    methods=("sufficient", "centroid"),
)
@dataclasses.dataclass(frozen=True, eq=False)
class RSSIRoom:
    """Readings of radio beacons at a place in a room; see `rssi_room`.

    Distances are in the unit of the coordinates, powers in dBm, losses and noise in dB.
    """

    n: int
    """Scans in one measurement."""
    beacons: np.ndarray
    """Where the beacons hang, (k, 2)."""
    low: np.ndarray
    """The corner of the room with the smallest coordinates, (2,)."""
    high: np.ndarray
    """The opposite corner, (2,)."""
    power: float
    """Mean reading at distance 1."""
    exponent: float
    """Path-loss exponent: the power falls by 10 times this number from distance 1 to 10."""
    shadowing: float
    """Standard deviation of a reading."""
    threshold: float
    """Weaker readings are not heard."""
    missing: float
    """The reading that stands for "not heard"."""
    height: float
    """Of the beacons above the receiver."""
    problem: Problem = dataclasses.field(init=False)
    """The estimation problem; y is the place, x the readings (n, k)."""

    def __post_init__(self) -> None:
        low, high = (jnp.asarray(end, jnp.result_type(float)) for end in (self.low, self.high))
        problem = Problem(
            prior=dist.Uniform(low, high).to_event(1),
            simulate=self._simulate,
            log_likelihood=self._log_likelihood,
            names=("x", "y"),
            exchangeable=True,
            crb=self.crb,
        )
        object.__setattr__(self, "problem", problem)

    def __repr__(self) -> str:
        width, depth = self.high - self.low
        return (
            f"RSSIRoom({len(self.beacons)} beacons in a room of {width:g} x {depth:g}; {self.n} "
            f"scans, heard from {self.threshold:g} dBm)"
        )

    def mean(self, y: Float[ArrayLike, " 2"]) -> Float[Array, " k"]:
        """Mean readings at y, were they all heard."""
        return self._mean_and_slopes(_floating(y))[0]

    def heard_probability(self, y: Float[ArrayLike, " 2"]) -> Float[Array, " k"]:
        """How likely each beacon is heard in one scan at y."""
        return jnp.exp(log_ndtr(-self._censoring(self.mean(y))))

    def fisher(self, y: Float[ArrayLike, " 2"]) -> Float[Array, "2 2"]:
        """Fisher information about y in one measurement.

        A reading tells 1/σ² about its mean if it is always heard; if it is not heard below z
        standard deviations from its mean, that times 1 - Φ(z) + zφ(z) + φ(z)²/Φ(z).
        """
        mean, slopes = self._mean_and_slopes(_floating(y))
        z = self._censoring(mean)
        log_density = -0.5 * (z**2 + jnp.log(2 * jnp.pi))
        heard = jnp.exp(log_ndtr(-z)) + z * jnp.exp(log_density)
        information = (heard + jnp.exp(2 * log_density - log_ndtr(z))) / self.shadowing**2
        return self.n * (slopes.T * information[None, :]) @ slopes

    def crb(self, y: Float[ArrayLike, " 2"]) -> Float[Array, "2 2"]:
        """Cramér-Rao bound on the covariance of unbiased estimators of y."""
        return invert(self.fisher(y))[0]

    def heard(self, x: Float[Array, "..."]) -> Bool[Array, "..."]:
        """Which readings were heard."""
        return x > self.threshold

    def sufficient(self, x: Float[Array, "n k"]) -> Float[Array, " 2*k"]:
        """All that one measurement tells about y: how often each beacon is heard, and how loud.

        The share of scans in which it is heard, then the mean over all scans of what its
        readings are above the threshold.
        """
        heard = self.heard(x)
        excess = jnp.where(heard, x - self.threshold, 0.0)
        return jnp.concatenate([jnp.mean(heard, axis=0, dtype=x.dtype), jnp.mean(excess, axis=0)])

    def centroid(self, x: Float[Array, "n k"]) -> Float[Array, " 2"]:
        """The mean place of the beacons, weighted by amplitude: simple, popular and biased.

        The middle of the room if no beacon is heard.
        """
        amplitudes = jnp.where(self.heard(x), 10 ** ((x - self.power) / 20), 0.0)
        weights = jnp.sum(amplitudes, axis=0)
        total = jnp.sum(weights)
        mean = weights @ jnp.asarray(self.beacons, x.dtype) / jnp.where(total > 0, total, 1.0)
        return jnp.where(total > 0, mean, jnp.asarray((self.low + self.high) / 2, x.dtype))

    def _simulate(self, key: Key, y: Float[Array, " 2"]) -> Float[Array, "n k"]:
        mean = self.mean(y)
        noise = jr.normal(key, (self.n, len(self.beacons)), mean.dtype)
        readings = mean[None, :] + self.shadowing * noise
        return jnp.where(self.heard(readings), readings, self.missing)

    def _log_likelihood(self, y: Float[Array, " 2"], x: Float[Array, "n k"]) -> Float[Array, ""]:
        mean = self.mean(y)
        density = dist.Normal(mean[None, :], self.shadowing).log_prob(x)
        unheard = jnp.broadcast_to(log_ndtr(self._censoring(mean))[None, :], x.shape)
        return jnp.sum(jnp.where(self.heard(x), density, unheard))

    def _mean_and_slopes(self, y: Float[Array, " 2"]) -> tuple[Array, Array]:
        """Mean readings (k,) and their derivatives by y, (k, 2)."""
        away = y[None, :] - jnp.asarray(self.beacons, y.dtype)
        square = jnp.sum(away**2, axis=1) + self.height**2
        loss = 10 * self.exponent / np.log(10)
        return self.power - loss / 2 * jnp.log(square), -loss * away / square[:, None]

    def _censoring(self, mean: Float[Array, " k"]) -> Float[Array, " k"]:
        return (self.threshold - mean) / self.shadowing


def rssi_room(
    n: int = 10,
    *,
    beacons: Any = None,
    low: Any = LOW,
    high: Any = HIGH,
    power: float = -62.0,
    exponent: float = 3.0,
    shadowing: float = 5.0,
    threshold: float = -88.0,
    missing: float = -100.0,
    height: float = 2.0,
) -> RSSIRoom:
    """The place in a room from n scans of radio beacons.

    A reading of a beacon at distance r is power - 10 exponent log10(r) plus Gaussian noise,
    independent from scan to scan; r² is the squared distance in the plane plus height². A reading
    below the threshold is not heard, and `missing` stands for it.

    A model of what `mvue.datasets.rssi` was measured with: as many beacons, a room as large, the
    same weakest reading, the grid cell as the unit of length. Its beacons reach further, so that
    the place can be told everywhere: about 5 of them are heard in a scan, on average, and 2.7 in
    the worst place, where there they are 1.4. By default the bound on the standard deviation of a
    coordinate is 0.3 to 0.9 cells; it falls with the square root of n.

    Args:
        n: scans in one measurement.
        beacons: where they hang, (k, 2), by default 13 in three staggered rows.
        low: the corner of the room with the smallest coordinates.
        high: the opposite corner. The place is uniform between them.
        power: mean reading at distance 1, in dBm.
        exponent: path-loss exponent, 2 in free space and more indoors.
        shadowing: standard deviation of a reading, in dB.
        threshold: the weakest reading that is heard, in dBm.
        missing: the reading that stands for "not heard", at most the threshold.
        height: of the beacons above the receiver; keeps readings finite right below them.
    """
    check_count("n", n)
    beacons = BEACONS if beacons is None else _real("beacons", beacons)
    if beacons.ndim != 2 or beacons.shape[1] != 2 or not len(beacons):
        raise ValueError(
            f"beacons must have shape (k, 2), a place for each beacon, got {beacons.shape}"
        )
    low, high = _real("low", low), _real("high", high)
    if low.shape != (2,) or high.shape != (2,) or not (low < high).all():
        raise ValueError(
            "low and high must be opposite corners (x, y) of the room, low the smaller in both "
            f"coordinates, got {low.tolist()} and {high.tolist()}"
        )
    numbers = {
        "power": power,
        "exponent": exponent,
        "shadowing": shadowing,
        "threshold": threshold,
        "missing": missing,
        "height": height,
    }
    for name, value in numbers.items():
        if _real(name, value).ndim:
            raise ValueError(f"{name} must be one number, got {value!r}")
        if name in ("exponent", "shadowing", "height") and value <= 0:
            raise ValueError(f"{name} must be positive, got {value!r}")
    if missing > threshold:
        raise ValueError(
            f"missing must be at most the threshold, {threshold!r}, got {missing!r}: it could not "
            "be told from a reading that was heard"
        )
    return RSSIRoom(n, beacons, low, high, **{k: float(v) for k, v in numbers.items()})


def _real(name: str, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} must be real, got {value!r}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got {value!r}")
    return array.astype(np.float64)


def _floating(y: Any) -> Array:
    return jnp.asarray(y, jnp.result_type(y, float))
