"""Configs to strict JSON and back: an unknown or missing key is an error that names it."""

import dataclasses
import types
import typing
from pathlib import Path
from typing import Any


def encode(value: Any) -> Any:
    """Turn nested dataclasses, tuples and paths into plain JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value


def decode[T](kind: type[T], value: Any, where: str = "config") -> T:
    """Rebuild a value of type `kind`.

    Args:
        kind: A dataclass, or the type of one of its fields.
        value: What the JSON held.
        where: Path of the value, for messages.

    Raises:
        ValueError: If a key is unknown or missing or a value has another type.
    """
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, value, where)
    return _plain(kind, value, where)


def _dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {value!r}, expected an object")
    hints = typing.get_type_hints(kind)
    for name in sorted(hints.keys() ^ value.keys()):
        raise ValueError(f"{where}.{name} is {'missing' if name in hints else 'unknown'}")
    return kind(**{name: decode(hints[name], value[name], f"{where}.{name}") for name in hints})


def _plain(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        if value not in arguments:
            raise ValueError(f"{where} is {value!r}: use one of {', '.join(map(str, arguments))}")
        return value
    if origin is tuple and isinstance(value, list):
        return tuple(
            decode(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value)
        )
    if origin is dict and isinstance(value, dict):
        return {key: decode(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        kind = next(a for a in arguments if a is not type(None))
        return decode(kind, value, where)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is float and type(value) is int:
        return float(value)
    # type(), since a bool is an int to isinstance.
    if type(value) is not kind:
        raise ValueError(f"{where} is {value!r}, expected {_name(origin or kind)}")
    return value


def _name(kind: Any) -> str:
    """Name a type as the JSON has it."""
    return {tuple: "a list", dict: "an object"}.get(kind, kind.__name__)
