"""Measurements that training never showed are seen to be outside, and others are not."""

import numpy as np
import pytest

from mvue._finish.input_range import FALSE_ALARMS, InputRange, Scale

TEN = (10, 1)


def times(rng, count, low=0.5, high=5.0):
    """Ten exponential times each, of rates within a range."""
    return rng.exponential(size=(count, *TEN)) / rng.uniform(low, high, size=(count, 1, 1))


@pytest.fixture
def known(seed):
    draws = times(np.random.default_rng(seed), 2**14, 0.2, 10.0)
    return InputRange.of_draws([draws], is_set=True)


def test_measurements_as_in_training_are_not_outside(known, seed):
    share = known.outside(times(np.random.default_rng(seed + 10), 100_000)).mean()
    assert share < FALSE_ALARMS


def test_equal_readings_are_outside(known, seed):
    rng = np.random.default_rng(seed + 20)
    equal = np.ones((1, *TEN)) * np.geomspace(0.1, 5.0, 20)[:, None, None]
    assert known.outside(equal).all()
    assert known.outside(equal * (1 + 1e-4 * rng.normal(size=equal.shape))).all()


@pytest.mark.parametrize("spread", [1e-3, 0.01, 0.02, 0.05])
def test_nearly_equal_readings_are_outside(known, seed, spread):
    """Of any size within the range: the spread beside the size tells, not the spread alone."""
    rng = np.random.default_rng(seed + 50)
    sizes = np.geomspace(0.1, 5.0, 200)[:, None, None]
    assert known.outside(sizes * (1 + spread * rng.normal(size=(200, *TEN)))).all()


def test_one_reading_that_is_far_from_the_others_is_outside(known, seed):
    """Of ten numbers, it makes up the spread, beside which it is not far; the others tell."""
    some = times(np.random.default_rng(seed + 60), 1000, 1.0, 2.0)
    some[:, 0] = 200 * some[:, 1:].mean(axis=1)
    assert known.outside(some).mean() > 0.9
    # Of two numbers one cannot say so.
    pairs = np.random.default_rng(seed).normal(size=(4000, 2, 1))
    assert InputRange.of_draws([pairs], is_set=True).outside(1.1 * pairs[:100]).mean() < 0.05


def test_a_small_spread_beside_the_size_is_not_outside_where_training_had_it(seed):
    rng = np.random.default_rng(seed)
    draws = lambda n: rng.normal(rng.uniform(-100, 100, size=(n, 1, 1)), 1.0, size=(n, *TEN))  # noqa: E731
    known = InputRange.of_draws([draws(2**14)], is_set=True)
    assert known.outside(draws(50_000)).mean() < FALSE_ALARMS


def test_coarse_rounding_is_outside_and_a_single_tie_is_not(known, seed):
    some = times(np.random.default_rng(seed + 30), 4000)
    assert known.outside(np.round(some, 1)).mean() > 0.8
    assert known.outside(np.round(some, 4)).mean() < 0.02


def test_numbers_beyond_a_bound_of_the_data_are_outside(known, seed):
    some = times(np.random.default_rng(seed + 40), 1000, 0.5, 1.0)
    assert known.outside(-some).all()
    one = some.copy()
    one[:, 3] = -0.05
    assert known.outside(one).all()
    one[:, 3] = 0.0  # rounded, or too small to be seen
    assert known.outside(one).all()


@pytest.mark.parametrize("shape", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("size", [2**6, 2**14])
def test_small_positive_numbers_are_not_outside(shape, size, seed):
    rng = np.random.default_rng(seed)
    draws = lambda n: rng.gamma(shape, size=(n, 30)) * rng.uniform(0.2, 10, size=(n, 1))  # noqa: E731
    known = InputRange.of_draws([draws(size)], is_set=False)
    fresh = draws(50_000)
    assert (fresh < known.ends[0]).any(axis=1).mean() < FALSE_ALARMS
    fresh[:, 7] = 0.0
    assert known.outside(fresh).all()


def test_counts_have_ties_in_training(seed):
    rng = np.random.default_rng(seed)
    known = InputRange.of_draws([rng.poisson(3.0, size=(2**14, *TEN))], is_set=True)
    assert known.outside(rng.poisson(3.0, size=(20_000, *TEN))).mean() < FALSE_ALARMS


def test_measurements_of_zeros_alone_may_be_usual(seed):
    rng = np.random.default_rng(seed)
    known = InputRange.of_draws([rng.poisson(0.1, size=(2**14, *TEN))], is_set=True)
    assert not known.outside(np.zeros((1, *TEN))).any()
    assert known.outside(rng.poisson(0.1, size=(20_000, *TEN))).mean() < FALSE_ALARMS


def test_a_series_that_stands_still_is_outside(seed):
    rng = np.random.default_rng(seed)
    known = InputRange.of_draws([rng.normal(size=(2**14, 30))], is_set=False)
    assert known.outside(np.full((1, 30), 0.1)).all()
    assert known.outside(rng.normal(size=(20_000, 30))).mean() < FALSE_ALARMS


def test_ranges_without_spread_and_ties_judge_as_before(seed):
    """Model files of earlier versions have three scores."""
    rng = np.random.default_rng(seed)
    unit = Scale(np.zeros(1), np.ones(1))
    old = InputRange(True, unit, Scale(np.zeros(2), np.ones(2)), np.array([5.0, 3.0, 3.0]))
    some = rng.normal(size=(4, *TEN))
    assert old.scores(some, old._standard_summaries(some)).shape == (4, 3)
    assert not old.outside(np.full((1, *TEN), 0.5)).any()


@pytest.mark.parametrize("spread", [0.0, 1e-3, 0.01, 0.02, 0.05])
def test_a_positive_series_that_nearly_stands_still_is_outside(seed, spread):
    rng = np.random.default_rng(seed)
    draws = times(rng, 2**14, 0.2, 10.0)[..., 0]
    known = InputRange.of_draws([draws], is_set=False, one_unit=True)
    sizes = np.geomspace(0.1, 5.0, 200)[:, None]
    assert known.outside(sizes * (1 + spread * rng.normal(size=(200, 10)))).all()
    assert known.outside(times(rng, 50_000)[..., 0]).mean() < FALSE_ALARMS


def test_columns_with_units_of_their_own_are_not_compared(seed):
    """The range of rows of a table goes with them into other units."""
    rng = np.random.default_rng(seed)
    known = InputRange.of_draws([rng.normal(size=(4000, 3))], is_set=False)
    x, shift, scale = rng.normal(size=(2000, 3)), np.array([1e3, 0.0, -2.0]), np.array([1, 9, 0.1])
    moved = known.in_units(shift, scale)
    np.testing.assert_array_equal(moved.outside(x * scale + shift), known.outside(x))


def test_a_spread_far_below_all_of_training_is_outside(seed):
    """Logarithms of spreads are skewed: either side has its own limit."""
    rng = np.random.default_rng(seed)

    def series(rng, count):
        x = rng.normal(size=(count, 60))
        slow = rng.uniform(-0.9, 0.9, size=count)
        x[:, 0] /= np.sqrt(1 - slow**2)
        for k in range(1, 60):
            x[:, k] += slow * x[:, k - 1]
        return x

    known = InputRange.of_draws([series(rng, 2**14)], is_set=False, one_unit=True)
    fresh = series(rng, 20_000)
    assert known.outside(fresh).mean() < FALSE_ALARMS
    assert known.outside(0.1 * fresh[:1000]).mean() > 0.99
    assert known.outside(0.2 * fresh[:1000]).mean() > 0.5
