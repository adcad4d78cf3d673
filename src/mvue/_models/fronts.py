"""Estimators of other libraries, which tell what using, saving and exporting them needs."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._core.types import Estimator
from .._finish.input_range import InputRange, TrainedOn
from .._training.result import Fit


class Seen(NamedTuple):
    """Rows as the regressor within a front gets them."""

    x: np.ndarray
    usable: np.ndarray
    """Which of them it can take: those that are finite there."""
    far: np.ndarray
    """Which are far outside of what a transformer was fitted to."""


class Front(abc.ABC):
    """One estimator of another library, of rows of numbers."""

    @property
    @abc.abstractmethod
    def kind(self) -> str:
        """What it is, in a few words."""

    @property
    @abc.abstractmethod
    def versions(self) -> dict[str, str]:
        """Of its library."""

    @property
    @abc.abstractmethod
    def has_form(self) -> bool:
        """Whether it can be written in JAX."""

    @abc.abstractmethod
    def trained_on(self) -> TrainedOn:
        """What it knows about its training; refuses one that is not fitted or cannot be saved."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the columns of a row, if it was fitted to a table that has them."""
        return None

    @abc.abstractmethod
    def fit(self) -> Fit | None:
        """How it was trained, where that is known."""

    @abc.abstractmethod
    def check(self, x: Any) -> Any:
        """Refuse one whose parts do not fit together, or not the shapes of a measurement.

        Returns the shapes of what its regressor sees of a measurement.
        """

    @abc.abstractmethod
    def function(self) -> Estimator:
        """The estimator as a function of one row in JAX."""

    @abc.abstractmethod
    def predict(self, x: Any) -> np.ndarray:
        """The estimates from rows; NaN for those that it cannot take."""

    @abc.abstractmethod
    def seen(self, x: Any) -> Seen:
        """Rows as its regressor sees them."""

    @abc.abstractmethod
    def typical_rows(
        self, rng: np.random.Generator, n: int, inputs: InputRange | None
    ) -> np.ndarray:
        """Some rows that its regressor would see as usual."""


_KINDS: list[tuple[Callable[[Any], bool], Callable[[Any], Front]]] = []


def register_front(owns: Callable[[Any], bool], make: Callable[[Any], Front]) -> None:
    """Let a library tell about its own estimators; `owns` says which these are."""
    _KINDS.append((owns, make))


def front_of(estimator: Any) -> Front | None:
    """What the library of an estimator tells about it; None for a function of one measurement."""
    return next((make(estimator) for owns, make in _KINDS if owns(estimator)), None)
