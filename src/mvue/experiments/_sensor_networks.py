"""Networks of sensors that measure one unknown, and how the error of their average falls."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

import mvue

FIRST_FITTED = 10  # the least number of sensors from which a slope is fitted


@dataclasses.dataclass(frozen=True)
class Curve:
    """MSE of a fused estimate against the number of sensors, in units of one sensor's bound."""

    sizes: np.ndarray
    squares: np.ndarray
    """Squared errors of every network, (networks, sizes); those of a network's disjoint groups of
    M sensors are averaged."""

    @property
    def mse(self) -> np.ndarray:
        """Mean over the networks."""
        return self.squares.mean(axis=0)

    @property
    def se(self) -> np.ndarray:
        """Standard error of the mean."""
        return self.squares.std(axis=0, ddof=1) / np.sqrt(len(self.squares))

    def slope(self) -> tuple[float, float]:
        """Of log MSE against log M, by least squares, with its standard error.

        The error takes into account that all sizes were measured on the same networks.
        """
        fitted = self.sizes >= FIRST_FITTED
        x = np.log(self.sizes[fitted])
        x = x - x.mean()
        gain = x / np.sum(x**2)
        value = gain @ np.log(self.mse[fitted])
        influence = (self.squares[:, fitted] / self.mse[fitted] - 1) @ gain
        return float(value), float(influence.std(ddof=1) / np.sqrt(len(influence)))

    def last_over(self, other: "Curve") -> tuple[float, float]:
        """Ratio of the MSEs of the largest networks, the same ones, with its standard error."""
        ratio = self.mse[-1] / other.mse[-1]
        influence = self.squares[:, -1] / self.mse[-1] - other.squares[:, -1] / other.mse[-1]
        return float(ratio), float(ratio * influence.std(ddof=1) / np.sqrt(len(influence)))

    def to_dict(self) -> dict[str, Any]:
        """Entries of ``results.json``."""
        entry = {"sensors": self.sizes.tolist(), "mse_over_crb": self.mse.tolist()}
        entry["mse_over_crb_se"] = self.se.tolist()
        if np.sum(self.sizes >= FIRST_FITTED) > 1:
            slope, error = self.slope()
            entry |= {"slope": slope, "slope_se": error}
        return entry


def sizes_up_to(sensors: int) -> np.ndarray:
    """1, 2, 5, 10, 20 ... as far as they divide the number of sensors."""
    decades = range(int(np.log10(sensors)) + 1)
    sizes = np.array([step * 10**decade for decade in decades for step in (1, 2, 5)])
    return sizes[sensors % sizes == 0]


def measure(
    estimators: Mapping[str, Any],
    problem: mvue.Problem,
    thetas: Any,
    *,
    networks: int,
    sensors: int,
    key: Array,
    pooled: Callable[[Array], Array] | None = None,
) -> dict[str, list[Curve]]:
    """Average simulated estimates of networks of sensors; a curve for each theta.

    One network after the other is simulated, and all estimators see the same ones. Groups of
    sensors of a network that have none in common are networks of a smaller size.

    Args:
        estimators: of one measurement.
        problem: what one sensor measures, and the bound.
        thetas: values of theta, with a leading axis.
        networks: how many at each theta.
        sensors: how many in a network.
        key: for all measurements.
        pooled: an estimate from all measurements of a group at once, at powers of ten; under the
            name ``mle_centralised``.
    """
    assert problem.crb is not None
    crb = problem.crb
    sizes = sizes_up_to(sensors)
    decades = np.array([m for m in sizes if np.log10(m) == round(np.log10(m))])
    names = list(estimators)

    def squares_of(estimates: Array, y: Array) -> Array:
        return jnp.mean(jnp.sum((estimates - y[None]) ** 2, axis=-1))

    @eqx.filter_jit
    def network(estimators: dict[str, Any], key: Array, theta: Any) -> tuple[Array, Array]:
        y, bound = problem.y_of(theta), jnp.trace(crb(theta))
        x = jax.vmap(problem.simulate, in_axes=(0, None))(jr.split(key, sensors), theta)
        rows = []
        for estimator in estimators.values():
            one = jax.vmap(lambda x, f=estimator: jnp.reshape(f(x), (-1,)))(x)
            groups = [one.reshape(-1, m, one.shape[1]) for m in sizes]
            rows.append(
                jnp.stack([squares_of(mvue.Averaged.of(g).estimate, y) for g in groups]) / bound
            )
        together = jnp.zeros(0)
        if pooled is not None:
            groups = [x.reshape(-1, m, *x.shape[1:]) for m in decades]
            together = jnp.stack([squares_of(jax.vmap(pooled)(g), y) for g in groups]) / bound
        return jnp.stack(rows), together

    count = len(jax.tree.leaves(thetas)[0])
    found: dict[str, list[Curve]] = {name: [] for name in names}
    if pooled is not None:
        found["mle_centralised"] = []
    for k in range(count):
        theta = jax.tree.map(lambda leaf, k=k: leaf[k], thetas)
        keys = jr.split(jr.fold_in(key, k), networks)
        parts = [network(dict(estimators), one, theta) for one in keys]
        squares, together = (
            np.stack([np.asarray(p[i], np.float64) for p in parts]) for i in (0, 1)
        )
        for i, name in enumerate(names):
            found[name].append(Curve(sizes, squares[:, i]))
        if pooled is not None:
            found["mle_centralised"].append(Curve(decades, together))
    return found


def joined(curves: list[Curve]) -> Curve:
    """All networks together, such as those of different unknowns."""
    return Curve(curves[0].sizes, np.concatenate([curve.squares for curve in curves]))


@dataclasses.dataclass(frozen=True)
class Theory:
    """What a measured bias and variance of one sensor say about any number of them.

    In units of the bound, for each of some unknowns; of the squared bias its own noise is taken
    off, so that it may be negative where it is too small to be told from zero.
    """

    squared_bias: np.ndarray
    squared_bias_se: np.ndarray
    variance: np.ndarray

    @classmethod
    def of(cls, report: mvue.Report, name: str) -> "Theory":
        """From an assessment."""
        assert report.crb is not None
        one, bound = report[name], report.crb.sum(axis=1)
        noise = (4 * one.bias**2 * one.bias_se**2 + 2 * one.bias_se**4).sum(axis=1)
        return cls(
            (one.bias**2 - one.bias_se**2).sum(axis=1) / bound,
            np.sqrt(noise) / bound,
            (one.sd**2).sum(axis=1) / bound,
        )

    def mean(self) -> "Theory":
        """Averaged over the unknowns."""
        count = len(self.variance)
        error = np.sqrt(np.sum(self.squared_bias_se**2)) / count
        return Theory(
            self.squared_bias.mean(keepdims=True),
            np.array([error]),
            self.variance.mean(keepdims=True),
        )

    def only(self, k: int) -> "Theory":
        """Of one unknown."""
        return Theory(*(part[k : k + 1] for part in dataclasses.astuple(self)))

    def bias_over_sd(self) -> float:
        """Root of bias² over variance, of the first unknown."""
        return float(np.sqrt(max(self.squared_bias[0], 0.0) / self.variance[0]))

    def mse(self, sizes: np.ndarray) -> np.ndarray:
        """bias² + variance / M, (unknowns, sizes)."""
        return np.maximum(self.squared_bias, 0)[:, None] + self.variance[:, None] / sizes

    def share(self) -> str:
        """bias² over variance of the first unknown, as text."""
        value, error = self.squared_bias[0] / self.variance[0], self.squared_bias_se[0]
        return f"{value:.2g} ± {error / self.variance[0]:.1g}"

    def to_dict(self, sizes: np.ndarray) -> dict[str, Any]:
        """Entries of ``results.json``, for the first unknown."""
        return {
            "squared_bias_over_crb": float(self.squared_bias[0]),
            "squared_bias_over_crb_se": float(self.squared_bias_se[0]),
            "variance_over_crb": float(self.variance[0]),
            "theory": self.mse(sizes)[0].tolist(),
        }
