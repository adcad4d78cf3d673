"""What is averaged is what was given, or it is refused by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mvue

X = np.arange(12.0).reshape(4, 3)
HIDDEN = np.ma.masked_array([[1.0], [999.0]], [[False], [True]])
LARGE = np.full((2, 1), 2**40)


def mean(x):
    return x.mean()[None]


@pytest.mark.parametrize(
    ("use", "error", "match"),
    [
        (lambda: mvue.average(mean, LARGE), ValueError, "x must hold whole numbers that int32"),
        (lambda: mvue.Average(mean)(LARGE), ValueError, "x must hold whole numbers that int32"),
        (lambda: mvue.average(lambda x: mean(1j * x), X), TypeError, "return real numbers, got co"),
        (lambda: mvue.average(mean, X, weights="1/s"), TypeError, "weights must be real numbers"),
        (lambda: mvue.average(mean, X, weights=1j * X[:, 0]), TypeError, "weights must be real"),
        (lambda: mvue.average(mean, X, weights=HIDDEN[[0, 1, 0, 1], 0]), ValueError, "weights has"),
        (lambda: mvue.average(mean, X, weights=[1e308] * 4), ValueError, "have a finite sum, got"),
        (lambda: mvue.average(mean, X, mask=[1, 0, 1, 1]), ValueError, "mask must hold booleans"),
        (lambda: mvue.RunningAverage.of(HIDDEN), ValueError, "estimates has 1 masked"),
        (lambda: mvue.RunningAverage.of(1j * X), TypeError, "estimates must be real numbers"),
        (lambda: mvue.RunningAverage.empty(1).add(np.ma.masked), ValueError, "1 masked"),
        (lambda: mvue.RunningAverage.empty(1).add(None), TypeError, "estimate must be real"),
        (lambda: mvue.RunningAverage.empty(-1), ValueError, "d must be a whole number"),
    ],
)
def test_other_numbers_are_refused(use, error, match):
    with pytest.raises(error, match=match):
        use()


@pytest.mark.parametrize("dtype", [">f8", ">i4", np.longdouble])
def test_numbers_of_other_formats_are_averaged(dtype):
    assert mvue.average(mean, X.astype(dtype)).estimate == 5.5


def test_a_sum_of_weights_that_overflows_gives_no_estimate():
    """Inside of compiled functions, where nothing can be raised, and when averages are merged."""
    weights = jnp.full(4, 3e38)
    found = jax.jit(lambda w: mvue.average(mean, jnp.asarray(X), weights=w).estimate)(weights)
    assert np.isnan(found).all()
    half = mvue.RunningAverage.of(X, np.full(4, 4e307))
    assert np.isnan(half.merge(half).estimate).all()
