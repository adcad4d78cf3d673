"""The experiment on problems of the field: its files, its options, and published numbers."""

import json

import jax.random as jr
import numpy as np
import pytest
from typer.testing import CliRunner

import mvue
from helpers.contract import CONTRACT
from mvue._training.result import History
from mvue.cli.main import app
from mvue.datasets import DatasetError, IVIMResults
from mvue.experiments.field import published
from mvue.experiments.field.experiment import EXPERIMENT
from mvue.experiments.field.results import JudgedProblem, rival_rows
from mvue.problems import field


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    folder = tmp_path_factory.mktemp("field")
    command = ["reproduce", "field", "--preset", "smoke", "--out", str(folder)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    return folder, json.loads((folder / "results.json").read_text()), result.output


def test_results_nest_by_problem(smoke):
    _, results, _ = smoke
    assert list(results["problems"]) == ["decay", "capture-recapture"]
    decay, recapture = results["problems"].values()
    assert set(decay["estimators"]) == {"bce", "mle", "mle_corrected"}
    assert set(recapture["estimators"]) == {"bce", "chapman"}
    for entry in decay["estimators"].values():
        assert not CONTRACT - set(entry)
        assert len(entry["y"]) == len(entry["bias"]) == 4
    assert decay["against"] == "CRB"
    assert 0.5 < decay["estimators"]["mle"]["mse_over_crb"]["median"] < 2
    assert recapture["against"] == "best rival"
    assert recapture["estimators"]["chapman"]["mse_over_best_rival"]["max"] == 1
    assert set(results["estimators"]) == {"bce", "mle", "mle_corrected", "chapman"}
    assert results["estimators"]["bce"]["problems"] == ["decay", "capture-recapture"]


def test_page_and_figure(smoke):
    folder, _, output = smoke
    assert (folder / "index.html").read_text().count("<svg") == 1
    assert {p.name for p in (folder / "figures").iterdir()} == {"field.png", "field.svg"}
    assert (folder / "model-decay-bce.mvue").is_file()
    assert "the numbers mean nothing" in output
    assert "mle_corrected" in output


def test_options_are_checked():
    for option, message in (
        ("--problems=tones", "did you mean 'tone'"),
        ("--rivals=some", "rivals must be all or none"),
    ):
        result = CliRunner().invoke(app, ["reproduce", "field", "--preset", "smoke", option])
        assert result.exit_code != 0
        assert message in " ".join(result.output.split())


def test_every_problem_of_the_presets_exists():
    for settings in EXPERIMENT.presets.values():
        if settings.problems != "all":
            assert set(settings.problems) <= set(field())


def public_results():
    """Two algorithms at the liver and at blood, which is out of range."""
    truth = np.array([[0.0015, 0.11, 0.1], [0.003, 1.0, 0.1]]).repeat(2, axis=0)
    return IVIMResults(
        algorithm=np.array(["one", "two"] * 2),
        tissue=np.array(["Liver", "Liver", "Blood", "Blood"]),
        snr=np.full(4, 30.0),
        truth=truth,
        mean=truth * [[1.1], [0.98], [1.0], [1.0]],
        sd=0.2 * truth,
    )


def judged(name):
    """As if one number were the estimate, whatever the data."""
    entry = field(name)
    always = np.asarray(entry.problem.y_of(entry.at[0]), np.float32)
    fixed = lambda x: always  # noqa: E731
    done = mvue.Fit(fixed, mvue.Outcome.FINISHED, 1, "", {}, History(), 1.0, 0.5, 0, {}, None)
    report = mvue.assess({"bce": fixed}, entry.problem, at=entry.at, repeats=8, key=jr.key(0))
    return JudgedProblem(entry, {"bce": report}, {"bce": done}, {"bce": 1.0})


def test_public_algorithms_are_shown_beside(monkeypatch, key):
    monkeypatch.setattr(published, "ivim_results", public_results)
    one = judged("ivim-30")
    (section,), numbers = published.ivim_sections([one], 8, key)
    assert list(numbers["ivim-30"]) == ["Liver"]
    liver = numbers["ivim-30"]["Liver"]
    assert liver["algorithms"]["one"]["bias"] == pytest.approx([0.00015, 0.011, 0.01])
    assert [row[-1] for row in section.table[1:]] == ["two"] * 3
    assert "Liver" in section.paragraphs[0]  # where D* is beyond reach

    def missing():
        raise DatasetError("not on this machine")

    monkeypatch.setattr(published, "ivim_results", missing)
    (section,), numbers = published.ivim_sections([one], 8, key)
    assert "left out" in section.paragraphs[0]
    assert numbers == {"missing": "not on this machine"}
    assert published.ivim_sections([judged("decay")], 8, key) == ([], {})
    assert rival_rows([one]) == []


def test_long_memory_is_shown_beside_a_study():
    section = published.hurst_section([judged("hurst-exponent-100")])
    assert section.table[1][0] == "hurst-exponent-100"
    assert 0.002 < float(section.table[1][2]) < 0.004
    assert "LSTM 0.00407" in section.table[1][3]
    assert published.hurst_section([]) is None
