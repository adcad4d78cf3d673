"""The network of scikit-learn's interface: its contract, and what it learns."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import mvue
from mvue.sklearn import BCERegressor, mean_squared_bias, mean_squared_bias_scorer, unit_ids_of

SMALL = {"hidden": (8,), "steps": 60, "learning_rate": 0.03, "random_state": 0}


def sample(rng, units=80, repeats=6, noise=0.6):
    y = np.repeat(rng.uniform(-1, 1, (units, 1)), repeats, axis=0)
    X = np.hstack([y, np.sin(2 * y)]) + noise * rng.normal(size=(len(y), 2))
    return X, y[:, 0]


@pytest.mark.filterwarnings("ignore::mvue.exceptions.NoRepeatsWarning")
@parametrize_with_checks([BCERegressor(1.0, hidden=(8,), steps=100, learning_rate=0.03)])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def test_bias_falls_as_its_weight_grows(seed):
    rng = np.random.default_rng(seed)
    X, y = sample(rng, units=300)
    X_new, y_new = sample(rng, units=300)
    settings = SMALL | {"steps": 600, "random_state": seed}
    plain = BCERegressor(0.0, **settings).fit(X, y)
    unbiased = BCERegressor(10.0, **settings).fit(X, y)
    before = mean_squared_bias(y_new, plain.predict(X_new), return_se=True)
    after = mean_squared_bias(y_new, unbiased.predict(X_new), return_se=True)
    assert before.value - after.value > 4 * np.hypot(before.se, after.se)
    assert after.value < 0.5 * before.value


def test_a_linear_network_without_penalty_is_least_squares(seed):
    X, y = sample(np.random.default_rng(seed))
    model = BCERegressor(
        0.0, hidden=(), steps=1500, learning_rate=0.03, early_stopping=False, random_state=seed
    ).fit(X, y)
    best = LinearRegression().fit(X, y)
    error = np.mean((model.predict(X) - y) ** 2)
    assert error < 1.005 * np.mean((best.predict(X) - y) ** 2)


def test_units_of_y_do_not_matter():
    X, y = sample(np.random.default_rng(0))
    y2 = np.column_stack([y, -y])
    one = BCERegressor(2.0, **SMALL).fit(X, y2).predict(X)
    other = BCERegressor(2.0, **SMALL).fit(1e3 * X + 7, 1e-4 * y2 + 5).predict(1e3 * X + 7)
    np.testing.assert_allclose((other - 5) / 1e-4, one, atol=0.02)


def test_in_a_pipeline_and_a_search():
    X, y = sample(np.random.default_rng(0), units=60)
    model = make_pipeline(StandardScaler(), BCERegressor(**SMALL))
    scores = cross_validate(
        model,
        X,
        y,
        cv=GroupKFold(3),
        groups=unit_ids_of(y),
        scoring={"mse": "neg_mean_squared_error", "bias": mean_squared_bias_scorer},
    )
    assert np.isfinite(scores["test_bias"]).all()
    search = GridSearchCV(
        BCERegressor(**SMALL),
        {"bias_weight": [0.0, 3.0]},
        cv=GroupKFold(2),
        scoring=mean_squared_bias_scorer,
    ).fit(X, y, groups=unit_ids_of(y))
    assert search.best_params_["bias_weight"] in (0.0, 3.0)


def test_unit_ids_say_what_y_cannot():
    rng = np.random.default_rng(0)
    X, y = sample(rng, units=30)
    by_y = BCERegressor(3.0, **SMALL).fit(X, y)
    by_id = BCERegressor(3.0, **SMALL).fit(X, y, unit_ids=[f"u{i}" for i in unit_ids_of(y)])
    np.testing.assert_array_equal(by_y.predict(X), by_id.predict(X))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        BCERegressor(**SMALL).fit(X, y, unit_ids=[1, 2])
    with pytest.raises(ValueError, match="the same in all rows of a unit"):
        BCERegressor(**SMALL).fit(X, y, unit_ids=np.zeros(len(y), int))


def test_attributes_warm_start_and_pickle():
    X, y = sample(np.random.default_rng(0))
    model = BCERegressor(**SMALL | {"warm_start": True, "early_stopping": True}).fit(X, y)
    assert model.n_iter_ <= 60
    assert len(model.loss_curve_) == len(model.validation_curve_)
    assert model.n_units_ == 80
    assert model.score(X, y) > 0.3
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    first = model.loss_curve_[0]
    model.fit(X, y)
    assert model.loss_curve_[0] < first  # it went on
    assert not hasattr(clone(model), "estimator_")


def test_predictions_do_not_depend_on_their_company():
    X, y = sample(np.random.default_rng(0))
    model = BCERegressor(**SMALL).fit(X, y)
    whole = model.predict(X)
    np.testing.assert_array_equal(model.predict(X[:37]), whole[:37])
    alone = [float(model.estimator_(row)[0]) for row in X[:5].astype(np.float32)]
    np.testing.assert_allclose(alone, whole[:5], rtol=1e-4, atol=1e-5)


def test_target_weights():
    rng = np.random.default_rng(0)
    X, y = sample(rng)
    y2 = np.column_stack([y, np.repeat(rng.normal(size=80), 6)])
    model = BCERegressor(1.0, target_weight=[1.0, 1e-6], **SMALL).fit(X, y2)
    assert np.corrcoef(model.predict(X)[:, 0], y)[0, 1] > 0.6
    for wrong in ([1.0], [1.0, -1.0]):
        with pytest.raises(ValueError, match="target_weight must have one positive entry"):
            BCERegressor(target_weight=wrong, **SMALL).fit(X, y2)


def test_unbiased_penalty_is_guarded():
    X, y = sample(np.random.default_rng(0), units=20)
    with pytest.raises(ValueError, match="no lower bound"):
        BCERegressor(20.0, penalty="unbiased", **SMALL).fit(X, y)


def test_rows_without_repeats_are_warned_about():
    rng = np.random.default_rng(0)
    with pytest.warns(mvue.exceptions.NoRepeatsWarning):
        BCERegressor(**SMALL).fit(rng.normal(size=(60, 2)), rng.normal(size=60))


def test_any_units_will_do():
    X, y = sample(np.random.default_rng(0))
    plain = BCERegressor(2.0, **SMALL).fit(X, y).score(X, y)
    for shift, scale in ((1e8, 1.0), (0.0, 1e-20), (0.0, 1e20)):
        model = BCERegressor(2.0, **SMALL).fit(X, shift + scale * y)
        assert abs(model.score(X, shift + scale * y) - plain) < 1e-3
    wide = BCERegressor(2.0, **SMALL).fit(np.float64(1e39) * X, y)
    assert abs(wide.score(1e39 * X, y) - plain) < 1e-3


def test_data_are_brought_to_standard_units_once():
    """A column that never varies, and components of y of very different size."""
    rng = np.random.default_rng(0)
    y = np.repeat(rng.uniform(1.0, 3.0, (20, 2)) * [1.0, 1e-3], 4, axis=0)
    X = np.column_stack([y + 1e-3 * rng.normal(size=y.shape), np.full(len(y), 1e6)])
    model = BCERegressor(0.0, hidden=(), steps=50, random_state=0).fit(X, y)
    linear, scale = model.fit_.estimator.layers
    assert linear.weight.shape == (2, 3)
    np.testing.assert_allclose(scale.fn.matrix[0] / scale.fn.matrix[1], 1e3, rtol=0.5)
    np.testing.assert_array_equal(scale.fn.shift, 0.0)
    assert np.isfinite(model.predict(X)).all()


def test_divergence_is_warned_about():
    X, y = sample(np.random.default_rng(0))
    with pytest.warns(ConvergenceWarning, match="diverged at step"):
        BCERegressor(**SMALL | {"learning_rate": 1e30}).fit(X, y)


def test_warm_start_with_other_columns_is_refused():
    X, y = sample(np.random.default_rng(0))
    model = BCERegressor(**SMALL | {"warm_start": True, "hidden": 4}).fit(X, y)
    with pytest.raises(ValueError, match=r"warm_start=True goes on with a network for 2 columns"):
        model.fit(X[:, :1], y)
