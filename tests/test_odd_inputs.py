"""Inputs that a second look found to be taken without a word, or refused without a reason."""

from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest

import mvue
from helpers.plain import plain_fit
from mvue._serialise.container import check_path


def masked(shape):
    values = np.ones(shape)
    values[0] = -999.0  # what is below a mask is nothing that anybody means
    return np.ma.masked_equal(values, -999.0)


@pytest.mark.parametrize(
    "use",
    [
        lambda: mvue.average(lambda x: x[:1], masked((4, 3))),
        lambda: mvue.Repeats.from_rows(masked((4, 3)), np.arange(4.0)),
        lambda: mvue.Repeats.from_rows(np.ones((4, 3)), masked(4)),
        lambda: mvue.sklearn.LinearBCE().fit(masked((4, 3)), np.arange(4.0)),
        lambda: mvue.sklearn.BCERegressor().fit(masked((4, 3)), np.arange(4.0)),
        lambda: mvue.lmmse(np.ones((3, 1)), np.eye(3), np.eye(1)).predict(masked((4, 3))),
        lambda: mvue.Repeats.from_rows(np.ones((4, 3)), np.ones(4), unit_ids=masked(4)),
        lambda: mvue.sklearn.mean_squared_bias(np.ones(4), masked(4)),
        lambda: mvue.sklearn.unit_ids_of(masked(4)),
        lambda: mvue.crb(
            mvue.Problem(dist.Uniform(0.0, 1.0), noisy), np.ma.masked_array(0.5, True)
        ),
        lambda: mvue.wls(masked((4, 1)), 1.0),
        lambda: mvue.wls(np.ones((4, 1)), masked(4)),
    ],
)
def test_masked_numbers_are_refused(use):
    with pytest.raises(ValueError, match="masked numbers, and a mask is not used"):
        use()


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"prior": lambda rng: masked(2) + 0 * rng.normal()}, "theta has 1 masked numbers"),
        ({"prior": lambda rng: {}}, "theta must hold at least one number"),
        ({"prior": lambda rng: {"a": {}}}, "theta must hold at least one number"),
        ({"prior": lambda rng: rng.normal() * 1j}, "y must be real numbers, got complex128"),
        ({"target": lambda t: masked(2)}, "y has 1 masked numbers"),
        ({"target": lambda t: 1j * t}, "y must be real numbers, got complex128"),
        ({"target": str}, "y must be real numbers, got <U"),
    ],
)
def test_parameters_are_real_numbers(given, match):
    given = {"prior": lambda rng: rng.normal()} | given
    with pytest.raises((mvue.exceptions.SimulatorError, ValueError), match=match):
        mvue.simulate(lambda t, rng: rng.normal(), units=2, **given)


def test_a_simulator_may_not_return_masked_numbers():
    with pytest.raises(mvue.exceptions.SimulatorError, match="an array with masked numbers"):
        mvue.simulate(lambda t, rng: masked(3) * rng.normal(), lambda rng: rng.uniform(), units=64)


def noisy(key, theta):
    return theta + jr.normal(key, (3,))


def test_names_that_are_the_same_are_refused():
    prior = dist.Uniform(jnp.zeros(2), jnp.ones(2)).to_event(1)
    with pytest.raises(ValueError, match="names must differ, got 'a' twice"):
        mvue.Problem(prior, lambda key, t: t + jr.normal(key, (2,)), names=("a", "a"))


def test_a_simulator_without_numbers_is_refused():
    with pytest.raises(mvue.exceptions.SimulatorError, match="at least one number, got shape"):
        mvue.Problem(dist.Uniform(0.0, 1.0), lambda key, t: jnp.zeros(0) + t)


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"key": jr.split(jr.key(0), 2)}, TypeError, "key must be one random key"),
        ({"key": jnp.zeros(3, jnp.uint32)}, TypeError, "key must be a random key"),
        ({"optimizer": float("inf")}, ValueError, "must be positive and finite, got inf"),
        ({"checkpoint": ""}, TypeError, "checkpoint must be the name of a folder"),
    ],
)
def test_odd_arguments_of_fit_are_refused_by_name(changes, error, match):
    problem = mvue.Problem(dist.Uniform(0.0, 1.0), noisy)
    with pytest.raises(error, match=match):
        plain_fit(problem, eqx.nn.MLP(3, 1, 4, 1, key=jr.key(0)), **({"key": jr.key(0)} | changes))


def test_keys_of_either_kind_train_the_same():
    problem = mvue.Problem(dist.Uniform(0.0, 1.0), noisy)
    network = eqx.nn.MLP(3, 1, 4, 1, key=jr.key(0))
    new, old = (
        plain_fit(problem, network, key=key, steps=3, validations=1)
        for key in (jr.key(3), jr.PRNGKey(3))
    )
    assert new.held_out == old.held_out


@pytest.mark.parametrize(
    ("unit_ids", "match"),
    [
        (np.array(["a", None, np.nan, "b"], object), "got 2 of 4 that are missing"),
        (np.array([1, "1", 2, "2"], object), "must differ as texts"),
        (pd.Series(["a", None, "b", "b"], dtype="string"), "got 1 of 4 that are missing"),
        (pd.Series(["a", None, "b", "b"], dtype="category"), "got 1 of 4 that are missing"),
        (
            np.array(["2020-01-01", "NaT", "NaT", "2020-01-02"], "M8[s]"),
            "got 2 of 4 that are missing",
        ),
    ],
)
def test_rows_without_a_unit_are_not_one_unit(unit_ids, match):
    with pytest.raises(ValueError, match=match):
        mvue.Repeats.from_rows(np.ones((4, 3)), np.ones(4), unit_ids=unit_ids)


def test_measurements_without_numbers_are_refused():
    with pytest.raises(ValueError, match=r"at least one number, .* got shapes \(4, 0\)"):
        mvue.Repeats.from_rows(np.ones((4, 0)), np.ones(4))


@pytest.mark.parametrize("bias_weight", [None, "1", np.ones(2)])
def test_one_bias_weight_is_asked_for(bias_weight):
    with pytest.raises(TypeError, match="bias_weight must be"):
        mvue.linear_bce(np.ones((3, 1)), 1.0, 1.0, bias_weight)


def test_what_is_missing_in_a_table_is_told():
    table = pd.DataFrame({name: pd.array([1, None], "Int64") for name in "abc"})
    with pytest.raises(TypeError, match="numbers, got object: give floats, with NaN for what is"):
        mvue.wls(np.ones((3, 1)), 1.0).predict(table)


def test_texts_are_not_averaged():
    with pytest.raises(TypeError, match="x must be numbers, got <U1"):
        mvue.average(lambda x: x[:1], np.full((4, 3), "1"))


@pytest.mark.parametrize("model", [mvue.sklearn.LinearBCE(), mvue.sklearn.BCERegressor()])
def test_a_missing_y_is_refused(model):
    y = np.array([1.0] * 4 + [2.0] * 3 + [None], object)
    with pytest.raises(ValueError, match="y contains NaN or infinity in 1 of 8 rows"):
        model.fit(np.arange(16.0).reshape(8, 2), y)


def test_a_prior_may_reuse_the_array_that_it_returns():
    kept = np.zeros(1)

    def prior(rng):
        kept[0] = rng.uniform(1.0, 2.0)
        return kept

    data = mvue.simulate(lambda t, rng: t + 0.01 * rng.normal(size=1), prior, units=20, repeats=2)
    found = data.load()
    assert np.abs(found.x - found.y[:, None]).max() < 0.1


def test_rows_and_units_may_be_chosen_by_a_mask_or_from_the_end():
    data = mvue.Repeats.from_rows(np.arange(4.0)[:, None], [1.0, 1.0, 2.0, 2.0])
    chosen = data.take_rows(np.array([True, False, False, True]))
    np.testing.assert_array_equal(chosen.x.ravel(), [0.0, 3.0])
    last = data.take_rows(np.array([-1, 0]))
    np.testing.assert_array_equal(last.x.ravel(), [0.0, 3.0])
    np.testing.assert_array_equal(last.y.ravel(), [1.0, 2.0])
    second = data.take_units(np.array([False, True]))
    np.testing.assert_array_equal(second.x.ravel(), [2.0, 3.0])
    np.testing.assert_array_equal(second.y.ravel(), [2.0])


@pytest.mark.parametrize("path", ["", None, b"model.mvue", 3, Path()])
def test_a_path_that_names_no_file_is_refused(path):
    with pytest.raises((TypeError, ValueError), match="path must be the name of a file, got"):
        check_path(path)
    for use in (mvue.load, lambda path: mvue.save(mvue.wls(np.eye(2), 1.0), path)):
        with pytest.raises((TypeError, ValueError), match="path"):
            use(path)


@pytest.mark.parametrize("dtype", ["m8[s]", "M8[s]", "U3", object])
def test_what_is_no_number_is_refused_by_name(dtype):
    estimator = mvue.wls(np.ones((3, 1)), 1.0)
    for use in (estimator, estimator.predict, lambda x: mvue.average(estimator, x)):
        with pytest.raises(TypeError, match="x must be numbers, got"):
            use(np.zeros((2, 3), dtype))


@pytest.mark.parametrize("points", [np.zeros(0), [], ()])
def test_a_barankin_bound_needs_a_test_point(points):
    problem = mvue.Problem(
        dist.Uniform(0.0, 1.0), noisy, log_likelihood=lambda t, x: -jnp.sum((x - t) ** 2) / 2
    )
    with pytest.raises(ValueError, match="points must hold at least one value of theta, got none"):
        mvue.barankin(problem, 0.5, points=points)


def test_columns_of_very_different_sizes_have_the_estimates_of_equal_ones():
    rng = np.random.default_rng(0)
    y = np.repeat(rng.normal(size=(10, 2)), 4, axis=0)
    X = (y + 0.1 * rng.normal(size=y.shape)) * [1e200, 1e-200]
    small = mvue.sklearn.LinearBCE(1.0).fit(X, y).predict(X)
    np.testing.assert_allclose(
        small, mvue.sklearn.LinearBCE(1.0).fit(X / [1e200, 1e-200], y).predict(X / [1e200, 1e-200])
    )
    with pytest.raises(ValueError, match=r"columns of y must be of sizes .* 1e-200 in another"):
        mvue.sklearn.LinearBCE(1.0).fit(X, np.sign(y) * [1e200, 1e-200], unit_ids=y[:, 0])
