"""Checkpoints: a run killed at any moment ends with the same bits."""

import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import optax
import pytest

import mvue
from helpers.hasty import HASTY
from helpers.plain import plain_fit
from mvue._runtime.digest import program_identity, same_identity
from mvue._training.checkpoint import Checkpoints

STEPS = 800
SCRIPT = """
import sys
import equinox as eqx, jax, jax.random as jr, numpy as np, numpyro.distributions as dist
import mvue

problem = mvue.Problem(dist.Uniform(0.0, 1.0), lambda key, t: t + jr.normal(key, (3,)))
saving = {{"checkpoint": sys.argv[2] or None, "checkpoint_every": 0.0}}
network = mvue.standardize(eqx.nn.MLP(3, 1, 16, 1, key=jr.key(1)), problem, key=jr.key(2))
given = {{"loss": mvue.bce(weight=None), "training_prior": problem.prior, "validations": 40}}
fit = mvue.fit(problem, network, key=jr.key(7), steps={steps}, **given, **saving)
leaves = jax.tree.leaves(eqx.filter(fit.estimator, eqx.is_array))
np.savez(sys.argv[1], *map(np.asarray, leaves), loss=fit.history["held_out_loss"])
"""


def problem(shift=0.0):
    return mvue.Problem(dist.Uniform(0.0, 1.0), lambda key, t: t + shift + jr.normal(key, (3,)))


def small_fit(folder, **changes):
    call = {"key": jr.key(0), "steps": 12, "validations": 4, "checkpoint": folder}
    call |= {"checkpoint_every": 0.0} | changes
    return plain_fit(call.pop("problem", problem()), **call)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run, and where its checkpoints are."""
    folder = tmp_path_factory.mktemp("whole")
    return small_fit(folder), folder


@pytest.fixture
def finished(whole, tmp_path):
    """A folder of the checkpoints of the finished run, to do with as one likes."""
    return shutil.copytree(whole[1], tmp_path / "finished")


def weights(fit):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(eqx.filter(fit.estimator, eqx.is_array))]


def steps_in(folder):
    return sorted(int(path.name) for path in Path(folder).glob("[0-9]*") if path.name.isdigit())


def listing(folder):
    return {p: p.stat().st_size for p in Path(folder).rglob("*") if p.is_file()}


def test_killed_and_resumed_run_is_bit_identical(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(steps=STEPS))

    def start(output, folder):
        # What is compiled once need not be again.
        cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled")}
        call = [sys.executable, script, tmp_path / output, folder]
        return subprocess.Popen(call, env={**os.environ, **cache})

    whole = start("whole.npz", "")
    folder = tmp_path / "run"
    killed_at = []
    for delay in (0.0, random.Random(os.getpid()).uniform(0, 1.5)):
        process = start("never.npz", str(folder))
        before = steps_in(folder)
        while steps_in(folder) == before and process.poll() is None:
            time.sleep(0.01)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed_at.append(max(steps_in(folder)))
    assert start("resumed.npz", str(folder)).wait() == 0
    assert whole.wait() == 0
    assert killed_at[0] < STEPS, "the run was over before it was killed"
    a, b = np.load(tmp_path / "whole.npz"), np.load(tmp_path / "resumed.npz")
    assert set(a.files) == set(b.files)
    for name in a.files:
        np.testing.assert_array_equal(a[name], b[name])


def test_logging_of_others_is_left_as_it_was(tmp_path):
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.INFO)
    try:
        checkpoints = Checkpoints(tmp_path, {})
        checkpoints.save(1, jnp.ones(2), {})
        assert checkpoints.restore(jnp.zeros(2)) is not None
        checkpoints.close()
        assert logger.level == logging.INFO
    finally:
        logger.setLevel(before)


def test_finished_run_is_not_trained_again(whole, finished):
    first, before = whole[0], listing(finished)
    again = small_fit(finished)
    assert again.outcome is mvue.Outcome.FINISHED
    assert all(map(np.array_equal, weights(first), weights(again)))
    assert again.history == first.history
    assert listing(finished) == before


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"steps": 13}, "steps: 12 there, 13 here"),
        ({"key": jr.key(1)}, "key:"),
        ({"batch_size": 64}, "batch_size: 128 there, 64 here"),
        ({"loss": mvue.bce(7.0)}, "loss:"),
        ({"problem": problem(0.5)}, "program:"),
        ({"optimizer": optax.adam(1e-3)}, "program:"),
        ({"keep": "last"}, "keep: 'average' there, 'last' here"),
    ],
)
def test_checkpoint_of_another_run_is_refused_and_left_alone(finished, changes, named):
    before = listing(finished)
    with pytest.raises(mvue.exceptions.CheckpointError, match="another training run") as caught:
        small_fit(finished, **changes)
    assert named in str(caught.value)
    assert "delete this one" in str(caught.value)
    assert listing(finished) == before


def table_problem(end):
    """A constant inside a function that is compiled by itself."""
    table = np.linspace(0.0, end, 200, dtype="float32")
    simulate = jax.jit(lambda key, t: t * jnp.asarray(table) + jr.normal(key, (200,)))
    return mvue.Problem(dist.Uniform(0.0, 1.0), simulate)


def test_hidden_constants_are_told_apart(tmp_path):
    network = eqx.nn.MLP(200, 1, 4, 1, key=jr.key(0))
    small_fit(tmp_path, problem=table_problem(1.0), network=network, steps=3)
    with pytest.raises(mvue.exceptions.CheckpointError, match="another training run"):
        small_fit(tmp_path, problem=table_problem(1.001), network=network, steps=3)


def test_small_constants_beside_large_ones_are_told_apart(tmp_path):
    """In one array, as a speed of propagation and a standard deviation may be."""

    def units(sd):
        both = jnp.array([1500.0, sd])
        noisy = lambda key, t: t * both[0] / 1500.0 + both[1] * jr.normal(key, (3,))  # noqa: E731
        return mvue.Problem(dist.Uniform(0.0, 1.0), noisy)

    network = eqx.nn.MLP(3, 1, 4, 1, key=jr.key(0))
    small_fit(tmp_path, problem=units(0.05), network=network, steps=3)
    small_fit(tmp_path, problem=units(0.05), network=network, steps=3)
    with pytest.raises(mvue.exceptions.CheckpointError, match="another training run"):
        small_fit(tmp_path, problem=units(0.1), network=network, steps=3)


def test_hidden_learning_rates_are_told_apart(tmp_path):
    def optimizer(rate):
        return optax.inject_hyperparams(optax.adam)(learning_rate=rate)

    small_fit(tmp_path, optimizer=optimizer(1e-3), steps=3)
    with pytest.raises(mvue.exceptions.CheckpointError, match="first_state"):
        small_fit(tmp_path, optimizer=optimizer(1e-1), steps=3)


def test_a_program_is_told_by_what_it_does_and_not_by_what_was_traced_before():
    @jax.jit
    def inner(x):
        return jnp.sin(x) * 2

    def outer(x, between=lambda: None, constant=1.0):
        once = inner(x)
        between()
        return inner(once) + constant

    shared = jax.make_jaxpr(outer)(1.0)
    apart = jax.make_jaxpr(lambda x: outer(x, between=inner.clear_cache))(1.0)
    other = jax.make_jaxpr(lambda x: outer(x, constant=1.001))(1.0)
    assert str(shared) != str(apart)  # JAX prints one inner function, and two
    assert program_identity(shared) == program_identity(apart)
    assert not same_identity(program_identity(shared), program_identity(other))


def test_other_files_in_the_folder_survive(finished):
    (finished / "2024").mkdir()
    (finished / "2024" / "data.csv").write_text("1,2\n")
    with pytest.warns(UserWarning, match="step 2024 .* is damaged"):
        small_fit(finished)
    assert any(path.read_text() == "1,2\n" for path in finished.rglob("data.csv"))


def test_what_a_killed_save_has_left_is_removed(finished):
    left = finished / "7.orbax-checkpoint-tmp"
    (left / "state").mkdir(parents=True)
    other = finished / "notes.orbax-checkpoint-tmp"  # not named as a step: not ours
    other.mkdir()
    small_fit(finished)
    assert not left.exists()
    assert other.exists()


BUSY = """
import sys
from pathlib import Path
from mvue._runtime.locks import only_one
with only_one(Path(sys.argv[1])):
    print("ready", flush=True)
    sys.stdin.readline()
"""


def test_one_process_at_a_time_trains_into_a_folder(tmp_path):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", BUSY, tmp_path], **pipes) as busy:
        assert busy.stdout.readline() == "ready\n"
        with pytest.raises(mvue.exceptions.CheckpointError, match=f"process {busy.pid} on .* is w"):
            small_fit(tmp_path)
        busy.kill()
    small_fit(tmp_path)


def test_a_file_is_not_a_folder(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(mvue.exceptions.CheckpointError, match="must be a folder"):
        small_fit(tmp_path / "run")


def test_checkpoint_of_another_version_is_refused(finished, monkeypatch):
    monkeypatch.setattr("mvue._training.checkpoint.__version__", "99.0")
    with pytest.raises(mvue.exceptions.CheckpointError, match=r"mvue: '.*' there, '99.0' here"):
        small_fit(finished)


def damage(step_folder, how):
    files = [p for p in step_folder.rglob("*") if p.is_file() and p.stat().st_size > 0]
    if how == "truncate":
        for path in files:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif how == "delete":
        for path in files:
            path.unlink()
    else:  # flip bits in the largest file, where the arrays are
        path = max((p for p in files if "state" in str(p)), key=lambda p: p.stat().st_size)
        content = bytearray(path.read_bytes())
        middle = len(content) // 2
        content[middle : middle + 64] = bytes(b ^ 0xFF for b in content[middle : middle + 64])
        path.write_bytes(content)


@pytest.mark.parametrize("how", ["truncate", "delete", "flip"])
def test_damaged_newest_checkpoint_falls_back(whole, finished, how):
    newest = max(steps_in(finished))
    damage(finished / str(newest), how)
    with pytest.warns(UserWarning, match=f"step {newest} .* is damaged; resuming from"):
        resumed = small_fit(finished)
    assert all(map(np.array_equal, weights(whole[0]), weights(resumed)))
    assert max(steps_in(finished)) == newest


def test_all_damaged_is_an_error(finished):
    assert len(steps_in(finished)) > 1
    for step in steps_in(finished):
        damage(finished / str(step), "truncate")
    with pytest.raises(mvue.exceptions.CheckpointError, match="none of the checkpoints"):
        small_fit(finished)


def test_divergence_is_remembered(tmp_path):
    def breaks(estimates, draw, progress):
        return mvue.losses.emmse_loss(estimates, draw.y) + jnp.where(progress >= 0.5, jnp.nan, 0.0)

    first = small_fit(tmp_path, loss=breaks)
    again = small_fit(tmp_path, loss=breaks)
    assert first.outcome is again.outcome is mvue.Outcome.DIVERGED
    assert first.step == again.step == 6


def rate_problem(end=2.0, target=None):
    table = np.linspace(1.0, end, 6, dtype="float32")

    def simulate(key, rate):
        return jr.exponential(key, (6,)) * jnp.asarray(table) / rate

    return mvue.Problem(dist.Uniform(1.0, 2.0), simulate, target=target, layout="vector")


def default_fit(folder, asked=None, **changes):
    """A short default fit, whose survey and start are made from simulations."""
    call = {"key": jr.key(0), "steps": 20, "checkpoint": folder, "recipe": HASTY}
    call |= {"checkpoint_every": 0.0, "anchors": 2} | changes
    return mvue.fit(asked or rate_problem(), **call)


@pytest.fixture(scope="module")
def whole_default(tmp_path_factory):
    folder = tmp_path_factory.mktemp("default")
    return default_fit(folder), folder


@pytest.fixture
def interrupted(whole_default, tmp_path):
    """A folder of a default fit that did not come to its end."""
    folder = shutil.copytree(whole_default[1], tmp_path / "interrupted")
    *others, newest = steps_in(folder)
    assert others
    shutil.rmtree(folder / str(newest))
    return folder


def on_another_machine(patched):
    """All that surveys and starts are made of has other last digits."""

    def off(function):
        def other(*args, **settings):
            found = np.asarray(function(*args, **settings))
            return found * (1 + 1e-7 * np.random.default_rng(0).normal(size=found.shape))

        return other

    for name in ("solve", "inv"):
        patched.setattr(np.linalg, name, off(getattr(np.linalg, name)))
    patched.setattr(np, "quantile", off(np.quantile))


def test_a_default_fit_is_resumed_without_deciding_again(whole_default, interrupted, monkeypatch):
    monkeypatch.setattr("mvue._default.decisions.survey", None)
    monkeypatch.setattr("mvue._default.decisions.default_network", None)
    resumed = default_fit(interrupted)
    assert all(map(np.array_equal, weights(whole_default[0]), weights(resumed)))
    assert str(resumed.survey) == str(whole_default[0].survey)


def test_a_default_fit_is_resumed_on_another_machine(whole_default, interrupted, monkeypatch):
    on_another_machine(monkeypatch)
    resumed = default_fit(interrupted)
    assert resumed.outcome is mvue.Outcome.FINISHED
    for one, other in zip(weights(whole_default[0]), weights(resumed), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_a_network_that_another_machine_rounds_otherwise_is_resumed(finished, monkeypatch):
    *_, newest = steps_in(finished)
    shutil.rmtree(finished / str(newest))
    standardize = mvue.standardize

    def other(*args, **settings):
        network = standardize(*args, **settings)
        arrays, rest = eqx.partition(network, eqx.is_inexact_array)
        return eqx.combine(jax.tree.map(lambda leaf: leaf * (1 + 3e-7), arrays), rest)

    monkeypatch.setattr(mvue, "standardize", other)
    assert small_fit(finished).outcome is mvue.Outcome.FINISHED


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"asked": rate_problem(2.01)}, "problem: another"),
        ({"asked": rate_problem(target=lambda rate: 2 * rate)}, "problem: another"),
        ({"key": jr.key(1)}, "key:"),
        ({"steps": 21}, "steps: 20 there, 21 here"),
        ({"summaries": jnp.sum}, "problem: another"),
    ],
)
def test_decisions_of_another_run_are_refused_before_anything_is_simulated(
    interrupted, monkeypatch, changes, named
):
    monkeypatch.setattr("mvue._default.decisions.survey", None)
    before = listing(interrupted)
    with pytest.raises(mvue.exceptions.CheckpointError, match="another training run") as caught:
        default_fit(interrupted, **changes)
    assert named in str(caught.value)
    assert listing(interrupted) == before


def test_decisions_that_are_damaged_are_made_again(whole_default, interrupted):
    path = interrupted / "decisions.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="is damaged: what it held is decided again"):
        resumed = default_fit(interrupted)
    assert all(map(np.array_equal, weights(whole_default[0]), weights(resumed)))


def test_a_folder_of_simulations_is_no_folder_of_checkpoints(tmp_path):
    mvue.simulate(
        lambda t, rng: t + rng.normal(), lambda rng: rng.normal(), units=3, folder=tmp_path
    )
    there = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(mvue.exceptions.CheckpointError, match="which holds simulated data: choose"):
        Checkpoints(tmp_path, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == there
