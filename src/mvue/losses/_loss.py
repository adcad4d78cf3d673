"""What `fit` reads of a loss."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

from .._core.problem import Draw
from .._core.types import Theta


class Loss(abc.ABC):
    """What `fit` minimises, with all that `fit` reads of it.

    For a loss of your own, derive a class and write ``__call__``; override the rest where it
    applies. A function ``(estimates, draw, progress) -> scalar`` is a loss, too. On fixed data only
    `bce` and `emmse` can be used.
    """

    min_repeats: int = 1
    """M, measurements of each unit, that it takes at least."""
    any_prior: bool = False
    """Whether the best estimator is the same for every prior, so that `fit` may choose one."""
    weights_from_survey: bool = False
    """Whether `fit` is to decide the weights, and then trains on `weighted_by`."""
    takes_control_variate: bool = False
    """Whether ``__call__`` also takes ``control_variate=``: a part of the estimates, (N, M, d),
    that is known to have mean zero for each unit. Left out of a bias penalty, it lowers the
    variance of the penalty and keeps its expectation."""

    @abc.abstractmethod
    def __call__(self, estimates: Any, draw: Draw, progress: Any) -> Any:
        """The loss of one batch, a scalar.

        Args:
            estimates: shape (N, M, d).
            draw: what they were made from: theta, y of shape (N, d), and x.
            progress: fraction of training done, from 0 to 1.
        """

    def describe(self, repeats: int) -> str:
        """The loss in words, for M repeats."""
        del repeats
        return type(self).__name__

    def weights(self, draw: Draw) -> Any:
        """The weight of each unit, (N,), or of its components, (N, d); None for no weights."""
        del draw
        return None

    def weighted_by(self, weight: Callable[[Theta], Any]) -> "Loss":
        """The loss with these weights, a function of one theta, if it leaves them to `fit`."""
        raise TypeError(f"{self!r} decides its weights itself, got weight={weight!r}")


@dataclasses.dataclass(frozen=True)
class FunctionLoss(Loss):
    """A function and its name."""

    function: Callable[[Any, Draw, Any], Any]
    name: str
    min_repeats: int = 1

    def __call__(self, estimates: Any, draw: Draw, progress: Any) -> Any:
        """The function of one batch."""
        return self.function(estimates, draw, progress)

    def describe(self, repeats: int) -> str:
        """The name."""
        del repeats
        return self.name


def as_loss(loss: Any) -> Loss:
    """The loss itself, or the one that a function is."""
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, type) or not callable(loss):
        raise TypeError(
            "loss must be a function of (estimates, draw, progress) or a mvue.losses.Loss, such as "
            f"mvue.bce(40.0), got {loss!r}"
        )
    return FunctionLoss(loss, getattr(loss, "__name__", type(loss).__name__))
