"""The experiment with networks of sensors at its smallest, and its arithmetic on known answers."""

import json

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
from typer.testing import CliRunner

import mvue
from mvue.cli.main import app
from mvue.experiments import EXPERIMENTS
from mvue.experiments._common import Run
from mvue.experiments.sensors.networks import Networks, Theory, sizes_up_to
from mvue.experiments.sensors.problems import covariance_scene

ESTIMATORS = {"emmse", "bce_network", "bce", "mle", "mle_centralised"}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sensors")
    command = ["reproduce", "sensors", "--preset", "smoke", "--out", str(folder)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    return folder, json.loads((folder / "results.json").read_text()), result.output


def test_results_have_a_curve_for_every_estimator_and_unknown(smoke):
    _, results, _ = smoke
    assert set(results["estimators"]) == ESTIMATORS
    for name, entry in results["estimators"].items():
        entry = entry["snr"]
        assert len(entry["fused"]) == 5
        for curve in entry["fused"].values():
            assert curve["sensors"][0] == 1
            assert curve["sensors"][-1] == 100
            assert min(curve["mse_over_crb"]) > 0
        if not name.startswith("mle"):
            assert entry["estimate_microseconds"] > 0
            assert entry["max_bias_over_sd"] >= 0


def test_averages_fall_as_theory_says(smoke):
    _, results, _ = smoke
    for name in ("emmse", "bce_network", "bce"):
        for curve in results["estimators"][name]["snr"]["fused"].values():
            measured, theory, error = (
                np.array(curve[n]) for n in ("mse_over_crb", "theory", "mse_over_crb_se")
            )
            # Theory has a standard error of its own, from 2000 repeats or 40 unknowns.
            assert (np.abs(measured - theory) < 5 * error + 0.2 * theory).all(), name


def test_page_and_figures(smoke):
    folder, _, output = smoke
    assert "goes on improving" in output
    page = (folder / "index.html").read_text()
    assert "How this was measured" in page
    assert (folder / "figures" / "sensors-snr.png").stat().st_size > 10_000


def test_the_covariance_scene_without_training(tmp_path, key):
    class Untrained(Run):
        def fit(self, name, problem, network, *args, baseline=None, **settings):
            del name, problem, args, settings
            estimator = network if baseline is None else lambda x: baseline(x) + network(x)
            untrained = object.__new__(mvue.Fit)
            object.__setattr__(untrained, "estimator", estimator)
            return untrained

    settings = EXPERIMENTS["sensors"].presets["quick"]
    scene = covariance_scene(Untrained("quick", settings, 0, tmp_path, print))
    assert set(scene.estimators) == {"emmse", "masked_sample_covariance", "bce"}
    x = scene.problem.draw(key, 1, 3).x[0]
    for estimator in (*scene.estimators.values(), scene.mle):
        assert np.isfinite(estimator(x[0])).all()
    assert (
        np.abs(scene.pooled_mle(x) - scene.estimators["masked_sample_covariance"](x.mean(0))).max()
        < 0.3
    )


@pytest.fixture(scope="module")
def sensors():
    """y ~ N(0, 1), x ~ N(y, 1): x is unbiased, x / 2 the least mean squared error."""
    return mvue.Problem(
        dist.Normal(jnp.zeros(1)),
        lambda key, y: y + jr.normal(key, (1,)),
        crb=lambda y: jnp.eye(1),
    )


def test_measured_networks_agree_with_closed_forms(sensors, seed):
    estimators = {"mvue": lambda x: x, "emmse": lambda x: x / 2}
    at = jnp.array([[2.0]])
    networks = Networks(estimators, sensors, 1000, pooled=lambda x: x.mean(axis=0))
    found = networks.curves(at[0], 60, jr.key(seed))
    unbiased, biased, pooled = (found[n] for n in ("mvue", "emmse", "mle_centralised"))
    assert (np.abs(unbiased.mse - 1 / unbiased.sizes) < 4 * unbiased.se).all()
    assert (np.abs(biased.mse - (1 + 0.25 / biased.sizes)) < 4 * biased.se).all()
    assert np.allclose(pooled.mse, unbiased.mse[np.isin(unbiased.sizes, pooled.sizes)], rtol=1e-3)
    slope, error = unbiased.slope()
    assert abs(slope + 1) < 4 * error
    assert error < 0.05
    slope, error = biased.slope()
    assert abs(slope) < 0.01
    ratio, error = unbiased.last_over(biased)
    assert abs(ratio - 1e-3) < 4 * error
    report = mvue.assess(estimators, sensors, at=at, repeats=20_000, key=jr.key(seed))
    for theory in (
        Theory.at(report, "emmse", 0),
        networks.theory([at[0]] * 30, jr.key(seed))["emmse"],
    ):
        assert abs(theory.squared_bias - 1) < 4 * theory.squared_bias_se
        assert abs(theory.bias_over_sd - 2) < 0.05
        assert np.allclose(theory.mse(biased.sizes), 1 + 0.25 / biased.sizes, rtol=0.05)


def test_sizes_divide_the_network():
    assert sizes_up_to(100).tolist() == [1, 2, 5, 10, 20, 50, 100]
    assert sizes_up_to(10_000)[-1] == 10_000
    assert sizes_up_to(40).tolist() == [1, 2, 5, 10, 20]
