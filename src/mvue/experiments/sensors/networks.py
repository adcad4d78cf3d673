"""Networks of sensors that measure one parameter, and how the error of their average falls."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

import mvue

FIRST_FITTED = 10  # the least number of sensors from which a slope is fitted
LEAST_GROUPS = 100  # a mean of fewer squared errors, and its standard error, say little


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

    def trusted(self) -> "Curve":
        """Only the sizes of which there are enough groups of sensors."""
        groups = len(self.squares) * self.sizes[-1] // self.sizes
        enough = groups >= LEAST_GROUPS
        return Curve(self.sizes[enough], self.squares[:, enough])

    def slope(self) -> tuple[float, float]:
        """Of log MSE against log M, by least squares, with its standard error.

        The error takes into account that all sizes were measured on the same networks. NaN where
        there are not two sizes to fit.
        """
        fitted = self.sizes >= FIRST_FITTED
        if fitted.sum() < 2:
            return float("nan"), float("nan")
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
        slope, error = self.trusted().slope()
        return entry | {"mse_over_crb_se": self.se.tolist(), "slope": slope, "slope_se": error}


def sizes_up_to(sensors: int) -> np.ndarray:
    """1, 2, 5, 10, 20 ... as far as they divide the number of sensors."""
    decades = range(int(np.log10(sensors)) + 1)
    sizes = np.array([step * 10**decade for decade in decades for step in (1, 2, 5)])
    return sizes[sensors % sizes == 0]


class Networks:
    """Simulated networks of sensors, one after the other; all estimators see the same ones.

    Groups of sensors of a network that have none in common are networks of a smaller size.

    Args:
        estimators: of one measurement, by name.
        problem: what one sensor measures, and the bound.
        sensors: how many in a network.
        pooled: an estimate from all measurements of a group at once, made at powers of ten.
    """

    def __init__(
        self,
        estimators: Mapping[str, Any],
        problem: mvue.Problem,
        sensors: int,
        pooled: Callable[[Array], Array] | None = None,
    ) -> None:
        self.estimators, self.problem, self.sensors = dict(estimators), problem, sensors
        self.pooled = pooled
        self.sizes = sizes_up_to(sensors)
        self.decades = self.sizes[np.log10(self.sizes) % 1 == 0]
        self._compiled = eqx.filter_jit(self._simulate)

    def _simulate(self, estimators: tuple[Any, ...], key: Array, theta: Any) -> dict[str, Array]:
        """Squared errors of averages, (estimators, sizes), of pooled estimates, and moments."""
        assert self.problem.crb is not None
        y, bound = self.problem.y_of(theta), jnp.trace(self.problem.crb(theta))
        x = jax.vmap(self.problem.simulate, in_axes=(0, None))(jr.split(key, self.sensors), theta)

        def squares(estimates: Array) -> Array:
            return jnp.mean(jnp.sum((estimates - y[None]) ** 2, axis=-1)) / bound

        found: dict[str, list[Array]] = {"squares": [], "squared_bias": [], "variance": []}
        for estimator in estimators:
            one = jax.vmap(lambda x, f=estimator: jnp.reshape(f(x), (-1,)))(x)
            groups = [one.reshape(-1, m, one.shape[1]) for m in self.sizes]
            found["squares"].append(
                jnp.stack([squares(mvue.RunningAverage.of(group).estimate) for group in groups])
            )
            all_of_them = mvue.RunningAverage.of(one - y[None])
            noise = all_of_them.standard_error**2
            found["squared_bias"].append(jnp.sum(all_of_them.estimate**2 - noise) / bound)
            found["variance"].append(jnp.sum(noise) * self.sensors / bound)
        if self.pooled is not None:
            # With one sensor there is nothing to pool.
            groups = [x.reshape(-1, m, *x.shape[1:]) for m in self.decades[1:]]
            pooled = [squares(jax.vmap(self.pooled)(group)) for group in groups]
            found["pooled"] = [found["squares"][0][0], *pooled]
        return {name: jnp.stack(parts) for name, parts in found.items()}

    def simulate(self, theta: Any, networks: int, key: Array) -> dict[str, np.ndarray]:
        """What is found in some networks that measure one theta, with a leading axis."""
        estimators = tuple(self.estimators.values())
        parts = [self._compiled(estimators, one, theta) for one in jr.split(key, networks)]
        return jax.tree.map(lambda *leaves: np.stack(leaves).astype(np.float64), *parts)

    def curves(self, theta: Any, networks: int, key: Array) -> dict[str, Curve]:
        """The error of averages against their number, for every estimator.

        The pooled estimate has the name ``mle_centralised``.
        """
        found = self.simulate(theta, networks, key)
        squares = found["squares"]
        curves = {n: Curve(self.sizes, squares[:, i]) for i, n in enumerate(self.estimators)}
        if self.pooled is not None:
            curves["mle_centralised"] = Curve(self.decades, found["pooled"])
        return curves

    def theory(self, thetas: Sequence[Any], key: Array) -> dict[str, "Theory"]:
        """Bias and variance of one sensor, averaged over some parameters."""
        parts = [self.simulate(t, 1, jr.fold_in(key, k)) for k, t in enumerate(thetas)]
        bias2, variance = (
            np.concatenate([part[name] for part in parts]) for name in ("squared_bias", "variance")
        )
        error = bias2.std(axis=0, ddof=1) / np.sqrt(len(bias2))
        means = zip(bias2.mean(axis=0), error, variance.mean(axis=0), strict=True)
        return {n: Theory(*map(float, one)) for n, one in zip(self.estimators, means, strict=True)}


def unstacked(thetas: Any) -> list[Any]:
    """Thetas one by one."""
    count = len(jax.tree.leaves(thetas)[0])
    return [jax.tree.map(lambda leaf, k=k: leaf[k], thetas) for k in range(count)]


def joined(curves: list[Curve]) -> Curve:
    """All networks together, such as those of different parameters."""
    return Curve(curves[0].sizes, np.concatenate([curve.squares for curve in curves]))


@dataclasses.dataclass(frozen=True)
class Theory:
    """What the bias and variance of one sensor say about any number of them.

    In units of the bound; of the squared bias its own noise is taken off, so that it may be
    negative where it is too small to be told from zero.
    """

    squared_bias: float
    squared_bias_se: float
    variance: float

    @classmethod
    def at(cls, report: mvue.Report, name: str, k: int) -> "Theory":
        """From an assessment, at one of its values."""
        assert report.crb is not None
        one, bound = report[name], report.crb[k].sum()
        bias, se = one.bias[k], one.bias_se[k]
        noise = np.sqrt(np.sum(4 * bias**2 * se**2 + 2 * se**4))
        parts = np.sum(bias**2 - se**2), noise, np.sum(one.sd[k] ** 2)
        return cls(*(float(part / bound) for part in parts))

    @property
    def bias_over_sd(self) -> float:
        """Root of bias² over variance."""
        return float(np.sqrt(max(self.squared_bias, 0.0) / self.variance))

    def mse(self, sizes: np.ndarray) -> np.ndarray:
        """bias² + variance / M."""
        return max(self.squared_bias, 0.0) + self.variance / sizes

    def __str__(self) -> str:
        value, error = self.squared_bias / self.variance, self.squared_bias_se / self.variance
        return f"{value:.2g} ± {error:.1g}"

    def to_dict(self, sizes: np.ndarray) -> dict[str, Any]:
        """Entries of ``results.json``."""
        return {
            "squared_bias_over_crb": self.squared_bias,
            "squared_bias_over_crb_se": self.squared_bias_se,
            "variance_over_crb": self.variance,
            "theory": self.mse(sizes).tolist(),
        }
