"""The same estimator on one device, on eight, and in two processes; and what if one is lost."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import mvue
import mvue.distributed
from mvue._data import shards as _shard_files
from mvue._runtime.devices import divided, mapped, mesh_for, whole_shares

HELPERS = Path(__file__).parents[1] / "helpers"
STEPS = 120


def start(devices=1, **asked):
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [sys.executable, HELPERS / "worker.py", json.dumps(asked)],
        env={**os.environ, "XLA_FLAGS": flags},
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process):
    """The exit code, and what was said."""
    _, said = process.communicate(timeout=300)
    return process.returncode, said


def succeeded(process):
    code, said = ended(process)
    assert code == 0, said


def job(processes=2, timeout=60.0, each=lambda _: {}, **asked):
    """Several processes that share one training run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"coordinator": f"127.0.0.1:{port}", "processes": processes, "timeout": timeout}
    return [start(**asked, **shared, process=i, **each(i)) for i in range(processes)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Simulated data in a folder, in five shards."""

    def simulator(theta, rng):
        return 100.0 + np.array([theta, theta**2, 0.0]) + rng.normal(size=3)

    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_shard_files, "SHARD_UNITS", 16)
        mvue.simulate(simulator, lambda rng: rng.uniform(), units=70, repeats=3, folder=folder)
    return str(folder)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("alone") / "numbers.npz"
    process = start(output=str(path), steps=STEPS, data=data)
    succeeded(process)
    return np.load(path)


def agree(found, alone, devices):
    assert found["devices"] == devices
    assert set(found.files) == set(alone.files)
    for name in set(alone.files) - {"devices"}:
        # Moments of given data are added up in float64, whoever does it.
        near = {"rtol": 1e-11} if name.startswith("linear") else {"rtol": 1e-5, "atol": 1e-6}
        np.testing.assert_allclose(found[name], alone[name], **near, err_msg=name)
    for i in range(3):
        np.testing.assert_allclose(found[f"linear_{i}"], found["linear_3"], rtol=1e-11)
    assert (found["units"] == 70).all()


def test_eight_devices_are_as_good_as_one(alone, data, tmp_path):
    process = start(8, output=str(tmp_path / "n.npz"), steps=STEPS, data=data)
    succeeded(process)
    agree(np.load(tmp_path / "n.npz"), alone, 8)


def test_two_processes_are_as_good_as_one(alone, data, tmp_path):
    def own(i):
        return {"output": str(tmp_path / f"{i}.npz")}

    processes = job(each=own, steps=STEPS, checkpoint=str(tmp_path / "state"), data=data)
    for process in processes:
        succeeded(process)
    both = [np.load(tmp_path / f"{i}.npz") for i in range(2)]
    for found in both:
        agree(found, alone, 2)
    for name in alone.files:
        np.testing.assert_array_equal(both[0][name], both[1][name], err_msg=name)


def test_lost_process_ends_the_job_and_another_number_of_devices_resumes(tmp_path):
    def own(i):
        return {"output": str(tmp_path / f"{i}.npz"), "die": i == 1}

    asked = {"steps": STEPS, "checkpoint": str(tmp_path / "state")}
    first, lost = job(each=own, timeout=15.0, **asked)
    assert ended(lost)[0] == 9
    code, message = ended(first)
    assert code == mvue.distributed.LOST, message
    assert "process 0 of 2 stops, because process 1 gave no sign of life for 15 seconds" in message
    assert "start the job again" in message
    saved = max(int(p.name) for p in (tmp_path / "state").iterdir() if p.name.isdigit())
    assert 0 < saved < STEPS
    output = tmp_path / "resumed.npz"
    process = start(output=str(output), **asked)
    succeeded(process)
    assert str(STEPS) in {p.name for p in (tmp_path / "state").iterdir()}


def test_work_is_divided_by_number():
    mesh = mesh_for(4)  # None on a machine with one device
    found = divided(lambda i, key: jr.normal(jr.fold_in(key, i)), mesh, 4, jr.key(0))
    wanted = [jr.normal(jr.fold_in(jr.key(0), i)) for i in range(4)]
    np.testing.assert_array_equal(found, jnp.stack(wanted))
    doubled = mapped(lambda w, x: w * x, mesh, jnp.asarray(2.0), jnp.arange(4.0))
    np.testing.assert_array_equal(doubled, 2 * jnp.arange(4.0))
    assert whole_shares(3) % len(jax.devices()) == 0


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"coordinator": "node"}, "address:port"),
        ({"coordinator": "node:1", "processes": 2, "process": 2}, "from 0 to 2 - 1"),
        ({"coordinator": "node:1", "processes": -1}, "processes must be a whole number"),
        ({"timeout": 0.0}, "timeout must be positive"),
    ],
)
def test_what_cannot_be_meant_is_refused(given, named):
    with pytest.raises(ValueError, match=named):
        mvue.distributed.initialize(**given)


def test_environment_is_read(monkeypatch):
    monkeypatch.setenv("MVUE_PROCESSES", "two")
    with pytest.raises(ValueError, match="MVUE_PROCESSES must be a whole number, got 'two'"):
        mvue.distributed.initialize("node:1")
