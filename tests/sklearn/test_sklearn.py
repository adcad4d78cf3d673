import math
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import mvue
from mvue._linear.regressed_moments import pairs_of
from mvue.sklearn import BCERegressor, LinearBCE, LinearBCECV, LinearBCEPath, linear_bce_path

# Random data of the common checks has no repeats, or too few rows for a large bias weight.
EXPECTED = [
    "ignore::mvue.exceptions.NoRepeatsWarning",
    "ignore::mvue.exceptions.UnresolvedSignalWarning",
    "ignore::mvue.exceptions.BiasToleranceWarning",
]


def expecting(test):
    for entry in EXPECTED:
        test = pytest.mark.filterwarnings(entry)(test)
    return test


@expecting
@parametrize_with_checks(
    [
        LinearBCE(),
        LinearBCE(math.inf, fit_intercept=False),
        LinearBCE(100.0, regularization=0.01, resolution=0.0),
        LinearBCECV(),
        LinearBCECV(rule="bias_tolerance"),
    ]
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def grouped(seed, units=60, repeats=4, p=3, d=2, noise=0.5, offset=2.0):
    rng = np.random.default_rng(seed)
    y = np.repeat(rng.normal(size=(units, d)), repeats, axis=0) + offset
    H = np.eye(d, p) + 0.2 * rng.normal(size=(d, p))
    x = y @ H + noise * rng.normal(size=(len(y), p))
    return x, y, np.repeat(np.arange(units), repeats)


def coefficients(model):
    return np.column_stack([model.coef_, np.broadcast_to(model.intercept_, len(model.coef_))])


def assert_same(a, b, tolerance=1e-10):
    np.testing.assert_allclose(coefficients(a), coefficients(b), rtol=0, atol=tolerance)


WEIGHTS = [0.0, 3.0, 1000.0, math.inf]


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("bias_weight", WEIGHTS)
def test_is_the_formula(seed, fit_intercept, bias_weight):
    x, y, unit = grouped(seed, p=2)
    rho = 1.0 if math.isinf(bias_weight) else bias_weight / (1 + bias_weight)
    means = np.stack([x[unit == u].mean(axis=0) for u in range(60)])
    W = (x - means[unit]).T @ (x - means[unit]) / (len(x) - 60)
    x0, y0 = (x.mean(axis=0), y.mean(axis=0)) if fit_intercept else (np.zeros(2), np.zeros(2))
    S, C = (x - x0).T @ (x - x0) / len(x), (y - y0).T @ (x - x0) / len(x)
    A = C @ np.linalg.inv(S - rho * W)
    model = LinearBCE(bias_weight, fit_intercept=fit_intercept).fit(x, y)
    np.testing.assert_allclose(model.coef_, A, rtol=0, atol=1e-10)
    np.testing.assert_allclose(model.intercept_, y0 - A @ x0, rtol=0, atol=1e-10)
    np.testing.assert_allclose(model.predict(x), (x - x0) @ A.T + y0, rtol=0, atol=1e-10)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_weight_zero_is_least_squares(seed, fit_intercept):
    x, y, _ = grouped(seed, p=5)
    model = LinearBCE(0.0, fit_intercept=fit_intercept).fit(x, y)
    assert_same(model, LinearRegression(fit_intercept=fit_intercept).fit(x, y))


@pytest.mark.parametrize("bias_weight", WEIGHTS)
def test_duplicated_units_change_nothing(seed, bias_weight):
    x, y, unit = grouped(seed, p=2)
    once = LinearBCE(bias_weight).fit(x, y)
    ids = np.concatenate([unit, unit + 1000])
    twice = LinearBCE(bias_weight).fit(np.vstack([x, x]), np.vstack([y, y]), unit_ids=ids)
    assert_same(once, twice)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    bias_weight=st.sampled_from(WEIGHTS),
    pieces=st.integers(1, 6),
    exponents=st.lists(st.floats(-8, 8), min_size=2, max_size=2),
    by_ids=st.booleans(),
)
def test_order_pieces_merging_and_units_of_x_change_nothing(
    seed, bias_weight, pieces, exponents, by_ids
):
    x, y, unit = grouped(seed, p=2, noise=0.3)
    ids = unit if by_ids else None
    whole = LinearBCE(bias_weight).fit(x, y, unit_ids=ids)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(x))
    streamed, shards = LinearBCE(bias_weight), []
    for piece in np.array_split(order, pieces):
        named = unit[piece] if by_ids else None
        streamed.partial_fit(x[piece], y[piece], unit_ids=named)
        shards.append(LinearBCE(bias_weight).partial_fit(x[piece], y[piece], unit_ids=named))
    merged = shards[0]
    for shard in shards[1:]:
        merged = merged.merge(shard)
    for other in (streamed, merged):
        assert_same(whole, other)
        assert other.n_units_ == 60
    factor = 10.0 ** np.array(exponents)
    rescaled = LinearBCE(bias_weight).fit(x * factor, y, unit_ids=ids)
    np.testing.assert_allclose(rescaled.predict(x * factor), whole.predict(x), atol=1e-10)


@pytest.mark.filterwarnings("ignore::mvue.exceptions.UnresolvedSignalWarning")
@pytest.mark.parametrize("bias_weight", WEIGHTS)
def test_linear_maps_of_x_change_nothing(seed, bias_weight):
    x, y, _ = grouped(seed, p=6, d=1)
    mix = np.random.default_rng(seed).normal(size=(6, 6)) + 3 * np.eye(6)
    plain, mixed = LinearBCE(bias_weight).fit(x, y), LinearBCE(bias_weight).fit(x @ mix, y)
    np.testing.assert_allclose(mixed.predict(x @ mix), plain.predict(x), atol=1e-10)


def test_weights_count_rows(seed):
    x, y, _ = grouped(seed, p=2)
    counts = np.random.default_rng(seed).integers(0, 4, len(x))
    counts[:2] = 1
    repeated = LinearBCE(5.0).fit(np.repeat(x, counts, axis=0), np.repeat(y, counts, axis=0))
    assert_same(LinearBCE(5.0).fit(x, y, sample_weight=counts), repeated)
    paths = [
        linear_bce_path(x, y, sample_weight=counts),
        linear_bce_path(np.repeat(x, counts, axis=0), np.repeat(y, counts, axis=0)),
    ]
    np.testing.assert_allclose(paths[0].mse, paths[1].mse, rtol=1e-10)


def test_units_split_across_pieces_are_one_unit(seed):
    x, y, _ = grouped(seed, p=2)
    whole = LinearBCE(math.inf).fit(x, y)
    streamed = LinearBCE(math.inf, max_open_units=1)
    for i in range(0, len(x), 7):  # borders inside units of 4 rows
        streamed.partial_fit(x[i : i + 7], y[i : i + 7])
    assert_same(whole, streamed)
    assert streamed.n_units_ == 60
    late = LinearBCE(max_open_units=1).fit(x, y)
    with pytest.raises(ValueError, match="sort the rows by unit, or raise max_open_units"):
        late.partial_fit(x[100:104], y[100:104])


@expecting
def test_pieces_are_one_fit(seed):
    x, y, ids = grouped(seed)
    whole = LinearBCE(3.0).fit(x, y, unit_ids=ids)
    model = LinearBCE(3.0).fit(pd.DataFrame(x[:, :2], columns=["a", "b"]), y)
    cuts = [slice(i, i + 50) for i in range(0, len(x), 50)]  # in the middle of units
    assert model.fit_pieces((x[cut], y[cut], ids[cut]) for cut in cuts) is model
    np.testing.assert_allclose(coefficients(model), coefficients(whole), rtol=1e-10)
    assert model.n_units_ == 60
    assert model.n_features_in_ == 3
    assert not hasattr(model, "feature_names_in_")  # nothing is left of the fit before
    before = model.coef_
    for pieces, error, message in (
        ([], ValueError, "at least one piece of data, got none"),
        ([x], TypeError, r"tuples \(X, y\) or \(X, y, unit_ids\), got ndarray"),
        ([(x, y), (x[:, :2], y)], ValueError, "X has 2 features"),
    ):
        with pytest.raises(error, match=message):
            model.fit_pieces(pieces)
        assert model.coef_ is before  # what is refused leaves no trace


def test_fit_starts_anew_and_partial_fit_goes_on(seed):
    x, y, _ = grouped(seed, p=2)
    model = LinearBCE().fit(x[:100], y[:100])
    first = model.coef_
    model.partial_fit(x[100:], y[100:])
    assert not np.allclose(model.coef_, first)
    assert_same(model, LinearBCE().fit(x, y))
    np.testing.assert_array_equal(model.fit(x[:100], y[:100]).coef_, first)


def test_large_offsets_cost_no_precision(seed):
    x, y, _ = grouped(seed, p=2)
    x = np.round(x * 2**20) / 2**20  # exact in float64 with an offset of 2^26
    plain = LinearBCE(100.0).fit(x, y)
    shifted = LinearBCE(100.0).fit(x + 2.0**26, y)
    np.testing.assert_allclose(shifted.coef_, plain.coef_, rtol=0, atol=1e-10)


def test_single_precision_input_is_summed_in_double(seed):
    x, y, _ = grouped(seed, p=2)
    single = x.astype(np.float32)
    assert_same(LinearBCE().fit(single, y), LinearBCE().fit(single.astype(float), y), 1e-14)


def test_bias_falls_with_the_bias_weight(seed):
    x, y, _ = grouped(seed, units=3000, p=1, d=1, noise=1.0, offset=0.0)
    slopes = [LinearBCE(w).fit(x, y).coef_[0, 0] for w in (0.0, 1.0, 10.0, math.inf)]
    assert np.all(np.diff(slopes) > 0)


def test_vector_and_matrix_y(seed):
    x, y, _ = grouped(seed, d=1)
    flat, column = LinearBCE(1.0).fit(x, y[:, 0]), LinearBCE(1.0).fit(x, y)
    assert flat.coef_.shape == (3,)
    assert isinstance(flat.intercept_, float)
    assert flat.predict(x).shape == (240,)
    assert column.coef_.shape == (1, 3)
    assert column.predict(x).shape == (240, 1)
    np.testing.assert_array_equal(column.coef_[0], flat.coef_)


def test_names_of_columns(seed):
    x, y, unit = grouped(seed)
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    targets = pd.DataFrame(y, columns=["east", "north"])
    model = LinearBCE(1.0).fit(frame, targets, unit_ids=pd.Series(unit).astype(str))
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    assert model.target_names_.tolist() == ["east", "north"]
    assert_same(model, LinearBCE(1.0).fit(x, y))
    other_ids = np.char.add("u", unit.astype(str))
    other = LinearBCE(1.0).fit(frame, targets, unit_ids=other_ids)
    merged = model.merge(other)
    assert merged.n_units_ == 120
    assert merged.feature_names_in_.tolist() == ["a", "b", "c"]
    assert merged.target_names_.tolist() == ["east", "north"]
    with pytest.raises(ValueError, match="same feature names"):
        model.merge(LinearBCE(1.0).fit(x, y))
    for changed in ({"bias_weight": 2.0}, {"bias_weight": 1.0, "regularization": 0.1}):
        with pytest.raises(ValueError, match=f"same {list(changed)[-1]} to be merged, got"):
            model.merge(LinearBCE(**changed).fit(frame, targets, unit_ids=other_ids))
    assert not hasattr(model.fit(x, y), "target_names_")
    single = LinearBCE(1.0).fit(frame, targets["east"])
    assert single.target_names_.tolist() == ["east"]


@pytest.mark.filterwarnings("ignore::mvue.exceptions.UnresolvedSignalWarning")
@pytest.mark.parametrize(
    "features",
    [
        RBFSampler(gamma=0.1, n_components=40, random_state=0),
        Nystroem(n_components=20, random_state=0),
        PolynomialFeatures(3),
    ],
)
def test_pipelines(features):
    x, y, unit = grouped(0, units=200, noise=0.2)
    model = make_pipeline(StandardScaler(), features, LinearBCE(10.0, regularization=1e-6))
    model.fit(x, y, linearbce__unit_ids=unit)
    assert model.score(x, y) > 0.8


def test_metadata_routing_and_search():
    import sklearn

    x, y, unit = grouped(0)
    with sklearn.config_context(enable_metadata_routing=True):
        model = LinearBCE().set_fit_request(unit_ids=True)
        scores = cross_val_score(
            model, x, y, cv=GroupKFold(3), params={"unit_ids": unit, "groups": unit}
        )
        assert (scores > 0.5).all()
    search = GridSearchCV(LinearBCE(), {"bias_weight": [0.0, 1.0]}, cv=GroupKFold(3))
    assert search.fit(x, y, groups=unit).best_params_["bias_weight"] in (0.0, 1.0)


def test_clone_pickle_and_stream_on(seed):
    x, y, _ = grouped(seed, p=2)
    model = LinearBCE(7.0).fit(x[:120], y[:120])
    again = pickle.loads(pickle.dumps(model)).partial_fit(x[120:], y[120:])
    assert_same(again, LinearBCE(7.0).fit(x, y))
    with pytest.raises(NotFittedError):
        clone(model).predict(x)
    with pytest.raises(NotFittedError):
        clone(model).merge(model)


def test_no_repeats_in_pieces_is_a_warning_that_says_so(seed):
    """What is not seen as a whole cannot be regressed."""
    x, y, _ = grouped(seed, repeats=1)
    with pytest.warns(mvue.exceptions.NoRepeatsWarning, match="ordinary least squares") as caught:
        model = LinearBCE(100.0).fit_pieces([(x[:20], y[:20]), (x[20:], y[20:])])
    assert caught[0].filename == __file__
    assert_same(model, LinearRegression().fit(x, y))


def errors_in_variables(rng, rows, p=4):
    """x = A theta + noise, whose size depends on theta; the limit of W and of the moments."""
    theta = rng.normal(size=(rows, 2))
    mix = np.array([[1.0, 0.5, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0]])
    sd = np.array([1.0, 0.5, 1.0, 1.0])
    size = 0.5 + (theta[:, 1] > 0)
    x = theta @ mix + size[:, None] * sd * rng.normal(size=(rows, p))
    signal, noise = mix.T @ mix, np.mean([0.5**2, 1.5**2]) * np.diag(sd**2)
    return x, theta, signal, noise


@pytest.mark.parametrize("bias_weight", [3.0, 10.0])
def test_without_repeats_the_answer_is_that_of_errors_in_variables(bias_weight, seed):
    rng = np.random.default_rng(seed)
    x, theta, signal, noise = errors_in_variables(rng, 20_000)
    y = theta[:, 0]
    model = LinearBCE(bias_weight).fit(x, y, theta=theta)
    total = signal + noise / (1 + bias_weight)
    exact = np.linalg.solve(total, signal @ np.linalg.lstsq(signal, [1.0, 0.5, 0, 0])[0])
    assert model.n_functions_ > 20
    np.testing.assert_allclose(model.coef_, exact, atol=0.08)
    plain = LinearRegression().fit(x, y).coef_
    assert np.abs(plain - exact).max() > 3 * np.abs(model.coef_ - exact).max()


def test_noise_without_repeats_is_unbiased(seed):
    """W of many small samples, about which theta it is whose noise it is."""
    rng = np.random.default_rng(seed)
    found, exact = [], []
    for _ in range(300):
        x, theta, _, noise = errors_in_variables(rng, 100)
        size = np.mean((0.5 + (theta[:, 1] > 0)) ** 2)
        pairs = pairs_of(x, theta[:, :1], None, theta)
        found.append(pairs.moments(x, theta[:, :1], slice(None)).noise_covariance)
        exact.append(noise * size / np.mean([0.5**2, 1.5**2]))
    found, exact = np.array(found), np.array(exact)
    error = (found - exact).mean(axis=0)
    spread = (found - exact).std(axis=0) / 300**0.5
    assert (np.abs(error) < 4.5 * spread).all()


def test_theta_that_is_not_given_is_said(seed):
    x, y, _ = grouped(seed, repeats=1)
    for model in (LinearBCE(2.0), LinearBCECV(cv=3)):
        with pytest.warns(
            mvue.exceptions.NoRepeatsWarning, match="smooth functions of y leave of x"
        ) as caught:
            model.fit(x, y)
        assert caught[0].filename == __file__
    again = pickle.loads(pickle.dumps(LinearBCE(2.0).fit(x, y, theta=y)))
    assert again.n_functions_ > 0
    more = again.set_params(bias_weight=5.0)  # moments are kept for another λ
    assert_same(more, LinearBCE(5.0).fit(x, y, theta=y))


@pytest.mark.parametrize("spoil", [{0: 100.0}, {0: 1e12}, dict.fromkeys(range(3), 0.0)])
def test_theta_with_a_few_wrong_entries(spoil, seed):
    """Functions that resolve a few rows alone would predict them as badly as can be."""
    rng = np.random.default_rng(seed)
    y = rng.uniform(1, 3, 400)
    x = np.column_stack([y + 0.3 * rng.normal(size=400), y**2 + 0.5 * rng.normal(size=400)])
    theta = y.copy()
    theta[list(spoil)] = list(spoil.values())
    pairs = pairs_of(x, y[:, None], None, theta[:, None])
    moments = pairs.moments(x, y[:, None], slice(None))
    scatter = (x - x.mean(axis=0)).T @ (x - x.mean(axis=0))
    noise = (scatter - moments.between_xx) / (400 - moments.functions)
    # The standard deviation of a variance of some 370 normal numbers is 7 % of it.
    np.testing.assert_allclose(np.diag(noise), [0.09, 0.25], rtol=0.3)


def test_cross_validation_without_repeats_sees_the_bias(seed):
    rng = np.random.default_rng(seed)
    x, theta, signal, _ = errors_in_variables(rng, 3000)
    path = linear_bce_path(x, theta[:, 0], theta=theta, bias_weights=[0.0, 20.0], cv=4)
    for coef, found, se in zip(path.coef, path.squared_bias, path.squared_bias_se, strict=True):
        off = np.linalg.lstsq(signal, signal @ coef[0])[0]  # the part that the signal has
        target = np.linalg.lstsq(signal, [1.0, 0.5, 0, 0])[0]
        exact = (off - target) @ signal @ (off - target)
        assert abs(found - exact) < 4 * se + 0.03
    assert path.squared_bias[1] < 0.1 * path.squared_bias[0]


def test_rows_that_are_copies_are_used_once(seed):
    x, y, _ = grouped(seed, repeats=1)
    again = np.concatenate([np.arange(len(x)), [0, 1]])
    with pytest.warns(mvue.exceptions.NoRepeatsWarning, match="2 of .* rows are copies"):
        model = LinearBCE(2.0).fit(x[again], y[again], theta=y[again])
    assert_same(model, LinearBCE(2.0).fit(x, y, theta=y))


@pytest.mark.parametrize(
    ("theta", "weights", "message"),
    [
        (np.ones((3, 2)), None, "theta must be finite and have the shape"),
        (np.array(["a"] * 40), None, "theta must hold real numbers"),
        (np.full(40, np.inf), None, "theta must be finite"),
        (np.arange(40.0), np.full(40, 2.0), "got sample_weight, too"),
    ],
)
def test_wrong_theta_is_refused(theta, weights, message):
    x, y = np.random.default_rng(0).normal(size=(40, 2)), np.arange(40.0)
    with pytest.raises((ValueError, TypeError), match=message):
        LinearBCE().fit(x, y, weights, theta=theta)


def test_more_features_than_units(seed):
    x, y, _ = grouped(seed, units=20, p=30, d=1)
    with pytest.warns(mvue.exceptions.UnresolvedSignalWarning, match="of 30 directions") as caught:
        model = LinearBCE(math.inf).fit(x, y)
    assert caught[0].filename == __file__
    # Without signal to be told from noise the estimator is least squares.
    largest = np.abs(LinearRegression().fit(x, y).predict(x)).max()
    assert np.abs(model.predict(x)).max() < 3 * largest


def test_choice_of_an_unresolved_bias_weight_is_a_warning(seed):
    x, y, _ = grouped(seed, units=20, p=30, d=1)
    with pytest.warns(
        mvue.exceptions.UnresolvedSignalWarning, match="bias_weight=inf asks"
    ) as caught:
        LinearBCECV([math.inf]).fit(x, y)
    assert caught[0].filename == __file__


def test_warning_of_a_late_solution_points_to_the_caller(seed):
    x, y, _ = grouped(seed, units=20, p=30, d=1)
    model = LinearBCE(math.inf).partial_fit(x, y)
    with pytest.warns(mvue.exceptions.UnresolvedSignalWarning) as caught:
        _ = model.coef_
    assert caught[0].filename == __file__


def test_collinear_and_constant_features(seed):
    x, y, _ = grouped(seed, p=2)
    wide = np.column_stack([x, x[:, 0] - 2 * x[:, 1], np.full(len(x), 0.1)])
    plain, redundant = LinearBCE(50.0).fit(x, y), LinearBCE(50.0).fit(wide, y)
    np.testing.assert_allclose(redundant.predict(wide), plain.predict(x), atol=1e-8)
    assert redundant.noise_shares_.shape == (2,)


def test_ridge_shrinks_whatever_the_units(seed):
    x, y, _ = grouped(seed, p=2)
    free, held = LinearBCE(5.0).fit(x, y), LinearBCE(5.0, regularization=1.0).fit(x, y)
    assert np.linalg.norm(held.coef_) < np.linalg.norm(free.coef_)
    factor = np.array([1e3, 1e-3])
    other = LinearBCE(5.0, regularization=1.0).fit(x * factor, y)
    np.testing.assert_allclose(other.predict(x * factor), held.predict(x), atol=1e-10)


@pytest.mark.filterwarnings("ignore::mvue.exceptions.UnresolvedSignalWarning")
def test_path_is_the_fit_of_every_bias_weight(seed):
    x, y, unit = grouped(seed, p=4)
    path = linear_bce_path(x, y, bias_weights=[0.0, 2.0, 300.0, math.inf])
    assert isinstance(path, LinearBCEPath)
    for i, bias_weight in enumerate(path.bias_weights):
        model = LinearBCE(bias_weight).fit(x, y, unit_ids=unit)
        np.testing.assert_allclose(path.coef[i], model.coef_, atol=1e-10)
        np.testing.assert_allclose(path.intercept[i], model.intercept_, atol=1e-10)
    assert linear_bce_path(x, y).bias_weights.shape == (50,)


def test_path_errors_are_those_of_held_out_units(seed):
    x, y, unit = grouped(seed, p=2)
    weights = [0.0, 5.0, 100.0]
    splits = list(GroupKFold(4).split(x, y, unit))
    mse, bias, rows = np.zeros(3), np.zeros(3), 0
    for train, test in splits:
        for i, bias_weight in enumerate(weights):
            model = LinearBCE(bias_weight).fit(x[train], y[train])
            errors = (model.predict(x[test]) - y[test]).reshape(-1, 4, 2)
            truth = y[test].reshape(-1, 4, 2)[:, 0]
            mse[i] += len(test) * mvue.losses.emmse_loss(errors + truth[:, None], truth)
            bias[i] += len(test) * mvue.losses.squared_bias(errors + truth[:, None], truth)
        rows += len(test)
    for cv in (GroupKFold(4), splits):
        path = linear_bce_path(x, y, bias_weights=weights, cv=cv)
        np.testing.assert_allclose(path.mse, mse / rows, rtol=1e-10)
        np.testing.assert_allclose(path.squared_bias, bias / rows, rtol=1e-8)
        np.testing.assert_allclose(path.variance + path.squared_bias, path.mse, rtol=1e-12)


def test_path_finds_bias_and_variance_of_the_model(seed):
    x, y, _ = grouped(seed, units=4000, p=1, d=1, noise=1.0, offset=0.0)
    path = linear_bce_path(x, y, bias_weights=[0.0, 10.0, math.inf])
    # x = h y + n with var(y) = var(n) = 1: A = h / (h² + 1/(λ+1)), bias² = (A h − 1)².
    h = np.sum(x * y) / np.sum(y * y)
    A = np.array([h / (h**2 + 1), h / (h**2 + 1 / 11), 1 / h])
    # The spread of A, y and n is 1/√units each; four standard errors of the fold mean besides.
    slack = 8 / np.sqrt(4000)
    assert (np.abs(path.squared_bias - (A * h - 1) ** 2) < 4 * path.squared_bias_se + slack).all()
    assert (np.abs(path.variance - A**2) < 4 * path.variance_se + slack * A**2).all()
    assert path.mse[0] < path.mse[1] < path.mse[2]


def test_choice_of_the_bias_weight(seed):
    x, y, _ = grouped(seed, units=2000, p=1, d=1, noise=1.0, offset=0.0)
    lowest = LinearBCECV().fit(x, y)
    assert lowest.bias_weight_ == lowest.path_.bias_weights[np.argmin(lowest.path_.mse)]
    assert lowest.bias_weight_ < 0.5
    tight = LinearBCECV(rule="bias_tolerance", bias_tolerance=0.3).fit(x, y)
    path = tight.path_
    chosen = list(path.bias_weights).index(tight.bias_weight_)
    allowed = path.squared_bias <= 0.09 * path.variance
    assert allowed[chosen]
    assert path.mse[chosen] == path.mse[allowed].min()
    assert tight.bias_weight_ > 1
    assert_same(tight, LinearBCE(tight.bias_weight_).fit(x, y))
    with pytest.warns(
        mvue.exceptions.BiasToleranceWarning, match="no bias weight reaches"
    ) as caught:
        LinearBCECV([0.0, 0.1], rule="bias_tolerance", bias_tolerance=0.01).fit(x, y)
    assert caught[0].filename == __file__


def test_path_plot():
    x, y, _ = grouped(0, p=2)
    figure = linear_bce_path(x, y).plot()
    (ax,) = figure.axes
    assert len(ax.lines) == 3
    labels = [tick.get_text() for tick in ax.get_xticklabels()]
    assert labels[0] == "0\nLMMSE"
    assert labels[-1] == "∞\nWLS"
    assert len(linear_bce_path(x, y, bias_weights=[0.0, math.inf]).plot().axes) == 1


X, Y, UNIT = grouped(0)


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        (LinearBCE(-1.0), {}, "'bias_weight' parameter of LinearBCE must be a float in the range"),
        (LinearBCE(math.nan), {}, "'bias_weight' parameter"),
        (LinearBCE(regularization=-1), {}, "'regularization' parameter"),
        (LinearBCE(resolution="low"), {}, "'resolution' parameter"),
        (LinearBCE(max_open_units=0), {}, "'max_open_units' parameter"),
        (LinearBCE(), {"X": X[:5]}, "inconsistent numbers of samples"),
        (LinearBCE(), {"X": np.where(X[3, 1] == X, np.nan, X)}, "NaN"),
        (LinearBCE(), {"y": np.where(Y[3, 1] == Y, np.nan, Y)}, "NaN"),
        (LinearBCE(), {"y": np.zeros(240)}, "at least 2 units"),
        (LinearBCE(), {"unit_ids": UNIT[:9]}, "inconsistent numbers of samples"),
        (LinearBCE(), {"unit_ids": UNIT // 2}, "y must be the same in all rows of a unit"),
        (LinearBCE(), {"unit_ids": np.where(UNIT == 3, np.nan, UNIT)}, "unit_ids must be finite"),
        (
            LinearBCE(),
            {"sample_weight": -np.ones(240)},
            "must not be negative, got -1",
        ),
        (LinearBCE(), {"sample_weight": np.full(240, 1e-3)}, "rescale it to a mean of 1"),
        (LinearBCECV([]), {}, "bias_weights must be a list of numbers"),
        (LinearBCECV([1.0, -1.0]), {}, "bias_weights must be a list of numbers"),
        (LinearBCECV(rule="best"), {}, "'rule' parameter"),
        (LinearBCECV(cv=1), {}, "'cv' parameter"),
        (LinearBCECV(), {"y": np.zeros(240)}, "needs at least 2"),
    ],
)
def test_bad_input(model, arguments, message):
    with pytest.raises(ValueError, match=message):
        model.fit(**({"X": X, "y": Y} | arguments))


def test_all_zero_weights():
    with pytest.raises(ValueError, match="zero"):
        LinearBCE().fit(X, Y, sample_weight=np.zeros(240))


@pytest.mark.parametrize("model", [LinearBCE(), LinearBCECV()])
def test_sparse_input_is_refused(model):
    with pytest.raises(TypeError, match="Sparse data was passed"):
        model.fit(sparse.csr_array(X), Y)


def test_import_without_scikit_learn_names_the_extra():
    code = "import sys; sys.modules['sklearn.base'] = None; import mvue.sklearn"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'mvue[sklearn]'" in done.stderr


def repeated(seed=0, units=60):
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(units), 4)
    y = np.repeat(rng.normal(size=units), 4)
    return y[:, None] + 0.5 * rng.normal(size=(y.size, 2)), y, ids


def test_parameters_set_late_count():
    X, y, _ = repeated()
    model = LinearBCE(0.0).partial_fit(X, y)
    least_squares = model.coef_
    model.set_params(bias_weight=5.0)
    np.testing.assert_array_equal(model.coef_, LinearBCE(5.0).fit(X, y).coef_)
    assert not np.array_equal(model.coef_, least_squares)
    with pytest.raises(ValueError, match="bias_weight"):
        _ = model.set_params(bias_weight=-5.0).coef_


def test_ids_mean_the_same_in_every_chunk():
    X, y, ids = repeated()
    times = np.datetime64("2020-01-01") + ids
    mixed = np.where(ids % 2, ids + 0.5, ids)
    for chunks in ([mixed] * 3, [times, times.astype("datetime64[s]"), times]):
        model = LinearBCE(1.0)
        for (a, b), unit_ids in zip(((0, 122), (122, 124), (124, 240)), chunks, strict=True):
            model.partial_fit(X[a:b], y[a:b], unit_ids=unit_ids[a:b])
        assert model.n_units_ == 60
    model = LinearBCE(1.0).partial_fit(X[:100], y[:100], unit_ids=ids[:100])
    with pytest.raises(ValueError, match="strings after one grouped by unit_ids that are numbers"):
        model.partial_fit(X[100:], y[100:], unit_ids=ids[100:].astype(str))


def test_targets_are_never_mixed_up():
    X, y, _ = repeated()
    a = pd.DataFrame({"a": y, "b": 2 * y})
    b = a[["b", "a"]]
    with pytest.raises(ValueError, match="same column names"):
        LinearBCE(1.0).partial_fit(X, a).partial_fit(X, b)
    with pytest.raises(ValueError, match="same target names"):
        LinearBCE(1.0).fit(X, a).merge(LinearBCE(1.0).fit(X, b))
    with pytest.raises(TypeError, match="must be a LinearBCE"):
        LinearBCE(1.0).fit(X, y).merge(LinearBCECV([1.0]).fit(X, y))


def test_folds_without_repeats_do_not_turn_variance_into_bias():
    rng = np.random.default_rng(0)
    sizes = np.where(np.arange(100) % 2, 4, 1)
    y = np.repeat(rng.normal(size=100), sizes)
    X = y[:, None] + 0.5 * rng.normal(size=(y.size, 2))
    few, many = (linear_bce_path(X, y, bias_weights=[0.0, 5.0], cv=cv) for cv in (5, 100))
    np.testing.assert_allclose(many.squared_bias, few.squared_bias, atol=0.015)


def test_one_split_has_no_standard_error():
    X, y, _ = repeated()
    half = np.arange(len(y)) < 120
    split = [(np.flatnonzero(half), np.flatnonzero(~half))]
    path = linear_bce_path(X, y, bias_weights=[1.0], cv=split)
    assert np.isnan(path.mse_se).all()


SCALES = (1e-300, 1e-200, 1e-160, 1e160, 1e200, 1e300)


def repeated_rows(seed):
    """Three columns, of which each tells y, in directions that the sample can resolve."""
    rng = np.random.default_rng(seed)
    means = np.repeat(rng.normal(size=(60, 3)), 4, axis=0)
    return means + 0.3 * rng.normal(size=(240, 3)), means @ [1.0, -2.0, 0.5]


@pytest.mark.parametrize("scale", SCALES)
def test_predictions_do_not_depend_on_units_whose_squares_are_out_of_range(scale, seed, tmp_path):
    X, y = repeated_rows(seed)
    expected = LinearBCE(10.0).fit(X, y).predict(X)
    units = np.array([scale, 1.0, 1 / scale])
    pieces = LinearBCE(10.0)
    for half in (slice(0, 120), slice(120, None)):
        pieces.partial_fit(X[half] * units, y[half] * scale)
    path = tmp_path / "m.mvue"
    mvue.save(pieces, path)
    for model in (
        LinearBCE(10.0).fit(X * units, y * scale),
        LinearBCECV([10.0]).fit(X * units, y * scale),
        pieces,
        mvue.load(path).estimator,
        mvue.load(path),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mvue.exceptions.OutsideTrainingWarning)
            found = model.predict(X * units) / scale
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_estimators_of_units_that_are_too_different_are_not_merged(seed):
    X, y = repeated_rows(seed)
    one, other = LinearBCE(1.0).fit(X, y), LinearBCE(1.0).fit(X * 1e-200, y)
    with pytest.raises(ValueError, match="about the same sizes to be merged"):
        one.merge(other)
    parts = [LinearBCE(1.0).fit(X[i::2] * 1e-200, y[i::2]) for i in (0, 1)]
    np.testing.assert_allclose(
        parts[0].merge(parts[1]).predict(X * 1e-200), one.predict(X), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_networks_do_not_depend_on_units(scale):
    X, y = repeated_rows(0)
    settings = {"hidden": (4,), "steps": 5, "random_state": 0}
    expected = BCERegressor(3.0, **settings).fit(X, y).predict(X)
    found = BCERegressor(3.0, **settings).fit(X * scale, y * scale).predict(X * scale)
    np.testing.assert_allclose(found / scale, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e160])
@pytest.mark.parametrize("model", [LinearBCE(10.0), LinearBCECV(rule="bias_tolerance")])
def test_saved_linear_estimators_see_measurements_outside(model, scale, seed, tmp_path):
    rng = np.random.default_rng(seed)
    y = np.repeat(rng.uniform(1, 3, 300), 5)
    x = scale * (y[:, None] + 0.3 * rng.normal(size=(1500, 2)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mvue.exceptions.BiasToleranceWarning)
        mvue.save(clone(model).fit(x, y), tmp_path / "m.mvue")
    loaded = mvue.load(tmp_path / "m.mvue")
    assert loaded.outside(scale * np.array([[1e6, -1e6], [2.0, 2.0]])).tolist() == [True, False]
