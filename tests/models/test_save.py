"""Model files: everything comes back as it was, and nothing else comes in."""

import dataclasses
import functools
import json
import math
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    PolynomialFeatures,
    RobustScaler,
    StandardScaler,
)

import mvue
from helpers import models
from mvue._serialise.container import Contents, read, to_bytes
from mvue._serialise.tree import Decoder, Encoder
from mvue.sklearn import BCERegressor, LinearBCE


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """One file of every kind."""
    folder = tmp_path_factory.mktemp("files")
    saved = {kind: models.save_kind(kind, folder / f"{kind}.mvue") for kind in models.KINDS}
    return folder, saved


@pytest.mark.parametrize("kind", models.KINDS)
def test_round_trip_gives_the_same_estimates(kind, files, tmp_path):
    folder, every = files
    path, saved = folder / f"{kind}.mvue", every[kind]
    model = mvue.load(path)
    expected = models.estimates(saved.estimator, saved.x)
    np.testing.assert_allclose(model.predict(saved.x, warn=False), expected, rtol=1e-5, atol=1e-6)
    original = saved.estimator
    original = original.estimator if isinstance(original, mvue.Fit) else original
    assert type(model.estimator) is type(original)
    if not hasattr(original, "predict"):
        before, after = (jax.tree.leaves(e) for e in (original, model.estimator))
        for a, b in zip(before, after, strict=True):
            assert type(a) is type(b)
            assert not hasattr(a, "dtype") or (a.dtype == b.dtype and (a == b).all())
    # The file of what was loaded is the same file.
    again = tmp_path / "again.mvue"
    mvue.save(model, again)
    assert again.read_bytes() == path.read_bytes()
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    if "linear" in kind:
        first = np.asarray(model(saved.x[0]))
        np.testing.assert_allclose(first, np.ravel(expected[0]), rtol=1e-4, atol=1e-5)


def test_fronts_load_as_scikit_learn_estimators(tmp_path):
    X, y = models.rows()
    path = tmp_path / "model.mvue"
    linear = LinearBCE(bias_weight=5.0).partial_fit(X[:120], y[:120])
    mvue.save(linear, path)
    loaded = mvue.load(path).estimator
    assert np.array_equal(loaded.predict(X), linear.predict(X))
    assert loaded.get_params() == linear.get_params()
    # All of its state is there: both go on alike.
    assert np.array_equal(
        loaded.partial_fit(X[120:], y[120:]).coef_, linear.partial_fit(X[120:], y[120:]).coef_
    )
    assert np.array_equal(
        loaded.set_params(bias_weight=1.0).coef_, linear.set_params(bias_weight=1.0).coef_
    )
    regressor = models.KINDS["regressor"]().estimator
    mvue.save(regressor, path)
    loaded = mvue.load(path).estimator
    assert isinstance(loaded, BCERegressor)
    assert np.array_equal(loaded.predict(X), regressor.predict(X))
    assert str(loaded.fit_) == str(regressor.fit_)
    assert loaded.loss_curve_ == regressor.loss_curve_
    clone(loaded)


LOADS_ALONE = """
import sys
import numpy as np
import mvue

assert "mvue.sklearn" not in sys.modules
model = mvue.load(sys.argv[1])
print(model.kind, model.predict(np.ones((2, 3))).shape)
"""


def test_fronts_load_where_nobody_imported_them(tmp_path):
    path = tmp_path / "model.mvue"
    X, y = models.rows()
    mvue.save(make_pipeline(StandardScaler(), LinearBCE(1.0)).fit(X, y), path)
    command = [sys.executable, "-c", LOADS_ALONE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.strip() == "StandardScaler → LinearBCE (2, 2)", done.stderr


def test_fields_that_were_added_later_have_their_defaults():
    @mvue.register(name="test.Grown")
    class Grown(eqx.Module):
        weight: jax.Array
        factor: float = 2.0

    encoder = Encoder()
    node = encoder.node(Grown(jnp.ones(2), 3.0), "estimator")
    assert Decoder(encoder.tensors).value(node).factor == 3.0
    del node["fields"]["factor"]
    assert Decoder(encoder.tensors).value(node).factor == 2.0
    del node["fields"]["weight"]
    with pytest.raises(ValueError, match="has other fields"):
        Decoder(encoder.tensors).value(node)


@pytest.mark.parametrize("name", models.pipelines())
def test_pipelines_load_as_they_were(name, files):
    folder, every = files
    saved, model = every[name], mvue.load(folder / f"{name}.mvue")
    pipeline, x = saved.estimator, saved.x
    expected = pipeline.predict(x)
    assert np.array_equal(model.estimator.predict(x), expected)
    assert str(model.estimator.get_params()) == str(pipeline.get_params())
    clone(model.estimator)
    # In JAX, in single precision, it is the same function.
    in_jax = np.stack([model(row) for row in x[:20]])
    np.testing.assert_allclose(in_jax, expected[:20], atol=1e-4 * np.abs(expected).max())
    assert not model.outside(x).any()
    assert model.outside(1e5 + 1e5 * x).all()
    spoilt = x.copy()
    spoilt[3, 0] = np.inf
    estimates = model.predict(spoilt, warn=False)
    assert np.isnan(estimates[3]).all()
    others = np.arange(len(x)) != 3
    np.testing.assert_allclose(estimates[others], expected[others], rtol=1e-12)
    assert "→" in str(model)


def nodes_of(node, name):
    """All descriptions of objects of a class in that of a tree."""
    if isinstance(node, dict):
        found = [node["fields"]] if node.get("type") == name else []
        return found + [inner for child in node.values() for inner in nodes_of(child, name)]
    return [i for child in node for i in nodes_of(child, name)] if isinstance(node, list) else []


def transformers():
    """All transformers that files can hold, not fitted."""
    return [
        *(StandardScaler(), MinMaxScaler(), MaxAbsScaler(), RobustScaler(), PCA(2, whiten=True)),
        *(SimpleImputer(strategy="mean"), SimpleImputer(strategy="constant", fill_value=0.5)),
        *(PolynomialFeatures(3), PolynomialFeatures((2, 3), interaction_only=True)),
        *(RBFSampler(n_components=5, random_state=0), Nystroem(n_components=4, random_state=0)),
        Nystroem(n_components=500, random_state=0),  # more than there are rows
    ]


@pytest.mark.filterwarnings("ignore:n_components > n_samples")
@pytest.mark.filterwarnings("ignore::mvue.exceptions.UnresolvedSignalWarning")
@pytest.mark.parametrize("transformer", transformers(), ids=lambda t: type(t).__name__)
def test_transformers_are_saved_by_what_is_public(transformer, tmp_path):
    import pandas as pd

    X, y = models.rows()
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    pipeline = make_pipeline(transformer, LinearBCE(1.0)).set_output(transform="pandas")
    pipeline.fit(frame, y)
    path = tmp_path / "m.mvue"
    mvue.save(pipeline, path)
    (fields,) = nodes_of(read(path).header, f"sklearn.{type(transformer).__name__}")
    parameters = transformer.get_params()
    assert all(name in parameters or name == "output" or name[-1] == "_" for name in fields)
    assert not any(name.startswith("_") for name in fields)
    again = mvue.load(path).estimator
    assert np.array_equal(again.predict(frame), pipeline.predict(frame))
    before, after = pipeline[:-1].transform(frame), again[:-1].transform(frame)
    pd.testing.assert_frame_equal(before, after)
    loaded = again[0]
    assert str(loaded.get_params()) == str(transformer.get_params())
    pd.testing.assert_frame_equal(clone(loaded).fit(frame).transform(frame), before)
    if hasattr(transformer, "inverse_transform") and not isinstance(transformer, SimpleImputer):
        back = [each.inverse_transform(before) for each in (transformer, loaded)]
        assert np.array_equal(*back)


@pytest.mark.parametrize("columns", [None, 1, 2])
def test_targets_keep_their_axes(columns, tmp_path):
    X, y = models.rows()
    y = y[:, 0] if columns is None else y[:, :columns]
    front = TransformedTargetRegressor(LinearBCE(1.0), transformer=StandardScaler()).fit(X, y)
    mvue.save(front, tmp_path / "m.mvue")
    again = mvue.load(tmp_path / "m.mvue").estimator
    assert front.predict(X).shape == y.shape
    assert np.array_equal(again.predict(X), front.predict(X))


def test_transformers_ask_for_no_more_memory_than_their_file(tmp_path):
    """Sizes are checked before anything is built, whatever a file claims."""
    X, y = models.rows()
    path = tmp_path / "m.mvue"
    huge, none = 2**40, {"float": "nan"}
    cases = [
        (RBFSampler(n_components=5), {"n_components": huge}),
        (RBFSampler(n_components=5), {"n_features_in_": 2**23}),
        (Nystroem(n_components=4), {"kernel": "polynomial"}),
        (Nystroem(n_components=4), {"kernel_params": {"dict": {"degree": huge}}}),
        (PolynomialFeatures(2), {"degree": 16}),
        (PolynomialFeatures(2), {"degree": huge}),
        (PolynomialFeatures(2), {"degree": {"tuple": [16, 16]}, "n_features_in_": 2**23}),
        (PolynomialFeatures(2), {"n_features_in_": huge}),
        (PolynomialFeatures(2), {"n_features_in_": 2**23, "n_output_features_": 2**46}),
        (SimpleImputer(), {"n_features_in_": 2**23}),
        (SimpleImputer(), {"strategy": {"function": "jax.numpy.sort"}}),
        (PCA(2), {"n_features_in_": 2**23}),
        (StandardScaler(), {"with_mean": none}),
        (MinMaxScaler(), {"feature_range": {"tuple": [0, 1, 2]}}),
        (MaxAbsScaler(), {"output": "os"}),
    ]
    for transformer, claims in cases:
        mvue.save(make_pipeline(transformer, LinearBCE(1.0)).fit(X, y), path)
        contents, name = read(path), f"sklearn.{type(transformer).__name__}"
        path.write_bytes(changed(contents, lambda h, t: nodes_of(h, name)[0].update(claims)))  # noqa: B023
        tracemalloc.start()
        with pytest.raises(mvue.exceptions.ModelFileError, match=f"{name} that cannot be"):
            mvue.load(path)
        assert tracemalloc.get_traced_memory()[1] < 2**22, claims
        tracemalloc.stop()


def hostile_file(**contents):
    """A file that is sound but for what it asks to be made."""
    spec = {"shape": [3], "dtype": "float32"}
    known = {"names": {"tuple": ["y"]}, "x": spec, "inputs": None, "y_range": None}
    header = {
        **{"versions": {}, "needs": None, "training": {"dict": {}}, "assessment": None},
        "trained_on": {"type": "mvue.TrainedOn", "fields": known},
        "estimator": contents["estimator"],
    }
    return to_bytes(Contents(header, contents.get("tensors", {})))


def partial_of(node, *args, **keywords):
    return {"partial": node, "args": list(args), "keywords": keywords, "pytree": False}


def test_files_name_no_method_but_those_of_measurements(tmp_path):
    """The method `fit` would make whatever its parameters ask for; so would a constructor."""
    path, large = tmp_path / "m.mvue", 5 * 10**7
    data, tensors = {"array": "a", "kind": "numpy"}, {"a": np.zeros((2, 3))}
    waves = {"type": "sklearn.RBFSampler", "fields": {"n_components": large}}
    fit = {"method": "fit", "of": waves}
    linear = {"class": "equinox.nn.Linear"}
    key = {"array": "a", "kind": "jax"}
    cases = [
        ("method 'fit'", partial_of(fit, data), tensors),
        ("method 'fit'", {"type": "equinox.nn.Lambda", "fields": {"fn": fit}}, {}),
        ("keys", partial_of(linear, large, large, key=key), {"a": np.zeros(2, np.uint32)}),
        ("not a function", {"function": "equinox.nn.Linear"}, {}),
    ]
    for message, estimator, given in cases:
        path.write_bytes(hostile_file(estimator=estimator, tensors=given))
        tracemalloc.start()
        with pytest.raises(mvue.exceptions.ModelFileError, match=message):
            mvue.load(path)
        assert tracemalloc.get_traced_memory()[1] < 2**22
        tracemalloc.stop()


@mvue.register(methods=("twice",))
@dataclasses.dataclass
class Doubling:
    """A class with a method of one measurement, as a user may write it."""

    factor: float

    def twice(self, x):
        return 2 * self.factor * x

    def thrice(self, x):
        return 3 * self.factor * x


def test_methods_are_saved_if_they_are_registered(tmp_path, line):
    path = tmp_path / "m.mvue"
    mvue.save(eqx.nn.Lambda(Doubling(2.0).twice), path, problem=line)
    x = jnp.array([1.0, -1.0])
    np.testing.assert_array_equal(mvue.load(path)(x), 4 * x)
    with pytest.raises(TypeError, match="not among the methods= with which the class"):
        mvue.save(eqx.nn.Lambda(Doubling(2.0).thrice), path, problem=line)
    for methods, error in ((["nothing"], ValueError), ("twice", TypeError)):
        with pytest.raises(error, match="methods must be"):
            mvue.register(Doubling, methods=methods)


HOSTILE = """
import json, sys
sys.path[:0] = [{tests!r}]
from helpers import hostile_models, models
counts, costs = hostile_models.run({files!r}, count={count}, seed=0, folder={folder!r})
print(json.dumps([counts, max(costs), max(costs, key=lambda cost: cost[1])]))
"""


def test_hostile_files_take_little_time_and_memory(files, tmp_path):
    """Files made from the grammar of the format, which ask for as much as they can."""
    few = ("perceptron", "series", "covariance", "pipeline", "regressor")
    code = HOSTILE.format(
        tests=str(Path(__file__).parents[1]),
        files=[str(files[0] / f"{kind}.mvue") for kind in few],
        folder=str(tmp_path),
        count=90,
    )
    call = [sys.executable, "-c", code]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    counts, slowest, largest = json.loads(done.stdout)
    assert sum(counts.values()) == 90
    assert slowest[0] < 2.0, slowest  # one second on a machine that is not busy
    assert largest[1] < 100 * 2**20, largest


def test_pipelines_that_cannot_be_saved(tmp_path):
    X, y = models.rows()
    own = FunctionTransformer(np.sqrt)
    for pipeline, message in (
        (make_pipeline(own, LinearBCE()), "step 'functiontransformer', a FunctionTransformer"),
        (make_pipeline(StandardScaler(), Ridge()), "step 'ridge', a Ridge: files can hold Stand"),
        (make_pipeline(SimpleImputer(add_indicator=True), LinearBCE()), "step 'simpleimputer': "),
        (make_pipeline(StandardScaler(), LinearBCE(), memory=str(tmp_path)), "memory=None"),
        (TransformedTargetRegressor(LinearBCE(), func=np.log, inverse_func=np.exp), "transformer"),
    ):
        with pytest.raises(TypeError, match=message):
            mvue.save(pipeline.fit(np.abs(X), np.abs(y)), tmp_path / "m.mvue")
        assert not (tmp_path / "m.mvue").exists()


def test_own_transformers_can_be_registered(tmp_path):
    @functools.partial(mvue.register, name="test.Halved", fields=("n_features_in_",))
    class Halved(TransformerMixin, BaseEstimator):
        def fit(self, X, y=None):
            self.n_features_in_ = X.shape[1]
            return self

        def transform(self, X):
            return X / 2

    X, y = models.rows()
    pipeline = make_pipeline(Halved(), LinearBCE()).fit(X, y)
    mvue.save(pipeline, tmp_path / "m.mvue")
    model = mvue.load(tmp_path / "m.mvue")
    assert np.array_equal(model.predict(X), pipeline.predict(X))
    with pytest.raises(TypeError, match="a Halved has no form in JAX: use predict"):
        model(X[0])


def test_feature_and_target_names_are_kept(tmp_path):
    import pandas as pd

    X, y = models.rows()
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    linear = LinearBCE().fit(frame, pd.DataFrame(y, columns=["u", "v"]))
    mvue.save(linear, tmp_path / "m.mvue")
    model = mvue.load(tmp_path / "m.mvue")
    assert model.names == ("u", "v")
    assert list(model.estimator.feature_names_in_) == ["a", "b", "c"]
    assert np.array_equal(model.estimator.predict(frame), linear.predict(frame))
    linear.set_params(max_open_units=object())
    with pytest.raises(TypeError, match=r"cannot save this LinearBCE: .*max_open_units is a"):
        mvue.save(linear, tmp_path / "m.mvue")


def test_what_is_known_is_kept(tmp_path, line):
    fit = models.tiny_fit()
    report = mvue.assess(fit, models.variance_problem(), key=jr.key(0), repeats=100)
    mvue.save(fit, tmp_path / "m.mvue", assessment=report)
    model = mvue.load(tmp_path / "m.mvue")
    assert model.names == ("variance",)
    assert model.x.shape == (6,)
    assert model.training["step"] == 3
    assert model.training["settings"]["loss"] == fit.settings["loss"]
    assert model.training["ranges"] == []
    assert model.training["held_out"] == pytest.approx(fit.held_out, nan_ok=True)
    assert model.assessment == report.summary("estimator") | {"repeats": 100}
    assert model.versions["mvue"] == mvue.__version__
    low, high = model.trained_on.y_range[:, 0]
    assert low < 0.6
    assert high > 3.9
    text = str(model)
    assert "variance" in text
    assert "shape (6,)" in text
    # Any tool for safetensors can read it.
    with safe_open(tmp_path / "m.mvue", "numpy") as file:
        assert json.loads(file.metadata()["mvue"])["format"] == 1
        assert "estimator.network.layers.0.weight" in set(file.keys())
    two = mvue.assess({"a": lambda x: x, "b": lambda x: x}, line, key=jr.key(0), repeats=10)
    with pytest.raises(ValueError, match=r"report\.summary"):
        mvue.save(fit, tmp_path / "m.mvue", assessment=two)


def values():
    nan = float("nan")
    return [
        *(None, True, False, 0, -(2**63), 1.5, 1e-300, "text, “quoted” 😀", [], (), {}),
        *(
            nan,
            math.inf,
            -math.inf,
            2 - 3j,
            [1, (2.0, [None])],
            {"a": {"b": (1,)}},
            {1: 2, (3,): 4},
        ),
        *(jnp.arange(3), jnp.ones((2, 0)), jnp.asarray(2.5, jnp.bfloat16), jnp.zeros(2, bool)),
        *(np.arange(3, dtype=np.uint64), np.ones(2), np.float32(3), np.int8(-1), np.array(nan)),
        *(np.array([1 + 2j]), jnp.array([1 - 2j]), np.ones((2, 3)).T, np.ones(2, ">f8")),
        *(np.array(["a", "bc"]), np.array(["a", "bc"], object), np.zeros(1, ml_dtypes.bfloat16)),
        *(np.array([[1, "a", None]], object), np.dtype("float32")),
        *(jax.nn.gelu, jnp.tanh, functools.partial(jax.nn.gelu, approximate=False)),
        *(jax.tree_util.Partial(jnp.sum, axis=0), mvue.Outcome.FINISHED),
        jax.ShapeDtypeStruct((2, 3), jnp.float32),
    ]


@pytest.mark.parametrize("value", values(), ids=lambda value: type(value).__name__)
def test_values_come_back_as_they_were(value):
    encoder = Encoder()
    node = encoder.node(value, "v")
    contents = Contents({"v": node}, encoder.tensors)
    length = int.from_bytes((data := to_bytes(contents))[:8], "little")
    header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["mvue"])
    native = {k: v.astype(v.dtype.newbyteorder("=")) for k, v in encoder.tensors.items()}
    decoder = Decoder(native)
    back = decoder.value(header["v"])
    assert type(back) is type(value)
    assert not decoder.tensors
    if hasattr(value, "dtype"):
        assert back.dtype == np.dtype(value.dtype).newbyteorder("=")
        assert back.shape == value.shape
    if isinstance(value, (np.ndarray, jax.Array)):
        np.testing.assert_array_equal(np.asarray(back), np.asarray(value))
    elif isinstance(value, functools.partial):
        assert (back.func, back.args, back.keywords) == (value.func, value.args, value.keywords)
    else:
        assert back == value or (back != back and value != value)


class Own(eqx.Module):
    """Of a user, and not registered."""

    layers: list
    slope: float
    activation: object

    def __init__(self, size=3, slope=0.5, *, key):
        self.layers = [eqx.nn.Linear(2, size, key=key), eqx.nn.Linear(size, 2, key=key)]
        self.slope, self.activation = slope, lambda h: jnp.maximum(h, slope * h)

    def __call__(self, x):
        return self.layers[1](self.activation(self.layers[0](x)))


def test_own_networks_load_into_one_like_them(tmp_path, line):
    path = tmp_path / "own.mvue"
    own, x = Own(key=jr.key(0)), models.numbers(20, 2)
    mvue.save(own, path, problem=line)
    with pytest.raises(
        mvue.exceptions.ModelFileError, match=r"test_save\.Own.*like=network.*mvue\.register"
    ):
        mvue.load(path)
    expected = jax.vmap(own)(x)
    for like in (Own(key=jr.key(1)), eqx.filter_eval_shape(Own, key=jr.key(1))):
        model = mvue.load(path, like=like)
        np.testing.assert_allclose(model.predict(x), expected, rtol=1e-5, atol=1e-6)
    half = jax.tree.map(lambda a: a.astype(jnp.float16) if eqx.is_array(a) else a, own)
    for like, message in (
        (Own(4, key=jr.key(1)), r"float32 \(3, 2\) at \.layers\[0\].*like has float32 \(4, 2\)"),
        (Own(3, 0.4, key=jr.key(1)), r"it has 0\.5 at \.slope, where like has 0\.4"),
        (half, "like has float16"),
        (eqx.nn.MLP(2, 2, 3, 1, key=jr.key(0)), "does not have the structure of like"),
    ):
        with pytest.raises(mvue.exceptions.ModelFileError, match=message):
            mvue.load(path, like=like)
    # What is described in full loads into another one of its kind, too.
    network = eqx.nn.MLP(2, 2, 3, 1, key=jr.key(0))
    mvue.save(network, path)
    model = mvue.load(path, like=eqx.nn.MLP(2, 2, 3, 1, key=jr.key(7)))
    assert eqx.tree_equal(model.estimator, network)


def test_registered_classes_load_by_themselves(tmp_path, line):
    @mvue.register(name="test.Scaled")
    class Scaled(eqx.Module):
        scale: jax.Array

        def __call__(self, x):
            return self.scale * x

    mvue.save(Scaled(jnp.ones(2)), tmp_path / "m.mvue", problem=line)
    assert isinstance(mvue.load(tmp_path / "m.mvue").estimator, Scaled)
    with pytest.raises(ValueError, match=r"'test\.Scaled' is that of another"):
        mvue.register(eqx.nn.Bilinear if hasattr(eqx.nn, "Bilinear") else dict, name="test.Scaled")
    with pytest.raises(ValueError, match="give name="):
        mvue.register(lambda x: x)
    with pytest.raises(TypeError, match="fields="):
        mvue.register(type("Plain", (), {}))


@pytest.mark.parametrize(
    ("estimator", "error", "message"),
    [
        (lambda x: x, TypeError, r"no arrays to save.*lambda.*mvue\.register"),
        (3, TypeError, "estimator must be a Fit, a function"),
        (LinearBCE(), Exception, "not fitted"),
    ],
)
def test_what_cannot_be_saved(estimator, error, message, tmp_path):
    with pytest.raises(error, match=message):
        mvue.save(estimator, tmp_path / "m.mvue")
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "m.mvue"
    models.save_kind("linear", path)
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        models.save_kind("linear", path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.mvue"]


def test_double_precision_needs_double_precision(tmp_path):
    with jax.enable_x64(True):
        mvue.save(eqx.nn.Linear(2, 2, key=jr.key(0)), tmp_path / "m.mvue")
        assert mvue.load(tmp_path / "m.mvue").estimator.weight.dtype == jnp.float64
    with pytest.raises(mvue.exceptions.ModelFileError, match="jax_enable_x64"):
        mvue.load(tmp_path / "m.mvue")


def test_files_that_are_none(tmp_path):
    path = tmp_path / "m.mvue"
    with pytest.raises(FileNotFoundError):
        mvue.load(path)
    with pytest.raises(IsADirectoryError):
        mvue.load(tmp_path)
    os.mkfifo(path)
    with pytest.raises(mvue.exceptions.ModelFileError, match="not a file on disk"):
        mvue.load(path)
    path.unlink()
    for data in (b"", b"PK\x03\x04" + bytes(100), b"\xff" * 8, b"\x02" + bytes(7) + b"{}"):
        path.write_bytes(data)
        with pytest.raises(
            mvue.exceptions.ModelFileError, match=r"not a model file|not written by mvue|JSON"
        ):
            mvue.load(path)
    with path.open("wb") as stream:  # claims 2⁵⁰ bytes, and has none of them
        tensor = {"dtype": "F32", "shape": [2**25, 2**23], "data_offsets": [0, 2**50]}
        header = json.dumps({"a": tensor}).encode()
        stream.write(len(header).to_bytes(8, "little") + header)
    with pytest.raises(mvue.exceptions.ModelFileError, match="should have"):
        mvue.load(path)
    with path.open("wb") as stream:
        stream.truncate(2**40)  # a file of holes
    with pytest.raises(mvue.exceptions.ModelFileError, match="bytes, more than"):
        mvue.load(path)


def changed(contents, change):
    """The bytes of a file whose header was changed, with a sound checksum."""
    header = json.loads(json.dumps(contents.header))
    tensors = dict(contents.tensors)
    change(header, tensors)
    return to_bytes(Contents(header, tensors))


def test_inconsistent_files_are_refused(files, tmp_path):
    path = tmp_path / "m.mvue"
    contents = read(files[0] / "perceptron.mvue")
    layer = "estimator.network.layers.0."

    def reach(header, *names):
        for name in names:
            header = header[name]
        return header

    fields = ("estimator", "fields")
    tuple_of_layers = (*fields, "network", "fields", "layers", "tuple")
    cases = {
        "newer mvue": lambda h, t: h.update(format=2),
        "is not that of a model": lambda h, t: h.pop("training"),
        "not registered here": lambda h, t: h["estimator"].update(type="os.system"),
        "posix.system": lambda h, t: reach(h, *fields).update(
            features={"function": "posix.system"}
        ),
        "is not a function": lambda h, t: reach(h, *fields).update(
            features={"function": "equinox.nn.Linear"}
        ),
        "other fields": lambda h, t: reach(h, *fields).pop("inputs"),
        "inconsistent": lambda h, t: t.update({layer + "weight": np.ones((5, 3), np.float32)}),
        "left over": lambda h, t: t.update(more=np.ones(1)),
        "no tensor": lambda h, t: t.pop(layer + "bias"),
        "uses it twice": lambda h, t: reach(h, *tuple_of_layers).append(
            reach(h, *tuple_of_layers)[0]
        ),
        "nested more than": lambda h, t: reach(h, *fields).update(
            features=functools.reduce(lambda node, _: [node], range(80), 1)
        ),
        "more than 65,536 parts": lambda h, t: h["training"]["dict"].update(a=[0] * 70_000),
        "shape of a measurement": lambda h, t: reach(h, "trained_on", "fields").update(x=None),
        "claims a large shape": lambda h, t: t.update(more=np.ones((2**40, 0))),
    }
    for message, change in cases.items():
        data = changed(contents, change)
        if message == "newer mvue":
            data = data.replace(b'\\"format\\": 1', b'\\"format\\": 2')
        path.write_bytes(data)
        with pytest.raises(mvue.exceptions.ModelFileError, match=message):
            mvue.load(path)


def test_every_flipped_bit_is_noticed(tmp_path):
    path = tmp_path / "m.mvue"
    models.save_kind("linear", path)
    data = path.read_bytes()
    for place in range(0, 8 * len(data), 7):
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(mvue.exceptions.ModelFileError):
            mvue.load(path)
    for size in range(0, len(data), 13):
        path.write_bytes(data[:size])
        with pytest.raises(mvue.exceptions.ModelFileError):
            mvue.load(path)


FUZZ = """
import resource, sys
sys.path[:0] = [{tests!r}]
from helpers import fuzz_models, models
resource.setrlimit(resource.RLIMIT_AS, (16 * 2**30, 16 * 2**30))
print(fuzz_models.run({files!r}, mutations={mutations}, seed=0, folder={folder!r}, watch=True))
"""


def test_fuzz(files, tmp_path):
    """Mutated files: documented errors only, and no file, import or code beyond the file itself."""
    code = FUZZ.format(
        tests=str(Path(__file__).parents[1]),
        files=[str(file) for file in sorted(files[0].iterdir())],
        folder=str(tmp_path),
        mutations=20_000,
    )
    # What is compiled while files are read would be written to the folder of compiled programs.
    alone = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    call = [sys.executable, "-c", code]
    done = subprocess.run(call, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    counts = json.loads(done.stdout)
    assert counts["refused"] + counts["loaded"] == counts["mutations"] == 20_000
    assert counts["deep"] > 2_000  # with a sound checksum, to reach what comes after it
    assert counts["watched"] == []


@pytest.mark.parametrize("calls", range(12))
def test_a_check_that_takes_too_long_is_cut_wherever_it_is(calls):
    """Also while a generator is being closed, where what is raised would be lost."""
    from mvue._models.checks import _limited_work, _TooMuchWork

    def open_and_close():
        numbers = (i for i in range(3))
        next(numbers)
        del numbers

    def work():
        for _ in range(100):
            open_and_close()

    with pytest.raises(_TooMuchWork), _limited_work(calls):
        work()


def test_tables_in_another_order_are_refused_by_all_that_estimates(seed, tmp_path):
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(seed)
    y = np.repeat(rng.uniform(1, 3, 100), 4)
    noise = rng.normal(size=(400, 2))
    table = pandas.DataFrame({"a": y + 0.1 * noise[:, 0], "b": y**2 + 0.1 * noise[:, 1]})
    mvue.save(LinearBCE(10.0).fit(table, y), tmp_path / "m.mvue")
    model = mvue.load(tmp_path / "m.mvue")
    np.testing.assert_allclose(
        model(table[:3]).ravel(), model.predict(table[:3]).ravel(), rtol=1e-5
    )
    swapped = table[["b", "a"]]
    for use in (model, lambda x: mvue.average(model, x), mvue.Average(model)):
        with pytest.raises(ValueError, match="columns a, b, in this order, got b, a"):
            use(swapped[:3])
