"""Folders that hold something else than their manifest says, and priors that cannot be repeated."""

import json
import os
import shutil

import numpy as np
import pytest

import mvue
from mvue.exceptions import SimulatedDataError, SimulatorError


def prior(rng):
    return rng.uniform()


def measure(theta, rng):
    return theta + rng.normal(size=3)


def simulate(folder, **changes):
    settings = {"units": 20, "repeats": 4, "folder": folder} | changes
    return mvue.simulate(measure, prior, **settings)


def edit(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def forget_what_it_belongs_to(shard):
    """As shards of earlier versions are."""
    file = shard / "shard.json"
    told = json.loads(file.read_text())
    file.write_text(json.dumps({k: told[k] for k in ("units", "files", "failures")}))


def flip_a_bit(file):
    status, data = file.stat(), bytearray(file.read_bytes())
    data[-5] ^= 0xFF
    file.write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("name", ["x.npy", "y.npy", "theta0.npy"])
def test_what_a_disk_has_changed_is_called_damaged(tmp_path, name):
    simulate(tmp_path)
    flip_a_bit(tmp_path / "00000" / name)
    with pytest.raises(SimulatedDataError, match=rf"{name} is damaged"):
        simulate(tmp_path).load()
    with pytest.raises(SimulatedDataError, match=rf"{name} is damaged"):
        mvue.SimulatedData.open(tmp_path).load()


@pytest.mark.parametrize("of_earlier_version", [False, True])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_shape": [2]}, r"shape of x: \(20, 4, 2\) there, \(20, 4, 3\) in the shard"),
        ({"x_dtype": "<f4"}, "dtype of x"),
        ({"repeats": 2}, r"shape of present: \(20, 2\) there"),
        ({"names": ["a", "b"]}, "shape of y"),
        ({"shard_units": 10}, "most units of a shard: 10 there, 20 in the shard"),
        ({"theta": [["a"]]}, r"theta: \[\['a'\]\] there, \[\[\]\] in the shard"),
        ({"seed": 7}, "seed: 7 there, 0 in the shard"),
    ],
)
def test_a_manifest_that_contradicts_its_shards_is_refused(
    tmp_path, changes, message, of_earlier_version
):
    simulate(tmp_path)
    edit(tmp_path / "manifest.json", **changes)
    if of_earlier_version:
        if "theta" in changes or "seed" in changes:
            return  # nothing in it tells
        forget_what_it_belongs_to(tmp_path / "00000")
    with pytest.raises(SimulatedDataError, match=message):
        mvue.SimulatedData.open(tmp_path)
    with pytest.raises(SimulatedDataError, match=r"Nothing was changed|in the shard"):
        simulate(tmp_path)


def test_a_shard_of_other_data_is_refused(tmp_path):
    for seed in (0, 3):
        simulate(tmp_path / str(seed), seed=seed)
    shutil.rmtree(tmp_path / "0" / "00000")
    shutil.copytree(tmp_path / "3" / "00000", tmp_path / "0" / "00000")
    for use in (mvue.SimulatedData.open, simulate):
        with pytest.raises(SimulatedDataError, match="seed: 0 there, 3 in the shard"):
            use(tmp_path / "0")


def test_folders_of_earlier_versions_are_read_and_go_on(tmp_path):
    expected = simulate(None, units=30).load()
    simulate(tmp_path)
    forget_what_it_belongs_to(tmp_path / "00000")
    assert np.array_equal(mvue.SimulatedData.open(tmp_path).load().x, expected.x[:20])
    assert np.array_equal(simulate(tmp_path, units=30).load().x, expected.x)


def test_a_shard_without_a_record_of_failures_is_damaged(tmp_path):
    simulate(tmp_path)
    file = tmp_path / "00000" / "shard.json"
    told = json.loads(file.read_text())
    del told["failures"]
    file.write_text(json.dumps(told))
    with pytest.raises(SimulatedDataError, match="shard 0 is damaged"):
        mvue.SimulatedData.open(tmp_path)
    with pytest.warns(UserWarning, match="shard 0 .* is simulated again"):
        simulate(tmp_path)


def test_a_prior_that_does_not_use_its_rng_is_refused():
    clock = iter(np.linspace(0, 1, 1000))
    for ignoring in (lambda _: next(clock), lambda _: {"a": np.random.uniform()}):  # noqa: NPY002
        with pytest.raises(SimulatorError, match=r"all of its random numbers from rng.* unit 0"):
            mvue.simulate(lambda t, rng: rng.normal(), ignoring, units=20, target=lambda _: 1.0)


def test_a_unit_is_stored_with_the_theta_it_was_simulated_from():
    count = [0]

    def changing(rng):  # after some draws
        count[0] += 1
        return rng.uniform() + (count[0] > 11)

    data = mvue.simulate(
        lambda theta, rng: theta + 1e-9 * rng.normal(), changing, units=10, repeats=2
    ).load()
    np.testing.assert_allclose(data.x[:, 0], data.y[:, 0], atol=1e-6)
