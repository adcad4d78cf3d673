"""The command line and the files that an experiment leaves."""

import json
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from helpers.contract import CONTRACT
from mvue.cli.main import app
from mvue.experiments import EXPERIMENTS
from mvue.experiments._common import MEANS_NOTHING

runner = CliRunner()


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    folder = tmp_path_factory.mktemp("snr")
    result = runner.invoke(app, ["reproduce", "snr", "--preset", "smoke", "--out", str(folder)])
    assert result.exit_code == 0, result.output
    return folder, result


def test_results_follow_the_contract(smoke):
    folder, _ = smoke
    results = json.loads((folder / "results.json").read_text())
    assert {"experiment", "preset", "seed", "seconds", "versions", "config"} <= set(results)
    assert results["experiment"] == "snr"
    assert set(results["estimators"]) == {"mle", "mle_corrected", "emmse", "bce_paper", "bce"}
    for entry in results["estimators"].values():
        assert set(entry) >= CONTRACT
        assert len(entry["y"]) == len(entry["bias"]) == len(entry["crb"]) == 13
        assert set(entry["mse_over_crb"]) == {"min", "median", "max"}
    assert "acts as λ = 90 at M = 100" in results["estimators"]["bce_paper"]["loss"]


def test_page_and_figures(smoke):
    folder, result = smoke
    page = (folder / "index.html").read_text()
    assert page.count("<svg") == 2
    assert not re.search(r'(src|href)="http', page)
    assert "Where this differs from the paper" in page
    assert {p.name for p in (folder / "figures").iterdir()} == {
        f"{name}.{kind}" for name in ("snr", "snr-assessment") for kind in ("png", "svg")
    }
    assert not (folder / "unfinished").exists()
    assert str(folder / "index.html") in result.output.replace("\n", "")
    assert "max |bias|/sd" in result.output


@pytest.mark.parametrize("name", ["linear", "regularization"])
def test_linear_experiments(tmp_path, name):
    result = runner.invoke(app, ["reproduce", name, "--preset", "smoke", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    results = json.loads((tmp_path / "results.json").read_text())
    for entry in results["estimators"].values():
        assert set(entry) >= CONTRACT - {"max_relative_bias"}
        assert np.isfinite(entry["mse"]).all()
    if name == "linear":
        wls, lmmse = results["estimators"]["wls"], results["estimators"]["lmmse"]
        assert wls["max_abs_AH_minus_I"] < 1e-10
        for entry in (wls, lmmse):
            error = entry["bmse"] - entry["theory"]["bmse"]
            assert abs(error) < 4.5 * entry["bmse_se"]
    else:
        lbce, lmmse = results["estimators"]["lbce"], results["estimators"]["lmmse"]
        assert lbce["mse_over_oracle_mean"][0] < lmmse["mse_over_oracle_mean"][0]
        assert min(lbce["mse_over_oracle_mean"]) >= 1
    assert "<svg" in (tmp_path / "index.html").read_text()
    assert_marked_as_smoke(tmp_path, result, results)


def assert_marked_as_smoke(folder, result, results):
    """Nobody can take a run that checks the files for a result."""
    assert results["meaningful"] is False
    assert result.output.count(MEANS_NOTHING) >= 2
    page = (folder / "index.html").read_text()
    assert page.index(MEANS_NOTHING) < page.index("<h1>")
    for figure in (folder / "figures").glob("*.svg"):
        assert "the numbers mean nothing -->" in figure.read_text()


def test_list_names_all_experiments():
    shown = runner.invoke(app, ["list"]).output
    assert all(name in shown for name in EXPERIMENTS)
    rows = json.loads(runner.invoke(app, ["list", "--json"]).output)
    assert [row["name"] for row in rows] == list(EXPERIMENTS)
    assert all(row["presets"] == ["smoke", "quick", "paper"] for row in rows)


def test_help_and_version():
    assert "reproduce" in runner.invoke(app, ["--help"]).output
    assert "--preset" in runner.invoke(app, ["reproduce", "--help"]).output
    assert runner.invoke(app, ["--version"]).output.startswith("mvue ")


def test_unknown_names_are_refused(tmp_path):
    result = runner.invoke(app, ["reproduce", "nothing"])
    assert result.exit_code == 2
    assert "there are: snr" in result.output
    assert runner.invoke(app, ["reproduce", "snr", "--preset", "huge"]).exit_code == 2
    blocked = tmp_path / "file"
    blocked.write_text("")
    result = runner.invoke(app, ["reproduce", "snr", "--preset", "smoke", "--out", str(blocked)])
    assert result.exit_code == 1
    assert "cannot write the results" in result.output


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_run_says_so_and_keeps_what_it_did(number, code, tmp_path):
    command = [sys.executable, "-m", "mvue", "reproduce", "snr", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    folder = tmp_path / "run" / "unfinished" / "quick-seed0" / "emmse"
    while not folder.exists() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(1.0)
    process.send_signal(number)
    _, said = process.communicate()
    assert process.returncode == code, said
    assert "run the same command again" in said
    assert any(folder.glob("[0-9]*"))
    assert not (tmp_path / "run" / "results.json").exists()
