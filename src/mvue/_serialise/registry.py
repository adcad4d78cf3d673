"""The registry: which classes and functions a model file may name."""

import dataclasses
import enum
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

T = TypeVar("T")


class Entry(NamedTuple):
    """One registered class or function."""

    name: str
    target: Any
    fields: tuple[str, ...] | None
    """Of a class, what to save; None for functions and enumerations."""
    partial: bool
    """Whether some of the fields may be absent."""
    check: Callable[[Any], None] | None
    """Refuses an instance that was loaded and cannot be, with a ValueError."""
    renamed: Mapping[str, str] = {}
    """Names that fields had in older files, and those that they have now."""
    defaults: Mapping[str, Any] = {}
    """Of fields that older files may lack."""
    taken: Callable[[Any], dict[str, Any]] | None = None
    """The fields of an instance, where these are not its attributes."""
    built: Callable[[dict[str, Any]], Any] | None = None
    """An instance with given fields, where setting attributes is not enough; checks them first."""
    methods: frozenset[str] = frozenset()
    """Of a class, the methods of one measurement that may stand for a function."""

    def take(self, value: Any) -> dict[str, Any]:
        """The fields of an instance."""
        assert self.fields is not None
        if self.taken is not None:
            return self.taken(value)
        if issubclass(self.target, dict):
            return {"items": dict(value)}
        if self.partial:
            return {name: vars(value)[name] for name in self.fields if name in vars(value)}
        return {name: getattr(value, name) for name in self.fields}

    def make(self, fields: dict[str, Any]) -> Any:
        """An instance with these fields; its constructor runs only where `built` calls it."""
        if self.built is not None:
            return self.built(fields)
        if self.fields is None:
            return self.target(fields["value"])
        if issubclass(self.target, tuple):
            return tuple.__new__(self.target, [fields[name] for name in self.fields])
        if issubclass(self.target, dict):
            return self.target(fields["items"])
        instance = object.__new__(self.target)
        for name, value in {**self.defaults, **fields}.items():
            object.__setattr__(instance, name, value)
        if self.check is not None:
            self.check(instance)
        return instance


def check_shapes(owner: Any, **shapes: tuple[int, ...]) -> None:
    """Refuse an object whose attributes are not arrays of numbers of these shapes."""
    for name, shape in shapes.items():
        array = getattr(owner, name, None)
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
            raise ValueError(f"{name} must be an array of numbers")
        if array.shape != shape:
            raise ValueError(f"{name} must have the shape {shape}, got {array.shape}")


_BY_NAME: dict[str, Entry] = {}
_BY_TARGET: dict[int, Entry] = {}


@overload
def register(
    target: T,
    *,
    name: str | None = None,
    fields: Sequence[str] | None = None,
    check: Callable[[Any], None] | None = None,
    renamed: Mapping[str, str] | None = None,
    methods: Sequence[str] = (),
) -> T: ...
@overload
def register(
    target: None = None,
    *,
    name: str | None = None,
    fields: Sequence[str] | None = None,
    check: Callable[[Any], None] | None = None,
    renamed: Mapping[str, str] | None = None,
    methods: Sequence[str] = (),
) -> Callable[[T], T]: ...
def register(
    target: Any = None,
    *,
    name: str | None = None,
    fields: Sequence[str] | None = None,
    check: Callable[[Any], None] | None = None,
    renamed: Mapping[str, str] | None = None,
    methods: Sequence[str] = (),
) -> Any:
    """Let a class or a function of your own stand in model files; a decorator.

    `mvue.save` writes its name, and `mvue.load` looks that name up among what is registered then:
    a file never decides what is imported or called. Register in the module that defines it, and
    import that module before loading.

    Args:
        target: an Equinox module, a dataclass, a named tuple, an enumeration, a kind of dict, or
            a function of arrays.
        name: by which it is known in files; by default its module and its name. Change neither
            after models were saved.
        fields: of another kind of class, the attributes to save; any of them may be absent.
        check: called with an instance that was loaded, whose constructor has not run; raises a
            ValueError if its arrays do not fit together. For classes that make more of their
            arrays than the size of a file allows.
        renamed: names that fields had when older files were saved, and their present names.
        methods: of a class, the methods that files may use as functions of one measurement, such
            as ``summary`` where a network is given ``table.summary``. Files can name no others.
    """
    if target is None:
        return functools.partial(
            register, name=name, fields=fields, check=check, renamed=renamed, methods=methods
        )
    kept = _fields_of(target, fields)
    _check_methods(target, methods)
    name = name or _public_name(target)
    known = _BY_NAME.get(name)
    if (
        known is not None
        and known.target is not target
        and _origin(known.target) != _origin(target)
    ):
        raise ValueError(
            f"name {name!r} is that of another class or function, {known.target!r}: give name="
        )
    partial = fields is not None
    defaults = {} if partial else _defaults_of(target)
    entry = Entry(
        name, target, kept, partial, check, renamed or {}, defaults, methods=frozenset(methods)
    )
    _BY_NAME[name] = entry
    _BY_TARGET.setdefault(id(target), entry)
    return target


def entries_of(*targets: type) -> dict[str, Entry]:
    """Classes that stand in files of this process's own, by name; model files cannot name them."""
    return {
        target.__name__: Entry(target.__name__, target, _fields_of(target, None), False, None)
        for target in targets
    }


def register_built(
    target: type,
    *,
    name: str,
    fields: Sequence[str],
    taken: Callable[[Any], dict[str, Any]],
    built: Callable[[dict[str, Any]], Any],
    renamed: Mapping[str, str] | None = None,
) -> None:
    """Let a class of another library stand in model files, by functions that take it apart.

    Args:
        target: the class.
        name: by which it is known in files.
        fields: all that files may have, also those that only older ones do.
        taken: the fields of an instance.
        built: an instance with given fields, which come from a file and are not checked.
        renamed: as in `register`.
    """
    register(target, name=name, fields=fields, renamed=renamed)
    _BY_NAME[name] = _BY_NAME[name]._replace(taken=taken, built=built)
    _BY_TARGET[id(target)] = _BY_NAME[name]


def named(name: str) -> Entry | None:
    """What is registered under a name."""
    return _BY_NAME.get(name)


def entry_of(target: Any) -> Entry | None:
    """How a class or a function is registered."""
    entry = _BY_TARGET.get(id(target))
    return entry if entry is not None and entry.target is target else None


def _fields_of(target: Any, fields: Sequence[str] | None) -> tuple[str, ...] | None:
    if not inspect.isclass(target):
        if not callable(target) or fields is not None:
            raise TypeError(f"target must be a class, or a function without fields, got {target!r}")
        return None
    if fields is not None:
        return tuple(fields)
    if dataclasses.is_dataclass(target):
        return tuple(field.name for field in dataclasses.fields(target))
    if issubclass(target, tuple) and hasattr(target, "_fields"):
        return tuple(getattr(target, "_fields"))  # noqa: B009
    if issubclass(target, enum.Enum):
        return None
    if issubclass(target, dict):
        return ("items",)
    raise TypeError(
        f"target must be an Equinox module, a dataclass, a named tuple, an enumeration or a "
        f"function, got the class {target.__name__}: say with fields= which attributes to save"
    )


def _check_methods(target: Any, methods: Sequence[str]) -> None:
    if isinstance(methods, str):
        raise TypeError(f"methods must be a sequence of names, got the string {methods!r}")
    for method in methods:
        if not inspect.isclass(target) or not inspect.isfunction(getattr(target, method, None)):
            raise ValueError(f"methods must be names of methods of {target!r}, got {method!r}")


def _defaults_of(target: Any) -> dict[str, Any]:
    if not inspect.isclass(target) or not dataclasses.is_dataclass(target):
        return {}
    fields = dataclasses.fields(target)
    return {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}


def _public_name(target: Any) -> str:
    module, name = _origin(target)
    if not module or not name or "<" in name:
        raise ValueError(f"{target!r} has no name of its own: give name=")
    parts = [part for part in module.split(".") if not part.startswith("_") or part == "__main__"]
    return ".".join([*parts, name])


def _origin(target: Any) -> tuple[str, str]:
    return getattr(target, "__module__", ""), getattr(target, "__qualname__", "")


_LAYERS = (
    *("AvgPool1d", "AvgPool2d", "AvgPool3d", "Conv", "Conv1d", "Conv2d", "Conv3d", "Dropout"),
    *("ConvTranspose1d", "ConvTranspose2d", "Embedding", "GRUCell", "GroupNorm", "Identity"),
    *("LSTMCell", "Lambda", "LayerNorm", "Linear", "MLP", "MaxPool1d", "MaxPool2d", "MaxPool3d"),
    *("MultiheadAttention", "PReLU", "RMSNorm", "Sequential"),
)
_ACTIVATIONS = (
    *("celu", "elu", "gelu", "hard_sigmoid", "hard_silu", "hard_tanh", "identity", "leaky_relu"),
    *("log_sigmoid", "log_softmax", "mish", "relu", "relu6", "selu", "sigmoid", "silu"),
    *("soft_sign", "softmax", "softplus", "sparse_plus", "squareplus", "standardize"),
)
_NUMPY = (
    *("abs", "arcsinh", "arctan", "cos", "cosh", "exp", "expm1", "log", "log1p", "max", "mean"),
    *("median", "min", "prod", "ravel", "sign", "sin", "sinh", "sort", "sqrt", "square", "std"),
    *("sum", "tan", "tanh", "var"),
)


def _register_others() -> None:
    for prefix, module, names in (
        ("equinox.nn", eqx.nn, _LAYERS),
        ("jax.nn", jax.nn, _ACTIVATIONS),
        ("jax.numpy", jnp, _NUMPY),
        ("jax.lax", jax.lax, ("add", "logistic", "max", "min", "rsqrt")),
    ):
        for name in names:
            target = getattr(module, name, None)  # older versions lack some
            if target is not None:
                register(target, name=f"{prefix}.{name}")
    # The default of the last activation has no public name.
    identity = inspect.signature(eqx.nn.MLP.__init__).parameters["final_activation"].default
    register(identity, name="equinox.nn.identity")


_register_others()
