"""Training on fixed data: batches, the loss on them, and what is refused."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mvue
from helpers.plain import plain_fit
from mvue._core.keys import key_for
from mvue._data.repeats import Repeats
from mvue._runtime.programs import _programs, compiled
from mvue._training.batches import DataBatches
from mvue._training.pools import padded_pool, prepare, repeats_of, split_data
from mvue.losses._functions import squared_bias_of, unit_errors


def rows_of(rng, units=60, sizes=(1, 9), noise=0.7, d=2, p=3):
    """A linear model, with units of different sizes in random order."""
    count = rng.integers(*sizes, units)
    truth = rng.normal(size=(units, d))
    unit = rng.permutation(np.repeat(np.arange(units), count))
    y = truth[unit]
    x = y @ rng.normal(size=(d, p)) + noise * rng.normal(size=(len(y), p))
    return x, y, unit


def test_rows_are_grouped_whatever_their_order(seed):
    rng = np.random.default_rng(seed)
    x, y, unit = rows_of(rng)
    by_y, by_id = Repeats.from_rows(x, y), Repeats.from_rows(x, y, unit_ids=unit)
    assert sorted(by_y.sizes) == sorted(np.bincount(unit)[np.bincount(unit) > 0])
    np.testing.assert_array_equal(by_y.x, by_id.x)
    x, y = x.astype(np.float32), y.astype(np.float32)
    wide = np.repeat(by_y.y, by_y.sizes, axis=0)
    paired = {tuple(row) for row in np.hstack([x, y])}
    assert {tuple(row) for row in np.hstack([by_y.x, wide])} == paired
    again = by_y.shuffled(rng)
    for u, (start, stop) in enumerate(zip(again.starts[:-1], again.starts[1:], strict=True)):
        before = by_y.x[by_y.starts[u] : by_y.starts[u + 1]]
        assert {tuple(r) for r in again.x[start:stop]} == {tuple(r) for r in before}
    assert "units of" in repr(by_y)


@given(st.integers(0, 2**31 - 1), st.sampled_from(["unbiased", "plug-in"]))
@settings(max_examples=20, deadline=None)
def test_masked_penalty_is_that_of_the_rows_there(seed, penalty):
    rng = np.random.default_rng(seed)
    errors = rng.normal(size=(6, 5, 2))
    count = rng.integers(2, 6, 6)
    present = (np.arange(5) < count[:, None]).astype(float)
    found = squared_bias_of(unit_errors(errors, present), penalty)
    for u, m in enumerate(count):
        one = errors[u : u + 1, :m]
        expected = mvue.losses.squared_bias(one, np.zeros((1, 2)), penalty=penalty)
        np.testing.assert_allclose(found[u].sum(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("split", ["units", "rows"])
def test_splits_share_nothing_and_lose_nothing(split, seed):
    rng = np.random.default_rng(seed)
    x, y, _ = rows_of(rng)
    data = Repeats.from_rows(x, y)
    train, out = split_data(data, 0.25, split, rng)
    both = np.concatenate([train.x, out.x])
    assert {tuple(r) for r in both} == {tuple(r) for r in data.x}
    assert len(both) == len(data.x)
    shared = {tuple(r) for r in train.y} & {tuple(r) for r in out.y}
    if split == "units":
        assert not shared
        assert len(out.y) == round(0.25 * len(data.y))
    else:
        assert len(train.y) == len(data.y)
        assert 0 <= len(out.x) - 0.25 * len(data.x) < 9
        assert (out.sizes >= 2).mean() > 0.9  # they show a bias


def test_batches_are_rows_and_whole_units(seed):
    x, y, _ = rows_of(np.random.default_rng(seed))
    data = Repeats.from_rows(x, y)
    source = DataBatches(2, rows=7, units=500, repeats=int(data.sizes.max()))
    draw, _ = source.draw(jr.key(seed), padded_pool(data))
    # An estimator that gives back what it sees, to follow every row.
    parts = source.parts(draw.x[..., :2], draw)
    seen = np.asarray(parts.units + parts.unit_y[:, None, :])
    where = {tuple(value): u for u, value in enumerate(data.y)}
    units = [where[tuple(np.asarray(value))] for value in parts.unit_y]
    assert set(units) == set(np.flatnonzero(data.sizes > 1))
    for u, rows, present in list(zip(units, seen, np.asarray(parts.present), strict=True))[:50]:
        expected = data.x[data.starts[u] : data.starts[u + 1], :2]
        assert present.sum() == len(expected)
        found, expected = np.sort(rows[present], axis=0), np.sort(expected, axis=0)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_large_units_are_cut_at_random(key):
    data = Repeats.from_rows(np.arange(100.0)[:, None], np.repeat([[0.0], [1.0]], [90, 10], axis=0))
    source = DataBatches(1, rows=1, units=400, repeats=8)
    draw, _ = source.draw(key, padded_pool(data))
    parts = source.parts(draw.x, draw)
    assert bool(parts.present.all())
    first = np.asarray(parts.units + parts.unit_y[:, None, :])[np.asarray(parts.unit_y)[:, 0] == 0]
    assert len(np.unique(first)) == 90
    assert all(len(np.unique(row)) == 8 for row in first)


def test_held_out_measures_are_exact(seed):
    rng = np.random.default_rng(seed)
    x, y, unit = rows_of(rng, sizes=(1, 6))
    data, weight = Repeats.from_rows(x, y), np.array([1.0, 3.0])
    source = DataBatches(2, 1, 1, 6)
    training_loss = mvue.bce(2.0, penalty="plug-in", weight=lambda _: jnp.asarray(weight))
    estimate = lambda x: x[..., :2]  # noqa: E731
    found = source.judge(estimate, training_loss, padded_pool(data))
    errors = x[:, :2] - y
    groups = [errors[unit == u] for u in np.unique(unit)]
    bias2 = np.array(
        [(e.sum(0) ** 2 - (e**2).sum(0)) / (len(e) * (len(e) - 1)) for e in groups if len(e) > 1]
    )
    np.testing.assert_allclose(found["mse"], (errors**2).sum(1).mean(), rtol=1e-4)
    np.testing.assert_allclose(found["squared_bias"], bias2.sum(1).mean(), rtol=1e-3, atol=1e-4)
    se = bias2.sum(1).std(ddof=1) / len(bias2) ** 0.5
    np.testing.assert_allclose(found["squared_bias_se"], se, rtol=1e-3)
    loss = (errors**2 @ weight).mean() + 2 * (bias2 @ weight).mean()
    np.testing.assert_allclose(found["loss"], loss, rtol=1e-4)


@pytest.mark.parametrize("bias_weight", [0.0, 4.0])
def test_linear_network_finds_the_minimum_of_the_loss(bias_weight, seed):
    """Rows count in the error and units in the penalty, whatever their sizes."""
    rng = np.random.default_rng(seed)
    x, y, unit = rows_of(rng, units=40, sizes=(1, 9))
    x = np.hstack([x, np.ones((len(x), 1))])
    repeated = [u for u in np.unique(unit) if (unit == u).sum() > 1]
    means = np.array([x[unit == u].mean(0) for u in repeated])
    truth = np.array([y[unit == u][0] for u in repeated])
    lam = bias_weight
    gram = x.T @ x / len(x) + lam * means.T @ means / len(means)
    best = np.linalg.solve(gram, x.T @ y / len(x) + lam * means.T @ truth / len(means))

    def loss_of(matrix):
        penalty = ((means @ matrix - truth) ** 2).sum(1).mean()
        return ((x @ matrix - y) ** 2).sum(1).mean() + lam * penalty

    fit = mvue.fit_data(
        Repeats.from_rows(x, y),
        eqx.nn.Linear(4, 2, use_bias=False, key=jr.key(seed)),
        mvue.bce(lam, weight=None) if lam else mvue.emmse(),
        key=jr.key(seed),
        validation=0.0,
        optimizer=0.03,
        steps=1500,
    )
    assert loss_of(np.asarray(fit.estimator.weight, float).T) < 1.01 * loss_of(best)


def test_same_key_same_estimator_and_one_program(key):
    x, y, _ = rows_of(np.random.default_rng(0))
    data = Repeats.from_rows(x, y)
    arguments = {"hidden": (4,), "steps": 20, "loss": mvue.bce(1.0)}
    first = mvue.fit_data(data, key=key, **arguments)
    programs = set(_programs)
    again, other = (mvue.fit_data(data, key=k, **arguments) for k in (key, jr.key(1)))
    assert set(_programs) == programs
    leaves = [jax.tree.leaves(eqx.filter(f.estimator, eqx.is_array)) for f in (first, again, other)]
    assert all(bool((a == b).all()) for a, b in zip(leaves[0], leaves[1], strict=True))
    assert any(bool((a != b).any()) for a, b in zip(leaves[0], leaves[2], strict=True))
    assert "units of up to" in str(first)
    assert "held out" in str(first)


def test_checkpoints_resume_and_other_data_are_refused(key, tmp_path):
    x, y, _ = rows_of(np.random.default_rng(0))
    arguments = {"hidden": (4,), "steps": 20, "key": key, "checkpoint": tmp_path}
    first = mvue.fit_data(Repeats.from_rows(x, y), **arguments)
    assert mvue.fit_data(Repeats.from_rows(x, y), **arguments).history == first.history
    with pytest.raises(mvue.exceptions.CheckpointError):
        mvue.fit_data(Repeats.from_rows(x + 1.0, y), **arguments)


def test_checkpoint_knows_the_training_rows(key, tmp_path):
    """Also where neither the network nor what is held out depends on them."""
    x, y, _ = rows_of(np.random.default_rng(0))
    network = eqx.nn.Linear(3, 2, key=key)
    arguments = {"steps": 5, "key": key, "checkpoint": tmp_path, "network": network}
    mvue.fit_data(Repeats.from_rows(x, y), **arguments)
    _, held = split_as_fit_does(Repeats.from_rows(x, y), key)
    training = ~np.isin(x.astype(np.float32), held.x).all(axis=1)
    with pytest.raises(mvue.exceptions.CheckpointError, match="data"):
        mvue.fit_data(Repeats.from_rows(np.where(training[:, None], 3 * x, x), y), **arguments)


def split_as_fit_does(data, key):
    split_key = jr.split(key_for("fit_data", key), 4)[3]
    rng = np.random.default_rng(np.asarray(jr.key_data(split_key)).tolist())
    prepared = prepare(data, 0.1, "units", 32, rng)
    return prepared.training, prepared.held_out


def test_programs_with_other_host_functions_are_not_mixed_up(key):
    def fit(factor):
        shape = jax.ShapeDtypeStruct((), jnp.float32)

        def simulate(key, y):
            host = jax.pure_callback(lambda y: factor * y, shape, y, vmap_method="expand_dims")
            return host + 0.01 * jr.normal(key)

        problem = mvue.Problem(dist.Uniform(1.0, 2.0), simulate)
        network = eqx.nn.Linear("scalar", "scalar", key=key)
        return plain_fit(problem, network, mvue.emmse(), key=key, steps=300, optimizer=0.05)

    slopes = [float(fit(factor).estimator(jnp.asarray(2.0))) for factor in (1.0, 4.0)]
    np.testing.assert_allclose(slopes, [2.0, 0.5], atol=0.7)
    assert slopes[0] - slopes[1] > 0.7


def test_unused_arguments_do_not_make_programs_equal():
    one = compiled(lambda a, b: a + 1, jnp.zeros(2), jnp.ones(2))[0]
    other = compiled(lambda a, b: b + 1, jnp.zeros(2), jnp.ones(2))[0]
    assert float(one(jnp.zeros(2), jnp.ones(2))[0]) == 1
    assert float(other(jnp.zeros(2), jnp.ones(2))[0]) == 2


class Counted(eqx.Module):
    """A linear network that notes when it is traced."""

    weight: jax.Array
    note: object = eqx.field(static=True)

    def __call__(self, x):
        self.note()
        return self.weight @ x


def test_what_was_traced_before_is_not_traced_again(key):
    traces = []

    def note():
        traces.append(None)

    def fit(seed, factor=1.0, **changes):
        x, y, unit = rows_of(np.random.default_rng(seed), sizes=(2, 9))
        data = Repeats.from_rows(factor * x, y, unit_ids=unit)
        network = Counted(jnp.zeros((2, 3)), note)
        call = {"loss": mvue.bce(1.0, weight=None), "optimizer": 0.01, "steps": 5} | changes
        before = len(traces)
        fitted = mvue.fit_data(data, network, key=jr.key(seed), **call)
        return len(traces) - before, fitted

    first, one = fit(0)
    again, other = fit(0, factor=2.0)
    assert again < first, "only its shapes are looked at"
    assert not np.allclose(one.estimator.weight, other.estimator.weight), "numbers are not reused"
    changes = [
        {"loss": mvue.bce(2.0, weight=None)},
        {"loss": mvue.bce(1.0, weight=lambda y: jnp.ones_like(y))},
        {"optimizer": 0.02},
        {"steps": 6},
        {"keep": "last"},
    ]
    for change in changes:
        assert fit(0, **change)[0] >= first, change


def test_one_row_per_unit_is_warned_about(key):
    rng = np.random.default_rng(0)
    data = Repeats.from_rows(rng.normal(size=(40, 2)), rng.normal(size=40))
    with pytest.warns(mvue.exceptions.NoRepeatsWarning, match="smooth function of y"):
        fit = mvue.fit_data(data, key=key, hidden=(3,), steps=5)
    assert np.isfinite(fit.held_out["loss"])
    mvue.fit_data(data, loss=mvue.emmse(), key=key, hidden=(3,), steps=5)  # no penalty, no warning


def test_unbiased_penalty_without_a_lower_bound_is_refused(key):
    rng = np.random.default_rng(0)
    y = np.repeat(rng.normal(size=50), 4)
    data = Repeats.from_rows(y[:, None] + rng.normal(size=(200, 2)), y)
    with pytest.raises(ValueError, match=r"bias_weight above 3, got 5.*plug-in"):
        mvue.fit_data(data, loss=mvue.bce(5.0, penalty="unbiased"), key=key, validation=0.0)
    mvue.fit_data(data, loss=mvue.bce(2.0, penalty="unbiased"), key=key, hidden=(3,), steps=5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"validation": 1.0}, "validation must be a share"),
        ({"validation": 0.999}, "leaves none of"),
        ({"repeats": 1}, "repeats must be"),
        ({"steps": 0}, "steps must be"),
        ({"batch_units": 0}, "batch_units must be"),
        ({"hidden": (0,)}, "hidden must be"),
        ({"network": lambda x: x[:3]}, "network must return"),
        ({"network": lambda x: x @ jnp.ones((99, 2))}, "network failed on one measurement"),
        ({"loss": mvue.losses.fisher_mse(lambda t: jnp.eye(2))}, "loss must be mvue.bce"),
    ],
)
def test_wrong_arguments_are_named(changes, message, key):
    x, y, _ = rows_of(np.random.default_rng(0))
    with pytest.raises((ValueError, TypeError), match=message):
        mvue.fit_data(Repeats.from_rows(x, y), **({"key": key} | changes))


def test_unbiased_penalty_knows_how_many_rows_it_sees(key):
    y = np.repeat(np.linspace(0, 1, 20), 32)
    data = Repeats.from_rows(y[:, None] + np.random.default_rng(0).normal(size=(640, 2)), y)
    loss = mvue.bce(10.0, penalty="unbiased")
    with pytest.raises(ValueError, match="above 1, got 10"):
        mvue.fit_data(data, loss=loss, key=key, repeats=2, validation=0.0)


def test_a_penalty_that_ends_at_zero_is_one(key):
    x, y, _ = rows_of(np.random.default_rng(0))
    loss = mvue.bce(lambda progress: 10 * (1 - progress), weight=None)
    fit = mvue.fit_data(Repeats.from_rows(x, y), loss=loss, key=key, hidden=(3,), steps=5)
    assert "units of up to" in fit.settings["batch"]


@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_numbers_that_single_precision_cannot_hold_are_refused(scale):
    with pytest.raises(ValueError, match="y must be fit for single precision"):
        Repeats.from_rows(np.ones((4, 1)), scale * np.array([1.0, 2.0, 1.0, 2.0]))
    with pytest.raises(ValueError, match="x must be fit for single precision"):
        Repeats.from_rows(1e8 + np.arange(4.0)[:, None], np.array([1.0, 2.0, 1.0, 2.0]))


@pytest.mark.parametrize(
    ("x", "y", "unit_ids", "message"),
    [
        (np.ones((3, 2)), np.ones(2), None, "one entry per row"),
        (np.full((2, 2), np.nan), np.ones(2), None, "x must be finite"),
        (np.ones((2, 2)), np.array([1.0, np.inf]), None, "y must be finite"),
        (np.ones((2, 2)), np.array(["a", "b"]), None, "y must hold real numbers"),
        (np.ones((2, 2)), np.ones(2), [1], "unit_ids must have one entry per row"),
        (np.ones((2, 2)), np.array([1.0, 2.0]), [1, 1], "the same in all rows of a unit"),
        (np.ones((0, 2)), np.ones(0), None, "at least one"),
    ],
)
def test_wrong_data_are_refused(x, y, unit_ids, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Repeats.from_rows(x, y, unit_ids=unit_ids)


def test_whole_numbers_are_numbers(key):
    rng = np.random.default_rng(0)
    y = np.repeat(rng.integers(0, 9, 60), 3)
    fit = mvue.fit_data(
        Repeats.from_rows(y[:, None] + rng.normal(size=(180, 1)), y), key=key, hidden=(), steps=5
    )
    assert fit.estimator(jnp.ones(1)).shape == (1,)


def measure_twice(theta, rng):
    """A black box that fails now and then."""
    if rng.random() < 0.02:
        raise RuntimeError("no signal")
    return theta + rng.normal(size=3)


@pytest.fixture
def shards(tmp_path, monkeypatch):
    monkeypatch.setattr("mvue._data.shards.SHARD_UNITS", 50)
    with pytest.warns(mvue.exceptions.FailedDrawsWarning):
        return mvue.simulate(
            measure_twice,
            lambda rng: rng.uniform(-1.0, 1.0),
            units=330,
            repeats=4,
            retries=0,
            failures="record",
            folder=tmp_path / "data",
        )


def test_data_larger_than_memory_take_turns(shards, monkeypatch, key):
    assert shards.shard_count == 7
    whole = repeats_of(shards.load())
    assert len(whole.x) == 330 * 4 - len(shards.failures)
    arguments = {"hidden": (4,), "steps": 60, "batch_units": 20, "key": key, "validation": 0.15}
    in_memory = mvue.fit_data(shards, **arguments)
    monkeypatch.setattr("mvue._training.pools.POOL_BYTES", 2 * 50 * 4 * 3 * 4)
    prepared = prepare(shards, 0.15, "units", 20, np.random.default_rng(0))
    pools = prepared.shards
    assert (pools.count, len(pools.shards), pools.steps) == (2, 6, 5)
    seen = [tuple(row) for number in range(3) for row in pools.repeats(number).x]
    held = {tuple(row) for row in prepared.held_out.x}
    assert len(seen) == len(set(seen))  # one pass shows every row once
    assert not held & set(seen)
    assert set(seen) | held == {tuple(row) for row in whole.x}
    fit = mvue.fit_data(shards, **arguments)
    assert "7 in" in fit.settings["training"]
    for found in (fit, in_memory):
        assert 0 < found.held_out["mse"] < 1
    with pytest.raises(ValueError, match="split='rows' needs data that fit into memory"):
        mvue.fit_data(shards, key=key, split="rows")
