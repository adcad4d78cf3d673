"""Export to ONNX: the same estimates for any number of measurements."""

import dataclasses
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from typer.testing import CliRunner

import mvue
from helpers import models
from mvue.cli.main import app

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("jax2onnx")


@pytest.mark.parametrize(
    "kind",
    ["default", "set", "covariance", "unrolled", "convolved", "regressor", "pipeline", "scaled"],
)
def test_estimates_are_the_same_for_any_number_of_measurements(kind, tmp_path):
    saved = models.save_kind(kind, tmp_path / "m.mvue")
    model = models.with_shape(mvue.load(tmp_path / "m.mvue"), saved.x)
    done = mvue.export_onnx(model, tmp_path / "m.onnx")
    assert done.difference < 1e-5
    session = ort.InferenceSession(tmp_path / "m.onnx")
    expected = models.estimates(saved.estimator, saved.x).reshape(len(saved.x), -1)
    for n in (1, 7, 20):
        (found,) = session.run(["estimates"], {"x": saved.x[:n].astype(np.float32)})
        scale = np.abs(expected).max()
        np.testing.assert_allclose(found / scale, expected[:n] / scale, atol=1e-5)


def test_a_fit_as_it_is(tmp_path):
    fit = models.tiny_fit()
    done = mvue.export_onnx(fit, tmp_path / "m.onnx")
    assert done.inputs == {"x": (6,)}
    x = 1.5 * models.numbers(20, 6)
    (found,) = ort.InferenceSession(tmp_path / "m.onnx").run(["estimates"], {"x": x})
    np.testing.assert_allclose(found, fit.predict(x), rtol=1e-5, atol=1e-5)


def test_a_bare_network_needs_its_problem(tmp_path):
    network = eqx.nn.Linear(2, 2, key=jr.key(0))
    with pytest.raises(mvue.exceptions.ExportError, match="not known: give problem="):
        mvue.export_onnx(network, tmp_path / "m.onnx")
    mvue.export_onnx(network, tmp_path / "m.onnx", problem=models.line_problem())
    x = models.numbers(3, 2)
    (found,) = ort.InferenceSession(tmp_path / "m.onnx").run(["estimates"], {"x": x})
    np.testing.assert_allclose(found, jax.vmap(network)(x), rtol=1e-5, atol=1e-5)


def test_command(tmp_path):
    models.save_kind("linear", tmp_path / "m.mvue")
    out = tmp_path / "m.onnx"
    result = CliRunner().invoke(app, ["export", str(tmp_path / "m.mvue"), str(out), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["inputs"] == {"x": [5]}
    assert out.exists()


def test_what_cannot_be_exported(tmp_path):
    @mvue.register(name="test.Searching")
    class Searching(eqx.Module):
        weight: jax.Array

        def __call__(self, x):
            return self.weight * jnp.linalg.eigvalsh(jnp.outer(x, x))

    problem = dataclasses.replace(models.line_problem(), names=None)
    mvue.save(Searching(jnp.ones(2)), tmp_path / "m.mvue", problem=problem)
    with pytest.raises(mvue.exceptions.ExportError, match=r"cannot be exported.*eigh"):
        mvue.export_onnx(mvue.load(tmp_path / "m.mvue"), tmp_path / "m.onnx")
    mvue.save(eqx.nn.Linear(2, 2, key=jr.key(0)), tmp_path / "m.mvue")
    with pytest.raises(mvue.exceptions.ExportError, match="problem="):
        mvue.export_onnx(mvue.load(tmp_path / "m.mvue"), tmp_path / "m.onnx")
    H = np.array([[1.0, 1j], [0.5, 1.0]])
    mvue.save(mvue.wls(H, 1.0), tmp_path / "m.mvue")
    with pytest.raises(mvue.exceptions.ExportError, match="complex"):
        mvue.export_onnx(mvue.load(tmp_path / "m.mvue"), tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


def test_complex_measurements_are_two_real_channels(tmp_path):
    shape = (10,)
    saved = models.scored("series", shape, is_complex=True)
    mvue.save(saved.estimator, tmp_path / "m.mvue")
    model = models.with_shape(mvue.load(tmp_path / "m.mvue"), saved.x)
    exported = mvue.export_onnx(model, tmp_path / "m.onnx")
    assert exported.inputs == {"x": (*shape, 2)}
    session = ort.InferenceSession(tmp_path / "m.onnx")
    pairs = np.stack([saved.x.real, saved.x.imag], axis=-1)
    (found,) = session.run(None, {"x": pairs})
    expected = models.estimates(saved.estimator, saved.x)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
