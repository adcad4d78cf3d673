"""The experiment with networks of sensors at its smallest, and its arithmetic on known answers."""

import json

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
from typer.testing import CliRunner

import mvue
from mvue.cli import app
from mvue.experiments._sensor_networks import Networks, Theory, sizes_up_to

SCENES = {
    "snr": {"emmse", "bce_network", "bce", "mle", "mle_centralised"},
    "covariance": {"emmse", "masked_sample_covariance", "bce", "mle", "mle_centralised"},
}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sensors")
    command = ["reproduce", "sensors", "--preset", "smoke", "--out", str(folder)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    return folder, json.loads((folder / "results.json").read_text()), result.output


def test_results_have_a_curve_for_every_estimator_and_unknown(smoke):
    _, results, _ = smoke
    for scene, names in SCENES.items():
        assert {n for n, e in results["estimators"].items() if scene in e} == names
        for name in names:
            entry = results["estimators"][name][scene]
            assert len(entry["fused"]) == {"snr": 5, "covariance": 4}[scene]
            for curve in entry["fused"].values():
                assert curve["sensors"][0] == 1
                assert curve["sensors"][-1] == 100
                assert min(curve["mse_over_crb"]) > 0
                if not name.startswith("mle"):
                    assert len(curve["theory"]) == len(curve["sensors"])
            if not name.startswith("mle"):
                assert entry["estimate_microseconds"] > 0
                assert entry["max_bias_over_sd"] >= 0


def test_the_masked_sample_covariance_falls_as_theory_says(smoke):
    _, results, _ = smoke
    fused = results["estimators"]["masked_sample_covariance"]["covariance"]["fused"]
    for curve in fused.values():
        measured, theory, error = (
            np.array(curve[n]) for n in ("mse_over_crb", "theory", "mse_over_crb_se")
        )
        # Forty networks tell their own standard error within a tenth or so.
        assert (np.abs(measured - theory) < 5 * error).all()


def test_page_and_figures(smoke):
    folder, _, output = smoke
    assert "goes on improving" in output
    page = (folder / "index.html").read_text()
    assert "How this was measured" in page
    for scene in SCENES:
        assert (folder / "figures" / f"sensors-{scene}.png").stat().st_size > 10_000


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
