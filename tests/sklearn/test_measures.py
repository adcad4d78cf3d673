import math
import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_validate

import mvue
import sklearn
from mvue.sklearn import (
    BiasDecomposition,
    LinearBCE,
    SquaredBias,
    WithinUnitsBlockSplit,
    WithinUnitsShuffleSplit,
    bias_decomposition,
    linear_bce_path,
    make_squared_bias_scorer,
    mean_squared_bias,
    mean_squared_bias_scorer,
    unit_ids_of,
)


def predictions(seed, units=25, largest=6, d=2, noise=0.7):
    """Predictions of units of 1 to `largest` rows, with a bias of 0.3 y."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, largest + 1, units)
    sizes[:2] = largest
    unit = np.repeat(np.arange(units), sizes)
    y = rng.uniform(-1, 1, size=(units, d))[unit]
    return y, 1.3 * y + noise * rng.normal(size=y.shape), unit


def by_hand(y, predicted, unit, min_repeats, unbiased):
    """Squared bias of each unit and component, pair by pair."""
    found = []
    for u in np.unique(unit):
        errors = (predicted - y)[unit == u]
        m = len(errors)
        if m >= min_repeats:
            pairs = [(i, j) for i in range(m) for j in range(m) if i != j or not unbiased]
            found.append(np.mean([errors[i] * errors[j] for i, j in pairs], axis=0))
    return np.array(found)


@pytest.mark.parametrize("unbiased", [True, False])
@pytest.mark.parametrize("min_repeats", [2, 4])
def test_is_the_mean_over_units_of_products_of_errors(seed, min_repeats, unbiased):
    y, predicted, unit = predictions(seed)
    per_unit = by_hand(y, predicted, unit, min_repeats, unbiased)
    options = {"min_repeats": min_repeats, "unbiased": unbiased, "return_se": True}
    for multioutput, expected in [
        ("raw_values", per_unit),
        ("uniform_average", per_unit.mean(axis=1)),
        ("sum", per_unit.sum(axis=1)),
    ]:
        got = mean_squared_bias(y, predicted, multioutput=multioutput, **options)
        assert isinstance(got, SquaredBias)
        assert got.units == len(per_unit)
        np.testing.assert_allclose(got.value, expected.mean(axis=0), rtol=1e-12)
        se = expected.std(axis=0, ddof=1) / math.sqrt(len(per_unit))
        np.testing.assert_allclose(got.se, se, rtol=1e-12)
    assert isinstance(mean_squared_bias(y, predicted), float)


def test_balanced_data_give_the_numbers_of_the_loss(seed):
    rng = np.random.default_rng(seed)
    y = rng.normal(size=(30, 2))
    estimates = y[:, None] + rng.normal(size=(30, 5, 2))
    rows = np.repeat(y, 5, axis=0), estimates.reshape(150, 2)
    for unbiased, penalty in ((True, "unbiased"), (False, "plug-in")):
        loss = mvue.losses.squared_bias(estimates, y, penalty=penalty)
        value = mean_squared_bias(*rows, unbiased=unbiased, multioutput="sum")
        assert value == pytest.approx(loss, rel=1e-12)
    parts = bias_decomposition(*rows, multioutput="sum")
    assert parts.mse == pytest.approx(mvue.losses.emmse_loss(estimates, y), rel=1e-12)


def test_decomposition(seed):
    y, predicted, unit = predictions(seed, d=3)
    for multioutput in ("uniform_average", "sum", "raw_values"):
        parts = bias_decomposition(y, predicted, min_repeats=3, multioutput=multioutput)
        bias = mean_squared_bias(
            y, predicted, min_repeats=3, multioutput=multioutput, return_se=True
        )
        np.testing.assert_allclose(parts.squared_bias + parts.variance, parts.mse, rtol=1e-12)
        np.testing.assert_array_equal(parts.squared_bias, bias.value)
        np.testing.assert_array_equal(parts.squared_bias_se, bias.se)
        assert parts.units == bias.units
    kept = [u for u in range(25) if np.sum(unit == u) >= 3]
    within = [predicted[unit == u].var(axis=0, ddof=1) for u in kept]
    np.testing.assert_allclose(parts.variance, np.mean(within, axis=0), rtol=1e-12)
    assert isinstance(parts, BiasDecomposition)
    assert parts.mse_se.shape == parts.variance_se.shape == (3,)


def test_large_bias_costs_the_variance_no_digits(seed):
    y, predicted, _ = predictions(seed)
    far = bias_decomposition(y, predicted + 1e7)
    assert far.variance == pytest.approx(bias_decomposition(y, predicted).variance, rel=1e-6)


def test_finds_the_bias_and_standard_errors_are_right(seed):
    truth = {"squared_bias": 0.09 / 3, "variance": 0.49, "mse": 0.52}
    scores = {name: [] for name in truth}
    plug_in = []
    for replication in range(400):
        y, predicted, _ = predictions([seed, replication], units=150)
        parts = bias_decomposition(y, predicted)
        for name, value in truth.items():
            scores[name].append((getattr(parts, name) - value) / getattr(parts, f"{name}_se"))
        plug_in.append(mean_squared_bias(y, predicted, unbiased=False))
    for z in scores.values():
        # Standard error of the mean of 400 scores 0.05, of their standard deviation 0.035; the
        # standard error of a skewed mean is correlated with it, which shifts z by about 0.1.
        assert abs(np.mean(z)) < 0.3
        assert abs(np.std(z) - 1) < 0.15
    # The other estimate counts variance / rows as bias: E 1/m = 0.29 for 2 to 6 rows.
    assert np.mean(plug_in) == pytest.approx(0.03 + 0.49 * 0.29, rel=0.03)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    d=st.integers(1, 3),
    unbiased=st.booleans(),
    min_repeats=st.integers(2, 5),
    scale=st.floats(1e-3, 1e3),
    shift=st.floats(-10, 10),
)
def test_order_names_and_units_of_y(seed, d, unbiased, min_repeats, scale, shift):
    y, predicted, unit = predictions(seed, d=d)

    def measure(y, predicted, unit=None, **options):
        options = {"unbiased": unbiased, "min_repeats": min_repeats} | options
        return mean_squared_bias(
            y, predicted, unit_ids=unit, multioutput="raw_values", return_se=True, **options
        )

    def assert_same(a, b):
        assert a.units == b.units
        np.testing.assert_allclose(a.value, b.value, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(a.se, b.se, rtol=1e-9, atol=1e-12)

    plain = measure(y, predicted)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    assert_same(measure(y[order], predicted[order]), plain)
    names = rng.permutation(10_000)[:25]
    assert_same(measure(y[order], predicted[order], names[unit][order]), plain)
    assert_same(measure(y[order], predicted[order], names.astype(str)[unit][order]), plain)
    moved = measure(y + shift, predicted + shift, unit)
    assert_same(moved, plain)
    rescaled = measure(scale * y, scale * predicted, unit)
    factor = scale**2
    assert_same(rescaled._replace(value=rescaled.value / factor, se=rescaled.se / factor), plain)
    # The same units a second time change nothing but the standard error, and so do rows of units
    # that have too few of them.
    twice = measure(np.vstack([y, y]), np.vstack([predicted] * 2), np.append(unit, unit + 25))
    shrink = math.sqrt((plain.units - 1) / (2 * plain.units - 1))
    assert_same(twice._replace(units=plain.units), plain._replace(se=plain.se * shrink))
    alone = rng.normal(size=(4, d)) + 5
    assert_same(measure(np.vstack([y, alone]), np.vstack([predicted, alone + 9])), plain)
    # Copies of rows are no new rows, which only the plug-in estimate is indifferent to.
    copied = [np.repeat(values, 2, axis=0) for values in (y, predicted)]
    again = measure(*copied, unbiased=False, min_repeats=2 * min_repeats)
    assert_same(again, measure(y, predicted, unbiased=False))
    if unbiased:
        assert (measure(*copied, min_repeats=2 * min_repeats).value > plain.value).all()


def test_kinds_of_input(seed):
    y, predicted, unit = predictions(seed, d=1)
    flat = mean_squared_bias(y[:, 0], predicted[:, 0])
    assert mean_squared_bias(y, predicted) == flat
    assert mean_squared_bias(y[:, 0], predicted) == flat
    assert mean_squared_bias(list(y[:, 0]), pd.Series(predicted[:, 0])) == flat
    frame = pd.DataFrame({"y": y[:, 0], "place": unit}).astype({"place": "category"})
    assert mean_squared_bias(frame["y"], predicted, unit_ids=frame["place"]) == flat
    assert mean_squared_bias(y[:, 0], predicted, multioutput="raw_values").shape == (1,)
    single = mean_squared_bias(y[unit == 0], predicted[unit == 0], return_se=True)
    assert single.units == 1
    assert math.isnan(single.se)


Y, PREDICTED, UNIT = predictions(0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"y_pred": PREDICTED[:5]},
            r"y_pred must have the shape of y_true, \(\d+, 2\).*got \(5, 2",
        ),
        ({"y_pred": PREDICTED[:, 0]}, "y_pred must have the shape of y_true"),
        ({"y_pred": PREDICTED[None]}, r"y_pred must have shape \(n,\) or \(n, d\)"),
        ({"y_pred": np.where(UNIT[:, None] == 3, np.nan, PREDICTED)}, "y_pred must be finite, got"),
        ({"y_true": np.where(UNIT[:, None] == 3, np.inf, Y)}, "y_true must be finite, got NaN or"),
        ({"unit_ids": UNIT[:9]}, r"unit_ids must have one entry per row, shape \(\d+,\), got \(9,"),
        ({"unit_ids": UNIT // 2}, "must be the same in all rows of a unit"),
        ({"min_repeats": 1}, "min_repeats must be an integer of at least 2, got 1"),
        ({"min_repeats": 2.5}, "min_repeats must be an integer"),
        ({"min_repeats": 7}, "got 25 units of which the largest has 6, counting .* equal y_true"),
        ({"min_repeats": 8, "unit_ids": UNIT}, "the largest has 6, counting .* the same unit id"),
        ({"multioutput": "mean"}, "multioutput must be 'uniform_average', 'raw_values' or 'sum'"),
    ],
)
@pytest.mark.parametrize("measure", [mean_squared_bias, bias_decomposition])
def test_bad_input(measure, arguments, message):
    with pytest.raises(ValueError, match=message):
        measure(**({"y_true": Y, "y_pred": PREDICTED} | arguments))


def grouped(seed, units=300, repeats=4, noise=0.5):
    """x = y + noise, and nothing else."""
    rng = np.random.default_rng(seed)
    y = np.repeat(rng.normal(size=units), repeats)
    return y[:, None] + noise * rng.normal(size=(y.size, 1)), y


def least_mse_of_small_bias(results):
    mse, bias = -results["mean_test_mse"], -results["mean_test_bias"]
    return int(np.argmin(np.where(bias < 0.006, mse, np.inf)))


def test_search_for_the_bias_weight(seed):
    X, y = grouped(seed, units=3000, repeats=8)
    search = GridSearchCV(
        LinearBCE(),
        {"bias_weight": [0.0, 1.0, 10.0, 100.0]},
        scoring={"mse": "neg_mean_squared_error", "bias": mean_squared_bias_scorer},
        refit=least_mse_of_small_bias,
        cv=GroupKFold(5),
    ).fit(X, y, groups=unit_ids_of(y))
    # x = y + n with var(y) = 1, var(n) = 1/4: A = 1 / (1 + 1/(4(λ+1))), bias² = (A − 1)².
    bias, mse = -search.cv_results_["mean_test_bias"], -search.cv_results_["mean_test_mse"]
    A = 1 / (1 + 0.25 / (1 + np.array([0.0, 1.0, 10.0, 100.0])))
    # The standard deviation of the mean over 3000 units is 0.0009.
    np.testing.assert_allclose(bias, (A - 1) ** 2, atol=0.005)
    assert mse[0] < mse[1] < mse[2] < mse[3]
    assert search.best_params_ == {"bias_weight": 10.0}
    assert search.best_estimator_.bias_weight == 10.0
    # Held-out units and their errors are those of the path.
    path = linear_bce_path(X, y, bias_weights=[0.0, 1.0, 10.0, 100.0], cv=GroupKFold(5))
    np.testing.assert_allclose(mse, path.mse, rtol=1e-10)
    np.testing.assert_allclose(bias, path.squared_bias, rtol=1e-8, atol=1e-12)


def test_scorers():
    X, y = grouped(0)
    model = LinearBCE(0.0).fit(X, y)
    plain = mean_squared_bias_scorer(model, X, y)
    assert plain == -mean_squared_bias(y, model.predict(X)) < 0
    scorer = make_squared_bias_scorer(min_repeats=4, unbiased=False)
    assert scorer(model, X, y) == -mean_squared_bias(y, model.predict(X), unbiased=False) < plain
    assert pickle.loads(pickle.dumps(scorer))(model, X, y) == scorer(model, X, y)
    assert "mean_squared_bias" in repr(scorer)
    too_few = make_squared_bias_scorer(min_repeats=5)
    with pytest.raises(ValueError, match="the largest has 4"):
        too_few(model, X, y)


def test_ids_are_routed():
    X, y = grouped(0)
    y = np.round(y, 1)  # several units with equal y
    unit = np.repeat(np.arange(300), 4)
    with sklearn.config_context(enable_metadata_routing=True):
        found = cross_validate(
            LinearBCE(1.0).set_fit_request(unit_ids=True),
            X,
            y,
            cv=GroupKFold(3),
            scoring={
                "ids": make_squared_bias_scorer().set_score_request(unit_ids=True),
                "equal_y": make_squared_bias_scorer().set_score_request(unit_ids=False),
            },
            params={"unit_ids": unit, "groups": unit},
        )
        within = cross_validate(
            LinearRegression(),
            X,
            y,
            cv=WithinUnitsShuffleSplit(3, test_size=0.5, random_state=0),
            scoring=make_squared_bias_scorer().set_score_request(unit_ids=True),
            params={"unit_ids": unit, "groups": unit},
        )
    for i, (train, test) in enumerate(GroupKFold(3).split(X, y, unit)):
        model = LinearBCE(1.0).fit(X[train], y[train], unit_ids=unit[train])
        truth, estimate = y[test], model.predict(X[test])
        by_ids = mean_squared_bias(truth, estimate, unit_ids=unit[test])
        assert found["test_ids"][i] == pytest.approx(-by_ids, rel=1e-12)
        assert found["test_equal_y"][i] == pytest.approx(-mean_squared_bias(truth, estimate))
        assert found["test_ids"][i] != pytest.approx(found["test_equal_y"][i])
    assert np.isfinite(within["test_score"]).all()


def test_unit_ids_of():
    assert unit_ids_of([3.0, 1.0, 3.0, 2.0, 1.0]).tolist() == [0, 1, 0, 2, 1]
    assert unit_ids_of([[0.0, 1.0], [0.0, 2.0], [-0.0, 1.0]]).tolist() == [0, 1, 0]
    assert unit_ids_of(pd.Series([5, 5, 4])).tolist() == [0, 0, 1]
    with pytest.raises(ValueError, match="y must be finite, got NaN or infinity in 1 of 2 rows"):
        unit_ids_of([1.0, math.nan])


units = st.lists(st.integers(1, 12), min_size=1, max_size=12)
seeds = st.integers(0, 2**32 - 1)


def shuffled_units(sizes, seed, by_groups):
    """Rows in random order: X, y and groups as a splitter takes them, and the unit of each row."""
    unit = np.repeat(np.arange(len(sizes)), sizes)
    rng = np.random.default_rng(seed)
    unit = rng.permutation(unit)
    X = np.zeros((unit.size, 1))
    if by_groups:
        return (X, None, np.array([f"place {u}" for u in unit])), unit
    return (X, rng.normal(size=(len(sizes), 2))[unit], None), unit


def assert_known_units(train, test, unit):
    """Rows are used once, and no unit is new to the test."""
    assert test.size
    assert train.size
    assert np.all(np.diff(train) > 0)
    assert np.all(np.diff(test) > 0)
    assert not set(train) & set(test)
    assert set(unit[test]) <= set(unit[train])


@settings(max_examples=60, deadline=None)
@given(sizes=units, seed=seeds, by_groups=st.booleans(), test_size=st.floats(0.01, 0.99))
def test_shuffle_split_of_any_units(sizes, seed, by_groups, test_size):
    data, unit = shuffled_units(sizes, seed, by_groups)
    sizes = np.array(sizes)
    wanted = np.minimum(test_size * sizes, sizes - 1)
    cv = WithinUnitsShuffleSplit(4, test_size=test_size, random_state=seed)
    assert cv.get_n_splits(*data) == 4
    if sizes.max() < 2:
        with pytest.raises(ValueError, match="must have at least 2 rows to hold one of them out"):
            next(cv.split(*data))
        return
    splits = list(cv.split(*data))
    assert len(splits) == 4
    for train, test in splits:
        assert_known_units(train, test, unit)
        assert train.size + test.size == unit.size
        held_out = np.bincount(unit[test], minlength=sizes.size)
        assert (np.floor(wanted) <= held_out).all()
        assert (held_out <= np.ceil(wanted)).all()
        assert abs(held_out.sum() - max(wanted.sum(), 1)) < 1 + 1e-9
    for (_, a), (_, b) in zip(splits, cv.split(*data), strict=True):
        np.testing.assert_array_equal(a, b)


def test_shuffle_split_holds_out_every_row_as_often(seed):
    unit = np.repeat(np.arange(20), np.arange(1, 21))
    cv = WithinUnitsShuffleSplit(4000, random_state=seed)
    times = sum(np.bincount(test, minlength=unit.size) for _, test in cv.split(unit, unit))
    share = times / 4000
    assert (share[unit == 0] == 0).all()
    # Five standard errors of a share of 4000 draws.
    assert np.abs(share[unit > 0] - 1 / 3).max() < 5 * math.sqrt(2 / 9 / 4000)
    first, second = list(WithinUnitsShuffleSplit(2, random_state=seed).split(unit, unit))
    assert not np.array_equal(first[1], second[1])


def test_shuffle_split_does_not_look_at_names(seed):
    data, unit = shuffled_units([5, 3, 8, 1], seed, by_groups=False)
    cv = WithinUnitsShuffleSplit(3, random_state=seed)
    names = np.array(["d", "a", "c", "b"])[unit]
    for (_, a), (_, b) in zip(cv.split(*data), cv.split(data[0], groups=names), strict=True):
        np.testing.assert_array_equal(a, b)


@settings(max_examples=60, deadline=None)
@given(
    sizes=units,
    seed=seeds,
    by_groups=st.booleans(),
    n_splits=st.integers(2, 6),
    gap=st.integers(0, 3),
)
def test_block_split_of_any_units(sizes, seed, by_groups, n_splits, gap):
    data, unit = shuffled_units(sizes, seed, by_groups)
    cv = WithinUnitsBlockSplit(n_splits, gap=gap)
    assert cv.get_n_splits(*data) == n_splits
    if max(sizes) < max(n_splits, 2):
        with pytest.raises(ValueError, match="lower n_splits or gap"):
            list(cv.split(*data))
        return
    held_out = np.zeros(unit.size, int)
    try:
        splits = list(cv.split(*data))
    except ValueError:
        # Some stretch with its gaps is as long as the unit.
        assert gap
        assert max(sizes) <= math.ceil(max(sizes) / n_splits) + 2 * gap
        return
    assert len(splits) == n_splits
    for train, test in splits:
        assert_known_units(train, test, unit)
        held_out[test] += 1
        for u in range(len(sizes)):
            rows = np.flatnonzero(unit == u)
            tested, trained = np.isin(rows, test), np.isin(rows, train)
            if not tested.any():
                assert trained.all()
                continue
            places = np.flatnonzero(tested)
            assert np.all(np.diff(places) == 1)
            near = np.arange(max(places[0] - gap, 0), min(places[-1] + gap + 1, rows.size))
            assert not trained[near].any()
            assert trained.sum() == rows.size - near.size
    several = np.array(sizes)[unit] > 1
    assert (held_out[~several] == 0).all()
    assert (held_out <= 1).all()
    if gap == 0:
        assert (held_out[several] == 1).all()


def test_block_split_in_time():
    y = np.repeat([7.0, 5.0], 6)
    splits = [test.tolist() for _, test in WithinUnitsBlockSplit(3).split(y, y)]
    assert splits == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]
    *_, (train, test) = WithinUnitsBlockSplit(3, gap=1).split(y, y)
    assert train.tolist() == [0, 1, 2, 6, 7, 8]
    assert test.tolist() == [4, 5, 10, 11]


SPLITTERS = [WithinUnitsShuffleSplit(3, random_state=0), WithinUnitsBlockSplit()]


@pytest.mark.parametrize("cv", SPLITTERS)
def test_splitters_follow_the_contract(cv):
    X, y = grouped(0, units=50)
    scores = cross_validate(LinearBCE(1.0), X, y, cv=cv, scoring="r2")["test_score"]
    assert scores.shape == (3,)
    assert (scores > 0.5).all()
    copied = clone(cv, safe=False)
    for (a, b), (c, d) in zip(cv.split(X, y), copied.split(X, y), strict=True):
        np.testing.assert_array_equal(a, c)
        np.testing.assert_array_equal(b, d)
    path = linear_bce_path(X, y, bias_weights=[1.0], cv=cv)
    assert path.mse[0] > 0
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        next(cv.split(X, y[:5]))
    with pytest.raises(ValueError, match="y must be given where groups is not"):
        next(cv.split(X))
    with pytest.raises(ValueError, match="groups contains NaN"):
        next(cv.split(X, groups=np.where(y > 0, y, math.nan)))
    with pytest.raises(ValueError, match="of which the largest has 1"):
        next(cv.split(X, groups=np.arange(200)))


def test_names_of_splitters():
    assert (
        repr(WithinUnitsShuffleSplit(3, test_size=0.25, random_state=0))
        == "WithinUnitsShuffleSplit(n_splits=3, random_state=0, test_size=0.25)"
    )
    assert repr(WithinUnitsBlockSplit(4)) == "WithinUnitsBlockSplit(gap=0, n_splits=4)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WithinUnitsShuffleSplit(0), "n_splits must be a whole number of at least 1"),
        (lambda: WithinUnitsShuffleSplit(test_size=1.0), "test_size must be a share .* got 1.0"),
        (lambda: WithinUnitsShuffleSplit(test_size="half"), "test_size must be a share"),
        (lambda: WithinUnitsBlockSplit(1), "n_splits must be a whole number of at least 2"),
        (lambda: WithinUnitsBlockSplit(gap=0.5), "gap must be a whole number of at least 0"),
    ],
)
def test_bad_settings_of_splitters(make, message):
    with pytest.raises(ValueError, match=message):
        make()
