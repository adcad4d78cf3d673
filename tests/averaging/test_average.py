"""Averages of estimates: exact under any split, with weights, masks, and the MSE of theory."""

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
from helpers import models
from mvue.exceptions import OutsideTrainingWarning


def moments(x):
    """Mean and variance of one measurement."""
    return jnp.stack([x.mean(), jnp.var(x, ddof=1)])


def same(a, b, tolerance=1e-12):
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    # Compensated means may be split differently between their two parts.
    assert np.allclose(a.estimate, b.estimate, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert np.allclose(a.standard_error, b.standard_error, rtol=1e-9, equal_nan=True)
    assert np.allclose(a.effective_count, b.effective_count, rtol=1e-9)
    assert all(np.shape(x) == np.shape(y) for x, y in leaves)
    assert (np.asarray(a.count) == b.count).all()
    assert (np.asarray(a.skipped) == b.skipped).all()


class TestAveraged:
    def test_equal_weights_are_mean_and_standard_error_of_the_mean(self):
        y = np.random.default_rng(0).normal(5.0, [1.0, 2.0], (50, 2))
        found = mvue.RunningAverage.of(y)
        assert np.allclose(found.estimate, y.mean(axis=0))
        assert np.allclose(found.standard_error, y.std(axis=0, ddof=1) / np.sqrt(50))
        assert found.count == 50
        assert np.allclose(found.effective_count, 50)

    def test_weighted_formulas(self):
        rng = np.random.default_rng(1)
        y, w = rng.normal(size=(20, 3)), rng.uniform(0.1, 5.0, (20, 3))
        found = mvue.RunningAverage.of(y, w)
        mean = (w * y).sum(axis=0) / w.sum(axis=0)
        square = (w**2 * (y - mean) ** 2).sum(axis=0) / (w.sum(axis=0) ** 2 - (w**2).sum(axis=0))
        assert np.allclose(found.estimate, mean)
        assert np.allclose(found.standard_error, np.sqrt(square))
        assert np.allclose(found.effective_count, w.sum(axis=0) ** 2 / (w**2).sum(axis=0))

    def test_none_one_and_equal_estimates(self):
        none = mvue.RunningAverage.empty(1)
        assert none.count == 0
        assert np.isnan(none.estimate).all()
        assert np.isnan(none.standard_error).all()
        one = none.add(3.0)
        assert one.estimate == 3.0
        assert np.isinf(one.standard_error).all()
        two = one.add(3.0)
        assert two.standard_error == 0
        same(none.merge(two), two)
        same(two.merge(none), two)

    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def test_any_partition_and_order_of_merging(self, data):
        n = data.draw(st.integers(1, 24))
        rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
        offset = data.draw(st.sampled_from([0.0, 1.0, 1e6]))
        y = offset + rng.normal(size=(n, 2))
        w = 10.0 ** rng.uniform(-6, 6, (n, 2)) * (rng.random((n, 2)) < 0.8)
        w *= data.draw(st.sampled_from([1e-100, 1.0, 1e100]))
        together = mvue.RunningAverage.of(y, w)
        part_of = rng.integers(0, data.draw(st.integers(1, 6)), n)
        parts = [
            mvue.RunningAverage.of(y[part_of == k], w[part_of == k]) for k in set(part_of.tolist())
        ]
        while len(parts) > 1:
            i, j = rng.choice(len(parts), 2, replace=False)
            merged = parts[i].merge(parts[j])
            parts = [p for k, p in enumerate(parts) if k not in (i, j)] + [merged]
        same(parts[0], together)
        streamed = mvue.RunningAverage.empty(2)
        for k in rng.permutation(n):
            streamed = streamed.add(y[k], w[k])
        same(streamed, together)

    def test_a_long_stream_in_single_precision_loses_nothing(self):
        # Steps of a millionth of the spread are far below the precision of a mean of 1000.
        y = 1000.0 + np.random.default_rng(0).normal(size=(300_000, 1)).astype(np.float32)

        @jax.jit
        def stream(y):
            state = mvue.RunningAverage.empty(1)
            return jax.lax.scan(lambda state, one: (state.add(one), None), state, y)[0]

        found, exact = stream(y), mvue.RunningAverage.of(y)
        assert abs(found.estimate - exact.estimate) < 0.02 * exact.standard_error
        assert np.allclose(found.standard_error, exact.standard_error, rtol=1e-3)
        assert found.count == 300_000

    def test_standard_error_is_unbiased_for_inverse_variances(self, seed):
        rng = np.random.default_rng(seed)
        sd = np.array([0.2, 1.0, 3.0, 0.5, 2.0])
        y = rng.normal(0.0, sd[:, None], (20_000, 5, 1))
        w = np.broadcast_to(1 / sd**2, (20_000, 5))
        found = mvue.RunningAverage.of(y, w)
        truth = 1 / np.sum(1 / sd**2)
        square = found.standard_error[:, 0] ** 2
        assert abs(square.mean() - truth) < 4 * square.std() / np.sqrt(20_000)
        assert abs(found.estimate.var() / truth - 1) < 4 * np.sqrt(2 / 20_000)

    def test_masks_ignore_anything(self):
        y = np.random.default_rng(0).normal(size=(6, 2))
        garbage = y.copy()
        garbage[[1, 4]] = np.nan, np.inf
        mask = np.array([True, False, True, True, False, True])
        same(mvue.RunningAverage.of(garbage, mask=mask), mvue.RunningAverage.of(y[mask]))
        same(mvue.RunningAverage.of(garbage, mask.astype(float)), mvue.RunningAverage.of(y[mask]))
        holes = np.where(np.stack([mask, ~mask], axis=1), y, np.nan)
        for found in (
            mvue.RunningAverage.of(holes, mask=~np.isnan(holes)),
            jax.jit(lambda y, m: mvue.RunningAverage.of(y, mask=m))(holes, ~np.isnan(holes)),
        ):
            assert np.allclose(found.estimate, [y[mask, 0].mean(), y[~mask, 1].mean()])
        by_component = np.stack([mask, ~mask], axis=1)
        found = mvue.RunningAverage.of(y, mask=by_component)
        assert np.allclose(found.estimate, [y[mask, 0].mean(), y[~mask, 1].mean()])

    def test_non_finite_estimates_are_never_silent(self):
        y = np.arange(8.0).reshape(4, 2)
        y[2, 1] = np.nan
        with pytest.raises(ValueError, match=r"1 of 4 that are not, the first at 2: \[ 4. nan\]"):
            mvue.RunningAverage.of(y)
        with pytest.raises(ValueError, match="estimates must be finite"):
            mvue.RunningAverage.empty(2).add(y[2])
        kept = mvue.RunningAverage.of(y, nonfinite="skip")
        assert kept.skipped == 1
        assert kept.count == 3
        assert np.allclose(kept.estimate, y[[0, 1, 3]].mean(axis=0))
        assert "1 not finite and left out" in str(kept)
        compiled = jax.jit(lambda y: mvue.RunningAverage.of(y))(y)
        assert np.isnan(compiled.estimate[1])
        again = mvue.RunningAverage.of(y[:2]).merge(compiled)
        assert np.isnan(again.estimate[1])
        assert jax.jit(lambda y: mvue.RunningAverage.of(y, nonfinite="skip"))(y).skipped == 1

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((np.ones(3),), r"estimates must have shape \(..., M, d\)"),
            ((np.ones((3, 2)), np.ones(2)), r"weights must have shape \(3,\), or \(3, 2\)"),
            ((np.ones((3, 2)), [1.0, -1.0, 1.0]), "weights must be finite and not negative.*at 1"),
            ((np.ones((3, 2)), [1.0, np.inf, 1.0]), "weights must be finite"),
            ((np.ones((3, 2)), None, np.ones((4,), bool)), "mask must have shape"),
        ],
    )
    def test_bad_input(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            mvue.RunningAverage.of(*arguments)

    def test_more_bad_input(self):
        one = mvue.RunningAverage.of(np.ones((3, 2)))
        with pytest.raises(TypeError, match="mask must be of booleans"):
            mvue.RunningAverage.of(np.ones((3, 2)), mask=np.ones(3))
        with pytest.raises(ValueError, match=r"estimate must have shape \(2,\)"):
            one.add(np.ones(3))
        with pytest.raises(ValueError, match="weight must be a number"):
            one.add(np.ones(2), np.ones(3))
        with pytest.raises(ValueError, match="other must be of the same shape"):
            one.merge(mvue.RunningAverage.empty(3))

    def test_bad_weights_in_a_compiled_function_give_nan(self):
        found = jax.jit(mvue.RunningAverage.of)(jnp.ones((3, 1)), jnp.array([1.0, -1.0, 1.0]))
        assert np.isnan(found.estimate).all()
        assert np.isnan(found.standard_error).all()


class TestAverage:
    x = np.random.default_rng(3).normal(2.0, 1.5, (37, 5)).astype(np.float32)

    def test_chunks_compilation_and_batches_agree(self):
        exact = mvue.RunningAverage.of(jax.vmap(moments)(self.x))
        whole = mvue.average(moments, self.x)
        same(whole, exact, 1e-6)
        same(mvue.average(moments, self.x, chunk_size=10), whole, 1e-6)
        estimator = mvue.Average(moments, chunk_size=10)
        assert estimator(self.x).shape == (2,)
        assert np.allclose(eqx.filter_jit(estimator)(self.x), whole.estimate, rtol=1e-5)
        pair = np.stack([self.x[:18], self.x[18:36]])
        batched = jax.vmap(estimator)(pair)
        side_by_side = mvue.average(moments, pair, axis=1)
        assert np.allclose(batched, side_by_side.estimate, rtol=1e-5)
        merged = mvue.average(moments, self.x[:20]).merge(mvue.average(moments, self.x[20:]))
        same(merged, whole, 1e-6)

    def test_sets_of_different_size(self):
        sets = [self.x[:3], self.x[3:4], self.x[4:]]
        found = mvue.average(moments, sets)
        padded, mask = np.full((3, 33, 5), np.nan, np.float32), np.zeros((3, 33), bool)
        for i, one in enumerate(sets):
            padded[i, : len(one)], mask[i, : len(one)] = one, True
        same(mvue.average(moments, padded, 1, mask=mask), found, 1e-6)
        compiled = jax.jit(jax.vmap(lambda x, m: mvue.Average(moments)(x, mask=m)))(padded, mask)
        assert np.allclose(compiled, found.estimate, rtol=1e-5)
        assert found.count.tolist() == [3, 1, 33]
        weights = [np.ones(3), np.ones(1), np.full(33, 2.0)]
        same(mvue.average(moments, sets, weights=weights), found, 1e-6)
        masks = [np.array([True, False, True]), np.ones(1, bool), np.ones(33, bool)]
        assert mvue.average(moments, sets, mask=masks).count.tolist() == [2, 1, 33]

    def test_masked_garbage_does_not_reach_the_gradient(self):
        padded = np.concatenate([self.x[:4], np.full((2, 5), np.nan, np.float32)])
        mask = jnp.arange(6) < 4

        def first(x, mask):
            return mvue.Average(lambda one: jnp.sqrt(jnp.sum(one**2)))(x, mask=mask)[0]

        gradient = jax.grad(first)(padded, mask)
        assert np.isfinite(gradient).all()
        assert np.allclose(gradient[4:], 0)
        assert np.allclose(gradient[:4], jax.grad(lambda x: first(x, mask[:4]))(self.x[:4]))

    def test_pytrees_and_weights_that_a_sensor_sends(self):
        rng = np.random.default_rng(0)
        sd = rng.uniform(0.1, 3.0, 40).astype(np.float32)
        sensors = {"reading": rng.normal(1.0, sd).astype(np.float32), "sd": sd}
        estimator = mvue.Average(lambda s: s["reading"], weights=lambda s: 1 / s["sd"] ** 2)
        found = estimator.averaged(sensors)
        expected = np.sum(sensors["reading"] / sd**2) / np.sum(1 / sd**2)
        assert np.allclose(found.estimate, expected)
        assert np.allclose(estimator(sensors), eqx.filter_jit(estimator)(sensors), rtol=1e-5)
        plain = mvue.Average(lambda s: s["reading"])
        assert np.allclose(plain(sensors, weights=1 / sd**2), expected)
        with pytest.raises(ValueError, match="weights must be given once"):
            estimator(sensors, weights=sd)

    def test_vector_weights_of_a_function(self):
        by_component = lambda x: jnp.stack([jnp.abs(x[0]), 1.0])  # noqa: E731
        found = mvue.average(moments, self.x, weights=by_component)
        y, w = np.asarray(jax.vmap(moments)(self.x)), np.abs(self.x[:, 0])
        assert np.allclose(found.estimate, [np.average(y[:, 0], weights=w), y[:, 1].mean()])

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda x: mvue.average(moments, x, 2), "along axis 2"),
            (lambda x: mvue.average(moments, x[:0]), "at least one measurement"),
            (lambda x: mvue.average(moments, []), "at least one set"),
            (lambda x: mvue.average(moments, [x, x[:0]]), "empty set, got one at 1"),
            (lambda x: mvue.average(moments, [x], 1), "axis must be 0"),
            (lambda x: mvue.average(jnp.outer, x), "estimator failed on one"),
            (lambda x: mvue.average(jnp.diag, x), "must return a number or a vector"),
            (lambda x: mvue.average(moments, x, mask=np.ones(37)), "mask must hold"),
            (
                lambda x: mvue.average(moments, x, mask=np.zeros(37, bool)),
                "no estimate is left to average: all are masked",
            ),
            (
                lambda x: mvue.average(moments, [x, x], weights=[np.ones(37)]),
                "one entry for each of the 2 sets",
            ),
            (
                lambda x: mvue.average(lambda one: jnp.log(-jnp.abs(one[0])), x),
                "37 of 37",
            ),
        ],
    )
    def test_bad_input(self, call, message):
        with pytest.raises(ValueError, match=message):
            call(self.x)


class TestTheory:
    """The MSE of the average is bias² + variance / M, against closed forms."""

    @pytest.mark.parametrize("sensors", [1, 4, 25])
    def test_of_an_exact_mvue(self, seed, sensors):
        # Variance of 6 normal variables: the sample variance has variance 2 y² / 5.
        rng, y = np.random.default_rng(seed), 3.0
        x = rng.normal(0.0, np.sqrt(y), (4000, sensors, 6)).astype(np.float32)
        found = mvue.average(lambda one: jnp.var(one, ddof=1), x, axis=1)
        assert_mse(found.estimate[:, 0] - y, 2 * y**2 / 5 / sensors)
        if sensors > 1:  # the standard error tells the whole error
            assert_mean(found.standard_error[:, 0] ** 2, 2 * y**2 / 5 / sensors)

    @pytest.mark.parametrize("sensors", [1, 4, 25])
    def test_of_a_posterior_mean(self, seed, sensors):
        # y ~ N(0, 1), x ~ N(y, 1): the least mean squared error is that of x / 2.
        rng, y = np.random.default_rng(seed), 2.0
        x = rng.normal(y, 1.0, (4000, sensors)).astype(np.float32)
        found = mvue.average(lambda one: one / 2, x, axis=1)
        assert_mse(found.estimate[:, 0] - y, (y / 2) ** 2 + 0.25 / sensors)

    def test_assessed_as_an_estimator(self):
        def simulate(key, y):
            return y[None] + jr.normal(key, (3, 1))

        problem = mvue.Problem(dist.Uniform(0.0, 1.0).expand((1,)), simulate)
        fails = mvue.Average(lambda x: jnp.where(x > 4.0, jnp.nan, x))
        estimators = {"plain": mvue.Average(lambda x: x), "fails": fails}
        with pytest.warns(mvue.exceptions.NonFiniteWarning, match="non-finite estimates"):
            report = mvue.assess(estimators, problem, at=jnp.array([[1.0]]), key=jr.key(0))
        assert report["fails"].failures[0] > 0
        plain = report["plain"]
        assert abs(plain.mse - 1 / 3) < 4 * plain.mse_se


def assert_mse(errors, exact):
    assert_mean(errors**2, exact)


def assert_mean(values, exact):
    assert abs(values.mean() - exact) < 4 * values.std() / np.sqrt(len(values))


@pytest.fixture(scope="module")
def tiny_fit():
    return models.tiny_fit()


class TestStrangeMeasurements:
    """`average` tells what `predict` tells, of a `Fit` or a `Model`."""

    def sets(self):
        x = models.numbers(3, 8, 6)
        x[1, 2], x[2, :3] = 1e6, 1e6
        return x

    def test_as_many_as_predict_tells(self, tiny_fit):
        x = self.sets()
        strange = int(tiny_fit.outside(x.reshape(-1, 6)).sum())
        assert strange == 4
        match = "4 of 24 measurements are far outside"
        with pytest.warns(OutsideTrainingWarning, match=match):
            tiny_fit.predict(x.reshape(-1, 6))
        for call in (
            lambda: mvue.average(tiny_fit, x, 1),
            lambda: mvue.average(tiny_fit, x, 1, chunk_size=5),
            lambda: mvue.average(tiny_fit, list(x)),
            lambda: mvue.Average(tiny_fit).averaged(x),
            lambda: mvue.Average(tiny_fit)(x),
            lambda: mvue.Average(tiny_fit).predict(x),
        ):
            with pytest.warns(OutsideTrainingWarning, match=match):
                call()

    def test_masked_ones_are_not_looked_at_and_warnings_may_be_left_out(self, tiny_fit):
        x = self.sets()
        mask = x[..., 0] != 1e6
        with pytest.warns(OutsideTrainingWarning, match="1 of 21"):
            mvue.average(tiny_fit, x, 1, mask=mask | (np.arange(8) == 1))
        mvue.average(tiny_fit, x, 1, mask=mask)
        mvue.average(tiny_fit, x, 1, warn=False)
        mvue.Average(tiny_fit).predict(x, warn=False)
        mvue.average(tiny_fit.estimator, x, 1)  # a function knows of no training

    def test_compiled_it_is_as_before(self, tiny_fit):
        found = eqx.filter_jit(mvue.Average(tiny_fit))(self.sets())
        assert np.isfinite(found).all()


@pytest.mark.parametrize(
    ("x", "match"),
    [
        (np.ones(3), r"measurements of shape \(3,\) along axis 0, got some of shape \(\)"),
        (np.ones((2, 4)), r"of shape \(3,\) along axis 0, got some of shape \(4,\)"),
        ([1.0, 2.0, 3.0], "a list with numbers in entry 0: give np.asarray"),
        ([np.ones((2, 3)), [1.0, 2.0, 3.0]], "a list with numbers in entry 1: give np.asarray"),
        ([np.ones(3), np.ones(3)], r"of shape \(3,\) along axis 0, got some of shape \(\)"),
        (np.ones((2, 3), "m8[s]"), r"x must be numbers, got timedelta64\[s\]"),
    ],
)
def test_one_measurement_or_a_list_of_numbers_is_refused(x, match):
    with pytest.raises((ValueError, TypeError), match=match):
        mvue.average(mvue.wls(np.ones((3, 1)), 1.0), x)
