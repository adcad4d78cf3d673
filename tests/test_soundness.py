"""A small part of `benchmarks/soundness.py`: what is broken there fails here."""

import pytest

from helpers import soundness


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "families",
    [
        lambda: [soundness.kills(3)],
        lambda: [soundness.full_disks(3)],
        lambda: [soundness.odd_inputs(100)],
        lambda: list(soundness.model_files(100, 18, kinds=("linear", "perceptron"))),
    ],
    ids=["kills", "full disks", "odd inputs", "model files"],
)
def test_nothing_breaks(families):
    for family in families():
        assert family.tried > 0
        assert not family.broken, "\n".join([str(family), *family.broken])
