"""Estimators of every kind that can be saved, small and quick to make."""

import dataclasses
import functools
import warnings
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from sklearn.compose import TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    PolynomialFeatures,
    RobustScaler,
    StandardScaler,
)

import mvue
from helpers.layouts import statistics_for
from mvue._default.network import Corrected
from mvue._default.scoring import scored_network
from mvue._finish.calibration import Calibrated, Calibration
from mvue._finish.input_range import TrainedOn
from mvue._start.baseline import Baseline
from mvue._start.plug_in import PlugIn
from mvue._summaries.sets import Statistics
from mvue.nn import Affine
from mvue.nn._layers import perceptron
from mvue.nn._staged import Given, WithBaseline
from mvue.nn._standardize import ScaleBack
from mvue.problems import CovarianceMLP, UnrolledCovariance, rssi_room, structured_covariance
from mvue.sklearn import BCERegressor, LinearBCE, LinearBCECV


class Saved(NamedTuple):
    """Something to save, and measurements for it."""

    estimator: Any
    x: Any
    problem: mvue.Problem | None = None


@mvue.register
class Convolved(eqx.Module):
    """A network with convolutions, as a user may write it."""

    first: eqx.nn.Conv1d
    pool: eqx.nn.AvgPool1d
    norm: eqx.nn.LayerNorm
    last: eqx.nn.Linear

    def __init__(self, length, *, key):
        keys = jr.split(key)
        self.first = eqx.nn.Conv1d(1, 4, 3, padding=1, key=keys[0])
        self.pool = eqx.nn.AvgPool1d(2, 2)
        self.norm = eqx.nn.LayerNorm((4, length // 2))
        self.last = eqx.nn.Linear(2 * length, 1, key=keys[1])

    def __call__(self, x):
        return self.last(jnp.ravel(self.norm(self.pool(jax.nn.relu(self.first(x[None]))))))


def variance_problem(n=6):
    return mvue.Problem.from_likelihood(
        prior=dist.Uniform(jnp.array([0.5]), jnp.array([4.0])),
        likelihood=lambda y: dist.Normal(0.0, jnp.sqrt(y[0])).expand((n,)),
        names=("variance",),
        exchangeable=True,
    )


def line_problem():
    return mvue.Problem(
        prior=dist.Uniform(-1.0, 1.0).expand((2,)),
        simulate=lambda key, y: y + 0.5 * jr.normal(key, (2,)),
        names=("east", "north"),
    )


def numbers(*shape, seed=5):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@functools.cache
def tiny_fit():
    """A perceptron, hardly trained."""
    problem = variance_problem()
    network = mvue.standardize(
        eqx.nn.MLP(6, 1, 4, 1, jax.nn.gelu, key=jr.key(1)), problem, key=jr.key(2)
    )
    given = {"training_prior": problem.prior, "loss": mvue.bce(weight=None)}
    return mvue.fit(problem, network, key=jr.key(0), steps=3, anchors=0, **given)


def rows():
    rng = np.random.default_rng(0)
    y = np.repeat(rng.normal(size=(60, 2)), 4, axis=0)
    return 3 + y @ rng.normal(size=(2, 3)) + 0.3 * rng.normal(size=(240, 3)), y


def _fit():
    return Saved(tiny_fit(), numbers(20, 6))


def _default():
    """The network that `fit` makes by itself, from other numbers."""
    statistics = Statistics("vectors", False, Affine(jnp.zeros(()), jnp.ones(())))
    x = jax.ShapeDtypeStruct((5, 2), jnp.float32)
    size, natural = (
        jax.eval_shape(part, x).shape[0] for part in (statistics.inputs, statistics.natural)
    )
    one = lambda *shape: jr.normal(jr.key(sum(shape)), shape)  # noqa: E731
    table = jnp.linspace(0.0, 1.0, 5)[None]
    plug_in = PlugIn(
        scaling=Affine(jnp.zeros(size), jnp.ones(size)),
        hidden=one(size, 7),
        offsets=one(7),
        readout=one(size + 8, 1),
        log_sd_readout=one(size + 8, 1),
        log_sd_range=jnp.array([[-1.0], [1.0]]),
        scale=table,
        table=table**2,
    )
    baseline = Baseline(Affine(jnp.zeros(natural), jnp.ones(natural)), one(1, size + natural + 3))
    inner = eqx.nn.MLP(2, 3, 4, 1, jax.nn.gelu, key=jr.key(0))
    network = eqx.nn.MLP(size + 5, 1, 4, 1, jax.nn.gelu, key=jr.key(1))
    return Saved(Corrected(statistics, plug_in, baseline, inner, network), numbers(20, 5, 2))


def plug_in_for(size, widths):
    one = lambda *shape: jr.normal(jr.key(sum(shape)), shape)  # noqa: E731
    table = jnp.stack([jnp.linspace(0.0, width, 5) for width in widths])
    return PlugIn(
        scaling=Affine(jnp.zeros(size), jnp.ones(size)),
        hidden=one(size, 7),
        offsets=one(7),
        readout=one(size + 8, len(widths)),
        log_sd_readout=one(size + 8, len(widths)),
        log_sd_range=jnp.array([[-1.0] * len(widths), [1.0] * len(widths)]),
        scale=table,
        table=table**2 / 10,
    )


def scored(kind, shape, *, is_complex=False):
    """Learned Fisher scoring on what has an order, calibrated, from other numbers."""
    x = jnp.asarray(numbers(16, *shape))
    x = x + 1j * jnp.asarray(numbers(16, *shape, seed=6)) if is_complex else x
    statistics = statistics_for([x], kind=kind)
    size = jax.eval_shape(statistics.inputs, [x[0]]).shape[0]
    plug_in = plug_in_for(size, (200.0, 9.0))
    settings = mvue.Recipe.Network(stages=2, rank=5, width=6, first_width=7, hidden_state=2)
    network = scored_network(statistics, plug_in, (0.01, 0.2, 0.1), settings, key=jr.key(0))
    tables = plug_in.scale, plug_in.table
    powers, layers, ripples = ((0, 0, 0), (1, 0, 0), (0, 1, 1)), ((0, 1, 0.05),), ((0, 3),)
    coefficients = 0.1 * jr.normal(jr.key(1), (2, 6))
    calibration = Calibration(*tables, coefficients, powers, layers, ripples)
    return Saved(Calibrated(network, calibration), np.asarray(x))


def _perceptron():
    network = perceptron(2, (5, 4), 2, jnp.tanh, key=jr.key(1))
    standard = mvue.standardize(network, line_problem(), whiten=True, key=jr.key(2))
    return Saved(standard, numbers(20, 2), line_problem())


def _set_network():
    network = mvue.nn.DeepSet(2, 2, width=8, key=jr.key(0))
    problem = mvue.Problem(
        prior=dist.Uniform(-1.0, 1.0).expand((2,)),
        simulate=lambda key, y: y[None] + jr.normal(key, (5, 2)),
        exchangeable=True,
    )
    return Saved(network, numbers(20, 5, 2), problem)


@functools.cache
def _structure():
    return structured_covariance(np.eye(3)[:, :, None] * np.eye(3)[:, None, :], 6, statistic=False)


def _covariance():
    network = CovarianceMLP(_structure(), width=8, correction=True, key=jr.key(0))
    return Saved(WithBaseline(Given(_structure().masked), network), numbers(20, 6, 3))


def _unrolled():
    network = UnrolledCovariance(_structure(), iterations=4, hidden=6, state=3, key=jr.key(0))
    return Saved(network, numbers(20, 6, 3))


def _room():
    room = rssi_room()
    network = eqx.nn.MLP(2 * len(room.beacons), 2, 4, 1, jax.nn.gelu, key=jr.key(0))
    units = Affine(jnp.zeros(2), jnp.ones(2))
    inputs = Affine(jnp.zeros(2 * len(room.beacons)), jnp.ones(2 * len(room.beacons)))
    standard = mvue.nn.Standardized(room.sufficient, inputs, network, ScaleBack(units))
    return Saved(standard, 20 * numbers(20, room.n, len(room.beacons)) - 60)


def _linear():
    H = np.random.default_rng(0).normal(size=(5, 2))
    return Saved(mvue.linear_bce(H, 1.0, 1.0, 10.0), numbers(20, 5))


def _readout():
    network = eqx.nn.MLP(2, 2, 4, 1, jnp.sin, key=jr.key(1))
    readout = mvue.refit_last_layer(network, line_problem(), 10.0, key=jr.key(2), units=500)
    return Saved(readout, numbers(20, 2), line_problem())


def _convolved():
    problem = dataclasses.replace(variance_problem(8), exchangeable=False)
    return Saved(Convolved(8, key=jr.key(0)), numbers(20, 8), problem)


def _linear_front():
    X, y = rows()
    return Saved(LinearBCE(10.0).fit(X, y), X)


def _chosen_front():
    X, y = rows()
    return Saved(LinearBCECV([0.0, 10.0], cv=3).fit(X, y[:, 0]), X)


@functools.cache
def _regressor():
    X, y = rows()
    model = BCERegressor(3.0, hidden=(4,), steps=20, random_state=0)
    return Saved(model.fit(X, y[:, 0]), X)


def pipelines():
    """Pipelines with all transformers that files can hold, not fitted."""
    steps = (MinMaxScaler(), RobustScaler(), MaxAbsScaler(), SimpleImputer(strategy="median"))
    kernels = Nystroem(n_components=6, random_state=0)
    waves = make_pipeline(StandardScaler(), RBFSampler(n_components=8, random_state=0))
    inside = TransformedTargetRegressor(LinearBCE(1.0), transformer=MinMaxScaler())
    return {
        "pipeline": make_pipeline(*steps, PolynomialFeatures(2), PCA(4), LinearBCE(1.0)),
        "kernels": make_pipeline("passthrough", StandardScaler(), kernels, inside),
        "scaled": TransformedTargetRegressor(
            make_pipeline(waves, BCERegressor(3.0, hidden=(4,), steps=20, random_state=0)),
            transformer=StandardScaler(),
        ),
    }


@functools.cache
def _fitted_pipeline(name):
    X, y = rows()
    X = X * [1.0, 10.0, 100.0] + [0.0, 300.0, 5.0]
    X[::9, 1] = np.nan if name == "pipeline" else 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mvue.exceptions.UnresolvedSignalWarning)
        return Saved(pipelines()[name].fit(X, y), X)


KINDS = {
    "fit": _fit,
    "default": _default,
    "series": functools.partial(scored, "series", (66,)),
    "image": functools.partial(scored, "image", (8, 8)),
    "perceptron": _perceptron,
    "set": _set_network,
    "covariance": _covariance,
    "unrolled": _unrolled,
    "room": _room,
    "linear": _linear,
    "readout": _readout,
    "convolved": _convolved,
    "linear-front": _linear_front,
    "chosen-front": _chosen_front,
    "regressor": _regressor,
    **{name: functools.partial(_fitted_pipeline, name) for name in pipelines()},
}


def save_kind(kind, path):
    """Save one of the kinds; returns what was saved."""
    saved = KINDS[kind]()
    mvue.save(saved.estimator, path, problem=saved.problem)
    return saved


def with_shape(model, x):
    """A model that knows the shape of a measurement, where its file did not tell."""
    if model.trained_on is not None:
        return model
    d = model(x[0]).shape[0]
    spec = jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
    names = tuple(f"y{i}" for i in range(d))
    return dataclasses.replace(model, trained_on=TrainedOn(names, spec, None, None))


def estimates(estimator, x):
    """What an estimator itself gives, in the same program as a model's."""
    if isinstance(estimator, mvue.Fit):
        estimator = estimator.estimator
    if hasattr(estimator, "predict"):
        return estimator.predict(x)
    return jax.jit(jax.vmap(lambda one: jnp.reshape(estimator(one), (-1,))))(x)
