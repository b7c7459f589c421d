from itertools import pairwise

import numpy as np
import pytest

from genomoe.data.pieces import PieceBuilder


def builder() -> PieceBuilder:
    return PieceBuilder(record_id="r", record=3, file="f", start=100)


@pytest.mark.parametrize("cuts", [(), (4,), (2, 5), (1, 2, 3, 6, 7), (8, 9)])
def test_segments_join_to_the_same_piece(cuts: tuple[int, ...]) -> None:
    tokens = np.arange(3, 13, dtype=np.uint8)
    lower = np.array([0, 1, 1, 0, 1, 1, 1, 0, 0, 1], dtype=bool)
    scored = range(3, 8)
    parts = builder()
    edges = [0, *cuts, 10]
    for begin, end in pairwise(edges):
        assert begin == 0 or parts.is_continued_by(3, 100 + begin)
        inside = [place - begin for place in scored if begin <= place < end]
        intervals = [(i - begin, i - begin + 1) for i in range(begin, end) if lower[i]]
        parts.append(
            tokens[begin:end],
            np.array(intervals, dtype=np.int64).reshape(-1, 2),
            inside[0] if inside else 0,
            inside[-1] + 1 if inside else 0,
        )
    piece = parts.build()
    assert np.array_equal(piece.tokens, tokens)
    assert np.array_equal(piece.lower_case, lower)
    assert (piece.scored_begin, piece.scored_end) == (3, 8)
    assert (piece.record_id, piece.record, piece.file, piece.start) == ("r", 3, "f", 100)


def test_other_records_and_places_do_not_continue_a_piece() -> None:
    parts = builder()
    parts.append(np.zeros(5, np.uint8), np.zeros((0, 2), np.int64), 0, 5)
    assert parts.is_continued_by(3, 105)
    assert not parts.is_continued_by(4, 105)
    assert not parts.is_continued_by(3, 106)


def test_a_piece_of_context_alone_scores_nothing() -> None:
    parts = builder()
    parts.append(np.zeros(5, np.uint8), np.zeros((0, 2), np.int64), 2, 2)
    piece = parts.build()
    assert piece.scored_begin == piece.scored_end
