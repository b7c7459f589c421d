from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from genomoe.data.packing import lay_out, offset_range, rows_per_block, window, window_count

sizes = st.lists(st.integers(1, 40), min_size=1, max_size=30)


@given(st.integers(1, 500), st.integers(2, 40))
def test_windows_cover_every_target_once_at_every_offset(targets: int, seq_length: int) -> None:
    if targets <= seq_length:
        return
    count = int(window_count(np.array([targets]), seq_length)[0])
    low, high = offset_range(targets, seq_length)
    assert low <= high
    for offset in range(low, high + 1):
        spans = [window(targets, seq_length, offset, number) for number in range(count)]
        assert spans[0][0] == 0
        assert spans[-1][1] == targets
        assert all(0 < end - begin <= seq_length for begin, end in spans)
        assert [end for _, end in spans[:-1]] == [begin for begin, _ in spans[1:]]


@given(st.integers(2, 400))
def test_offsets_leave_room_to_move(seq_length: int) -> None:
    for targets in range(seq_length + 1, 3 * seq_length + 1):
        low, high = offset_range(targets, seq_length)
        assert high - low >= seq_length // 2 - 1


def test_worked_example() -> None:
    assert offset_range(10, 4) == (2, 4)
    assert window_count(np.array([10, 11]), 4).tolist() == [3, 4]
    assert [window(10, 4, 3, number) for number in range(3)] == [(0, 3), (3, 7), (7, 10)]


@given(sizes, st.integers(2, 30), st.booleans())
def test_every_document_has_its_rows(targets: list[int], seq_length: int, pack: bool) -> None:
    layout = lay_out(np.array(targets), seq_length, pack=pack)
    short = [number for number, size in enumerate(targets) if size <= seq_length]
    assert layout.short_documents.tolist() == short
    assert layout.long_documents.tolist() == [n for n in range(len(targets)) if n not in short]
    edges = layout.first_packed.tolist()
    assert (edges[0], edges[-1]) == (0, len(short))
    assert edges == sorted(set(edges))
    rows = [short[a:b] for a, b in pairwise(edges)]
    loads = [sum(targets[document] for document in row) for row in rows]
    assert max(loads, default=0) <= seq_length
    if pack:
        for load, following in zip(loads, rows[1:], strict=False):
            assert load + targets[following[0]] > seq_length
    else:
        assert all(len(row) == 1 for row in rows)


@given(st.lists(sizes, min_size=1, max_size=8), st.integers(2, 30), st.booleans())
def test_row_counts_of_all_blocks_at_once(
    blocks: list[list[int]], seq_length: int, pack: bool
) -> None:
    counts = rows_per_block(
        np.array([size for block in blocks for size in block]),
        np.append(0, np.cumsum([len(block) for block in blocks])),
        seq_length,
        pack=pack,
    )
    expected = [lay_out(np.array(block), seq_length, pack=pack).num_rows for block in blocks]
    assert counts.tolist() == expected
