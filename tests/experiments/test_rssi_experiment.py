"""The RSSI experiment at its smallest: what it leaves behind, not how good it is."""

import json
import os

import numpy as np
import pytest
from typer.testing import CliRunner

import mvue
from mvue.cli.main import app
from mvue.datasets import DatasetError
from mvue.experiments.rssi.methods import simulated_table


def unreachable():
    raise DatasetError("no way there")


def test_without_the_measurements_one_sentence_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr("mvue.experiments.rssi.methods.rssi", unreachable)
    result = CliRunner().invoke(app, ["reproduce", "rssi", "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert result.output == "no way there\n"
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """On data of the simulated room, wherever the measurements are."""
    folder = tmp_path_factory.mktemp("rssi")
    command = ["reproduce", "rssi", "--preset", "smoke", "--out", str(folder)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mvue.experiments.rssi.methods.rssi", unreachable)
        result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    return folder, json.loads((folder / "results.json").read_text()), result.output


def test_results_have_all_measures_of_every_method(smoke):
    _, results, _ = smoke
    names = {"emmse", "bce_3", "bce", "linear_bce_0", "linear_bce_3"}
    assert names | {"ridge", "knn", "random_forest"} == set(results["estimators"])
    for entry in results["estimators"].values():
        for split, count in (("random_split", 2), ("time_split", 2)):
            for field in ("mse", "plug_in_many", "unbiased_many", "unbiased"):
                assert len(entry[split][field]["splits"]) == count
            assert entry[split]["mse"]["mean"] > 0
    for entry in results["simulated"]["estimators"].values():
        assert entry["max_bias_over_sd"] > 0
        assert len(entry["bias"]) == 4
    assert results["simulated"]["estimators"]["mle"]["max_bias_over_sd"] < 0.5
    assert "no way there" in results["source"]


def test_what_was_trained_on_the_data_can_be_used(smoke):
    folder, results, _ = smoke
    table = simulated_table(0, "it is a test")
    saved = {"emmse", "bce_3", "linear_bce_0", "linear_bce_3", "room-emmse", "room-bce"}
    assert {p.stem.removeprefix("model-") for p in folder.glob("model-*.mvue")} == saved
    for name in ("bce_3", "linear_bce_3"):
        model = mvue.load(folder / f"model-{name}.mvue")
        errors = model.predict(table.x, warn=False) - table.y
        assert np.mean(errors**2) < 3 * results["estimators"][name]["random_split"]["mse"]["mean"]
        assert model.assessment["random_split"]["mse"]["mean"] > 0


def test_page_and_figures(smoke):
    folder, _, output = smoke
    assert "simulated room" in output
    page = (folder / "index.html").read_text()
    assert "Where this differs from the paper" in page
    for name in ("trade-off", "locations", "room"):
        assert (folder / "figures" / f"{name}.png").stat().st_size > 10_000


def test_simulated_table_is_of_the_size_of_the_measured_one(seed):
    table = simulated_table(seed, "it is a test")
    assert table.x.shape == (1420, 13)
    places, sizes = np.unique(table.y, axis=0, return_counts=True)
    assert len(places) == 105
    assert sizes.min() >= 2


@pytest.mark.skipif("MVUE_DATA_DIR" not in os.environ, reason="MVUE_DATA_DIR is not set")
def test_methods_on_the_measurements():
    from mvue.experiments.rssi.methods import RSSISettings, load_table, measure, network

    table, settings = load_table(0), RSSISettings(splits=1)
    order = np.random.default_rng(0).permutation(len(table.y))
    train, test = order[473:], order[:473]
    found = {}
    for lam in (0.0, 3.0):
        trained = network(lam, 1500, settings, table.x[train], table.y[train], 0)
        found[lam] = measure(table.y[test], trained.predict(table.x[test]))
    assert found[0.0].mse < 2.3
    assert found[3.0].unbiased < found[0.0].unbiased
