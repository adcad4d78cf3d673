"""The covariance experiment at its smallest: what it leaves behind, not how good it is."""

import json

import pytest
from typer.testing import CliRunner

from mvue.cli.main import app

ESTIMATORS = {
    "masked_sample_covariance",
    "mle",
    "emmse",
    "norm",
    "relative_mse",
    "bias_reduced",
    "bce_paper",
    "bce_unbiased",
    "bce",
}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    folder = tmp_path_factory.mktemp("covariance")
    command = ["reproduce", "covariance", "--preset", "smoke", "--out", str(folder)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    return folder, json.loads((folder / "results.json").read_text()), result.output


def test_results_have_both_tests_for_every_estimator(smoke):
    _, results, _ = smoke
    assert set(results["estimators"]) == ESTIMATORS
    for entry in results["estimators"].values():
        assert entry["estimate_microseconds"] > 0
        for where in ("in_distribution", "out_of_distribution"):
            block = entry[where]
            ratio = block["mse_over_crb"]
            assert 0 < ratio["min"] <= ratio["median"] <= ratio["max"]
            assert len(block["total_mse_over_crb"]) == len(block["bias"]) == 8
            assert block["failures"] == 0


def test_the_masked_sample_covariance_is_near_the_bound(smoke):
    _, results, _ = smoke
    masked = results["estimators"]["masked_sample_covariance"]
    # The relative standard error of one MSE is sqrt(2 / (9 * 400)) = 0.024.
    assert 0.93 < masked["in_distribution"]["mse_over_crb"]["median"] < 1.2
    assert abs(masked["out_of_distribution"]["mse_over_crb"]["median"] - 1.0) < 0.08


def test_page_and_figures(smoke):
    folder, _, output = smoke
    assert "bias² of at most" in output
    page = (folder / "index.html").read_text()
    assert "Where this differs from the paper" in page
    assert (folder / "figures" / "covariance.png").stat().st_size > 10_000
