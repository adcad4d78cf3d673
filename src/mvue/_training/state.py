"""The state of training, and the optimizer that moves it."""

from typing import Any, NamedTuple

import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._recipe.settings import ScheduleSettings
from .._runtime.jit import as_array
from .control_variate import Anchor


class Sums(NamedTuple):
    """Sums over the steps since the last record."""

    loss: Float[Array, ""]
    mse: Float[Array, ""]
    squared_bias: Float[Array, ""]
    steps: Float[Array, ""]

    @classmethod
    def zero(cls) -> "Sums":
        return cls(*(as_array(0.0) for _ in range(4)))


class Arrays(NamedTuple):
    """All arrays of a network: passed to compiled functions, never baked into them."""

    params: PyTree
    constants: PyTree


class State(NamedTuple):
    """Everything the next step needs, and what the end of training chooses from."""

    step: Int[Array, ""]
    params: PyTree
    average: PyTree
    best: PyTree
    opt_state: PyTree
    sums: Sums
    nonfinite: Int[Array, ""]
    diverged: Bool[Array, ""]
    anchor: Anchor | None
    excess: Float[Array, "f d"] | None
    """Of the errors of stages over the expected ones, by which weights are lowered."""
    loss_unit: Float[Array, ""]
    """What the default optimizer measures the loss in, so that the units of y do not matter."""


def check_optimizer(optimizer: Any) -> None:
    """Refuse what is no optimizer, learning rate, or None for the default."""
    if optimizer is None or isinstance(optimizer, optax.GradientTransformation):
        return
    try:
        rate = float(optimizer)
    except (TypeError, ValueError) as error:
        raise TypeError(
            "optimizer must be an Optax optimizer, such as optax.adam(1e-3), or a learning rate, "
            f"got {optimizer!r}"
        ) from error
    if not 0 < rate < float("inf"):
        raise ValueError(f"optimizer, as a learning rate, must be positive and finite, got {rate}")


def default_optimizer(
    steps: int, peak: float, settings: ScheduleSettings, *, staged: bool = False
) -> optax.GradientTransformation:
    """Adam, warmed up over the first share of training, then a cosine decay to zero.

    With stages there are two decays: to a small rate while the loss is robust, then to zero. At a
    large rate the noise of the penalty would undo what was learned.
    """
    warmup = max(1, int(settings.warm_up * steps))
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, max(steps, warmup + 1))
    if staged:
        first, low = max(round(settings.robust * steps), warmup + 1), settings.fine_rate * peak
        rest = optax.cosine_decay_schedule(low, max(steps - first, 1))
        robust = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, first, low)
        schedule = optax.join_schedules([robust, rest], [first])
    return optax.adam(schedule)
