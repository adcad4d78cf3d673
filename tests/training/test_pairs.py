"""Training on banks of simulations without repeats: the bias as a function of theta."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import mvue
from mvue._data.repeats import Repeats
from mvue._data.theta_basis import ThetaBasis
from mvue._training.batches import PairBatches
from mvue._training.pools import RowPools, padded_pool, prepare
from mvue.losses._functions import squared_bias_of_pairs

NOISE = 0.5


def pairs_of(rng, rows, p=3):
    """Measurements of y in noise whose size is a nuisance: x = y + s · noise."""
    y, s = rng.uniform(-1.0, 1.0, rows), rng.uniform(0.3, 0.7, rows)
    x = y[:, None] + s[:, None] * rng.normal(size=(rows, p))
    return x, y, np.column_stack([y, s])


def test_squared_bias_of_known_errors_is_unbiased(seed):
    """Errors a + b y + c s + noise that depends on theta: their squared bias has a closed form."""
    rng = np.random.default_rng(seed)
    rows, draws = 400, 300
    _, y, theta = pairs_of(rng, rows)
    basis = ThetaBasis.of(y[:, None], theta)
    functions = basis(y[:, None], theta)
    np.testing.assert_allclose(functions.T @ functions / rows, np.eye(basis.size), atol=1e-8)
    bias = 0.1 + 0.3 * y - 0.4 * (theta[:, 1] - 0.5) + 0.2 * y * theta[:, 1]
    exact = np.mean(bias**2)  # over these theta: they are what is fixed
    # What the products of one theta with itself leave out is known, too.
    leverage = (functions**2).sum(axis=1)
    exact = (rows * exact - np.mean(leverage * bias**2)) / (rows - 1)
    errors = bias + theta[:, 1] * rng.normal(size=(draws, rows))
    both = {
        "unbiased": exact,
        "plug-in": np.mean(bias**2) + np.mean(leverage * theta[:, 1] ** 2) / rows,
    }
    for penalty, expected in both.items():
        found = [squared_bias_of_pairs(e[:, None], functions, penalty)[0] for e in errors]
        assert abs(np.mean(found) - expected) < 4 * np.std(found) / draws**0.5
        assert np.std(found) < 0.05


def test_held_out_measures_and_their_errors_are_right(seed):
    """Standard errors as the spread over data sets shows them; padding does not count."""
    source, loss = PairBatches(1, 8), mvue.bce(3.0, weight=None)
    judged = []
    for draw in range(40):
        rng = np.random.default_rng([seed, draw])
        x, y, theta = pairs_of(rng, 300)
        data = Repeats.from_rows(x, y, theta=theta)
        basis = ThetaBasis.of(data.y, data.theta, most=6)
        found = source.judge(
            lambda x: 0.8 * x.mean(axis=-1, keepdims=True) + 0.1, loss, padded_pool(data, basis)
        )
        judged.append({name: float(value) for name, value in found.items()})
    found = {name: np.array([one[name] for one in judged]) for name in judged[0]}
    bias2 = 0.2**2 / 3 + 0.1**2
    variance = 0.8**2 * np.mean([0.3**2, 0.7**2, 0.3 * 0.7]) / 3
    for name, exact in (("squared_bias", bias2), ("mse", bias2 + variance)):
        spread = found[name].std(ddof=1)
        assert abs(found[name].mean() - exact) < 4 * spread / 40**0.5
        np.testing.assert_allclose(found[f"{name}_se"].mean(), spread, rtol=0.45)
    np.testing.assert_allclose(found["loss"], found["mse"] + 3 * found["squared_bias"], rtol=1e-4)


def test_bias_of_regression_goes_away(seed):
    """A linear network, whose exact solutions are known, on in-memory and mapped data."""
    rng = np.random.default_rng(seed)
    x, y, theta = pairs_of(rng, 4000)
    data = mvue.Repeats.from_rows(x, y, theta=theta)
    call = {"steps": 400, "optimizer": 0.02, "key": jr.key(seed), "batch_units": 8}
    slopes = []
    for loss in (mvue.emmse(), mvue.bce(30.0, weight=None)):
        network = eqx.nn.Linear(3, 1, key=jr.key(seed))
        fit = mvue.fit_data(data, network, loss, **call)
        slopes.append(float(fit.estimator.weight.sum()))
    # E[T | theta] = slope · y: the second moments of y and of the mean of x decide.
    signal, noise = 1 / 3, np.mean([0.3**2, 0.7**2, 0.3 * 0.7]) / 3
    exact = [signal / (signal + noise), 31 * signal / (31 * signal + noise)]
    np.testing.assert_allclose(slopes, exact, atol=0.04)
    assert "no unit was measured twice" in str(fit)
    assert "acts as" in fit.settings["bias"]
    assert fit.held_out["squared_bias"] < 3 * fit.held_out["squared_bias_se"]


def test_mapped_data_take_turns(tmp_path, monkeypatch, key):
    x, y, theta = pairs_of(np.random.default_rng(0), 1000)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    data = Repeats.from_rows(mapped, y, theta=theta)
    assert np.shares_memory(data.x, mapped)
    arguments = {"hidden": (4,), "steps": 30, "batch_rows": 20, "batch_units": 1, "key": key}
    in_memory = mvue.fit_data(Repeats.from_rows(x, y, theta=theta), **arguments)
    whole = mvue.fit_data(data, **arguments)
    assert whole.history["loss"] == in_memory.history["loss"]
    monkeypatch.setattr("mvue._training.pools.POOL_BYTES", 4 * 3 * 300)
    prepared = prepare(data, 0.1, "units", 32, np.random.default_rng(0), pairs=100)
    pools = prepared.shards
    assert isinstance(pools, RowPools)
    assert (pools.units, pools.steps, prepared.rows) == (300, 3, 900)
    seen = [tuple(row) for number in range(3) for row in pools.repeats(number).x]
    held = {tuple(row) for row in prepared.held_out.x}
    assert len(seen) == len(set(seen)) == 900  # one pass shows every row once
    assert not held & set(seen)
    fit = mvue.fit_data(data, **arguments)
    assert 0 < fit.held_out["mse"] < 2
    with pytest.raises(ValueError, match="split='rows' needs several rows"):
        mvue.fit_data(data, split="rows", **arguments)


def test_simulated_data_bring_their_theta(key):
    data = mvue.simulate(
        lambda theta, rng: theta["y"] + theta["s"] * rng.normal(size=3),
        lambda rng: {"y": rng.uniform(-1, 1), "s": rng.uniform(0.3, 0.7)},
        target=lambda theta: theta["y"],
        units=300,
        repeats=1,
    )
    fit = mvue.fit_data(data, hidden=(3,), steps=5, key=key)
    assert "the 2 coordinates of y and theta" in fit.settings["bias"]


def test_theta_that_is_not_told_is_said(key):
    x, y, _ = pairs_of(np.random.default_rng(0), 200)
    call = {"key": key, "hidden": (3,), "steps": 5}
    with pytest.warns(mvue.exceptions.NoRepeatsWarning, match="smooth function of y"):
        fit = mvue.fit_data(mvue.Repeats.from_rows(x, y), **call)
    assert "smooth functions of the parameter" in fit.settings["bias"]
    mvue.fit_data(mvue.Repeats.from_rows(x, y, theta=y), **call)  # y is all of theta: no warning
    many = np.random.default_rng(1).normal(size=(200, 60))
    with pytest.warns(mvue.exceptions.NoRepeatsWarning, match="the last 26 of them is not seen"):
        fit = mvue.fit_data(mvue.Repeats.from_rows(x, y, theta=many), **call)
    assert "too many to be looked at" in fit.settings["bias"]


def test_copies_are_found_and_said(key):
    x, y, theta = pairs_of(np.random.default_rng(0), 200)
    again = np.concatenate([np.arange(200), np.arange(15)])
    data = mvue.Repeats.from_rows(x[again], y[again], theta=theta[again])
    assert data.sizes.max() == 2
    call = {"key": key, "hidden": (3,), "steps": 5}
    with pytest.warns(mvue.exceptions.NoRepeatsWarning, match="15 of 215 rows are copies"):
        fit = mvue.fit_data(data, **call)
    assert fit.settings["training"].startswith("Repeats(180 ")


def test_checkpoints_know_theta(key, tmp_path):
    x, y, theta = pairs_of(np.random.default_rng(0), 200)
    call = {"key": key, "hidden": (3,), "steps": 10, "checkpoint": tmp_path}
    first = mvue.fit_data(mvue.Repeats.from_rows(x, y, theta=theta), **call)
    again = mvue.fit_data(mvue.Repeats.from_rows(x, y, theta=theta), **call)
    assert again.history == first.history
    with pytest.raises(mvue.exceptions.CheckpointError, match="data"):
        mvue.fit_data(mvue.Repeats.from_rows(x, y, theta=theta**2), **call)


def test_checkpoints_know_all_of_the_data(key, tmp_path, monkeypatch):
    """Also what is not in the first pool."""
    monkeypatch.setattr("mvue._training.pools.POOL_BYTES", 4 * 3 * 50)
    x, y, theta = pairs_of(np.random.default_rng(0), 600)
    call = {"key": key, "hidden": (3,), "steps": 5, "checkpoint": tmp_path}
    mvue.fit_data(mvue.Repeats.from_rows(x, y, theta=theta), **call)
    for row in (0, 300, 599):
        other = x.copy()
        other[row] *= -3
        with pytest.raises(mvue.exceptions.CheckpointError, match="data"):
            mvue.fit_data(mvue.Repeats.from_rows(other, y, theta=theta), **call)


def test_few_repeats_are_pairs_and_many_are_not(key):
    """Draws of theta in single precision collide now and then."""
    x, y, theta = pairs_of(np.random.default_rng(0), 200)
    y[:6:2], theta[:6:2] = y[1:6:2], theta[1:6:2]
    call = {"key": key, "hidden": (3,), "steps": 5}
    assert "bias" in mvue.fit_data(mvue.Repeats.from_rows(x, y, theta=theta), **call).settings
    y[:100:2], theta[:100:2] = y[1:100:2], theta[1:100:2]
    fit = mvue.fit_data(mvue.Repeats.from_rows(x, y, theta=theta), **call)
    assert "bias" not in fit.settings


def test_functions_keep_to_what_the_rows_allow():
    rng = np.random.default_rng(0)
    y = rng.uniform(size=(2000, 1))
    one = ThetaBasis.of(y, np.exp(3 * y))  # another scale of the same number is none of its own
    assert one.coordinates.tolist() == [0]
    assert 11 < one.size <= 15  # polynomials up to degree 10, and layers that they do not have
    assert one.left_out == 0
    assert ThetaBasis.of(y[:100], None).size == 4
    whole = ThetaBasis.of(rng.integers(0, 3, (2000, 1)).astype(float), None)
    assert whole.size == 3  # three values have no more functions
    at = np.array([[-5.0], [5.0]])  # beyond the data: their ends
    np.testing.assert_allclose(one(at, at), one(np.array([[y.min()], [y.max()]]), None))


@pytest.mark.parametrize("unit", [1e-200, 1.0, 1e200])
@pytest.mark.parametrize("columns", ["cauchy", "lognormal", "binary", "dependent", "offset"])
def test_functions_of_any_columns_are_uncorrelated(columns, unit):
    rng = np.random.default_rng(0)
    theta = {
        "cauchy": lambda: rng.standard_cauchy((500, 2)),
        "lognormal": lambda: np.exp(3 * rng.normal(size=(500, 3))),
        "binary": lambda: rng.integers(0, 2, (500, 2)).astype(float),
        "dependent": lambda: rng.normal(size=(500, 1)) * np.array([1.0, -2.0]),
        "offset": lambda: 1e9 + rng.normal(size=(500, 2)),
    }[columns]()
    basis = ThetaBasis.of(unit * theta[:, :1], unit * theta)
    found = basis(unit * theta[:, :1], unit * theta)
    np.testing.assert_allclose(found.T @ found / 500, np.eye(basis.size), atol=1e-8)
    assert np.abs(found).max() < 30


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"theta": np.ones((3, 2))}, r"theta must have the shape \(4,\)"),
        ({"theta": np.array([1.0, 2.0, np.nan, 1.0])}, "theta must be finite"),
        ({"theta": np.array(["a"] * 4)}, "theta must hold real numbers"),
        ({"theta": np.arange(4.0), "unit_ids": [0, 0, 1, 2]}, "the same in all rows of a unit"),
    ],
)
def test_wrong_theta_is_refused(changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        mvue.Repeats.from_rows(np.ones((4, 2)), np.arange(4.0), **changes)


def test_theta_without_variation_is_refused(key):
    x = np.random.default_rng(0).normal(size=(50, 2))
    data = mvue.Repeats.from_rows(x, np.ones(50), theta=np.ones(50), unit_ids=np.arange(50))
    with pytest.raises(ValueError, match="theta must vary"):
        mvue.fit_data(data, key=key, hidden=(3,), steps=5)


def test_weights_of_components_and_plug_in(key):
    """The penalty of weighted errors, and what the plug-in acts as."""
    x, y, theta = pairs_of(np.random.default_rng(0), 300)
    data = mvue.Repeats.from_rows(x, np.column_stack([y, theta[:, 1]]), theta=theta)
    loss = mvue.bce(5.0, penalty="plug-in", weight=lambda y: jnp.array([1.0, 4.0]))
    fit = mvue.fit_data(data, loss=loss, key=key, hidden=(3,), steps=5)
    assert "plug-in penalty (acts as" in fit.settings["loss"]
    assert np.isfinite(fit.held_out["loss"])
