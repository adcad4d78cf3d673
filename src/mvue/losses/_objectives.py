"""What `fit` minimises: the losses bound to their settings.

`fit` calls its loss as ``loss(estimates, draw, progress)``: the estimates of shape (N, M, d),
the `Draw` they were made from, and the fraction of training done, between 0 and 1. Any
function of this form will do; the ones here describe themselves in reports.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp

from .._core.problem import Draw
from .._core.types import Theta
from ._functions import (
    Penalty,
    bce_loss,
    bias_reduced_loss,
    check_bias_weight,
    effective_bias_weight,
    emmse_loss,
    fisher_mse_loss,
    relative_mse_loss,
)

Schedule = Callable[[Any], Any]

DEFAULT_BIAS_WEIGHTS = (20.0, 100.0)
"""λ at the start and at the end: small enough to learn quickly, then large enough to unbias."""


class Constant(NamedTuple):
    """The same λ throughout; equal to others of its value, as functions are not."""

    value: float | None

    def __call__(self, progress: Any) -> Any:
        """λ."""
        del progress
        return self.value


class Terms(NamedTuple):
    """A loss that is a mean squared error and a bias penalty, by its parts."""

    bias_weight: Schedule
    """λ, from the fraction of training done."""
    decided: bool
    """Whether λ was given."""
    penalty: Penalty | None
    weight: Callable[[Any], Any] | None
    """Of one y; None for no weights."""


@dataclasses.dataclass(frozen=True)
class Loss:
    """A loss with its settings, as `fit` takes it."""

    evaluate: Callable[..., Any]
    """``(estimates, draw, progress) -> scalar``."""
    describe: Callable[[int], str]
    """The loss in words, for M repeats."""
    min_repeats: int = 1
    any_prior: bool = False
    """Whether the best estimator is the same for every prior, so that `fit` may choose one."""
    weighted_by: Callable[[Callable[[Theta], Any]], "Loss"] | None = None
    """The loss with weights that `fit` is to decide: a function of theta."""
    penalty_weights: Callable[[Draw], Any] | None = None
    """The weights of a bias penalty, if `evaluate` also takes ``noise=``: a part of the estimates
    that is known to have mean zero for each unknown and is to be left out of the penalty."""
    terms: Terms | None = None
    """What the loss consists of; without, it cannot be used on fixed data."""

    def __call__(self, estimates: Any, draw: Draw, progress: Any, **known: Any) -> Any:
        """The loss of one batch."""
        return self.evaluate(estimates, draw, progress, **known)


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
        penalty: ``"unbiased"`` or, as in the paper, ``"plug-in"``, which acts as a smaller λ
            (see `effective_bias_weight`). By default the unbiased one; on fixed data, where it
            has no lower bound, the plug-in one.
        weight: ``weight(y)`` of one unknown, positive, a scalar or one value for each component,
            which makes errors comparable where their size depends on y. ``"auto"`` leaves it to
            `fit`: one over the variance to expect, from a `survey`; on fixed data no weights.
            None for no weights.
    """
    terms = Terms(
        bias_weight if callable(bias_weight) else Constant(bias_weight),
        bias_weight is not None,
        penalty,
        None if weight == "auto" else cast(Callable[[Any], Any] | None, weight),
    )
    penalty = penalty or "unbiased"
    if weight == "auto":
        words = "weighted by the expected error"

        def decided(weight: Callable[[Theta], Any]) -> Loss:
            return _bce(bias_weight, penalty, lambda draw: jax.vmap(weight)(draw.theta), words)

        undecided = _bce(bias_weight, penalty, _undecided, words)
        return dataclasses.replace(undecided, weighted_by=decided, terms=terms)
    words = "weighted" if weight is not None else ""
    loss = _bce(bias_weight, penalty, lambda draw: _weights(weight, draw), words)
    return dataclasses.replace(loss, terms=terms)


def _undecided(_: Draw) -> Any:
    raise ValueError(
        "weight='auto' is decided by fit: give weight=None, or a function of y, to use the loss "
        "elsewhere"
    )


def _bce(
    bias_weight: float | Schedule | None,
    penalty: Penalty,
    weights_of: Callable[[Draw], Any],
    weighting: str,
) -> Loss:
    if bias_weight is None:
        bias_weight = geometric_schedule(*DEFAULT_BIAS_WEIGHTS)
    if not callable(bias_weight):
        check_bias_weight(bias_weight)
    if penalty not in ("unbiased", "plug-in"):
        raise ValueError(f"penalty must be 'unbiased' or 'plug-in', got {penalty!r}")

    def evaluate(estimates: Any, draw: Draw, progress: Any, noise: Any = None) -> Any:
        lam = bias_weight(progress) if callable(bias_weight) else bias_weight
        return bce_loss(
            estimates,
            draw.y,
            bias_weight=lam,
            penalty=penalty,
            weights=weights_of(draw),
            noise=noise,
        )

    def describe(repeats: int) -> str:
        if callable(bias_weight):
            start, stop = float(bias_weight(0.0)), float(bias_weight(1.0))
            text = f"BCE, λ from {start:g} to {stop:g}, {penalty} penalty"
        else:
            start = stop = bias_weight
            text = f"BCE, λ = {stop:g}, {penalty} penalty"
        if penalty == "plug-in":
            text += f" (acts as λ = {effective_bias_weight(stop, repeats):.3g} at M = {repeats})"
        return text + (f", {weighting}" if weighting else "")

    needs_pairs = callable(bias_weight) or float(bias_weight) > 0
    least = 2 if needs_pairs else 1
    # The plug-in penalty counts noise as bias: without its noise it would be another loss.
    reducible = needs_pairs and penalty == "unbiased"
    return Loss(
        evaluate,
        describe,
        min_repeats=least,
        any_prior=needs_pairs,
        penalty_weights=weights_of if reducible else None,
    )


def emmse(*, weight: Callable[[Any], Any] | None = None) -> Loss:
    """Empirical minimum mean squared error: the usual regression loss, biased by the prior.

    Args:
        weight: as in `bce`.
    """

    def evaluate(estimates: Any, draw: Draw, progress: Any) -> Any:
        del progress
        return emmse_loss(estimates, draw.y, weights=_weights(weight, draw))

    terms = Terms(Constant(0.0), True, None, weight)
    return Loss(evaluate, lambda _: "EMMSE" + (", weighted" if weight else ""), terms=terms)


def fisher_mse(fisher: Callable[[Theta], Any]) -> Loss:
    """Mean squared error in the metric of the Fisher information.

    Args:
        fisher: ``fisher(theta) -> (d, d)``, the information about y at one theta.
    """

    def evaluate(estimates: Any, draw: Draw, progress: Any) -> Any:
        del progress
        return fisher_mse_loss(estimates, draw.y, jax.vmap(fisher)(draw.theta))

    return Loss(evaluate, lambda _: "Fisher-weighted MSE (NORM)")


def relative_mse(crb: Callable[[Theta], Any]) -> Loss:
    """Mean squared error of each component divided by its Cramér-Rao bound.

    Args:
        crb: ``crb(theta) -> (d, d)``, the bound at one theta, as in `Problem`.
    """

    def evaluate(estimates: Any, draw: Draw, progress: Any) -> Any:
        del progress
        return relative_mse_loss(estimates, draw.y, _variances(crb, draw))

    return Loss(evaluate, lambda _: "MSE / CRB")


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

    return Loss(evaluate, lambda _: "bias²/CRB + variance hinge", min_repeats=2)


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
        fraction = jnp.clip((progress - begin) / (end - begin), 0.0, 1.0)
        return start * (stop / start) ** fraction

    return schedule


def _weights(weight: Callable[[Any], Any] | None, draw: Draw) -> Any:
    return None if weight is None else jax.vmap(weight)(draw.y)


def _variances(crb: Callable[[Theta], Any], draw: Draw) -> Any:
    return jax.vmap(lambda theta: jnp.diagonal(crb(theta)))(draw.theta)
