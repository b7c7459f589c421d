import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from genomoe.data.blocks import (
    LENGTH,
    OFFSET,
    RECORD,
    SCORED_BEGIN,
    SCORED_END,
    START,
    estimate_bytes,
    plan_blocks,
    plan_shards,
)


@st.composite
def split_pieces(draw: st.DrawFn) -> np.ndarray:
    rows = []
    for record in range(draw(st.integers(0, 8))):
        start = draw(st.integers(0, 50))
        edges = sorted(draw(st.lists(st.integers(start, start + 90), min_size=4, max_size=4)))
        begin, scored_begin, scored_end, end = edges
        if begin < end:
            rows.append((record, begin, end, scored_begin, scored_end))
    return np.array(rows, dtype=np.int64).reshape(-1, 5)


@given(split_pieces(), st.integers(1, 40))
def test_documents_tile_the_pieces_and_blocks_the_documents(
    pieces: np.ndarray, max_letters: int
) -> None:
    plan = plan_blocks(pieces, max_letters)
    letters = {(r, x) for r, start, end, _, _ in pieces.tolist() for x in range(start, end)}
    scored = {(r, x) for r, _, _, begin, end in pieces.tolist() for x in range(begin, end)}
    found, found_scored = [], set()
    for block in range(plan.num_blocks):
        documents = plan.block_documents(block)
        assert len(documents) > 0
        filled = 0
        for row in documents.tolist():
            assert row[OFFSET] == filled
            assert row[LENGTH] > 0
            assert 0 <= row[SCORED_BEGIN] <= row[SCORED_END] <= row[LENGTH]
            filled += row[LENGTH]
            record, start = row[RECORD], row[START]
            found += [(record, x) for x in range(start, start + row[LENGTH])]
            found_scored |= {
                (record, x) for x in range(start + row[SCORED_BEGIN], start + row[SCORED_END])
            }
        assert filled <= max_letters
        assert plan.block_letters()[block] == filled
    assert found == sorted(letters)
    assert found_scored == scored


@given(split_pieces(), st.integers(1, 40), st.integers(1, 60_000))
def test_shards_hold_consecutive_blocks(
    pieces: np.ndarray, max_letters: int, shard_bytes: int
) -> None:
    plan = plan_blocks(pieces, max_letters)
    shards = plan_shards(plan, shard_bytes)
    assert [block for first, last in shards for block in range(first, last)] == list(
        range(plan.num_blocks)
    )
    for first, last in shards:
        part = plan.part(first, last)
        assert part.num_blocks == last - first
        assert part.num_blocks == 1 or estimate_bytes(part) <= shard_bytes
        for block in range(first, last):
            assert np.array_equal(part.block_documents(block - first), plan.block_documents(block))


def test_long_pieces_are_cut_and_short_ones_share() -> None:
    pieces = [(0, 5, 25, 8, 22), (1, 0, 3, 0, 3), (2, 0, 3, 0, 3), (3, 0, 6, 0, 6)]
    plan = plan_blocks(np.array(pieces), 8)
    rows = plan.documents[:, [OFFSET, LENGTH, RECORD, START, SCORED_BEGIN, SCORED_END]].tolist()
    assert rows == [
        [0, 8, 0, 5, 3, 8],
        [0, 8, 0, 13, 0, 8],
        [0, 4, 0, 21, 0, 1],
        [4, 3, 1, 0, 0, 3],
        [0, 3, 2, 0, 0, 3],
        [0, 6, 3, 0, 0, 6],
    ]
    assert plan.first_document.tolist() == [0, 1, 2, 4, 5, 6]
