"""What goes wrong around training: signals, disks, memory, clocks and bad simulators."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest

import mvue
from mvue._runtime import memory as _memory
from mvue._training import checkpoint as _checkpoint

PROBLEM = mvue.Problem.from_likelihood(
    dist.Uniform(1.0, 4.0), lambda sd: dist.Normal(0.0, sd).expand([10])
)


def network(key=0):
    return eqx.nn.MLP(10, 1, 4, 1, key=jr.key(key))


def quick_fit(**settings):
    asked = {"steps": 60, "batch_size": 16, "repeats": 4, "key": jr.key(0)} | settings
    return mvue.fit(PROBLEM, network(), mvue.emmse(), **asked)


SCRIPT = """
import equinox as eqx, jax.random as jr, numpyro.distributions as dist, mvue
problem = mvue.Problem.from_likelihood(
    dist.Uniform(1.0, 4.0), lambda sd: dist.Normal(0.0, sd).expand([10])
)
fit = mvue.fit(
    problem, eqx.nn.MLP(10, 1, 4, 1, key=jr.key(0)), mvue.emmse(), key=jr.key(0), steps=10**8,
    checkpoint={folder!r}, checkpoint_every=1e9, progress=False,
)
print("returned", fit.outcome.value, flush=True)
"""


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGTERM, -signal.SIGTERM, ""), (signal.SIGINT, 0, "returned interrupted\n")],
)
def test_signals_in_training_lose_nothing(number, code, said, tmp_path):
    # A checkpoint every 1e9 seconds: what is saved is saved because of the signal.
    folder = tmp_path / "state"
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(folder=str(folder))], stdout=subprocess.PIPE, text=True
    )
    while not folder.exists():
        time.sleep(0.05)
    time.sleep(1.0)
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == code
    assert output == said
    assert [path for path in folder.iterdir() if path.name.isdigit()]


def test_second_signal_acts_at_once():
    from mvue._runtime.signals import stop_signals

    before = signal.getsignal(signal.SIGTERM)
    with stop_signals() as received:
        assert received() == 0
        os.kill(os.getpid(), signal.SIGTERM)
        assert received() == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.fixture
def small_disk():
    """No file may grow beyond a few bytes, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def fill():
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))

    yield fill
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)


def test_training_goes_on_when_a_state_cannot_be_saved(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    whole = quick_fit()
    real = _checkpoint.Checkpoints.save

    def save(self, *args):
        monkeypatch.setattr(self._manager, "save", full)
        real(self, *args)

    monkeypatch.setattr(_checkpoint.Checkpoints, "save", save)
    with pytest.warns(mvue.exceptions.CheckpointWarning, match="could not be saved.*No space left"):
        fit = quick_fit(checkpoint=tmp_path / "state", checkpoint_every=0.0)
    assert fit.outcome is mvue.Outcome.FINISHED
    x = jnp.arange(10.0)
    np.testing.assert_array_equal(fit.estimator(x), whole.estimator(x))


def test_full_disk_leaves_no_half_model(tmp_path, small_disk):
    mvue.save(network(), tmp_path / "m.mvue", problem=PROBLEM)
    before = (tmp_path / "m.mvue").read_bytes()
    small_disk()
    with pytest.raises(OSError, match=r"too large|space"):
        mvue.save(network(1), tmp_path / "m.mvue", problem=PROBLEM)
    assert (tmp_path / "m.mvue").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["m.mvue"]


def test_folder_that_cannot_be_written_is_refused_before_training(tmp_path, monkeypatch):
    def read_only(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(_checkpoint.tempfile, "TemporaryFile", read_only)
    with pytest.raises(mvue.exceptions.CheckpointError, match=r"a folder to write in.*Read-only"):
        quick_fit(checkpoint=tmp_path / "state")


def test_reproduce_refuses_a_folder_it_cannot_write_to(tmp_path):
    from typer.testing import CliRunner

    from mvue.cli.main import app

    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(
        app, ["reproduce", "linear", "--preset", "smoke", "--out", str(tmp_path / "file" / "x")]
    )
    assert result.exit_code == 1
    assert "cannot write the results" in result.output


def test_batch_that_does_not_fit_names_one_that_does(monkeypatch):
    monkeypatch.setattr(_memory, "bytes_free", lambda: 10_000)
    with pytest.raises(MemoryError, match=r"batch_size=16 needs about .* GiB.*batch_size=\d"):
        quick_fit()


def test_free_memory_is_known_here():
    free = _memory.bytes_free()
    assert free is None or 2**20 < free < 2**50


def test_containers_limit_counts(monkeypatch):
    files = {"memory.max": "1000", "memory.current": "400"}
    monkeypatch.setattr(Path, "read_text", lambda self, **_: files[self.name])
    assert _memory._group_free() == 600
    files["memory.max"] = "max"
    assert _memory._group_free() is None


def test_jumping_clock_changes_nothing(monkeypatch, tmp_path):
    calm = quick_fit(checkpoint=tmp_path / "a", checkpoint_every=0.0)
    jumps = iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: 1e9 - 1e6 * next(jumps))
    wild = quick_fit(checkpoint=tmp_path / "b", checkpoint_every=0.0)
    x = jnp.arange(10.0)
    np.testing.assert_array_equal(calm.estimator(x), wild.estimator(x))
    assert wild.seconds > 0


def test_simulator_that_raises_is_named():
    def simulate(_, theta):
        raise RuntimeError(f"no such beam as {theta.shape}")

    with pytest.raises(mvue.exceptions.SimulatorError, match="no such beam"):
        mvue.Problem(dist.Uniform(0.0, 1.0), simulate)


def test_simulator_that_gives_infinities_is_refused():
    problem = mvue.Problem(
        dist.Uniform(0.0, 1.0),
        lambda key, y: jnp.where(jr.uniform(key) < 0.2, jnp.inf, y + jr.normal(key, (10,))),
    )
    with pytest.raises(mvue.exceptions.SimulatorError, match="non-finite"):
        mvue.fit(problem, network(), key=jr.key(0), steps=10)


def test_no_wall_clock_decides_anything():
    for path in Path(mvue.__file__).parent.rglob("*.py"):
        assert "time.time()" not in path.read_text(encoding="utf-8"), path
