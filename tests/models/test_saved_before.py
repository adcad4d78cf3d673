"""Model files of earlier versions still load, and estimate what they did when they were saved."""

import importlib
import re
from pathlib import Path

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
from safetensors import safe_open

import mvue

DATA = Path(__file__).parent / "saved_before"
EXPECTED = dict(np.load(DATA / "expected.npz"))
FILES = sorted(path.stem for path in DATA.glob("*.mvue"))


def measurements(name):
    """An array, or a dict of arrays."""
    place = f"{name}/x/"
    parts = {key.removeprefix(place): x for key, x in EXPECTED.items() if key.startswith(place)}
    return parts or EXPECTED[f"{name}/x"]


def like(name):
    """The structure that is not in a file of arrays only."""
    if not name.endswith("-arrays"):
        return None
    prior = dist.Uniform(-1.0, 1.0).expand((2,))
    problem = mvue.Problem(prior, lambda key, y: y + jr.normal(key, (2,)))
    network = eqx.nn.MLP(2, 2, 4, 1, jax.nn.gelu, key=jr.key(0))
    return mvue.standardize(network, problem, features=lambda x: x / 2, key=jr.key(0))


def names_in(path):
    """Names of the classes and functions that a file is made of."""
    with safe_open(path, "numpy") as file:
        return set(re.findall(r'"(?:type|function|class)": "([^"]+)"', file.metadata()["mvue"]))


@pytest.mark.parametrize("name", FILES)
def test_files_load_and_estimate_as_before(name, tmp_path):
    x, y = measurements(name), EXPECTED[f"{name}/y"]
    double = name.endswith("-double")
    with jax.enable_x64(double):
        model = mvue.load(DATA / f"{name}.mvue", like=like(name))
        found, called = model.predict(x), jax.jit(model)(jax.tree.map(lambda leaf: leaf[0], x))
        mvue.save(model, tmp_path / "again.mvue")
    # The last digits depend on the processor.
    rounding = (1e-10 if double else 2e-5) * np.abs(y).max()
    assert found.shape == y.shape
    np.testing.assert_allclose(found, y, rtol=0, atol=rounding)
    np.testing.assert_allclose(called, EXPECTED[f"{name}/called"], rtol=0, atol=rounding)
    assert names_in(tmp_path / "again.mvue") >= set(EXPECTED[f"{name}/names"])


def test_names_in_files_are_still_known():
    for part in ("problems", "sklearn", "experiments"):
        importlib.import_module(f"mvue.{part}")

    def is_known(name):
        try:
            mvue.register(lambda x: x, name=name)
        except ValueError as error:
            return "is that of another" in str(error)
        return False

    names = (DATA / "names.txt").read_text().split()
    assert [name for name in names if not is_known(name)] == []
