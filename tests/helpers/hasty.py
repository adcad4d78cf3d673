"""Surveys and baselines from few simulations, where it does not matter how good they are."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def hasty() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "mvue._recipe.sensitivity.BUDGET", 0
        )  # of simulated numbers: the fewest that will do
        patch.setattr("mvue._recipe.baseline.PIECES", 4)
        yield
