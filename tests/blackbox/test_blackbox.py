"""Black-box simulators: the same data wherever they are simulated, and nothing is lost."""

import concurrent.futures
import errno
import functools
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest

import mvue
from mvue._blackbox import executors as _executors
from mvue._blackbox import filling as _filling
from mvue._blackbox import simulate as _blackbox
from mvue._blackbox import unknowns as _unknowns
from mvue._blackbox.worker import stream
from mvue._data import shards as _shard_files

UNITS, REPEATS = 60, 4
SLOW_SEED = 26
"""Only unit 6 of the first 12 has a theta above 0.9."""


def prior(rng):
    return {"level": rng.normal(size=2), "gain": rng.uniform(1.0, 2.0)}


def level(theta):
    return theta["level"]


def measure(theta, rng):
    return theta["level"] + theta["gain"] * rng.normal(size=(3, 2))


def fail_sometimes(theta, rng):
    """A third of the attempts fail, in one way or another."""
    kind = rng.integers(9)
    if kind == 0:
        raise ValueError("the beam was lost")
    x = measure(theta, rng)
    return {1: x * np.nan, 2: x[:2]}.get(kind, x)


def hang(theta, rng):
    if theta > 0.9:
        time.sleep(60)
    return theta + rng.normal()


def hang_in_library(theta, rng):
    """Inside C the interpreter does not get its turn."""
    if theta > 0.9:
        sum(range(10**11))
    return theta + rng.normal()


def crash(theta, rng):
    if theta > 0.9:
        os._exit(3)
    return theta + rng.normal()


def uniform(rng):
    return rng.uniform()


def add_noise(theta, rng):
    return theta + rng.normal()


simulate = functools.partial(mvue.simulate, measure, prior, target=level, units=UNITS)
simulate = functools.partial(simulate, repeats=REPEATS, seed=3)


def processes(workers):
    context = multiprocessing.get_context("spawn")  # JAX has threads, which fork would break
    return concurrent.futures.ProcessPoolExecutor(workers, mp_context=context)


@pytest.fixture(scope="module")
def pool():
    with processes(3) as executor:
        yield executor


@pytest.fixture(scope="module")
def reference():
    return simulate().load()


def assert_same(shard, other):
    for a, b in zip(shard[:3], other[:3], strict=True):
        np.testing.assert_array_equal(a, b)
    for name in ("level", "gain"):
        np.testing.assert_array_equal(shard.theta[name], other.theta[name])


def in_one_process():
    with processes(1) as executor:
        return simulate(executor=executor)


def in_threads():
    with concurrent.futures.ThreadPoolExecutor(3) as executor:
        return simulate(executor=executor)


def through_joblib():
    joblib = pytest.importorskip("joblib")
    return simulate(executor=joblib.Parallel(n_jobs=2, backend="threading"))


def in_a_dask_cluster():
    distributed = pytest.importorskip("distributed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sockets and event loops, none of them ours
        cluster = distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
        )
        with cluster, distributed.Client(cluster) as client:
            data = simulate(executor=client.get_executor())
            assert_same(data.load(), simulate(executor=client).load())
            return data


@pytest.mark.parametrize("run", [in_one_process, in_threads, through_joblib, in_a_dask_cluster])
def test_data_do_not_depend_on_the_executor(run, reference):
    assert_same(run().load(), reference)


def test_data_do_not_depend_on_the_number_of_workers(pool, reference, tmp_path, monkeypatch):
    assert_same(simulate(executor=pool).load(), reference)
    monkeypatch.setattr(_filling, "TASK_SECONDS", 0.0)  # one unit for each task
    monkeypatch.setattr(_shard_files, "SHARD_UNITS", 7)
    data = simulate(executor=pool, folder=tmp_path / "data")
    assert data.shard_count == 9
    assert_same(data.load(), reference)


def test_more_units_and_repeats_begin_with_the_fewer(reference):
    larger = simulate(units=UNITS + 300, repeats=REPEATS + 3).load()
    np.testing.assert_array_equal(larger.x[:UNITS, :REPEATS], reference.x)
    np.testing.assert_array_equal(larger.y[:UNITS], reference.y)
    other = simulate(seed=4).load()
    assert not np.isin(other.x, reference.x).any()
    assert not np.isin(other.y, reference.y).any()


def test_a_jax_prior_is_the_same_in_any_draw():
    prior = {"a": dist.Uniform(0.0, 1.0), "b": {"c": dist.Normal(0.0, 1.0).expand((2,))}}
    run = functools.partial(mvue.simulate, lambda t, rng: t["a"] + rng.normal(), prior)
    run = functools.partial(run, target=lambda t: t["b"]["c"], repeats=1)
    small, large = run(units=5).load(), run(units=700).load()
    assert large.theta["b"]["c"].shape == (700, 2)
    assert large.theta["a"].dtype == np.float64
    np.testing.assert_array_equal(small.y, large.y[:5])
    np.testing.assert_array_equal(small.theta["a"], large.theta["a"][:5])
    assert len(np.unique(large.theta["a"])) > 690
    assert abs(large.theta["a"].mean() - 0.5) < 4.5 * np.sqrt(1 / 12 / 700)


def test_streams_are_independent(seed):
    data = mvue.simulate(add_noise, uniform, units=800, repeats=6, seed=seed).load()
    noise = data.x - data.y
    assert len(np.unique(noise)) == noise.size
    assert len(np.unique(data.y)) == len(data.y)
    assert abs(noise.mean()) < 4.5 / np.sqrt(noise.size)
    assert abs(noise.var() - 1) < 4.5 * np.sqrt(2 / noise.size)
    pairs = {
        "repeats": (noise[:, 1:], noise[:, :-1]),
        "units": (noise[1:], noise[:-1]),
        "theta": (noise, np.broadcast_to((data.y - 0.5) * np.sqrt(12), noise.shape)),
    }
    for a, b in pairs.values():
        product = (a * b).ravel()
        assert abs(product.mean()) < 4.5 / np.sqrt(product.size)
    # Another attempt at a draw is neither that draw nor the next one.
    attempts = {stream(seed, u, r, a).random() for u in range(5) for r in range(5) for a in (0, 1)}
    assert len(attempts) == 50


class Interrupted:
    """Simulates, counts, and is interrupted once."""

    def __init__(self, after=None):
        self.calls, self.after = 0, after

    def __call__(self, theta, rng):
        self.calls += 1
        if self.calls == self.after:
            raise KeyboardInterrupt
        return measure(theta, rng)


def run_counted(simulator, folder, **settings):
    settings = {"units": UNITS, "repeats": REPEATS, "seed": 3} | settings
    return mvue.simulate(simulator, prior, target=level, folder=folder, **settings)


def files_in(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*.npy")}


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(_shard_files, "SHARD_UNITS", 16)
    monkeypatch.setattr(_filling, "TASK_SECONDS", 0.0)


def test_interrupted_work_is_resumed(tmp_path, small_shards):
    whole = run_counted(measure, tmp_path / "whole")
    for after in (1, 130):  # at the very first draw, and in the third shard
        with pytest.raises(KeyboardInterrupt) as caught:
            run_counted(Interrupted(after), tmp_path / "cut")
    assert "32 of 60 units" in caught.value.__notes__[-1]
    assert (tmp_path / "cut" / "00001").exists()
    assert not (tmp_path / "cut" / "00002").exists()
    with pytest.raises(mvue.exceptions.SimulatedDataError, match="of 60 units, 32 are there"):
        mvue.SimulatedData.open(tmp_path / "cut")
    rest = Interrupted()
    resumed = run_counted(rest, tmp_path / "cut")
    assert rest.calls == (60 - 32) * REPEATS
    assert files_in(tmp_path / "cut") == files_in(tmp_path / "whole")
    assert_same(resumed.load(), whole.load())
    assert not list((tmp_path / "cut").rglob(".*.part"))

    again = Interrupted()
    run_counted(again, tmp_path / "cut")
    assert again.calls == 0


def test_units_of_an_unfinished_shard_are_kept(tmp_path, small_shards):
    with pytest.raises(KeyboardInterrupt):
        run_counted(Interrupted(11 * REPEATS + 2), tmp_path / "data")
    assert list((tmp_path / "data" / "parts").iterdir())
    with pytest.raises(KeyboardInterrupt):
        run_counted(Interrupted(2 * REPEATS + 2), tmp_path / "data")
    (tmp_path / "data" / "parts" / "00000-000011.npz").write_bytes(b"damaged")
    rest = Interrupted()
    resumed = run_counted(rest, tmp_path / "data")
    assert rest.calls == (60 - 11) * REPEATS
    assert_same(resumed.load(), simulate().load())
    assert not (tmp_path / "data" / "parts").exists()


def test_more_units_are_added_to_a_folder(tmp_path, small_shards):
    run_counted(measure, tmp_path / "data", units=20)
    more = Interrupted()
    data = run_counted(more, tmp_path / "data")
    assert more.calls == (60 - 20) * REPEATS
    run_counted(measure, tmp_path / "whole")
    assert files_in(tmp_path / "data") == files_in(tmp_path / "whole")
    assert len(data) == 60
    # Fewer units are the first of those that are there, and do not make them fewer.
    fewer = run_counted(more, tmp_path / "data", units=35)
    assert more.calls == (60 - 20) * REPEATS
    assert fewer.shard_count == 3
    assert_same(fewer.load(), run_counted(measure, None, units=35).load())
    assert len(mvue.SimulatedData.open(tmp_path / "data")) == 60
    # So they are after more were asked for in vain.
    with pytest.raises(KeyboardInterrupt):
        run_counted(Interrupted(after=30), tmp_path / "data", units=100)
    with pytest.raises(mvue.exceptions.SimulatedDataError, match="of 100 units, 64 are there"):
        mvue.SimulatedData.open(tmp_path / "data")
    run_counted(more, tmp_path / "data")
    assert more.calls == (60 - 20) * REPEATS
    assert_same(mvue.SimulatedData.open(tmp_path / "data").load(), data.load())


def test_fewer_units_leave_what_is_there(tmp_path, small_shards):
    """Of an interrupted folder, fewer units are those that are there, and nothing is deleted."""
    whole = run_counted(measure, None, units=100)
    with pytest.raises(KeyboardInterrupt):
        run_counted(Interrupted(42 * REPEATS + 1), tmp_path, units=100)
    parts = sorted(path.name for path in (tmp_path / "parts").iterdir())
    for fewer, calls in ((20, 0), (36, 0), (45, 3)):  # of a whole shard, of a part, of what is new
        counted = Interrupted()
        data = run_counted(counted, tmp_path, units=fewer)
        assert counted.calls == calls * REPEATS
        assert_same(data.load(), run_counted(measure, None, units=fewer).load())
        assert len(mvue.SimulatedData.open(tmp_path)) >= fewer
    assert len(parts) == 1
    rest = Interrupted()
    assert_same(run_counted(rest, tmp_path, units=100).load(), whole.load())
    assert rest.calls == (100 - 45) * REPEATS
    assert not (tmp_path / "parts").exists()


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("also_parts", [False, True])
def test_a_full_disk_loses_nothing(also_parts, tmp_path, small_shards, monkeypatch):
    run_counted(measure, tmp_path, units=20)
    with monkeypatch.context() as patched:
        patched.setattr(_shard_files.np, "save", full_disk)
        if also_parts:
            patched.setattr(_shard_files.np, "savez", full_disk)
        with pytest.raises(OSError, match="No space left") as caught:
            run_counted(measure, tmp_path)
    kept = 20 if also_parts else 32
    assert f"{kept} of 60 units are in" in caught.value.__notes__[-1]
    rest = Interrupted()
    assert_same(run_counted(rest, tmp_path).load(), simulate().load())
    assert rest.calls == (60 - kept) * REPEATS
    assert sorted(path.name for path in tmp_path.glob(".*")) == [".lock"]


def test_a_shard_that_was_being_replaced_is_found_again(tmp_path, small_shards):
    run_counted(measure, tmp_path, units=20)
    (tmp_path / "00001").rename(tmp_path / ".00001.before")  # as a kill between two steps leaves it
    (tmp_path / ".mvue-0123.part").mkdir()
    rest = Interrupted()
    run_counted(rest, tmp_path, units=20)
    assert rest.calls == 0
    assert sorted(path.name for path in tmp_path.glob(".*")) == [".lock"]


def test_one_process_at_a_time_fills_a_folder(tmp_path):
    code = [sys.executable, "-c", KILLED, str(tmp_path)]
    here = str(Path(__file__).parent)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([here, *sys.path])}
    with subprocess.Popen(code, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout.readline() == "ready\n"
        before = files_in(tmp_path)
        message = f"is being filled: process {process.pid} on .*choose another folder"
        with pytest.raises(mvue.exceptions.SimulatedDataError, match=message):
            run_counted(measure, tmp_path)
        assert files_in(tmp_path) == before
        process.send_signal(signal.SIGKILL)
    assert len(run_counted(measure, tmp_path)) == UNITS


def test_a_simulator_that_fills_its_own_folder_is_refused(tmp_path):
    def within(theta, rng):
        run_counted(measure, tmp_path)

    with pytest.raises(mvue.exceptions.SimulatorError, match=r"this process .* is already working"):
        run_counted(within, tmp_path, retries=0)


KILLED = """
import sys, time
import mvue._blackbox.simulate, mvue._blackbox.filling
from test_blackbox import level, measure, prior

mvue._blackbox.filling.FLUSH_SECONDS = 0.0
calls = 0

def slow(theta, rng):
    global calls
    calls += 1
    if calls == 41:
        print("ready", flush=True)
        time.sleep(60)
    return measure(theta, rng)

mvue._blackbox.simulate.simulate(
    slow, prior, target=level, folder=sys.argv[1], units=60, repeats=4, seed=3, time_limit=100.0
)
"""


def test_killed_work_is_resumed(tmp_path, reference):
    code = [sys.executable, "-c", KILLED, str(tmp_path / "data")]
    here = str(Path(__file__).parent)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([here, *sys.path])}
    with subprocess.Popen(code, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
    rest = Interrupted()
    assert_same(run_counted(rest, tmp_path / "data").load(), reference)
    assert rest.calls == 50 * REPEATS


def truncate(folder):
    with (folder / "x.npy").open("r+b") as file:
        file.truncate(500)


def flip_a_bit(folder):
    data = bytearray((folder / "x.npy").read_bytes())
    data[-20] ^= 1
    (folder / "x.npy").write_bytes(data)


def remove_a_file(folder):
    (folder / "theta0.npy").unlink()


def spoil_the_record(folder):
    (folder / "shard.json").write_text("{")


@pytest.mark.parametrize("damage", [truncate, flip_a_bit, remove_a_file, spoil_the_record])
def test_a_damaged_shard_is_simulated_again(damage, tmp_path, small_shards):
    folder = tmp_path / "data"
    run_counted(measure, folder)
    before = files_in(folder)
    damage(folder / "00001")
    with pytest.raises(mvue.exceptions.SimulatedDataError, match="shard 1 is damaged"):
        mvue.SimulatedData.open(folder)
    again = Interrupted()
    with pytest.warns(UserWarning, match="shard 1 in .* is damaged and is simulated again"):
        run_counted(again, folder)
    assert again.calls == 16 * REPEATS
    assert files_in(folder) == before
    mvue.SimulatedData.open(folder)


def test_copied_shards_are_good(tmp_path):
    run_counted(measure, tmp_path)
    os.utime(tmp_path / "00000" / "x.npy", ns=(0, 0))
    assert_same(mvue.SimulatedData.open(tmp_path).load(), simulate().load())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 4}, "seed: 3 there, 4 here"),
        ({"repeats": 5}, "repeats: 4 there, 5 here"),
        ({"names": ("a", "b")}, r"names: \['y1', 'y2'\] there"),
        ({"target": lambda theta: theta["level"] + 1}, "first parameters: "),
        ({"target": lambda theta: theta["gain"]}, r"names: \['y1', 'y2'\] there, \['y'\] here"),
    ],
)
def test_another_folder_is_refused(change, message, tmp_path):
    simulate(folder=tmp_path)
    before = files_in(tmp_path)
    with pytest.raises(mvue.exceptions.SimulatedDataError, match=message):
        simulate(folder=tmp_path, **change)
    assert files_in(tmp_path) == before


def test_another_prior_is_refused(tmp_path):
    mvue.simulate(add_noise, uniform, units=3, folder=tmp_path)
    with pytest.raises(mvue.exceptions.SimulatedDataError, match=r"first parameters: '.*' there"):
        mvue.simulate(add_noise, lambda rng: rng.normal(), units=3, folder=tmp_path)


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_prior_that_differs_in_later_units_is_refused(interrupted, tmp_path, small_shards):
    """Theta that are stored and theta that are drawn now must be the same in all units."""
    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            run_counted(Interrupted(15 * REPEATS + 1), tmp_path)
    else:
        run_counted(measure, tmp_path, units=30)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.np*")}

    original = _unknowns.Unknowns.fingerprint
    with pytest.MonkeyPatch.context() as patched:
        # The first eight units are the same.
        patched.setattr(_unknowns.Unknowns, "fingerprint", lambda self: first_eight)
        first_eight = original(_unknowns.Unknowns(prior, level, None, 3))
        with pytest.raises(mvue.exceptions.SimulatedDataError, match="other values of theta"):
            mvue.simulate(
                measure,
                lambda rng: prior(rng) | {"gain": 3.0},
                target=level,
                folder=tmp_path,
                units=UNITS,
                repeats=REPEATS,
                seed=3,
            )
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.np*")} == before


def test_folders_of_something_else_are_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(
        mvue.exceptions.SimulatedDataError, match=r"holds thesis\.tex: choose another"
    ):
        simulate(folder=tmp_path)
    with pytest.raises(mvue.exceptions.SimulatedDataError, match="got the file"):
        simulate(folder=tmp_path / "thesis.tex")
    with pytest.raises(mvue.exceptions.SimulatedDataError, match="there are no simulated data"):
        mvue.SimulatedData.open(tmp_path / "nowhere")
    simulate(folder=tmp_path / "data")
    manifest = tmp_path / "data" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 99}))
    with pytest.raises(mvue.exceptions.SimulatedDataError, match="format 99"):
        mvue.SimulatedData.open(tmp_path / "data")
    manifest.write_text("{")
    with pytest.raises(mvue.exceptions.SimulatedDataError, match="cannot be read"):
        simulate(folder=tmp_path / "data")


def failing(**settings):
    settings = {"units": 200, "repeats": 3, "target": level, "seed": 1} | settings
    return mvue.simulate(fail_sometimes, prior, **settings)


def test_failures_are_recorded(pool, tmp_path):
    with pytest.warns(
        mvue.exceptions.FailedDrawsWarning, match=r"of 600 measurements could not be"
    ):
        data = failing(failures="record", retries=0, folder=tmp_path)
    whole = data.load()
    assert 130 < len(data.failures) < 270
    absent = {(f.unit, f.repeat) for f in data.failures}
    assert absent == set(zip(*(i.tolist() for i in np.nonzero(~whole.present)), strict=True))
    assert np.isnan(whole.x[~whole.present]).all()
    assert np.isfinite(whole.x[whole.present]).all()
    kinds = {
        "it raised ValueError: the beam was lost",
        "it returned NaN or infinity",
        "it returned shape (2, 2), where the first draw had (3, 2)",
    }
    assert {f.message for f in data.failures} == kinds
    assert f"{len(absent)} of them absent" in repr(data)
    assert mvue.SimulatedData.open(tmp_path).failures == data.failures
    with pytest.warns(mvue.exceptions.FailedDrawsWarning):
        elsewhere = failing(failures="record", retries=0, executor=pool)
    assert_same(elsewhere.load(), whole)
    assert sorted(elsewhere.failures) == data.failures

    X, y, unit_ids = next(data.pieces())
    assert X.shape == (whole.present.sum(), 6)
    np.testing.assert_array_equal(X, whole.x.reshape(200, 3, 6)[whole.present])
    np.testing.assert_array_equal(y, whole.y[unit_ids])


def test_retries_are_the_same_everywhere(pool):
    data = failing(retries=20)
    assert data.failures == []
    assert_same(data.load(), failing(retries=20, executor=pool).load())
    with pytest.warns(mvue.exceptions.FailedDrawsWarning):
        first = failing(failures="record", retries=0).load()
    # What succeeds at once is the same with and without retries; what failed has other noise.
    whole = data.load()
    np.testing.assert_array_equal(whole.x[first.present], first.x[first.present])


def test_a_failure_stops_and_says_where(tmp_path):
    with pytest.raises(mvue.exceptions.SimulatorError) as caught:
        failing(retries=0, folder=tmp_path)
    message = str(caught.value)
    assert "failed for unit " in message
    assert "tried once" in message
    assert "theta was {'gain': " in message
    assert 'failures="record"' in message
    done = failing(retries=20)
    assert_same(failing(retries=20, folder=tmp_path).load(), done.load())


def never(theta, rng):
    raise OSError("licence server not found")


def test_the_traceback_of_the_simulator_is_shown(pool):
    with pytest.raises(mvue.exceptions.SimulatorError, match=r"3 times.*licence server") as caught:
        mvue.simulate(never, uniform, executor=pool)
    assert "in never" in caught.value.__notes__[0]


def test_a_simulator_that_never_works_is_refused(tmp_path):
    with pytest.raises(
        mvue.exceptions.SimulatorError, match=r"every measurement of 20 units.*licence"
    ):
        mvue.simulate(never, uniform, failures="record", folder=tmp_path)
    with pytest.raises(mvue.exceptions.SimulatorError, match="every measurement of 3 units"):
        mvue.simulate(never, uniform, units=3, failures="record")
    mvue.simulate(add_noise, uniform, folder=tmp_path, units=4)
    # A simulator of another shape cannot go on with the data, and leaves no trace in them.
    with pytest.raises(
        mvue.exceptions.SimulatorError, match=r"returned shape \(2,\).*draw had \(\)"
    ):
        mvue.simulate(
            lambda theta, rng: rng.normal(size=2), uniform, folder=tmp_path, failures="record"
        )
    data = mvue.simulate(add_noise, uniform, folder=tmp_path, units=100)
    assert data.failures == []


def test_a_simulator_that_ignores_its_rng_is_refused():
    with pytest.raises(mvue.exceptions.SimulatorError, match="simulator ignores its rng"):
        mvue.simulate(lambda theta, rng: theta, uniform, units=100)
    mvue.simulate(lambda theta, rng: theta, uniform, units=100, repeats=1)
    for units in (1, 10, 63):
        with pytest.raises(mvue.exceptions.SimulatorError, match="simulator ignores its rng"):
            mvue.simulate(lambda theta, rng: theta, uniform, units=units)
    # Few measurements that are whole numbers may be equal by chance.
    assert len(mvue.simulate(lambda theta, rng: rng.poisson(1e-9), uniform, units=10)) == 10
    spawned = lambda theta, rng: rng.spawn(1)[0].poisson(1e-9)  # noqa: E731
    assert len(mvue.simulate(spawned, uniform, units=10)) == 10


def test_noise_that_was_drawn_once_is_noticed():
    once = np.random.default_rng(0).normal(size=3)

    def partly(theta, rng):
        return np.append(theta + once, theta + rng.normal())

    with pytest.warns(mvue.exceptions.NoiselessWarning, match="3 of 4 numbers of x never differ"):
        mvue.simulate(partly, uniform, units=100)
    # Numbers that never change, and rare counts, are no functions of theta.
    mvue.simulate(lambda theta, rng: [1.0, theta + rng.normal()], uniform, units=100)
    mvue.simulate(lambda theta, rng: [*rng.poisson(1e-2, 50), rng.normal()], uniform, units=100)


def test_simulators_may_spoil_what_they_are_given_and_reuse_what_they_return():
    buffer = np.zeros(2)

    def careless(theta, rng):
        theta["level"] += rng.normal(size=2)
        np.copyto(buffer, theta["level"])
        return buffer

    data = mvue.simulate(careless, prior, target=level, units=500, repeats=4).load()
    noise = data.x - data.y[:, None]
    assert abs(noise.var() - 1) < 4.5 * np.sqrt(2 / noise.size)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (lambda rng: {"a": 1.0}, "returned a dict, where an array or a number is expected"),
        (lambda rng: None, "returned a NoneType"),
        (lambda rng: ["a", "b"], "returned an array of <U1"),
        (lambda rng: [[1.0], [1.0, 2.0]], "returned a list that is no array"),
        (lambda rng: np.zeros((0, 2)), r"an empty array of shape \(0, 2\)"),
    ],
)
def test_unusable_measurements_are_refused(output, message):
    with pytest.raises(mvue.exceptions.SimulatorError, match=message):
        mvue.simulate(lambda theta, rng: output(rng), uniform)


def test_dtypes_are_kept_and_never_narrowed():
    counts = mvue.simulate(
        lambda theta, rng: rng.poisson(9.0, size=4).astype(np.uint8), uniform, units=9
    )
    assert counts.load().x.dtype == np.uint8
    clipped = mvue.simulate(lambda theta, rng: max(0, rng.normal()), uniform, units=9)
    assert clipped.load().x.dtype == np.float64
    calls = iter(range(10**6))
    with pytest.raises(
        mvue.exceptions.SimulatorError, match="returned float64, where the first draw had int"
    ):
        mvue.simulate(
            lambda theta, rng: rng.normal(size=2) if next(calls) else np.arange(2), uniform
        )


def test_time_limit_interrupts_one_draw_here_and_in_processes(pool):
    settings = {"units": 12, "repeats": 1, "retries": 0, "time_limit": 1.0, "failures": "record"}
    settings |= {"seed": SLOW_SEED}
    slow = mvue.simulate(add_noise, uniform, units=12, seed=SLOW_SEED).load().y[:, 0] > 0.9
    assert slow.sum() == 1
    for executor in (None, pool):
        with pytest.warns(
            mvue.exceptions.FailedDrawsWarning, match="longer than time_limit=1 seconds"
        ):
            data = mvue.simulate(hang, uniform, executor=executor, **settings)
        np.testing.assert_array_equal(data.load().present.all(axis=1), ~slow)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize(("simulator", "limit"), [(hang_in_library, 0.5), (crash, None)])
def test_a_worker_that_ends_is_explained(simulator, limit, tmp_path, monkeypatch):
    run = functools.partial(mvue.simulate, prior=uniform, units=12, repeats=2, seed=SLOW_SEED)
    monkeypatch.setattr(_filling, "TASK_SECONDS", 0.0)
    with (
        processes(1) as executor,
        pytest.raises(
            mvue.exceptions.SimulatorError, match="ended abruptly with units 6, 7"
        ) as caught,
    ):
        run(simulator, executor=executor, time_limit=limit, folder=tmp_path)
    assert "6 of 12 units are in" in caught.value.__notes__[-1]
    rest = []
    data = run(lambda theta, rng: rest.append(theta) or add_noise(theta, rng), folder=tmp_path)
    assert len(rest) == 6 * 2
    np.testing.assert_array_equal(data.load().x, run(add_noise).load().x)


def test_threads_that_hang_are_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(_executors, "STARTUP_SECONDS", 0.1)
    release = threading.Event()

    def wait(theta, rng):
        if theta > 0.9:
            release.wait(60)
        return add_noise(theta, rng)

    with concurrent.futures.ThreadPoolExecutor(6) as executor:
        try:
            with pytest.raises(
                mvue.exceptions.SimulatorError, match="no result came within the time_limit"
            ):
                mvue.simulate(
                    wait,
                    uniform,
                    units=12,
                    repeats=2,
                    seed=SLOW_SEED,
                    retries=0,
                    executor=executor,
                    folder=tmp_path,
                    time_limit=0.1,
                )
        finally:
            release.set()
    calls = []
    mvue.simulate(
        lambda theta, rng: calls.append(theta) or add_noise(theta, rng),
        uniform,
        units=12,
        repeats=2,
        seed=SLOW_SEED,
        folder=tmp_path,
    )
    assert set(np.array(calls) > 0.9) == {True}  # all the others had been saved


class Watched(concurrent.futures.Executor):
    """Runs nothing before it is full, and knows how full it has been."""

    def __init__(self):
        self.waiting, self.most, self.tasks = [], 0, []

    def submit(self, function, task):
        self.tasks.append(task.n_units)
        future = concurrent.futures.Future()
        self.waiting.append((future, function, task))
        self.most = max(self.most, len(self.waiting))
        threading.Timer(0.01, self.run_one).start()
        return future

    def run_one(self):
        future, function, task = self.waiting.pop()
        future.set_result(function(task))


def test_memory_is_bounded(tmp_path, small_shards, monkeypatch):
    monkeypatch.setattr(_executors, "UNKNOWN_WORKERS", 3)
    opened = []
    original = _filling.Filling._keep
    monkeypatch.setattr(
        _filling.Filling,
        "_keep",
        lambda self, result: opened.append(len(self._open)) or original(self, result),
    )
    executor = Watched()
    data = run_counted(measure, tmp_path, units=200, executor=executor)
    assert executor.most <= 6
    assert data.shard_count == 13
    assert max(opened) <= 7
    assert_same(data.load(), simulate(units=200).load())


def test_tasks_grow_with_the_speed_of_the_simulator():
    executor = Watched()
    mvue.simulate(add_noise, uniform, units=2_000, repeats=1, executor=executor)
    assert executor.tasks[0] == 1
    assert max(executor.tasks) >= 64
    assert sum(executor.tasks) == 2_000
    slow = Watched()
    mvue.simulate(add_noise, uniform, units=40, repeats=1, executor=slow, time_limit=9.0)
    assert set(slow.tasks) == {1}


def test_lambdas_are_refused_by_processes(pool):
    with pytest.raises(mvue.exceptions.SimulatorError, match="define it with def at the top level"):
        mvue.simulate(lambda theta, rng: rng.normal(), uniform, executor=pool)
    lock = threading.Lock()
    with pytest.raises(mvue.exceptions.SimulatorError, match="cannot be sent to another process"):
        mvue.simulate(functools.partial(add_noise, lock), uniform, executor=pool)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"prior": 3.0}, TypeError, r"or a function prior\(rng\); got float"),
        ({"prior": {"a": uniform}}, TypeError, "returns the whole theta"),
        ({"prior": lambda rng: "a"}, mvue.exceptions.SimulatorError, "theta must be a number"),
        (
            {"prior": lambda rng: rng.missing},
            mvue.exceptions.SimulatorError,
            r"prior\(rng\) failed for unit 0",
        ),
        (
            {"prior": lambda rng: np.nan},
            mvue.exceptions.SimulatorError,
            "prior gave NaN or infinity",
        ),
        (
            {"prior": lambda rng: np.zeros((2, 2))},
            mvue.exceptions.SimulatorError,
            "say with target",
        ),
        ({"prior": lambda rng: {"a": 1.0}}, mvue.exceptions.SimulatorError, "say with target"),
        (
            {"prior": lambda rng: np.zeros(rng.integers(1, 9))},
            mvue.exceptions.SimulatorError,
            "the same shapes and dtypes every time",
        ),
        (
            {"prior": dist.Normal(0.0, 1.0).expand((2, 2))},
            mvue.exceptions.SimulatorError,
            "say with target",
        ),
        (
            {"target": lambda theta: theta["a"]},
            mvue.exceptions.SimulatorError,
            r"target\(theta\) failed",
        ),
        (
            {"target": lambda theta: np.eye(2)},
            mvue.exceptions.SimulatorError,
            "finite number or vector",
        ),
        ({"names": "a"}, TypeError, "sequence of names"),
        ({"names": ("a", "b")}, ValueError, "one entry for each of the 1 components"),
        ({"units": 0}, ValueError, "units must be a whole number of at least 1"),
        ({"seed": -1}, ValueError, "seed must be a whole number of at least 0"),
        ({"retries": -1}, ValueError, "retries must be"),
        ({"failures": "ignore"}, ValueError, 'must be "raise" or "record"'),
        ({"time_limit": 0}, ValueError, "time_limit must be a number of seconds above 0"),
        ({"executor": 3}, TypeError, "executor must be None"),
        (
            {"executor": concurrent.futures.ThreadPoolExecutor},
            TypeError,
            "got the class ThreadPoolExecutor",
        ),
    ],
)
def test_bad_arguments_are_refused(change, error, message):
    arguments = {"simulator": add_noise, "prior": uniform, "units": 9} | change
    with pytest.raises(error, match=message):
        mvue.simulate(**arguments)


def test_wrong_types_are_refused():
    good = (add_noise, None, 9, 8, 0, 2, "raise", None)
    for place, value, error, message in (
        (0, 3, TypeError, "simulator must be callable, got int"),
        (1, 3, TypeError, "target must be callable, got int"),
        (3, 2.5, ValueError, "repeats must be a whole number of at least 1, got 2.5"),
        (7, "60", TypeError, "time_limit must be a number of seconds"),
    ):
        with pytest.raises(error, match=message):
            _blackbox._check_settings(*good[:place], value, *good[place + 1 :])


def test_shards_are_mapped_and_pieces_fit_a_linear_estimator(tmp_path, small_shards):
    from mvue.sklearn import LinearBCE

    data = run_counted(measure, tmp_path, names=["east", "north"])
    assert (data.n_units, data.repeats, data.x_shape, len(data)) == (60, 4, (3, 2), 60)
    assert data.names == ("east", "north")
    assert "60 units × 4 measurements" in repr(data)
    shard = mvue.SimulatedData.open(tmp_path).shard(3)
    assert isinstance(shard.x, np.memmap)
    assert shard.x.shape == (12, 4, 3, 2)
    assert shard.y.shape == (12, 2)
    assert shard.theta["gain"].shape == (12,)
    with pytest.raises(IndexError, match="from 0 to 3, got 4"):
        data.shard(4)

    model = LinearBCE(1.0)
    for X, y, unit_ids in data.pieces():
        model.partial_fit(X, y, unit_ids=unit_ids)
    whole = data.load()
    once = LinearBCE(1.0).fit(whole.x.reshape(240, 6), np.repeat(whole.y, 4, axis=0))
    np.testing.assert_allclose(model.coef_, once.coef_, rtol=1e-9)
    assert model.n_units_ == 60


def test_data_in_memory_cannot_be_changed_by_accident():
    shard = simulate().shard(0)
    with pytest.raises(ValueError, match="read-only"):
        shard.x[0] = 0.0


def test_a_bar_is_shown(capsys):
    simulate(progress=True)
    assert "60/60" in capsys.readouterr().err


def test_objects_with_sample_are_priors():
    class Dice:
        def sample(self, key):
            return jr.randint(key, (), 1, 7)

    data = mvue.simulate(lambda theta, rng: rng.normal(size=theta)[:1], Dice(), units=300).load()
    assert data.theta.dtype == np.int64
    assert set(np.unique(data.y)) == set(range(1, 7))


def filled(folder):
    return mvue.simulate(measure, prior, target=level, units=20, repeats=2, folder=folder)


def test_a_shard_that_the_disk_has_changed_is_not_read(tmp_path):
    """Its size and its time are those of before: the checksum tells."""
    expected = filled(tmp_path).load()
    file = tmp_path / "00000" / "x.npy"
    status, data = file.stat(), bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    opened = mvue.SimulatedData.open(tmp_path)
    for _ in range(2):
        with pytest.raises(mvue.exceptions.SimulatedDataError, match="do not match its checksum"):
            opened.load()
    with pytest.raises(mvue.exceptions.SimulatedDataError, match=r"Delete the folder .*00000"):
        next(opened.pieces())
    shutil.rmtree(tmp_path / "00000")
    again = filled(tmp_path).load()
    assert all(np.array_equal(a, b) for a, b in zip(again[:3], expected[:3], strict=True))


def test_folders_without_checksums_are_read(tmp_path):
    expected = filled(tmp_path).load()
    file = tmp_path / "00000" / "shard.json"
    sidecar = json.loads(file.read_text())
    for entry in sidecar["files"].values():
        del entry["crc32"]
    file.write_text(json.dumps(sidecar))
    found = mvue.SimulatedData.open(tmp_path).load()
    assert np.array_equal(found.x, expected.x)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("units", "many"),
        ("units", True),
        ("shard_units", 0),
        ("repeats", None),
        ("names", 3),
        ("x_shape", "a"),
        ("x_dtype", "zz"),
        ("x_dtype", "O"),
        ("theta", 5),
        ("theta", [3]),
    ],
)
def test_a_manifest_that_cannot_be_meant_is_that_of_a_damaged_folder(tmp_path, name, value):
    filled(tmp_path)
    file = tmp_path / "manifest.json"
    manifest = json.loads(file.read_text())
    file.write_text(json.dumps(manifest | {name: value}))
    for use in (mvue.SimulatedData.open, filled):
        with pytest.raises(mvue.exceptions.SimulatedDataError, match=r"manifest.json cannot be"):
            use(tmp_path)
    del manifest[name]
    file.write_text(json.dumps(manifest))
    with pytest.raises(mvue.exceptions.SimulatedDataError, match=r"manifest.json cannot be"):
        mvue.SimulatedData.open(tmp_path)
