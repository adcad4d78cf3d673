"""Wrong types as a user meets them: without the type checker of the tests."""

import subprocess
import sys

SCRIPT = """
import jax, jax.random as jr, numpy as np, numpyro.distributions as dist
import mvue
from mvue import losses
from mvue import RunningAverage as Running

prior = dist.Uniform(0.0, 1.0)
problem = mvue.Problem(prior, lambda key, t: t + jr.normal(key, (2,)))
key = jr.key(0)
estimates, y, x = np.zeros((3, 2, 1)), np.zeros((3, 1)), np.zeros((3, 2))
data = mvue.Repeats.from_rows(np.arange(8.0).reshape(4, 2), np.array([0.0, 0.0, 1.0, 1.0]))
cases = [
    (lambda: mvue.Problem(prior, 3.0), TypeError, "simulate must be callable, got float"),
    (lambda: mvue.Problem(prior, problem.simulate, names="y"), TypeError, "got the string 'y'"),
    (lambda: mvue.Problem(prior, problem.simulate, names=(1,)), TypeError, "strings, got (1,)"),
    (lambda: mvue.fit(problem, 3.0, key=key), TypeError, "network must be callable, a Fit"),
    (lambda: mvue.fit(problem, key=0), TypeError, "such as jax.random.key(0), got 0"),
    (lambda: mvue.assess(np.mean, problem, key=None), TypeError, "key must be a random key"),
    (lambda: mvue.export_onnx(3.0, "m.onnx"), TypeError, "estimator must be a Fit, a function"),
    (lambda: mvue.fit(problem, key=key, steps=2.5), ValueError, "steps must be a whole number"),
    (lambda: mvue.fit(problem, key=key, batch_size=True), ValueError, "batch_size must be a whole"),
    (lambda: mvue.fit(problem, key=key, keep="worst"), ValueError, "keep must be 'average'"),
    (lambda: mvue.fit(problem, key=key, optimizer="adam"), TypeError, "must be an Optax optimizer"),
    (lambda: mvue.fit(problem, key=key, loss="mse"), TypeError, "loss must be a function"),
    (lambda: mvue.fit(problem, key=key, loss=losses.emmse_loss), TypeError, "as loss(estimates, d"),
    (lambda: mvue.assess({1: np.mean}, problem, key=key), TypeError, "must be named by strings"),
    (lambda: mvue.fit(problem.simulate, key=key), TypeError, "problem must be a Problem"),
    (lambda: mvue.fit(data, key=key), TypeError, "got data (Repeats): use fit_data"),
    (lambda: jax.jit(lambda k: mvue.fit(problem, key=k))(key), TypeError, "fit cannot be traced"),
    (lambda: jax.jit(lambda _: mvue.fit(problem, key=key))(0), TypeError, "fit cannot be traced"),
    (lambda: mvue.bce(np.float32(-1)), ValueError, "bias_weight must be at least 0"),
    (lambda: mvue.bce("40"), TypeError, "bias_weight must be a number"),
    (lambda: mvue.bce(1.0, penalty="none"), ValueError, "penalty must be 'unbiased' or"),
    (lambda: losses.squared_bias(estimates, y, penalty="exact"), ValueError, "penalty must be"),
    (lambda: mvue.assess(3.0, problem, key=key), TypeError, "a Fit or a Model, got float"),
    (lambda: mvue.assess(np.mean, problem, key=key, repeats=2.5), ValueError, "repeats must be"),
    (lambda: mvue.interval(3.0, problem, key=key), TypeError, "a Fit or a Model, got float"),
    (lambda: mvue.interval(np.mean, 3, key=key), TypeError, "problem must be a Problem, got int"),
    (lambda: mvue.interval(np.mean, problem, key=key, level="90%"), TypeError, "level must be a n"),
    (lambda: mvue.interval(np.mean, problem, key=key, method="z"), ValueError, "method must be"),
    (lambda: mvue.check(3.0, problem, x, key=key), TypeError, "a Fit or a Model, got float"),
    (lambda: mvue.check(np.mean, 3, x, key=key), TypeError, "problem must be a Problem, got int"),
    (lambda: mvue.check(np.mean, problem, x, key=3), TypeError, "key must be a random key"),
    (lambda: mvue.Report.with_check(None, 0.5), TypeError, "what mvue.check returns, got float"),
    (lambda: mvue.save(np.mean, "m", intervals=3), TypeError, "intervals must be what mvue.int"),
    (lambda: mvue.simulate(np.add, np.sum, folder=""), TypeError, "folder must be the name of"),
    (lambda: mvue.simulate(np.add, np.sum, folder=3), TypeError, "folder must be the name of"),
    (lambda: mvue.crb(3, 1.0), TypeError, "problem must be a Problem, got int"),
    (lambda: mvue.information_bound(3, 1.0), TypeError, "problem must be a Problem, got int"),
    (lambda: mvue.information_bound(problem, 0.5, statistics=3), TypeError, "statistics must be a"),
    (lambda: mvue.information_bound(problem, 0.5, samples=1e5), ValueError, "samples must be a wh"),
    (lambda: mvue.assess(np.mean, problem, key=key, bound="x"), ValueError, "bound must be 'est"),
    (lambda: mvue.average(3.0, y), TypeError, "a Fit or a Model, got float"),
    (lambda: mvue.Average(3.0), TypeError, "a Fit or a Model, got float"),
    (lambda: mvue.Average(np.mean, y), TypeError, "weights must be a function of one measurement"),
    (lambda: mvue.average(np.sum, y, -1), ValueError, "axis must be a whole number"),
    (lambda: Running.of(y, nonfinite="drop"), ValueError, "nonfinite must be 'error' or"),
    (lambda: mvue.fit(problem, key=key, recipe="fast"), TypeError, "recipe must be a mvue.Recipe"),
    (lambda: mvue.Recipe.Survey(nodes=2.5), TypeError, "Survey.nodes must be a whole number"),
    (lambda: mvue.Recipe.Survey(pilot=True), TypeError, "Recipe.Survey.pilot must be a whole"),
    (lambda: mvue.Recipe.ErrorModel(lengths=3), TypeError, "lengths must be a tuple of numbers"),
    (lambda: mvue.Recipe.Summaries(natural=1), TypeError, "natural must be True or False"),
    (lambda: mvue.Recipe.Schedule(bias_weights=(1.0,)), TypeError, "must be two numbers"),
    (lambda: mvue.Recipe(network={"width": 3}), TypeError, "must be Recipe.Network(...), got {"),
    (lambda: Running.of(y).merge(y), TypeError, "other must be a RunningAverage, got ndarray"),
]
for call, kind, message in cases:
    try:
        call()
    except kind as error:
        assert message in str(error), (message, str(error))
    else:
        raise SystemExit(f"no error: {message}")
print(len(cases), "refused")
"""


def test_wrong_types_are_refused_by_name():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "refused" in done.stdout
