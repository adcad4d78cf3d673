"""Training against closed forms, and everything that can happen on the way."""

import os
import signal
import threading

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import optax
import pytest

import mvue
from helpers.hasty import HASTY
from helpers.plain import plain_fit
from mvue._training import loop as _loop

SIGNAL, NOISE = 1 / 3, 0.25  # variances of y and of the noise in the problem `line`


def linear(key):
    return eqx.nn.Linear(2, 2, key=key)


def leaves(fit):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(eqx.filter(fit.estimator, eqx.is_array))]


@pytest.mark.parametrize(
    ("loss", "repeats", "weight"),
    [
        (mvue.emmse(), 1, 0.0),
        (mvue.bce(3.0, weight=None), 4, 3.0),
        (mvue.bce(30.0, weight=None), 2, 30.0),
        (mvue.bce(1000.0, penalty="plug-in", weight=None), 2, 1000 / 1002),
        (lambda e, draw, progress: mvue.losses.bce_loss(e, draw.y, bias_weight=3.0), 4, 3.0),
    ],
)
def test_linear_network_reaches_the_closed_form(line, swept_key, loss, repeats, weight):
    """A = Σy (Σy + Σn/(1+λ))⁻¹; the plug-in penalty acts as λ(M-1)/(M+λ)."""
    fit = plain_fit(
        line,
        linear(swept_key),
        loss,
        key=swept_key,
        steps=1_500,
        batch_size=256,
        repeats=repeats,
        optimizer=0.02,
    )
    assert fit.outcome is mvue.Outcome.FINISHED
    expected = SIGNAL / (SIGNAL + NOISE / (1 + weight))
    # The average of the last 75 steps sees about 75 · 256 units.
    spread = 4.5 * np.sqrt((1 + weight) * 2 * NOISE / SIGNAL / (75 * 256))
    np.testing.assert_allclose(fit.estimator.weight, expected * np.eye(2), atol=spread)
    np.testing.assert_allclose(fit.estimator.bias, 0, atol=spread)


def test_held_out_numbers_are_those_of_the_estimator(line, key):
    fit = plain_fit(
        line, linear(key), mvue.bce(3.0, weight=None), key=key, steps=500, optimizer=0.02
    )
    last = fit.history.last
    a = np.asarray(fit.estimator.weight)
    expected_bias = SIGNAL * ((a - np.eye(2)) ** 2).sum() + (fit.estimator.bias**2).sum()
    expected = expected_bias + NOISE * (a**2).sum()
    assert abs(last["held_out_mse"] - expected) < 4.5 * last["held_out_mse_se"]
    error = last["held_out_squared_bias"] - expected_bias
    assert abs(error) < 4.5 * last["held_out_squared_bias_se"]
    assert last["held_out_loss"] == pytest.approx(
        last["held_out_mse"] + 3 * last["held_out_squared_bias"], rel=1e-4
    )
    assert len(fit.history["step"]) == 100


def test_one_compilation_however_many_steps(key):
    traces = []

    def simulate(key, theta):
        traces.append(1)
        return theta + jr.normal(key, (3,))

    problem = mvue.Problem(dist.Uniform(0.0, 1.0), simulate)
    network = eqx.nn.Linear(3, 1, key=key)
    counts = []
    for steps in (50, 400):
        traces.clear()
        plain_fit(problem, network, key=key, steps=steps)
        counts.append(len(traces))
    # Shapes (a few times), pilot, sizes of a batch, and the one program that simulates.
    assert counts[1] <= counts[0] <= 9


def test_pieces_do_not_change_a_bit(line, key, monkeypatch):
    fits = []
    for seconds in (0.0, 1e9):
        monkeypatch.setattr(_loop, "PIECE_SECONDS", seconds)
        fits.append(plain_fit(line, key=key, steps=130))
    for a, b in zip(leaves(fits[0]), leaves(fits[1]), strict=True):
        np.testing.assert_array_equal(a, b)
    assert fits[0].history["held_out_loss"] == fits[1].history["held_out_loss"]


def test_key_decides_everything(line):
    first, again, other = (plain_fit(line, key=jr.key(i), steps=30) for i in (0, 0, 1))
    assert all(map(np.array_equal, leaves(first), leaves(again)))
    assert not all(map(np.array_equal, leaves(first), leaves(other)))


def counts(key, mean, number):
    """Counts that are drawn faster than by `jax.random.poisson`."""
    noise = jr.normal(jr.fold_in(key, 1), (number,))
    return jnp.round(mean + mean**0.5 * noise).astype(int)


@pytest.mark.parametrize(
    ("simulate", "exchangeable"),
    [
        (lambda key, t: {"a": t + jr.normal(key), "n": counts(key, 3.0, 2)}, False),
        (lambda key, t: {"a": t + jr.normal(key, (4,)), "n": counts(key, t, 3)}, None),
        (lambda key, t: (t + jr.normal(key, (4,)), 1j * jr.normal(key, (4, 2))), True),
    ],
)
def test_default_network_suits_the_problem(simulate, exchangeable, tmp_path):
    problem = mvue.Problem(dist.Uniform(100.0, 101.0), simulate, exchangeable=exchangeable)
    fit = mvue.fit(problem, key=jr.key(0), steps=4, recipe=HASTY)
    x = jax.tree.map(lambda leaf: leaf[0, 0], problem.draw(jr.key(1), 1, 1).x)
    estimate = fit.estimator(x)
    assert estimate.shape == (1,)
    # In the problem's own units from the start.
    assert abs(float(estimate[0]) - 100.5) < 4
    if exchangeable is not False:
        reverse = jax.tree.map(lambda leaf: leaf[::-1], x)
        np.testing.assert_allclose(fit.estimator(reverse), estimate, rtol=1e-4)
    mvue.save(fit, tmp_path / "model.mvue")
    model = mvue.load(tmp_path / "model.mvue")
    np.testing.assert_allclose(model(x), estimate, rtol=1e-5)
    assert model.training["ranges"][0]["interest"] == [100.0, 101.0]
    fresh = jax.tree.map(lambda leaf: leaf[:, 0], problem.draw(jr.key(2), 2_000, 1).x)
    assert model.outside(fresh).mean() < 2e-3


@pytest.mark.parametrize(
    "wrong",
    [
        {"loss": mvue.losses.emmse_loss},
        {"loss": mvue.bce(lambda _: jnp.ones(3))},
        {"optimizer": "adam"},
        {"network": lambda x: x[:1]},
        {"baseline": lambda x: x[:1]},
    ],
)
def test_what_is_wrong_is_told_before_the_survey(wrong, line, key, monkeypatch):
    monkeypatch.setattr(
        "mvue._default.decisions.survey", lambda *_, **__: pytest.fail("this takes seconds")
    )
    with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
        mvue.fit(line, key=key, **wrong)


def test_scaling_is_measured_not_trained(line, key):
    network = eqx.nn.MLP(2, 2, 8, 1, key=key)
    estimator = mvue.standardize(network, line, whiten=True, key=key)
    fit = plain_fit(line, estimator, key=key, steps=20, optimizer=optax.adamw(0.01))
    np.testing.assert_array_equal(fit.estimator.inputs.matrix, estimator.inputs.matrix)
    np.testing.assert_array_equal(fit.estimator.head.outputs.shift, estimator.head.outputs.shift)
    first = estimator.network.layers[0].weight
    assert not np.array_equal(fit.estimator.network.layers[0].weight, first)
    x = line.draw(key, 20_000, 1).x[:, 0]
    white = jax.vmap(lambda one: estimator.inputs(estimator.features(one)))(x)
    # The pilot draw has 1024 rows.
    np.testing.assert_allclose(np.cov(white.T), np.eye(2), atol=5 * np.sqrt(2 / 1024))


def test_function_of_the_crude_estimate_as_head(line, key):
    estimator = mvue.standardize(
        eqx.nn.MLP(2, 2, 8, 1, key=key), line, head=lambda x, z: x + 0.0 * z, key=key
    )
    np.testing.assert_allclose(estimator(jnp.array([0.3, 0.4])), [0.3, 0.4])


def test_validations_are_as_many_as_asked_for(line, key):
    fit = plain_fit(line, linear(key), mvue.emmse(), key=key, steps=60, validations=3)
    assert fit.history["step"] == [20, 40, 60]


def test_patience_stops_early_and_returns_the_best(line, key):
    rising = optax.sgd(lambda step: jnp.where(step < 50, 0.05, -0.01))
    fit = plain_fit(
        line,
        linear(key),
        mvue.emmse(),
        key=key,
        steps=1_000,
        optimizer=rising,
        patience=3,
        keep="last",
    )
    assert fit.outcome is mvue.Outcome.STOPPED_EARLY
    assert 50 < fit.step < 200
    best = fit.history["step"][fit.history.best]
    assert f"step {best:,}, the best" in fit.weights
    a = np.asarray(fit.estimator.weight)
    np.testing.assert_allclose(a, SIGNAL / (SIGNAL + NOISE) * np.eye(2), atol=0.3)


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_units_of_y_do_not_matter(key, unit):
    def fit(u):
        problem = mvue.Problem(
            dist.Uniform(u, 2 * u), lambda k, y: y + 0.1 * u * jr.normal(k, (5,))
        )
        return plain_fit(problem, steps=200, batch_size=32, repeats=4, key=key)

    assert fit(unit).held_out["mse"] / unit**2 == pytest.approx(fit(1.0).held_out["mse"], rel=0.2)


def test_failing_batches_are_skipped_not_divergence(key):
    """With one unit in a batch, a failure leaves nothing to learn from."""

    def simulate(key, theta):
        fails = jr.uniform(jr.fold_in(key, 1)) < 0.001
        return jnp.where(fails, jnp.nan, theta + jr.normal(key, (2,)))

    problem = mvue.Problem(dist.Uniform(0.0, 1.0), simulate)
    fit = plain_fit(problem, key=key, steps=900, batch_size=1, repeats=4)
    assert fit.outcome is mvue.Outcome.FINISHED
    assert fit.nonfinite > 0


def test_complex_data_keep_both_parts(key):
    problem = mvue.Problem(dist.Uniform(0.0, 1.0), lambda k, t: 1j * (t + 0.1 * jr.normal(k, (3,))))
    fit = plain_fit(problem, key=key, steps=200)
    assert fit.held_out["mse"] < 0.02  # a twelfth without the imaginary part


def test_held_out_numbers_are_of_the_weights_returned(line, key):
    fit = plain_fit(line, linear(key), mvue.emmse(), key=key, steps=100, keep="best")
    report = mvue.assess(fit, line, repeats=4_000, key=key)
    prior = report["estimator"].prior
    error = np.hypot(fit.held_out["mse_se"], prior.bmse_se)
    assert abs(fit.held_out["mse"] - prior.bmse) < 4.5 * error


def test_optimizers_that_look_at_the_loss(line, key):
    optimizer = optax.chain(optax.adam(1e-2), optax.contrib.reduce_on_plateau())
    fit = plain_fit(line, linear(key), mvue.emmse(), key=key, steps=50, optimizer=optimizer)
    assert fit.outcome is mvue.Outcome.FINISHED


@pytest.mark.parametrize("keep", ["average", "best", "last"])
def test_kept_weights(line, key, keep):
    fit = plain_fit(line, linear(key), mvue.emmse(), key=key, steps=300, optimizer=0.02, keep=keep)
    a = np.asarray(fit.estimator.weight)
    np.testing.assert_allclose(a, SIGNAL / (SIGNAL + NOISE) * np.eye(2), atol=0.15)


def test_divergence_is_an_outcome(line, key):
    def breaks(estimates, draw, progress):
        return mvue.losses.emmse_loss(estimates, draw.y) + jnp.where(progress >= 0.5, jnp.nan, 0.0)

    fit = plain_fit(line, linear(key), breaks, key=key, steps=200)
    assert fit.outcome is mvue.Outcome.DIVERGED
    assert fit.step == 100
    assert all(np.isfinite(leaf).all() for leaf in leaves(fit))
    assert "not finite at step 101" in str(fit)


def test_divergence_by_too_large_a_learning_rate(line, key):
    fit = plain_fit(line, linear(key), mvue.emmse(), key=key, steps=500, optimizer=optax.sgd(1e3))
    assert fit.outcome is mvue.Outcome.DIVERGED
    assert all(np.isfinite(leaf).all() for leaf in leaves(fit))


def test_few_nonfinite_simulations_are_left_out(key):
    def simulate(key, theta):
        noise_key, fail_key = jr.split(key)
        fails = jr.uniform(fail_key) < 2e-4
        return jnp.where(fails, jnp.nan, theta + 0.5 * jr.normal(noise_key, (2,)))

    problem = mvue.Problem(dist.Uniform(-1.0, 1.0).expand((2,)), simulate)
    fit = plain_fit(problem, linear(key), mvue.emmse(), key=key, steps=500, optimizer=0.02)
    assert fit.outcome is mvue.Outcome.FINISHED
    # A unit fails if one of its 8 measurements does.
    expected = 500 * 128 * 8 * 2e-4
    assert abs(fit.nonfinite - expected) < 5 * np.sqrt(expected)
    assert "non-finite simulations were left out" in str(fit)
    a = np.asarray(fit.estimator.weight)
    np.testing.assert_allclose(a, SIGNAL / (SIGNAL + NOISE) * np.eye(2), atol=0.1)


def test_simulator_that_fails_in_training_only_is_refused(key, tmp_path):
    """Too rarely for the pilot's two measurements of a unit, too often for eight."""

    def simulate(key, theta):
        fails = jr.uniform(jr.fold_in(key, 1)) < 0.004
        return jnp.where(fails, jnp.inf, theta) + jr.normal(key, (2,))

    problem = mvue.Problem(dist.Uniform(0.0, 1.0), simulate)
    with pytest.raises(mvue.exceptions.SimulatorError, match=r"\d\.\d+% of the simulated units"):
        plain_fit(problem, key=key, steps=100, checkpoint=tmp_path)
    assert any(tmp_path.glob("[0-9]*")), "what was trained is on disk"


def test_interrupt_returns_what_is_there_and_resumes(line, tmp_path):
    def interrupt_soon(path):
        while not any(path.glob("[0-9]*")):
            if stop.wait(0.01):
                return
        os.kill(os.getpid(), signal.SIGINT)

    call = {"key": jr.key(0), "steps": 1_000, "validations": 20, "checkpoint_every": 0.0}
    before = signal.getsignal(signal.SIGINT)
    stop = threading.Event()
    thread = threading.Thread(target=interrupt_soon, args=(tmp_path / "run",))
    thread.start()
    cut = plain_fit(line, **call, checkpoint=tmp_path / "run")
    stop.set()
    thread.join()
    assert cut.outcome is mvue.Outcome.INTERRUPTED
    assert 0 < cut.step < 1_000
    assert np.isfinite(cut.estimator(jnp.zeros(2))).all()
    assert "interrupted after" in str(cut)
    assert signal.getsignal(signal.SIGINT) is before
    resumed = plain_fit(line, **call, checkpoint=tmp_path / "run")
    whole = plain_fit(line, **call)
    assert resumed.outcome is mvue.Outcome.FINISHED
    assert all(map(np.array_equal, leaves(resumed), leaves(whole)))


def test_progress_bar(line, key, capsys):
    plain_fit(line, key=key, steps=20, progress=True)
    shown = capsys.readouterr().err
    assert "20/20" in shown
    assert "bias²" in shown
    plain_fit(line, key=key, steps=20, progress=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"repeats": 1}, "repeats must be at least 2.*got 1"),
        ({"steps": 0}, "steps must be a whole number"),
        ({"batch_size": -2}, "batch_size must be a whole number"),
        ({"patience": 0}, "patience must be a whole number"),
        ({"validations": 0}, "validations must be a whole number"),
        ({"checkpoint_every": -1.0}, "checkpoint_every must be"),
        ({"optimizer": -0.1}, "learning rate, must be positive"),
        ({"loss": mvue.bce(1.0, weight=lambda y: -(y[0] ** 2))}, r"weight\(y\) must be positive"),
        ({"training_prior": dist.Normal(0.0, 1.0)}, "training_prior"),
        ({"training_prior": {"a": dist.Normal(0.0, 1.0)}}, "training_prior does not fit"),
        ({"network": lambda x: x}, "no trainable arrays"),
        ({"loss": lambda e, draw, progress: e}, "loss must return a scalar"),
        ({"network": eqx.nn.Linear(3, 2, key=jr.key(0))}, "network failed on one"),
        ({"network": eqx.nn.Linear(2, 3, key=jr.key(0))}, "an array of the shape of y"),
    ],
)
def test_bad_input_is_refused_before_training(line, change, message):
    with pytest.raises(ValueError, match=message):
        plain_fit(line, key=jr.key(0), **change)


def test_bad_loss_settings_are_refused():
    with pytest.raises(ValueError, match="bias_weight must be at least 0, got -1"):
        mvue.bce(-1.0)
    with pytest.raises(ValueError, match="start and stop must be positive"):
        mvue.losses.geometric_schedule(0.0, 1.0)
    with pytest.raises(ValueError, match="0 <= begin < end <= 1"):
        mvue.losses.geometric_schedule(1.0, 2.0, begin=0.5, end=0.5)


def test_geometric_schedule():
    schedule = mvue.losses.geometric_schedule(10.0, 1000.0, begin=0.5, end=1.0)
    values = [float(schedule(p)) for p in (0.0, 0.5, 0.75, 1.0)]
    np.testing.assert_allclose(values, [10, 10, 100, 1000], rtol=1e-5)
    assert "λ from 10 to 1000" in mvue.bce(schedule).describe(8)
    assert "acts as λ = 90 at M = 100" in mvue.bce(1000.0, penalty="plug-in").describe(100)


@pytest.mark.parametrize(
    "loss",
    [
        mvue.losses.fisher_mse(lambda theta: 4 * jnp.eye(2)),
        mvue.losses.relative_mse(lambda theta: 0.25 * jnp.eye(2)),
        mvue.emmse(weight=lambda y: 1.0),
        mvue.losses.bias_reduced(lambda theta: 0.25 * jnp.eye(2)),
    ],
)
def test_baseline_losses_train(line, key, loss):
    fit = plain_fit(line, linear(key), loss, key=key, steps=400, optimizer=0.02)
    slope = np.diag(np.asarray(fit.estimator.weight))
    # All but the last are multiples of the mean squared error here, whose slope is 4/7.
    low, high = (0.7, 1.0) if "hinge" in fit.settings["loss"] else (0.47, 0.67)
    assert (slope > low).all()
    assert (slope < high).all()
