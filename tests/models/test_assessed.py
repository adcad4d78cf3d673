"""Assessments and certificates are kept with the estimator that they are of, and with no other."""

import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
from typer.testing import CliRunner

import mvue
from mvue.cli import app


@mvue.register(name="test_assessed.Scaled")
class Scaled(eqx.Module):
    factor: jax.Array

    def __call__(self, x):
        return self.factor * x.mean()[None]


def problem_of(low=0.0, high=4.0, size=3, names=("level",)):
    return mvue.Problem(
        dist.Uniform(low, high), lambda key, t: t + jr.normal(key, (size,)), names=names
    )


LEVEL = problem_of()
MEAN, HALF = Scaled(jnp.array(1.0)), Scaled(jnp.array(0.5))


def report_of(estimator, problem=LEVEL, **settings):
    settings = {"repeats": 2000, "key": jr.key(0)} | settings
    return mvue.assess(estimator, problem, **settings)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("assessed") / "mean.mvue"
    mvue.save(MEAN, path, problem=LEVEL, certificate=report_of(MEAN).certify(0.5))
    return path


@pytest.mark.parametrize(
    ("estimator", "problem", "message"),
    [
        (HALF, LEVEL, "got that of one with other estimates"),
        (lambda x: x.mean() / 2, LEVEL, "got that of one with other estimates"),
        (MEAN, problem_of(names=("height",)), "of level; got one of height"),
        (MEAN, problem_of(10.0, 20.0), "for values that the estimator was trained on, got y = "),
        (MEAN, problem_of(size=4), r"of shape \(3,\); got one of measurements of shape \(4,\)"),
    ],
)
def test_those_of_another_are_refused(path, tmp_path, estimator, problem, message):
    report = report_of(estimator, problem)
    for what, given in (("assessment", report), ("certificate", report.certify(0.5))):
        with pytest.raises(ValueError, match=f"{what} must be .*{message}"):
            mvue.save(mvue.load(path), tmp_path / "x.mvue", **{what: given})
    assert not (tmp_path / "x.mvue").exists()


@pytest.mark.parametrize(
    "estimator",
    [MEAN, Scaled(jnp.array(1.0)), lambda x: jnp.mean(x), lambda x: np.mean(np.asarray(x))],
)
def test_those_of_the_same_are_kept(path, tmp_path, estimator):
    report = report_of(estimator, repeats=200)
    for given in (report, pickle.loads(pickle.dumps(report))):
        mvue.save(MEAN, tmp_path / "x.mvue", problem=LEVEL, assessment=given)
    mvue.save(MEAN, tmp_path / "x.mvue", problem=LEVEL, certificate=report.certify(0.5))
    loaded = mvue.load(tmp_path / "x.mvue")
    mvue.save(loaded, tmp_path / "x.mvue", assessment=report_of(loaded, repeats=200))
    other = report_of(MEAN, repeats=200, of=lambda y: y**2)
    mvue.save(loaded, tmp_path / "x.mvue", certificate=other.certify(0.5))


def test_a_new_assessment_keeps_the_certificate(path, tmp_path):
    loaded = mvue.load(path)
    for given in ({"score": 1.0}, report_of(MEAN, repeats=200)):
        mvue.save(loaded, tmp_path / "x.mvue", assessment=given)
        again = mvue.load(tmp_path / "x.mvue")
        assert again.certificate == loaded.certificate
        assert again.assessment != loaded.assessment


def test_the_command_stores_no_certificate_of_another_problem(path, tmp_path, monkeypatch):
    (tmp_path / "heights.py").write_text(
        "import jax.random as jr, numpyro.distributions as dist, mvue\n"
        "problem = mvue.Problem(dist.Uniform(0.0, 4.0), lambda key, t: t + jr.normal(key, (3,)),"
        " names=('height',))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    before = path.read_bytes()
    call = ["assess", str(path), "--problem", "heights:problem", "--certify", "0.5", "--store"]
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 1
    assert "--store is for the problem of the model, of level; got one of height" in done.stderr
    assert path.read_bytes() == before
