import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from genomoe.data.json_codec import decode, encode
from genomoe.training.config import PretrainConfig
from genomoe.training.presets import PRESETS


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int
    rate: float
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner
    path: Path
    orders: tuple[int, ...]
    maybe: int | None
    flag: bool
    name: str


VALUE = Outer(
    inner=Inner(size=3, rate=0.1),
    path=Path("a/b"),
    orders=(2, 3),
    maybe=None,
    flag=True,
    name="x",
)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_survives_json(name: str) -> None:
    text = json.dumps(encode(PRESETS[name]), allow_nan=False)
    assert decode(PretrainConfig, json.loads(text)) == PRESETS[name]


def test_round_trip_keeps_types() -> None:
    back = decode(Outer, json.loads(json.dumps(encode(VALUE))))
    assert back == VALUE
    assert isinstance(back.path, Path) and isinstance(back.orders, tuple)
    some = dataclasses.replace(VALUE, maybe=4, orders=())
    assert decode(Outer, json.loads(json.dumps(encode(some)))) == some


def test_an_integer_is_a_number_too() -> None:
    raw = encode(VALUE)
    raw["inner"]["rate"] = 1
    rate = decode(Outer, raw).inner.rate
    assert rate == 1.0 and isinstance(rate, float)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("inner.size", 1.5, "config.inner.size is 1.5, expected int"),
        ("inner.size", True, "config.inner.size is True, expected int"),
        ("inner.size", "3", "config.inner.size is '3', expected int"),
        ("inner.size", None, "config.inner.size is None, expected int"),
        ("inner.rate", True, "config.inner.rate is True, expected float"),
        ("inner.rate", "0.1", "config.inner.rate is '0.1', expected float"),
        ("inner.kind", "c", "config.inner.kind is 'c': use one of a, b"),
        ("inner", 7, "config.inner is 7, expected an object"),
        ("flag", 1, "config.flag is 1, expected bool"),
        ("path", 3, "config.path is 3, expected Path"),
        ("maybe", "4", "config.maybe is '4', expected int"),
        ("orders", [2, "3"], "config.orders[1] is '3', expected int"),
        ("inner.depth", 1, "config.inner.depth is unknown"),
        ("extra", 1, "config.extra is unknown"),
    ],
)
def test_a_wrong_value_is_named(place: str, value: Any, message: str) -> None:
    raw: Any = encode(VALUE)
    target, *path = place.split(".")
    spot = raw
    for step in path:
        spot, target = spot[target], step
    spot[target] = value
    with pytest.raises(ValueError) as caught:
        decode(Outer, raw)
    assert str(caught.value) == message


@pytest.mark.parametrize("missing", ["inner", "maybe", "name"])
def test_a_missing_key_is_named_even_where_there_is_a_default(missing: str) -> None:
    raw = encode(VALUE)
    del raw[missing]
    with pytest.raises(ValueError, match=f"config.{missing} is missing"):
        decode(Outer, raw)


def test_a_tuple_is_no_scalar() -> None:
    raw = encode(VALUE)
    raw["orders"] = 3
    with pytest.raises(ValueError, match=r"config\.orders is 3, expected"):
        decode(Outer, raw)
