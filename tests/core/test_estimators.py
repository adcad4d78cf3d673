"""Everything that estimates is called the same way: with one measurement, a batch, or many."""

import dataclasses
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest

import mvue
from helpers import models
from mvue._core.estimators import MeasurementSpec
from mvue.exceptions import NonFiniteWarning, OutsideTrainingWarning


def fit_of(estimator, problem):
    """A fit of any estimator."""
    return dataclasses.replace(models.tiny_fit(), estimator=estimator, problem=problem)


def mixed():
    """Measurements of whole, real and complex numbers."""

    def simulate(key, y):
        real = y[0] + jr.normal(key, (3,))
        return {
            "counts": jr.poisson(key, jnp.exp(y[0]), (4,)),
            "offset": real[0],
            "waves": real[:2] + 1j * real[1:],
        }

    return mvue.Problem(dist.Uniform(0.0, 1.0).expand((1,)), simulate)


def sum_of_all(x):
    parts = x["counts"].sum() + x["offset"], jnp.abs(x["waves"]).sum()
    return jnp.stack(parts).sum(keepdims=True)


class Traces(list):
    """A list that may be a static field: equal to itself alone."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


class Counted(eqx.Module):
    """Notes when it is traced."""

    weight: jax.Array
    traces: Traces = eqx.field(static=True)

    def __call__(self, x):
        self.traces.append(x.shape)
        return self.weight * jnp.sum(x**2, keepdims=True)


def counted(n=6):
    traces = Traces()
    return fit_of(Counted(jnp.array(2.0), traces), models.variance_problem(n)), traces


def test_a_fit_takes_one_measurement_or_a_batch():
    fit, x = models.tiny_fit(), models.numbers(20, 6)
    expected = jax.vmap(fit.estimator)(x)
    assert fit(x[0]).shape == (1,)
    assert fit(x).shape == (20, 1)
    np.testing.assert_allclose(fit(x), expected, rtol=1e-5)
    np.testing.assert_allclose(fit(x[3]), expected[3], rtol=1e-5)
    many = fit.predict(x)
    assert isinstance(many, np.ndarray)
    np.testing.assert_allclose(many, expected, rtol=1e-5)
    for same in (x.astype(np.float64), jnp.asarray(x), x.tolist()):
        assert np.array_equal(fit(same), fit(x))
        assert np.array_equal(fit.predict(same), many)


@pytest.mark.parametrize("x", [np.zeros(3), np.zeros((4, 5)), np.zeros((2, 2, 6)), 1.0])
def test_another_shape_is_told(x):
    expected = "x must be one measurement of shape (6,) or a batch of shape (n, 6), got "
    for call in (models.tiny_fit(), models.tiny_fit().predict, jax.jit(models.tiny_fit())):
        with pytest.raises(ValueError, match=f"^{re.escape(expected + str(np.shape(x)))}"):
            call(x)


def test_one_measurement_is_not_many():
    with pytest.raises(ValueError, match=r"got one measurement, \(6,\): .*call the estimator"):
        models.tiny_fit().predict(np.zeros(6))


def test_measurements_of_several_arrays():
    fit = fit_of(sum_of_all, mixed())
    x = jax.tree.map(np.array, mixed().draw(jr.key(0), 30, 1).x)
    x = jax.tree.map(lambda leaf: leaf[:, 0], x)
    one = jax.tree.map(lambda leaf: leaf[7], x)
    expected = jax.vmap(sum_of_all)(x)
    np.testing.assert_allclose(fit(x), expected, rtol=1e-5)
    np.testing.assert_allclose(fit.predict(x, warn=False), expected, rtol=1e-5)
    np.testing.assert_allclose(fit(one), expected[7], rtol=1e-5)
    whole = {**one, "counts": one["counts"].astype(float), "waves": one["waves"].astype(complex)}
    assert fit(whole).shape == (1,)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"counts": np.zeros(3)}, ValueError, r"\['counts'\] \(4,\), .*got \['counts'\] \(3,\)"),
        (
            {"counts": np.full(4, 0.5)},
            TypeError,
            r"whole numbers of the kind int32, got 0.5 at x\[0\]",
        ),
        ({"offset": np.array(1j)}, TypeError, "numbers of the kind float32, got complex"),
        ({"offset": np.array("north")}, TypeError, "x must be numbers, got <U5"),
        ({"more": 1.0}, ValueError, "arranged in another way, .*'more'"),
        ({"counts": None}, ValueError, "arranged in another way"),
    ],
)
def test_arrays_that_do_not_fit_are_told(change, error, message):
    one = {"counts": np.zeros(4, int), "offset": 1.0, "waves": np.ones(2)}
    with pytest.raises(error, match=message):
        fit_of(sum_of_all, mixed())({**one, **change})


def test_whole_numbers_that_are_missing_give_no_estimate():
    fit = fit_of(sum_of_all, mixed())
    x = {"counts": np.ones((3, 4)), "offset": np.ones(3), "waves": np.ones((3, 2), complex)}
    x["counts"][1, 2], x["counts"][2, 0] = np.nan, np.inf
    assert np.isnan(fit.predict(x, warn=False)).ravel().tolist() == [False, True, True]
    assert fit.outside(x)[1:].all()
    x["counts"][0, 3] = 1.5
    with pytest.raises(TypeError, match=r"int32, got 1.5 at x\[0, 3\]"):
        fit.predict(x)
    with pytest.raises(TypeError, match=r"int32, got nan at x\[2\]"):
        fit({"counts": np.array([1, 2, np.nan, 4]), "offset": 1.0, "waves": np.ones(2, complex)})


def test_batches_of_unequal_length_are_told():
    x = {"counts": np.zeros((3, 4), int), "offset": np.ones(2), "waves": np.ones((3, 2))}
    with pytest.raises(ValueError, match=r"\['offset'\] \(n,\).*got .*\['offset'\] \(2,\)"):
        fit_of(sum_of_all, mixed())(x)


def test_transformations_of_a_fit():
    fit, traces = counted()
    x = models.numbers(5, 6)
    compiled = jax.jit(fit)
    for _ in range(3):
        np.testing.assert_allclose(compiled(x[0]), fit.estimator(x[0]), rtol=1e-5)
    del traces[:]
    compiled(x[1])
    assert not traces
    np.testing.assert_allclose(jax.vmap(fit)(x), fit(x), rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(fit)(x[None])[0], fit(x), rtol=1e-5)
    np.testing.assert_allclose(jax.grad(lambda one: fit(one)[0])(x[0]), 4 * x[0], rtol=1e-5)
    np.testing.assert_allclose(jax.grad(lambda some: fit(some).sum())(x), 4 * x, rtol=1e-5)


def test_programs_are_compiled_once_and_rows_do_not_know_each_other():
    fit, traces = counted()
    x = models.numbers(2500, 6)
    many = fit.predict(x, warn=False)
    assert len(traces) == 1
    assert np.array_equal(fit.predict(x[7:10], warn=False), many[7:10])
    assert fit.predict(x[:0], warn=False).shape == (0, 1)
    assert len(traces) == 1
    fit(x[0]), fit(x[1])
    assert len(traces) == 2


def test_what_is_unlike_training_is_told():
    fit, x = models.tiny_fit(), models.numbers(5, 6)
    x[1, 2] = np.nan
    x[3] *= 1e4
    assert fit.outside(x).tolist() == [False, True, False, True, False]
    with pytest.warns(OutsideTrainingWarning, match="2 of 5 measurements are far outside"):
        found = fit.predict(x)
    assert np.isnan(found[1]).all()
    fit.predict(x, warn=False)


def test_a_model_does_as_its_fit(tmp_path):
    fit, x = models.tiny_fit(), models.numbers(2000, 6)
    mvue.save(fit, tmp_path / "m.mvue")
    model = mvue.load(tmp_path / "m.mvue")
    assert np.array_equal(model.predict(x, warn=False), fit.predict(x, warn=False))
    assert np.array_equal(model(x[:9]), fit(x[:9]))
    assert np.array_equal(model(x[0]), fit(x[0]))
    assert np.array_equal(model.outside(3 * x), fit.outside(3 * x))


NORMAL = mvue.Problem.from_likelihood(
    dist.Uniform(jnp.array([0.5]), jnp.array([4.0])),
    lambda y: dist.Normal(0.0, jnp.sqrt(y[0])).expand((6,)),
    exchangeable=True,
)


def readout():
    squares = {"features": lambda x: x**2, "units": 200}
    return mvue.refit_last_layer(None, NORMAL, 1.0, key=jr.key(0), **squares)


def corrected():
    estimator = lambda x: jnp.mean(x**2, keepdims=True)  # noqa: E731
    return mvue.bootstrap_correct(estimator, NORMAL, repeats=20, key=jr.key(0))


OF_SIX = {
    "mle": lambda: mvue.maximum_likelihood(NORMAL, init=jnp.ones(1)),
    "bootstrap": corrected,
    "linear": lambda: mvue.wls(np.ones((6, 1)), 1.0),
    "readout": readout,
    "fit": models.tiny_fit,
}


@pytest.mark.filterwarnings("ignore::mvue.exceptions.UnresolvedSignalWarning")
@pytest.mark.parametrize("name", OF_SIX)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_from_what_is_not_finite_comes_nan(name, value):
    estimator, x = OF_SIX[name](), 1.5 * models.numbers(5, 6)
    expected = estimator.predict(x, warn=False)
    x[3, 2] = value
    expected[3] = np.nan
    assert np.array_equal(estimator.predict(x, warn=False), expected, equal_nan=True)


@pytest.mark.filterwarnings("ignore::mvue.exceptions.UnresolvedSignalWarning")
@pytest.mark.parametrize(
    ("make", "shape"),
    [*((make, (6,)) for make in OF_SIX.values()), (lambda: mvue.Average(OF_SIX["fit"]()), (3, 6))],
    ids=[*OF_SIX, "average"],
)
def test_everything_takes_one_a_batch_and_many(make, shape):
    estimator = make()
    x = 1.5 * models.numbers(5, *shape)
    one = np.asarray(estimator(x[0]))
    assert one.shape == (1,)
    for some in (estimator(x), estimator.predict(x), jax.vmap(estimator)(x)):
        assert some.shape == (5, 1)
        np.testing.assert_allclose(some[0], one, rtol=1e-3)
    np.testing.assert_allclose(jax.jit(lambda x: estimator(x))(x), estimator(x), rtol=1e-3)
    with pytest.raises(ValueError, match=r"x must be one measurement of shape .* or a batch of"):
        estimator(np.zeros((2, 2, 2, 5)))
    with pytest.raises(ValueError, match="got one measurement"):
        estimator.predict(x[0])


def test_sets_of_another_size():
    of_any_size = dataclasses.replace(
        NORMAL, log_likelihood=lambda y, x: dist.Normal(0.0, jnp.sqrt(y[0])).log_prob(x).sum()
    )
    mle = mvue.maximum_likelihood(of_any_size, init=jnp.ones(1))
    np.testing.assert_allclose(mle(2 * np.ones((2, 9))), [[4.0], [4.0]], rtol=1e-3)
    with pytest.raises(ValueError, match=r"shape \(6,\), got shape \(9,\), and log_likelihood\(th"):
        mvue.maximum_likelihood(NORMAL, init=jnp.ones(1))(np.ones((2, 9)))
    with pytest.raises(
        ValueError, match=r"shape \(m,\) or a batch of shape \(n, m\), got \(1, 2, 3"
    ):
        mle(np.ones((1, 2, 3)))
    average = mvue.Average(models.tiny_fit())
    x = [models.numbers(2, 6), models.numbers(5, 6)]
    np.testing.assert_allclose(average.predict(x)[1], average(x[1]), rtol=1e-5)


def test_what_cannot_be_estimated_from_is_told():
    x = np.ones((4, 6))
    x[2, 0] = np.nan
    with pytest.warns(NonFiniteWarning, match="1 of 4 measurements are not finite"):
        mvue.wls(np.ones((6, 1)), 1.0).predict(x)
    fails = mvue.Average(models.tiny_fit(), nonfinite="skip")
    x[[0, 1, 3]] = models.numbers(3, 6)
    with pytest.warns(NonFiniteWarning, match="1 estimates were not finite"):
        fails.predict(x[None])


def test_a_fit_or_a_model_wherever_an_estimator_is_wanted(tmp_path, line):
    network = eqx.nn.MLP(2, 2, 4, 1, key=jr.key(0))
    given = {"training_prior": line.prior, "loss": mvue.bce(weight=None), "anchors": 0}
    fit = mvue.fit(line, network, key=jr.key(0), steps=2, **given)
    mvue.save(fit, tmp_path / "m.mvue")
    model = mvue.load(tmp_path / "m.mvue")
    again = mvue.fit(line, fit, key=jr.key(0), steps=2, **given)
    assert again.settings["network"] == fit.settings["network"]
    readouts = [
        mvue.refit_last_layer(one, line, 1.0, key=jr.key(1), units=200) for one in (fit, model)
    ]
    assert np.array_equal(readouts[0].weight, readouts[1].weight)
    estimators = {"fit": fit, "model": model, "bare": fit.estimator}
    report = mvue.assess(estimators, line, key=jr.key(2), repeats=50)
    bias = [np.asarray(one.bias) for one in report.estimators.values()]
    assert np.array_equal(bias[0], bias[1])
    assert np.array_equal(bias[0], bias[2])


def test_real_numbers_for_a_complex_model_are_refused():
    """The imaginary part was forgotten, or is zero: only the user knows."""
    spec = MeasurementSpec(jax.ShapeDtypeStruct((4,), np.complex64))
    with pytest.raises(TypeError, match="must be complex numbers"):
        spec.cast(np.ones(4), xp=np)
    assert spec.cast(np.ones(4) + 0j, xp=np).dtype == np.complex64


def test_columns_in_another_order_are_refused():
    pandas = pytest.importorskip("pandas")
    spec = MeasurementSpec(jax.ShapeDtypeStruct((2,), np.float64), columns=("a", "b"))
    table = pandas.DataFrame({"a": [1.0], "b": [2.0]})
    np.testing.assert_array_equal(spec.arrays(table), [[1.0, 2.0]])
    with pytest.raises(ValueError, match="columns a, b, in this order, got b, a"):
        spec.arrays(table[["b", "a"]])
