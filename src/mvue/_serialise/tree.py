"""Trees of modules, arrays and plain values as JSON and named tensors, and back.

Numbers, strings, booleans and None stand for themselves and lists for lists; everything else is an
object with a key that says what it is. Classes and functions are looked up in the registry:
nothing is imported, called or evaluated because a file says so. Of objects, only those methods can
be named that were registered as functions of one measurement.
"""

import functools
import importlib
import inspect
import math
import types
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .registry import Entry, entry_of, named

DEEPEST = 64
MOST_NODES = 2**16
MOST_OBJECTS = 2**12
MOST_BUILT = 2**8  # objects of other libraries, which take a thousand times as long to make
LARGEST_INTEGER = 2**63
DTYPES = frozenset(
    (
        *("bool", "bfloat16", "complex64", "complex128", "float16", "float32", "float64"),
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    )
)

Node = Any

# Parts of the library that register names of this beginning when they are first imported.
_PARTS = {
    "mvue.problems": "mvue.problems",
    "mvue.sklearn": "mvue.sklearn",
    "mvue.experiments": "mvue.experiments",
    "sklearn": "mvue.sklearn",
}


class UnsavableError(TypeError):
    """A value that cannot be described; the message names it and where it is."""


class BrokenTreeError(ValueError):
    """A description that no tree has."""


class Encoder:
    """Describes trees; their arrays are collected as tensors.

    Args:
        given: what whoever reads it will have at hand, such as functions of a user.
        more: classes besides those that are registered.
    """

    def __init__(
        self, given: Mapping[str, Any] | None = None, more: Mapping[str, Entry] | None = None
    ) -> None:
        self.tensors: dict[str, np.ndarray] = {}
        self._given = dict(given or {})
        self._names = {id(value): name for name, value in self._given.items()}
        self._more = {entry.target: entry for entry in (more or {}).values()}

    def node(self, value: Any, path: str) -> Node:
        """The description of a value; `path` names it and what is in it."""
        if id(value) in self._names:
            return {"given": self._names[id(value)]}
        if value is None or type(value) in (bool, str):
            return value
        if type(value) is int:
            if not -LARGEST_INTEGER <= value < LARGEST_INTEGER:
                raise UnsavableError(f"{path} is a whole number of more than 64 bits")
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if type(value) is complex:
            return {"complex": [self.node(part, path) for part in (value.real, value.imag)]}
        if isinstance(value, (np.ndarray, np.generic, jax.Array)):
            return self._array(value, path)
        if type(value) is list:
            return self._sequence(value, path)
        if type(value) is tuple:
            return {"tuple": self._sequence(value, path)}
        if type(value) is dict:
            if all(type(key) is str for key in value):
                return {"dict": {key: self.node(v, f"{path}.{key}") for key, v in value.items()}}
            return {"items": self._sequence(list(value.items()), path)}
        if isinstance(value, jax.ShapeDtypeStruct):
            return {"shape": list(value.shape), "dtype": value.dtype.name}
        if isinstance(value, np.dtype) and value.name in DTYPES:
            return {"dtype": value.name}
        return self._object(value, path)

    def _object(self, value: Any, path: str) -> Node:
        entry = self._more.get(type(value)) or entry_of(type(value))
        if entry is not None:
            if entry.fields is None:
                return {"type": entry.name, "fields": {"value": self.node(value.value, path)}}
            return self._instance(entry, value, path)
        entry = entry_of(value)
        if entry is not None and not inspect.isclass(value):
            return {"function": entry.name}
        if isinstance(value, functools.partial):
            return {
                "partial": self.node(value.func, f"{path}.func"),
                "args": self._sequence(value.args, f"{path}.args"),
                "keywords": {k: self.node(v, f"{path}.{k}") for k, v in value.keywords.items()},
                "pytree": isinstance(value, jax.tree_util.Partial),
            }
        if isinstance(value, types.MethodType):
            name, owner = value.__func__.__name__, _defining_class(value)
            entry = entry_of(owner)
            if entry is not None and name in entry.methods:
                return {"method": name, "of": self._instance(entry, value.__self__, path)}
            if entry is not None:
                raise UnsavableError(
                    f"{path} is {_described(value)}, which is not among the methods= with which "
                    "the class was registered"
                )
        raise UnsavableError(f"{path} is {_described(value)}")

    def _instance(self, entry: Entry, value: Any, path: str) -> Node:
        fields = entry.take(value)
        described = {name: self.node(child, f"{path}.{name}") for name, child in fields.items()}
        return {"type": entry.name, "fields": described}

    def _sequence(self, values: Any, path: str) -> list[Node]:
        return [self.node(value, f"{path}.{i}") for i, value in enumerate(values)]

    def _array(self, value: Any, path: str) -> Node:
        kind = "jax" if isinstance(value, jax.Array) else "numpy"
        if isinstance(value, np.generic):
            kind = "scalar"
        if kind == "jax" and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            raise UnsavableError(f"{path} is a random key: an estimator should not hold any")
        array = np.asarray(value)
        if array.dtype.kind in "OUT":
            texts, shape = array.ravel().tolist(), list(array.shape)
            if not all(type(text) is str for text in texts):
                return {"objects": self._sequence(texts, path), "shape": shape}
            return {"strings": texts, "shape": shape, "object": array.dtype.kind == "O"}
        node: dict[str, Any] = {"array": path, "kind": kind}
        # The order in memory decides how products are rounded.
        if kind == "numpy" and array.ndim > 1 and 0 < array.strides[0] < array.strides[-1]:
            node["fortran"] = True
        if array.dtype.kind == "c":
            node["complex"] = True
            array = np.stack([np.real(array), np.imag(array)], axis=-1)
        self.tensors[path] = array
        return node


class Decoder:
    """Builds trees from descriptions; every tensor is used once.

    Args:
        tensors: the arrays.
        given: as in `Encoder`.
        more: as in `Encoder`.
    """

    def __init__(
        self,
        tensors: dict[str, np.ndarray],
        given: Mapping[str, Any] | None = None,
        more: Mapping[str, Entry] | None = None,
    ) -> None:
        self.tensors = dict(tensors)
        self._given, self._more = given or {}, more or {}
        self.nodes = self.objects = self.built = 0

    def value(self, node: Node, depth: int = 0) -> Any:
        """What a description stands for."""
        if depth > DEEPEST:
            raise BrokenTreeError(f"it is nested more than {DEEPEST} deep")
        self.nodes += 1
        if self.nodes > MOST_NODES:
            raise BrokenTreeError(f"it has more than {MOST_NODES:,} parts")
        if node is None or isinstance(node, (bool, str, float)):
            return node
        if isinstance(node, int):
            if not -LARGEST_INTEGER <= node < LARGEST_INTEGER:
                raise BrokenTreeError("it has a whole number of more than 64 bits")
            return node
        if isinstance(node, list):
            return [self.value(child, depth + 1) for child in node]
        if not isinstance(node, dict):
            raise BrokenTreeError(f"it has {_brief(node)} where a value should be")
        for key, keys, build in self._BUILDERS:
            if key in node:
                if not keys[0] <= set(node) <= keys[1]:
                    raise BrokenTreeError(f"it has a {key!r} with the keys {_brief(sorted(node))}")
                return build(self, node, depth + 1)
        raise BrokenTreeError(f"it has an object with the keys {_brief(sorted(node))}")

    def _at_hand(self, node: Node, _: int) -> Any:
        name = node["given"]
        if not isinstance(name, str) or name not in self._given:
            raise BrokenTreeError(f"it refers to {_brief(name)}, which is not given")
        return self._given[name]

    def _float(self, node: Node, _: int) -> float:
        if node["float"] not in ("nan", "inf", "-inf"):
            raise BrokenTreeError(f"it has {_brief(node['float'])} for a number")
        return float(node["float"])

    def _complex(self, node: Node, depth: int) -> complex:
        parts = self.value(node["complex"], depth)
        if not (isinstance(parts, list) and len(parts) == 2):
            raise BrokenTreeError("it has a complex number without two parts")
        if not all(isinstance(part, float) for part in parts):
            raise BrokenTreeError("it has a complex number of what are no numbers")
        return complex(*parts)

    def _tuple(self, node: Node, depth: int) -> tuple[Any, ...]:
        return tuple(self.value(_list(node["tuple"]), depth))

    def _dict(self, node: Node, depth: int) -> dict[str, Any]:
        return {key: self.value(v, depth) for key, v in _dictionary(node["dict"]).items()}

    def _items(self, node: Node, depth: int) -> dict[Any, Any]:
        pairs = [self.value(pair, depth) for pair in _list(node["items"])]
        if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            raise BrokenTreeError("it has a dictionary of what are no pairs")
        try:
            return dict(pairs)
        except TypeError as error:
            raise BrokenTreeError("it has a dictionary with a key that is not fixed") from error

    def _dtype(self, node: Node, _: int) -> np.dtype[Any]:
        name = node["dtype"]
        if not isinstance(name, str) or name not in DTYPES:
            raise BrokenTreeError(f"it has an unknown dtype {_brief(name)}")
        return jnp.dtype(name)

    def _spec(self, node: Node, depth: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(_shape(node["shape"]), self._dtype(node, depth))

    def _instance(self, node: Node, depth: int) -> Any:
        name = node["type"]
        entry = self._more.get(name) if isinstance(name, str) else None
        entry = entry or _entry(name)
        given = _dictionary(node["fields"])
        given = {entry.renamed.get(name, name): child for name, child in given.items()}
        if not inspect.isclass(entry.target):
            raise BrokenTreeError(f"{entry.name} is not a class")
        expected = {"value"} if entry.fields is None else set(entry.fields)
        wrong = set(given) - expected
        if not entry.partial:
            wrong |= expected - set(given) - set(entry.defaults)
        if wrong:
            raise BrokenTreeError(
                f"its {entry.name} has other fields than that of this version: "
                f"{_brief(sorted(wrong))}"
            )
        self.objects += 1
        self.built += entry.built is not None
        if self.objects > MOST_OBJECTS or self.built > MOST_BUILT:
            raise BrokenTreeError(f"it has too many objects like {entry.name}")
        fields = {name: self.value(child, depth) for name, child in given.items()}
        try:
            return entry.make(fields)
        except Exception as error:  # whatever a check makes of what it did not expect
            raise BrokenTreeError(f"it has a {entry.name} that cannot be: {error}") from error

    def _function(self, node: Node, _: int) -> Any:
        entry = _entry(node["function"])
        if inspect.isclass(entry.target):
            raise BrokenTreeError(f"{entry.name} is not a function")
        return entry.target

    def _partial(self, node: Node, depth: int) -> Any:
        function = self.value(node["partial"], depth)
        if not callable(function) or not isinstance(node["pytree"], bool):
            raise BrokenTreeError("it has a partial call of what cannot be called")
        args = self.value(_list(node["args"]), depth)
        keywords = {k: self.value(v, depth) for k, v in _dictionary(node["keywords"]).items()}
        kind = jax.tree_util.Partial if node["pytree"] else functools.partial
        return kind(function, *args, **keywords)

    def _method(self, node: Node, depth: int) -> Any:
        owner, name = self.value(node["of"], depth), node["method"]
        entry = entry_of(type(owner))
        if entry is None or not isinstance(name, str) or name not in entry.methods:
            raise BrokenTreeError(f"it has the method {_brief(name)}, which files may not name")
        return getattr(owner, name)

    def _strings(self, node: Node, _: int) -> np.ndarray:
        texts, shape = _list(node["strings"]), _shape(node["shape"])
        if not all(type(text) is str for text in texts) or math.prod(shape) != len(texts):
            raise BrokenTreeError("it has an array of strings that does not fit its shape")
        if node["object"] is not True:
            # Of fixed width: one long string must not blow up all the others.
            if len(texts) * max(map(len, texts), default=0) > 2**24:
                raise BrokenTreeError("it has an array of strings that is too large")
            return np.array(texts, dtype=str).reshape(shape)
        return _objects(texts, shape)

    def _object_array(self, node: Node, depth: int) -> np.ndarray:
        values, shape = self.value(_list(node["objects"]), depth), _shape(node["shape"])
        if math.prod(shape) != len(values):
            raise BrokenTreeError("it has an array of objects that does not fit its shape")
        return _objects(values, shape)

    def _array(self, node: Node, _: int) -> Any:
        name, kind = node["array"], node["kind"]
        array = self.tensors.pop(name, None) if isinstance(name, str) else None
        if array is None:
            raise BrokenTreeError(f"it has no tensor {_brief(name)}, or uses it twice")
        if node.get("complex"):
            if array.shape[-1:] != (2,) or array.dtype not in (np.float32, np.float64):
                raise BrokenTreeError(f"its tensor {_brief(name)} does not hold complex numbers")
            both = np.complex64 if array.dtype == np.float32 else np.complex128
            array = np.ascontiguousarray(array).view(both)[..., 0]
        if kind == "scalar" and array.ndim == 0:
            return array[()]
        if kind == "numpy":
            return array.copy(order="F" if node.get("fortran") else "C")
        if kind != "jax":
            raise BrokenTreeError(f"it has an array of the kind {_brief(kind)}")
        if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
            raise BrokenTreeError(
                f"it was made in double precision, and {name} is {array.dtype}: call "
                "jax.config.update('jax_enable_x64', True) before loading it"
            )
        return jax.device_put(array)  # jnp.asarray would compile a copy for each shape

    _BUILDERS = tuple(
        (needed[0], (set(needed), set(needed) | set(more)), build)
        for needed, more, build in (
            (("array", "kind"), ("complex", "fortran"), _array),
            (("type", "fields"), (), _instance),
            (("tuple",), (), _tuple),
            (("dict",), (), _dict),
            (("float",), (), _float),
            (("function",), (), _function),
            (("items",), (), _items),
            (("strings", "shape", "object"), (), _strings),
            (("objects", "shape"), (), _object_array),
            (("shape", "dtype"), (), _spec),
            (("dtype",), (), _dtype),
            (("complex",), (), _complex),
            (("partial", "args", "keywords", "pytree"), (), _partial),
            (("method", "of"), (), _method),
            (("given",), (), _at_hand),
        )
    )


def _entry(name: Any) -> Entry:
    if not isinstance(name, str):
        raise BrokenTreeError(f"it has {_brief(name)} for a name")
    entry = named(name)
    for beginning, part in _PARTS.items():
        if entry is None and name.startswith(f"{beginning}."):
            try:
                importlib.import_module(part)
            except ImportError as error:
                raise BrokenTreeError(f"it has a {_brief(name)}, and {error}") from error
            entry = named(name)
    if entry is None:
        raise BrokenTreeError(
            f"it has a {_brief(name)}, which is not registered here: import the module that "
            "registers it with mvue.register, or give load a network with like="
        )
    return entry


def _defining_class(method: types.MethodType) -> type | None:
    """Where a method was defined: a class whose fields are all that it needs."""
    name = method.__func__.__name__
    return next((cls for cls in type(method.__self__).__mro__ if name in vars(cls)), None)


def _described(value: Any) -> str:
    name = getattr(value, "__qualname__", None)
    module = getattr(value, "__module__", None) or ""
    if isinstance(value, types.MethodType):
        return f"the method {name} of a {type(value.__self__).__name__}"
    if inspect.isclass(value) or name is None:
        cls = value if inspect.isclass(value) else type(value)
        return f"a {cls.__module__}.{cls.__qualname__}"
    return f"the function {module}.{name}"


def _objects(values: list[Any], shape: tuple[int, ...]) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        array[i] = value
    return array.reshape(shape)


def _list(node: Node) -> list[Node]:
    if not isinstance(node, list):
        raise BrokenTreeError(f"it has {_brief(node)} where a list should be")
    return node


def _dictionary(node: Node) -> dict[str, Node]:
    if not isinstance(node, dict):
        raise BrokenTreeError(f"it has {_brief(node)} where an object should be")
    return node


def _shape(node: Node) -> tuple[int, ...]:
    sizes = _list(node)
    if len(sizes) > 32 or not all(type(n) is int and 0 <= n < LARGEST_INTEGER for n in sizes):
        raise BrokenTreeError(f"it has {_brief(node)} for a shape")
    return tuple(sizes)


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
