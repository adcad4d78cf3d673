"""Frozen values with checked fields: the groups of settings of the default recipe."""

import dataclasses
import math
from typing import Any


def setting(default: Any, *, least: float | None = None, most: float = math.inf) -> Any:
    """A field with its limits; without a least value, a number must be positive."""
    return dataclasses.field(default=default, metadata={"least": least, "most": most})


class Settings:
    """What the groups share: values are checked, and `repr` shows what is not the default."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # pyright: ignore[reportArgumentType]
            value = getattr(self, field.name)
            object.__setattr__(self, field.name, _checked(settings_name(type(self)), value, field))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in changes(self).items())
        return f"{settings_name(type(self))}({shown})"


def settings_name(settings: type) -> str:
    """The name that users know: groups are attributes of `Recipe`."""
    name = settings.__name__
    return f"Recipe.{name.removesuffix('Settings')}" if name.endswith("Settings") else name


def changes(settings: Any) -> dict[str, Any]:
    """The fields that differ from the default."""
    default = type(settings)()
    names = [field.name for field in dataclasses.fields(settings)]
    pairs = {name: (getattr(settings, name), getattr(default, name)) for name in names}
    return {name: value for name, (value, usual) in pairs.items() if value != usual}


def _checked(owner: str, value: Any, field: dataclasses.Field[Any]) -> Any:
    name = f"{owner}.{field.name}"
    if field.default_factory is not dataclasses.MISSING:
        group = type(field.default_factory())
        if type(value) is not group:
            raise TypeError(f"{name} must be {settings_name(group)}(...), got {value!r}")
        return value
    default, limits = field.default, field.metadata
    if not isinstance(default, tuple):
        return _checked_number(name, value, default, **limits)
    pair = len(default) == 2
    if not isinstance(value, (tuple, list)) or not value or (pair and len(value) != 2):
        raise TypeError(f"{name} must be {'two' if pair else 'a tuple of'} numbers, got {value!r}")
    return tuple(_checked_number(name, one, default[0], **limits) for one in value)


def _checked_number(name: str, value: Any, default: Any, least: float | None, most: float) -> Any:
    kind = {bool: "True or False", int: "a whole number", float: "a number"}[type(default)]
    # 3 will do for a float, but neither True for a number nor 3.0 for a whole number.
    if type(value) not in ((int, float) if isinstance(default, float) else (type(default),)):
        raise TypeError(f"{name} must be {kind}, got {value!r}")
    if isinstance(default, bool):
        return value
    enough = value > 0 if least is None else value >= least
    if not (math.isfinite(value) and enough and value <= most):
        limits = "positive" if least is None else f"at least {least:g}"
        limits += "" if math.isinf(most) else f" and at most {most:g}"
        raise ValueError(f"{name} must be {limits}, got {value!r}")
    return type(default)(value)
