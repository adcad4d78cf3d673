"""Tries to break what must hold: each family counts what was tried and tells what broke."""

import errno
import itertools
import multiprocessing
import os
import random
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist

import mvue
from helpers import fuzz_models, hostile_models, models
from mvue._data import shards
from mvue._serialise import files as file_writer
from mvue.sklearn import BCERegressor, LinearBCE, LinearBCECV

MOST_SECONDS, MOST_BYTES = 2.0, 100 * 2**20
UNITS, REPEATS = 300, 4


class Family(NamedTuple):
    """What came of one family."""

    name: str
    tried: int
    broken: list[str]

    def __str__(self):
        held = self.tried - len(self.broken)
        return f"{self.name:<18} tried {self.tried:>6,}  held {held:>6,}  broken {len(self.broken)}"


def prior(rng):
    return rng.normal(size=2)


def measure(theta, rng):
    return theta + rng.normal(size=(3, 2))


def slowly(theta, rng):
    time.sleep(1e-3)
    return measure(theta, rng)


def fill(folder, simulator=measure, units=UNITS):
    return mvue.simulate(simulator, prior, units=units, repeats=REPEATS, seed=3, folder=folder)


def _fill_slowly(folder, begun):
    shards.SHARD_UNITS = 64
    from mvue._blackbox import filling

    filling.FLUSH_SECONDS = 0.05
    begun.set()
    fill(folder, slowly)


def kills(count, seed=0):
    """`simulate` is killed at random times, and goes on: no unit that was saved is lost."""
    # Processes that are forked from one that has imported all: a few milliseconds each.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["helpers.soundness"])
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    rng, broken = random.Random(seed), []
    expected = fill(None).load()
    with tempfile.TemporaryDirectory() as name:
        folders = (Path(name) / str(number) for number in itertools.count())
        folder, kept = next(folders), 0
        for number in range(count):
            begun = context.Event()
            process = context.Process(target=_fill_slowly, args=(str(folder), begun))
            process.start()
            begun.wait(60)
            time.sleep(rng.uniform(0.0, 0.6))
            process.kill()
            process.join()
            there = _saved_units(folder)
            if there < kept:
                broken.append(f"kill {number}: {kept} units were saved, {there} are left")
            kept = there
            if kept == UNITS or number == count - 1:  # then another folder is filled
                broken += _unlike(folder, expected)
                folder, kept = next(folders), 0
    return Family("kill and resume", count, broken)


def _unlike(folder, expected):
    """What is wrong with a folder after the last run, which was not killed."""
    found = fill(folder).load()
    if any(not np.array_equal(a, b) for a, b in zip(found, expected, strict=True)):
        return ["the data are not those of a run that was not killed"]
    if sorted(path.name for path in folder.glob(".*")) != [".lock"]:
        return ["something was left behind"]
    return []


def _saved_units(folder):
    """How many units are in a folder, in shards or in parts."""
    found = set()
    for file in folder.glob("[0-9]*/x.npy"):
        size = len(np.load(file, mmap_mode="r"))
        found |= {(int(file.parent.name), unit) for unit in range(size)}
    for file in folder.glob(".[0-9]*.before/x.npy"):  # being replaced, and found again
        size = len(np.load(file, mmap_mode="r"))
        found |= {(int(file.parent.name[1:6]), unit) for unit in range(size)}
    for file in folder.glob("parts/[0-9]*.npz"):
        with np.load(file) as arrays:
            found |= {(int(file.name[:5]), int(unit)) for unit in arrays["units"]}
    return len(found)


class _Full:
    """A disk that is full from the n-th write on."""

    def __init__(self, n):
        self.left = n

    def __call__(self, function):
        def write(*args, **kwargs):
            self.left -= 1
            if self.left < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return function(*args, **kwargs)

        return write


def full_disks(count):
    """The disk is full at every one of the first writes: nothing that was there is lost."""
    broken = []
    expected = fill(None, units=100).load()
    for n in range(count):
        with tempfile.TemporaryDirectory() as name:
            folder, path = Path(name) / "data", Path(name) / "model.mvue"
            fill(folder, units=30)
            mvue.save(mvue.linear_bce(np.eye(2), 1.0, 1.0, 10.0), path)
            before = _saved_units(folder)
            full = _Full(n)
            note = _on_full_disk(full, lambda folder=folder: fill(folder, units=100))
            there = _saved_units(folder)
            if there < before:
                broken.append(f"write {n}: {before} units were saved, {there} are left")
            if note and f"{there} of 100 units" not in note:
                broken.append(f"write {n}: {there} units are there, it says {note!r}")
            saved, other = path.read_bytes(), mvue.linear_bce(np.eye(3), 1.0, 1.0, 10.0)
            _on_full_disk(_Full(0), lambda path=path, other=other: mvue.save(other, path))
            if path.read_bytes() != saved:
                broken.append(f"write {n}: the model file is not the one before")
            found = fill(folder, units=100).load()
            if any(not np.array_equal(a, b) for a, b in zip(found, expected, strict=True)):
                broken.append(f"write {n}: the data are not those of a disk with room")
    return Family("full disk", count, broken)


def _on_full_disk(full, call):
    """What is said when a disk is full; "" if nothing was written."""
    save, savez, sync = np.save, np.savez, file_writer.sync
    try:
        np.save, np.savez, file_writer.sync = full(save), full(savez), full(sync)
        call()
    except OSError as error:
        return "".join(getattr(error, "__notes__", []))
    finally:
        np.save, np.savez, file_writer.sync = save, savez, sync
    return ""


def model_files(mutated, hostile, seed=0, kinds=None):
    """Files that were changed, and files that ask for much."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{kind}.mvue" for kind in kinds or models.KINDS]
        for file in files:
            models.save_kind(file.stem, file)
        broken = []
        try:
            fuzz_models.run(files, mutations=mutated, seed=seed, folder=folder)
        except Exception as error:
            broken = [f"{type(error).__name__}: {error}"]
        yield Family("mutated files", mutated, broken)
        _, costs = hostile_models.run(files, count=hostile, seed=seed, folder=folder)
        broken = [
            f"{seconds:.1f} s, {size / 2**20:.0f} MB: {what}"
            for seconds, size, what in costs
            if seconds > MOST_SECONDS or size > MOST_BYTES
        ]
        yield Family("hostile files", len(costs), broken)


def _values():
    """What nobody should give, or seldom does."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    spoilt = X.copy()
    spoilt[3, 1] = np.nan
    far = X.copy()
    far[3, 1] = -np.inf
    return {
        **{"None": None, "True": True, "a text": "text", "a dict": {"a": 1}, "a function": len},
        **{"nan": np.nan, "inf": np.inf, "-1": -1, "0": 0, "2.5": 2.5, "1e308": 1e308},
        **{"a list": [], "lists": [[]], "no rows": X[:0], "no columns": X[:, :0]},
        **{"one row": X[:1], "a vector": X[:, 0], "three axes": X[None], "a number": np.float64(1)},
        **{"NaN within": spoilt, "infinity within": far, "constant": np.ones((40, 3))},
        **{"zeros": np.zeros((40, 3)), "objects": X.astype(object), "texts": X.astype(str)},
        **{"complex": X + 1j, "integers": np.arange(120).reshape(40, 3), "booleans": X > 0},
        **{"half precision": X.astype(np.float16), "tiny": X * 1e-300, "huge": X * 1e300},
        **{"subnormal": X * 1e-320, "other bytes": X.astype(">f8"), "a JAX array": jnp.asarray(X)},
        **{"masked": np.ma.masked_array(X, X > 1), "dates": np.zeros((40, 3), "datetime64[s]")},
        **{"spans of time": np.zeros((40, 3), "timedelta64[s]"), "bytes": b"model", "no text": ""},
        **{"far apart": X * [1e200, 1.0, 1e-200], "equal columns": X[:, :1] * np.ones(3)},
    }


def _uses(folder):
    """Functions of one odd value each, whose other arguments are good."""
    rng = np.random.default_rng(1)
    y = np.repeat(rng.normal(size=10), 4)
    X = y[:, None] * [1.0, 2.0, -1.0] + 0.1 * rng.normal(size=(40, 3))
    H, path = rng.normal(size=(5, 2)), Path(folder) / "model.mvue"
    estimator = mvue.linear_bce(rng.normal(size=(3, 2)), 1.0, 1.0, 10.0)
    mvue.save(estimator, path)
    model, fitted = mvue.load(path), LinearBCE(1.0).fit(X, y)
    problem = mvue.Problem(
        dist.Uniform(0.0, 1.0).expand((2,)), lambda key, t: jnp.append(t, t[0]) + jr.normal(key)
    )
    draw = problem.draw(jr.key(0), 20, 2)
    likely = mvue.Problem.from_likelihood(
        prior=dist.Uniform(jnp.zeros(2), jnp.ones(2)).to_event(1),
        likelihood=lambda t: dist.Normal(t, 1.0).to_event(1),
    )
    quick = {"hidden": (2,), "steps": 1, "random_state": 0}
    simulate = {"units": 3, "repeats": 2}
    return {
        "LinearBCE.fit(X=…)": lambda v: LinearBCE(1.0).fit(v, y).predict(np.asarray(v, float)),
        "LinearBCE.fit(y=…)": lambda v: LinearBCE(1.0).fit(X, v).predict(X),
        "LinearBCE.predict(…)": lambda v: fitted.predict(v),
        "LinearBCE(bias_weight=…)": lambda v: LinearBCE(v).fit(X, y).predict(X),
        "LinearBCE.fit(sample_weight=…)": lambda v: LinearBCE(1.0).fit(X, y, v).predict(X),
        "LinearBCECV(…)": lambda v: LinearBCECV(v, cv=2).fit(X, y).predict(X),
        "BCERegressor.fit(X=…)": lambda v: BCERegressor(1.0, **quick).fit(v, y),
        "linear_bce(H=…)": lambda v: mvue.linear_bce(v, 1.0, 1.0, 10.0).weight,
        "linear_bce(noise_cov=…)": lambda v: mvue.linear_bce(H, v, 1.0, 10.0).weight,
        "linear_bce(prior_cov=…)": lambda v: mvue.linear_bce(H, 1.0, v, 10.0).weight,
        "linear_bce(H=…) of large λ": lambda v: mvue.linear_bce(v, 1.0, 1.0, 1e20).weight,
        "wls(H=…)": lambda v: mvue.wls(v, 1.0).weight,
        "LinearEstimator.predict(…)": lambda v: estimator.predict(v, warn=False),
        "average(…)": lambda v: mvue.average(estimator, v).estimate,
        "refit_last_layer(weight=…)": lambda v: (
            mvue.refit_last_layer(
                None, draw, 1.0, weight=lambda y: jnp.asarray(v), features=jnp.ravel
            ).weight
        ),
        "emmse_loss(weights=…)": lambda v: mvue.losses.emmse_loss(
            np.ones((40, 2, 3)), np.zeros((40, 3)), weights=v
        ),
        "barankin(points=…)": lambda v: mvue.barankin(likely, np.full(2, 0.5), points=v).matrix,
        "linear_bce(bias_weight=…)": lambda v: mvue.linear_bce(H, 1.0, 1.0, v).weight,
        # What single precision cannot hold is NaN, as the documentation says.
        "Model.predict(…)": lambda v: model.predict(v, warn=False)[_is_single(v)],
        "save(…)": lambda v: mvue.save(v, path),
        "load(…)": lambda v: mvue.load(v) and None,
        "simulate(units=…)": lambda v: mvue.simulate(measure, prior, units=_few(v)) and None,
        "simulate(seed=…)": lambda v: mvue.simulate(measure, prior, seed=v, **simulate) and None,
        "simulate(prior)": lambda v: (
            mvue.simulate(lambda t, rng: rng.normal(), lambda rng: v, **simulate).load().x
        ),
        "simulate(simulator)": lambda v: (
            mvue.simulate(lambda t, rng: v, prior, units=2, repeats=1).load().x
        ),
        "assess(at=…)": lambda v: (
            mvue.assess(estimator, problem, at=v, repeats=_few(8), key=jr.key(0))["estimator"].mse
        ),
        "assess(repeats=…)": lambda v: (
            mvue.assess(estimator, problem, at=jnp.zeros((1, 2)), repeats=_few(v), key=jr.key(0))[
                "estimator"
            ].mse
        ),
        "Problem(prior=…)": lambda v: mvue.Problem(v, lambda key, t: t).shapes() and None,
        "Problem(simulate=…)": lambda v: mvue.Problem(dist.Normal(), v).shapes() and None,
        "Repeats.from_rows(…)": lambda v: mvue.Repeats.from_rows(v, y) and None,
    }


def _is_single(value):
    """Which rows single precision can hold."""
    return (np.abs(np.asarray(value, float)) < 1e38).all(axis=-1)


def _few(value):
    """A count that is not larger than what a test can wait for."""
    return min(value, 10**15) if isinstance(value, int) and value > 10**15 else value


EXPECTED = (ValueError, TypeError, OSError, RuntimeError, MemoryError)
OBSCURE = ("LinAlgError", "RecursionError", "XlaRuntimeError", "JaxRuntimeError")
"""Kinds of these that say nothing about arguments."""


def odd_inputs(count, seed=0):
    """Odd values in all arguments: a result of finite numbers, or an error that says what to do."""
    broken, tried = [], 0
    with tempfile.TemporaryDirectory() as folder:
        cases = list(itertools.product(_uses(folder).items(), _values().items()))
        random.Random(seed).shuffle(cases)
        for (use, call), (what, value) in cases[:count]:
            tried += 1
            wrong = _tried(call, value)
            if wrong:
                broken.append(f"{use} of {what}: {wrong}")
    return Family("odd inputs", tried, broken)


def _tried(call: Any, value: Any) -> str:
    """What is wrong with the answer to an odd value."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = call(value)
    except EXPECTED as error:
        if type(error).__name__ in OBSCURE:
            return f"{type(error).__name__}: {error}"
        return "" if str(error).strip() else f"a {type(error).__name__} without words"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    if found is None or not hasattr(found, "dtype"):
        return ""
    given = np.asarray(value)
    if given.dtype.kind in "fc" and not np.isfinite(given).all():
        return ""
    return "" if np.isfinite(np.asarray(found)).all() else "an answer that is not finite"
