"""The losses bound to their settings, as `fit` takes them."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._core.problem import Draw
from .._core.types import Theta
from ._functions import (
    Penalty,
    UnitErrors,
    bce_loss,
    bias_constrained,
    bias_reduced_loss,
    check_bias_weight,
    effective_bias_weight,
    fisher_mse_loss,
    mean_over_units,
    relative_mse_loss,
    squared_bias_of_pairs,
)
from ._loss import FunctionLoss, Loss

Schedule = Callable[[Any], Any]

DEFAULT_BIAS_WEIGHTS = (20.0, 100.0)
"""λ at the start and at the end: small enough to learn quickly, then large enough to unbias."""
DATA_BIAS_WEIGHT = 10.0


class OfTheta(NamedTuple):
    """A weight that was decided by `fit`."""

    weight: Callable[[Theta], Any]


@dataclasses.dataclass(frozen=True)
class BiasConstrained(Loss):
    """Mean squared error + λ · squared bias; of fresh simulations, or of fixed data."""

    bias_weight: float | Schedule | None
    """λ, or a function of the fraction of training done; None for the default."""
    penalty: Penalty | None
    """None for the U-statistic, and on fixed data for the plug-in."""
    weight: Callable[[Any], Any] | OfTheta | Literal["auto"] | None
    """Of one y, unless it is `OfTheta`."""

    def __post_init__(self) -> None:
        penalised = True
        if self.bias_weight is not None and not callable(self.bias_weight):
            check_bias_weight(self.bias_weight)
            penalised = float(self.bias_weight) > 0
        if self.penalty not in ("unbiased", "plug-in", None):
            raise ValueError(f"penalty must be 'unbiased' or 'plug-in', got {self.penalty!r}")
        auto = isinstance(self.weight, str) and self.weight == "auto"
        known = callable(self.weight) or isinstance(self.weight, OfTheta) or self.weight is None
        if not (known or auto):
            raise TypeError(f"weight must be a function of y, 'auto' or None, got {self.weight!r}")
        facts = {
            "min_repeats": 2 if penalised else 1,
            "any_prior": penalised,
            "weights_from_survey": auto,
            # The plug-in penalty counts variance as bias: with less of it, it is another loss.
            "takes_control_variate": penalised and self.penalty != "plug-in",
        }
        for name, value in facts.items():
            object.__setattr__(self, name, value)

    def __call__(
        self, estimates: Any, draw: Draw, progress: Any, control_variate: Any = None
    ) -> Any:
        """The loss of one batch of simulations."""
        return bce_loss(
            estimates,
            draw.y,
            bias_weight=self.bias_weight_at(progress),
            penalty=self.penalty or "unbiased",
            weights=self.weights(draw),
            control_variate=control_variate,
        )

    def bias_weight_at(self, progress: Any) -> Any:
        """λ at a fraction of training."""
        if self.bias_weight is None:
            return geometric_schedule(*DEFAULT_BIAS_WEIGHTS)(progress)
        return self.bias_weight(progress) if callable(self.bias_weight) else self.bias_weight

    def weights(self, draw: Draw) -> Any:
        """The weight of each unit."""
        if isinstance(self.weight, OfTheta):
            return jax.vmap(self.weight.weight)(draw.theta)
        return self.weights_at(draw.y)

    def weights_at(self, y: Any) -> Any:
        """The weight of each unit, where it is a function of y."""
        if callable(self.weight):
            return jax.vmap(self.weight)(y)
        if self.weight is None:
            return None
        raise ValueError(
            "weight='auto' is decided by fit: give weight=None, or a function of y, to use the "
            "loss elsewhere"
        )

    def weighted_by(self, weight: Callable[[Theta], Any]) -> Loss:
        """The same with a weight that is known."""
        return dataclasses.replace(self, weight=OfTheta(weight))

    def on_data(self) -> "BiasConstrained":
        """The same for fixed data: by default with λ = 10 and no weights."""
        return dataclasses.replace(
            self,
            bias_weight=DATA_BIAS_WEIGHT if self.bias_weight is None else self.bias_weight,
            weight=None if self.weights_from_survey else self.weight,
        )

    def of_rows_and_units(self, rows: UnitErrors, units: UnitErrors | None, progress: Any) -> Any:
        """The loss on fixed data: the error of some rows, the bias of some units."""
        if units is None:
            return mean_over_units(rows.mse, rows.weights, rows.shares)
        lam = self.bias_weight_at(progress)
        return bias_constrained(rows, units, lam, self.penalty or "plug-in")

    def of_pairs(
        self, errors: Any, functions: Any, y: Any, progress: Any, count: Any = None
    ) -> Any:
        """The loss on fixed data without repeats; see `squared_bias_of_pairs`."""
        weights = self.weights_at(y)
        if weights is not None:
            root = jnp.sqrt(weights)
            errors = errors * (root if root.ndim == 2 else root[:, None])
        mse = jnp.sum(errors**2) / (errors.shape[0] if count is None else count)
        penalty = self.penalty or "unbiased"
        bias2 = squared_bias_of_pairs(errors, functions, penalty, count).sum()
        return mse + self.bias_weight_at(progress) * bias2

    def describe(self, repeats: int) -> str:
        """λ, the penalty, and what weights there are."""
        start, stop = (float(self.bias_weight_at(progress)) for progress in (0.0, 1.0))
        weighting = "weighted" if callable(self.weight) else "weighted by the expected error"
        weighting = "" if self.weight is None else f", {weighting}"
        if self.min_repeats < 2 or start == stop == 0:
            return f"EMMSE{weighting}"
        penalty = self.penalty or "unbiased"
        value = f"λ = {stop:g}" if start == stop else f"λ from {start:g} to {stop:g}"
        text = f"BCE, {value}, {penalty} penalty"
        if penalty == "plug-in":
            text += f" (acts as λ = {effective_bias_weight(stop, repeats):.3g} at M = {repeats})"
        return text + weighting


def bce(
    bias_weight: float | Schedule | None = None,
    *,
    penalty: Penalty | None = None,
    weight: Callable[[Any], Any] | Literal["auto"] | None = "auto",
) -> Loss:
    """Bias constrained estimation: mean squared error + λ · squared bias.

    Args:
        bias_weight: λ, or a function from the fraction of training done to λ; by default it
            grows from 20 to 100 over the training; on fixed data it is 10.
        penalty: ``"unbiased"``, the U-statistic, or, as in the paper, ``"plug-in"``, which acts as
            a smaller λ (see `effective_bias_weight`). By default the U-statistic; on fixed data,
            where it has no lower bound, the plug-in.
        weight: ``weight(y)`` of one unit, positive, a scalar or one value for each component,
            which makes errors comparable where their size depends on y. ``"auto"`` leaves it to
            `fit`: one over the variance to expect, from a `survey`; on fixed data no weights.
            None for no weights.
    """
    return BiasConstrained(bias_weight, penalty, weight)


def emmse(*, weight: Callable[[Any], Any] | None = None) -> Loss:
    """Empirical minimum mean squared error: the usual regression loss, biased by the prior.

    Args:
        weight: as in `bce`.
    """
    return BiasConstrained(0.0, None, weight)


def fisher_mse(fisher: Callable[[Theta], Any]) -> Loss:
    """Mean squared error in the metric of the Fisher information.

    Args:
        fisher: ``fisher(theta) -> (d, d)``, the information about y at one theta.
    """

    def evaluate(estimates: Any, draw: Draw, progress: Any) -> Any:
        del progress
        return fisher_mse_loss(estimates, draw.y, jax.vmap(fisher)(draw.theta))

    return FunctionLoss(evaluate, "Fisher-weighted MSE (NORM)")


def relative_mse(crb: Callable[[Theta], Any]) -> Loss:
    """Mean squared error of each component divided by its Cramér-Rao bound.

    Args:
        crb: ``crb(theta) -> (d, d)``, the bound at one theta, as in `Problem`.
    """

    def evaluate(estimates: Any, draw: Draw, progress: Any) -> Any:
        del progress
        return relative_mse_loss(estimates, draw.y, _variances(crb, draw))

    return FunctionLoss(evaluate, "MSE / CRB")


def bias_reduced(
    crb: Callable[[Theta], Any], *, hinge_weight: float = 1.0, threshold: float = 1.0
) -> Loss:
    """Squared bias / CRB plus a hinge on variance / CRB.

    Args:
        crb: ``crb(theta) -> (d, d)``, the bound at one theta, as in `Problem`.
        hinge_weight: weight of the hinge.
        threshold: variance / CRB below this costs nothing.
    """

    def evaluate(estimates: Any, draw: Draw, progress: Any) -> Any:
        del progress
        return bias_reduced_loss(
            estimates, draw.y, _variances(crb, draw), hinge_weight=hinge_weight, threshold=threshold
        )

    return FunctionLoss(evaluate, "bias²/CRB + variance hinge", min_repeats=2)


def geometric_schedule(
    start: float, stop: float, *, begin: float = 0.0, end: float = 1.0
) -> Schedule:
    """A bias weight that grows by equal factors from `start` to `stop`.

    Args:
        start: value until the fraction `begin` of training is done.
        stop: value from the fraction `end` on.
        begin: where the growth begins, at least 0.
        end: where it ends, at most 1.
    """
    if not (start > 0 and stop > 0):
        raise ValueError(f"start and stop must be positive, got {start} and {stop}")
    if not 0 <= begin < end <= 1:
        raise ValueError(f"begin and end must satisfy 0 <= begin < end <= 1, got {begin} and {end}")

    def schedule(progress: Any) -> Any:
        xp = jnp if isinstance(progress, jax.Array) else np
        fraction = xp.clip((progress - begin) / (end - begin), 0.0, 1.0)
        return start * (stop / start) ** fraction

    return schedule


def _variances(crb: Callable[[Theta], Any], draw: Draw) -> Any:
    return jax.vmap(lambda theta: jnp.diagonal(crb(theta)))(draw.theta)
