"""Well-formed model files with a sound checksum that ask for much: what they cost `mvue.load`.

They are made from the grammar of the format: every kind of node, at every place of real files and
as the estimator itself, with every class and function that files may name and with sizes that no
file of a few kilobytes can have.
"""

import collections
import copy
import functools
import gc
import inspect
import itertools
import math
import random
import re
import time
import warnings
from pathlib import Path

import numpy as np

import mvue
from mvue._serialise import registry
from mvue._serialise.container import Contents, read, to_bytes

LARGE = (5 * 10**7, 2**31, 2**40, 2**62)
VALUES = (
    *(None, True, 0, -1, *LARGE, 1e308, {"float": "nan"}, "", "x" * 10_000, [], [[]]),
    *({"tuple": []}, {"tuple": [*LARGE, *LARGE]}, {"dict": {}}, {"items": []}),
    *({"shape": list(LARGE[:2]), "dtype": "float32"}, {"dtype": "float64"}),
    *({"strings": [], "shape": [0, 2**40], "object": True}, {"objects": [], "shape": [0, 2**40]}),
)


class Hostile:
    """Hostile files of all families, from sound ones."""

    def __init__(self, files):
        self.sound = {Path(file).stem: read(file) for file in files}
        for contents in self.sound.values():
            contents.header.pop("format", None)
        self.instances = [
            (node, contents)
            for contents in self.sound.values()
            for node in _nodes(contents.header["estimator"])
            if isinstance(node, dict) and "type" in node
        ]
        self.names = sorted(registry._BY_NAME)

    def families(self):
        """Streams of descriptions and contents."""
        return {
            "one value": self._values(),
            "shape of x": self._shapes(),
            "method": self._methods(),
            "class": self._classes(),
            "function": self._functions(),
            "unfitted": self._unfitted(),
            "fields": self._fields(),
            "many parts": self._many(),
            "columns": self._columns(),
        }

    def take(self, count, seed=0):
        """So many files, the same number of each family as far as it reaches."""
        streams = {name: list(stream) for name, stream in self.families().items()}
        rng, left = random.Random(seed), count
        for stream in streams.values():
            rng.shuffle(stream)
        gc.collect()
        gc.freeze()  # what a file costs shall not be the collection of all these descriptions
        for i, name in enumerate(sorted(streams, key=lambda name: len(streams[name]))):
            share, made = left // (len(streams) - i), 0
            for what, header, tensors in streams[name]:
                if made == share:
                    break
                try:
                    data = to_bytes(Contents(header(), tensors))
                except ValueError:  # larger than a file can be written
                    continue
                made += 1
                yield f"{name}: {what()}", data
            left -= made

    def _with(self, contents, change):
        def header():
            changed = copy.deepcopy(contents.header)
            change(changed)
            return changed

        return header

    def _as_estimator(self, node, shape=(3,), dtype="float32", x=None):
        """The header of a file with this estimator, of measurements of a shape."""

        def header():
            spec = {"shape": list(shape), "dtype": dtype} if x is None else x
            known = {"names": {"tuple": ["y"]}, "x": spec, "inputs": None, "y_range": None}
            return {
                **{"versions": {}, "needs": None, "training": {"dict": {}}, "assessment": None},
                "estimator": node,
                "trained_on": {"type": "mvue.TrainedOn", "fields": known},
            }

        return header

    def _values(self):
        """Each value at each place of each file."""
        for name, contents in self.sound.items():
            for path in _paths(contents.header):
                if path[0] in ("versions", "training", "assessment"):
                    continue
                for value in (*VALUES, *_more(_at(contents.header, path))):
                    change = _setting(path, value)
                    what = functools.partial(str, (name, path, value))
                    yield what, self._with(contents, change), contents.tensors

    def _shapes(self):
        for name, contents in self.sound.items():
            if contents.header["trained_on"] is None:
                continue
            for size, axes, dtype in itertools.product(
                (0, 1, 7, 4096, 2**16, 2**20, *LARGE), range(4), ("float32", "int8", "complex64")
            ):
                spec = {"shape": [size] * axes, "dtype": dtype}
                for x in (spec, {"tuple": [spec] * 5}):
                    fields = {"x": x, "inputs": None}
                    yield (
                        _said(f"{name} {size} {axes} {dtype}"),
                        self._with(contents, _updating_known(fields)),
                        _without(contents, "trained_on.inputs"),
                    )

    def _methods(self):
        """Every method of every object, alone and with arguments; x is what comes after them."""
        for node, contents in self.instances:
            entry = registry.named(node["type"])
            tensors = {k: v for k, v in contents.tensors.items() if k in _tensors_of(node)}
            for method in dir(entry.target):
                found = {"method": method, "of": node}
                for args in ([], [_array("a")], [5 * 10**7], [_array("a"), _array("b")]):
                    given = {
                        arg["array"]: np.zeros((2, 3)) for arg in args if isinstance(arg, dict)
                    }
                    called = _partial(found, args) if args else found
                    yield (
                        _said(f"{node['type']}.{method} {args}"),
                        self._as_estimator(called),
                        {**tensors, **given},
                    )

    def _classes(self):
        for name in self.names:
            target = registry.named(name).target
            if not inspect.isclass(target):
                continue
            taken = [p for p in _parameters(target) if p != "key"]
            key, tensors = {"key": _array("k")}, {"k": np.zeros(2, np.uint32)}
            for size in (3, 4096, *LARGE):
                keywords = dict.fromkeys(taken, size)
                found = {"class": name}
                yield _said(f"{name}"), self._as_estimator(found), {}
                yield (
                    _said(f"{name} {size}"),
                    self._as_estimator(_partial(found, [size] * len(taken), key)),
                    tensors,
                )
                yield (
                    _said(f"{name} {keywords}"),
                    self._as_estimator(_partial(found, [], keywords), (2,), "uint32"),
                    {},
                )

    def _functions(self):
        """Every function with arguments before x, and with keywords that broadcast."""
        wide = {"a": np.zeros((1, 60_000), np.float32), "b": np.zeros((60_000, 1), np.float32)}
        for name in self.names:
            target = registry.named(name).target
            if inspect.isclass(target):
                continue
            keywords = _parameters(target)[1:]
            found = {"function": name}
            for shape in ((3,), (2**20,), (2**16, 2**16), (2**40,), (2**62, 2**62)):
                yield _said(f"{name} of {shape}"), self._as_estimator(found, shape), {}
            for word, before in itertools.product([None, *keywords], range(4)):
                given = {} if word is None else {word: _array("b")}
                args = [_array("a"), None, None, None][:before]
                named = {arg["array"] for arg in (*args, *given.values()) if arg is not None}
                tensors = {k: v for k, v in wide.items() if k in named}
                called = _partial(found, args, given)
                yield _said(f"{name} {before} {word}"), self._as_estimator(called), tensors
                layer = _instance("equinox.nn.Lambda", fn=called)
                yield _said(f"Lambda {name} {before} {word}"), self._as_estimator(layer), tensors
            for size in LARGE:
                yield _said(f"{name} {size}"), self._as_estimator(_partial(found, [size])), {}

    def _unfitted(self):
        """Estimators of scikit-learn that were not fitted, with large parameters."""
        fields = {
            "sklearn.RBFSampler": ("n_components",),
            "sklearn.Nystroem": ("n_components",),
            "sklearn.PCA": ("n_components", "n_oversamples"),
            "sklearn.PolynomialFeatures": ("degree",),
            "sklearn.StandardScaler": (),
            "sklearn.MinMaxScaler": ("feature_range",),
            "sklearn.SimpleImputer": ("fill_value",),
            "mvue.sklearn.LinearBCE": ("max_open_units",),
            "mvue.sklearn.LinearBCECV": ("cv",),
            "mvue.sklearn.BCERegressor": ("hidden", "steps", "batch_size"),
        }
        methods = ("fit", "transform", "fit_transform", "predict", "partial_fit", "set_params")
        for (name, words), method, size in itertools.product(fields.items(), methods, LARGE):
            whole = registry.named(name).fields
            node = _instance(name, **{word: size for word in words if word in whole})
            data, tensors = _array("a"), {"a": np.zeros((2, 3))}
            call = {"method": method, "of": node}
            pipeline = _instance(
                "sklearn.Pipeline",
                **{
                    "steps": [{"tuple": ["a", node]}, {"tuple": ["b", node]}],
                    **{"memory": None, "verbose": False, "transform_input": None},
                },
            )
            for estimator, given in (
                (node, {}),
                (call, {}),
                (_partial(call, [data]), tensors),
                (_instance("equinox.nn.Lambda", fn=_partial(call, [data])), tensors),
                (pipeline, {}),
                (_partial({"method": method, "of": pipeline}, [data]), tensors),
                (_instance("sklearn.TransformedTargetRegressor", regressor=node), {}),
            ):
                yield _said(f"{name} {method} {size}"), self._as_estimator(estimator), given

    def _fields(self):
        """Objects of all classes with one value in all of their fields."""
        for name in self.names:
            entry = registry.named(name)
            for value in (*VALUES, {"function": "jax.numpy.sort"}, {"class": name}):
                words = entry.fields or ("value",)
                node = _instance(name, **dict.fromkeys(words, value))
                yield _said(f"{name} of {value!r}"), self._as_estimator(node), {}

    def _many(self):
        """As many parts as a file may have, in a row, side by side and one in the other."""
        layers = {
            **{
                name: _instance("equinox.nn.Lambda", fn={"function": name})
                for name in self.names
                if not inspect.isclass(registry.named(name).target)
            },
            "partial": _instance(
                "equinox.nn.Lambda", fn=_partial({"function": "jax.nn.softmax"}, [])
            ),
            "Dropout": _instance("equinox.nn.Dropout", p=0.5, inference=True),
            "Identity": _instance("equinox.nn.Identity"),
        }
        for (name, layer), size in itertools.product(layers.items(), (10, 300, 3000, 15_000)):
            row = _instance("equinox.nn.Sequential", layers={"tuple": [layer] * size})
            yield _said(f"{size} of {name}"), self._as_estimator(row), {}
            yield _said(f"{size} of {name}, images"), self._as_estimator(row, (3, 8, 8)), {}
        for size in (10, 300, 2000):
            widths = [*range(1, size)]
            row = [
                _instance(
                    "mvue.Affine", shift=_array(f"s{n}", "jax"), matrix=_array(f"m{n}", "jax")
                )
                for n in widths
            ]
            tensors = {f"s{n}": np.zeros(n, np.float32) for n in widths}
            tensors |= {f"m{n}": np.zeros((n, 1), np.float32) for n in widths}
            yield _said(f"{size} widths"), self._as_estimator(row, (1,)), tensors
        for depth in (10, 60, 70, 400):
            for wrap in (
                lambda node: [node],
                lambda node: {"tuple": [node]},
                lambda node: _partial(node, []),
                lambda node: _instance("equinox.nn.Lambda", fn=node),
                lambda node: _instance("equinox.nn.Sequential", layers={"tuple": [node, node]}),
            ):
                node = {"function": "jax.nn.relu"}
                for _ in range(min(depth, 12) if "Sequential" in str(wrap(0)) else depth):
                    node = wrap(node)
                yield _said(f"{depth} deep"), self._as_estimator(node), {}
        for size in (1000, 60_000):
            for value in (0, "", None, [], {"dict": {}}, {"float": "nan"}):
                yield _said(f"{size} of {value!r}"), self._as_estimator([value] * size), {}

    def _columns(self):
        """Polynomials of as many columns as they claim, in front of regressors that claim them."""
        for p, degree, together in itertools.product(
            (1, 20, 100, 500, 5000, 2**20), (1, 2, 3, 5, 16), (True, False)
        ):
            columns = sum(_terms(p, k, together) for k in range(degree + 1))
            for name, contents in self.sound.items():
                if "PolynomialFeatures" not in str(contents.header["estimator"]):
                    continue
                for left in (True, False):
                    change = self._claim(p, degree, together, columns, left)
                    yield (
                        _said(f"{name} {p} {degree}"),
                        self._with(contents, change),
                        contents.tensors,
                    )

    def _claim(self, p, degree, together, columns, before):
        def change(header):
            for node in _nodes(header):
                kind = node.get("type", "") if isinstance(node, dict) else ""
                if kind == "sklearn.PolynomialFeatures":
                    node["fields"].update(n_features_in_=p, n_output_features_=columns)
                    node["fields"].update(degree=degree, interaction_only=together)
                elif kind.startswith("mvue.sklearn"):
                    node["fields"]["n_features_in_"] = columns
                elif kind == "sklearn.Pipeline" and before:
                    steps = node["fields"]["steps"]
                    node["fields"]["steps"] = [
                        step
                        for step in steps
                        if "Polynomial" in str(step) or "mvue.sklearn" in str(step)
                    ]
                elif kind == "mvue.TrainedOn":
                    node["fields"]["x"] = {"shape": [p], "dtype": "float64"}
                    node["fields"]["inputs"] = None

        return change


def run(files, *, count, seed, folder):
    """Load hostile files; returns for each what it is, the seconds and the bytes that it took.

    Anything but a model or a documented error is raised.
    """
    warnings.simplefilter("ignore")
    path = Path(folder) / "hostile.mvue"
    for file in files:
        mvue.load(file)  # whatever is imported and compiled the first time
    costs, counts = [], collections.Counter()
    for what, data in Hostile(files).take(count, seed):
        path.write_bytes(data)
        before, begun = _reset_peak(), time.process_time()
        try:
            mvue.load(path)
            counts["loaded"] += 1
        except (mvue.exceptions.ModelFileError, OSError):
            counts["refused"] += 1
        except Exception as error:
            raise AssertionError(f"{what[:500]}: {type(error).__name__}: {error}") from error
        costs.append((time.process_time() - begun, _peak() - before, what[:200]))
    return counts, costs


def _reset_peak():
    """Let the peak of the memory of this process start anew; returns what it has now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak():
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1])


def _more(child):
    """Changes that depend on what is there."""
    if isinstance(child, bool) or not isinstance(child, (int, float)):
        return [[child] * 1000, {"tuple": [child] * 1000}] if child is not None else []
    return [child * 2, child + 1, -child]


def _nodes(node):
    yield node
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for child in children:
        yield from _nodes(child)


def _paths(node, path=()):
    pairs = node.items() if isinstance(node, dict) else enumerate(node)
    for key, child in pairs:
        yield (*path, key)
        if isinstance(child, (dict, list)):
            yield from _paths(child, (*path, key))


def _at(node, path):
    for key in path:
        node = node[key]
    return node


def _setting(path, value):
    def change(header):
        _at(header, path[:-1])[path[-1]] = value

    return change


def _without(contents, beginning):
    return {k: v for k, v in contents.tensors.items() if not k.startswith(beginning)}


def _tensors_of(node):
    return {n["array"] for n in _nodes(node) if isinstance(n, dict) and "array" in n}


def _said(text):
    return lambda: text


def _array(name, kind="numpy"):
    return {"array": name, "kind": kind}


def _instance(name, **fields):
    return {"type": name, "fields": fields}


def _partial(function, args, keywords=None):
    return {"partial": function, "args": args, "keywords": keywords or {}, "pytree": False}


def _terms(p, k, together):
    return math.comb(p if together else p + k - 1, k)


def _parameters(target):
    try:
        return [*inspect.signature(target).parameters]
    except ValueError:  # made in C
        return []


def _updating_known(fields):
    return lambda header: header["trained_on"]["fields"].update(fields)
