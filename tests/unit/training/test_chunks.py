import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genomoe.data.errors import InputError
from genomoe.training.chunks import (
    Chunk,
    StoredTensor,
    check_coverage,
    check_same_tensors,
    plan_reads,
)


def stored(rows: int, *pieces: tuple[int, int], file: str = "a.safetensors") -> StoredTensor:
    """A tensor of so many rows in chunks of (first row, rows)."""
    chunks = tuple(Chunk(file=file, key=f"t@{at}", row_start=at, rows=n) for at, n in pieces)
    return StoredTensor(shape=(rows, 3), dtype="float32", chunks=chunks)


@pytest.mark.parametrize("pieces", [[(0, 10)], [(0, 4), (4, 6)], [(7, 3), (0, 2), (2, 5)]])
def test_coverage_that_is_whole(pieces: list[tuple[int, int]]) -> None:
    check_coverage("t", stored(10, *pieces))


def test_a_scalar_is_one_row() -> None:
    chunk = Chunk(file="a.safetensors", key="t@0", row_start=0, rows=1)
    check_coverage("t", StoredTensor(shape=(), dtype="float32", chunks=(chunk,)))


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([(0, 4), (6, 4)], "rows from 4 are missing"),
        ([(2, 8)], "rows from 0 are missing"),
        ([(0, 6), (4, 6)], "rows from 6 are stored twice"),
        ([(0, 10), (0, 10)], "rows from 10 are stored twice"),
        ([(0, 4)], "has 10 rows, its chunks cover 4"),
        ([(0, 12)], "has 10 rows, its chunks cover 12"),
        ([], "has 10 rows, its chunks cover 0"),
        ([(0, 4), (4, 0), (4, 6)], "rows from 4 are"),
        ([(0, -4), (-4, 14)], "rows from"),
    ],
)
def test_coverage_that_is_not(pieces: list[tuple[int, int]], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        check_coverage("weights/t", stored(10, *pieces))
    assert "index.json: weights/t" in str(caught.value)


@pytest.mark.parametrize(
    "file", ["../a.safetensors", "/etc/passwd", "x/a.safetensors", ".", "..", ".a", ""]
)
def test_a_file_elsewhere_is_never_opened(file: str) -> None:
    with pytest.raises(InputError, match="not a plain name"):
        check_coverage("t", stored(10, (0, 10), file=file))


@st.composite
def cuts(draw: Any) -> tuple[int, list[tuple[int, int]]]:
    rows = draw(st.integers(1, 40))
    inner = draw(st.sets(st.integers(1, max(1, rows - 1)), max_size=6))
    edges = [0, *sorted(edge for edge in inner if edge < rows), rows]
    pieces = [(a, b - a) for a, b in itertools.pairwise(edges)]
    return rows, draw(st.permutations(pieces))


@given(cuts(), st.data())
def test_reads_bring_every_row_once_to_its_place(
    cut: tuple[int, list[tuple[int, int]]], data: st.DataObject
) -> None:
    rows, pieces = cut
    tensor = stored(rows, *pieces)
    check_coverage("t", tensor)
    start = data.draw(st.integers(0, rows - 1))
    count = data.draw(st.integers(0, rows - start))
    local: list[int | None] = [None] * count
    for read in plan_reads(tensor, start, count):
        assert read.rows > 0 and 0 <= read.source <= read.chunk.rows - read.rows
        for offset in range(read.rows):
            assert local[read.target + offset] is None, "written twice"
            local[read.target + offset] = read.chunk.row_start + read.source + offset
    assert local == list(range(start, start + count))


def test_same_tensors() -> None:
    found = {"a": stored(10), "b": stored(4)}
    check_same_tensors(found, {"b": ((4, 3), "float32"), "a": ((10, 3), "float32")}, "here")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            {"a": ((10, 3), "float32"), "c": ((4, 3), "float32")},
            "here: it has no c, which the model needs",
        ),
        ({}, "here: the model has no place for a"),
        ({"a": ((10, 4), "float32")}, "here: a is (10, 3) there, (10, 4) in the model"),
        ({"a": ((10, 3), "bfloat16")}, "here: a is float32 there, bfloat16 in the model"),
    ],
)
def test_tensors_that_differ(wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        check_same_tensors({"a": stored(10)}, wanted, "here")
    assert str(caught.value) == message
