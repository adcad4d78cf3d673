"""Examples at toy size."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore::mvue.exceptions.UnresolvedSignalWarning")
def test_snr_by_random_features(capsys):
    report = load("snr_random_features").main(units=4_000, repeats=4_000)
    least_squares, unbiased = (report.summary(f"linear_{w}") for w in (0, 1000))
    assert least_squares["max_bias_over_sd"] > 0.4
    assert unbiased["max_bias_over_sd"] < 0.15
    assert "fitted in" in capsys.readouterr().out
