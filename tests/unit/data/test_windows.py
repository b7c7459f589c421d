import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genomoe.data.errors import InputError
from genomoe.data.windows import Window, context_lengths, plan_windows, window_rows


def test_a_plan_by_hand() -> None:
    # Ten scored letters behind a guard of three, in windows of 6 that score 4.
    assert plan_windows([(3, 13)], window=6, stride=4) == [
        Window(piece=0, start=1, scored=3, end=7),
        Window(piece=0, start=5, scored=7, end=11),
        Window(piece=0, start=7, scored=11, end=13),
    ]


@st.composite
def ranges(draw: st.DrawFn) -> list[tuple[int, int]]:
    pieces = []
    for _ in range(draw(st.integers(0, 4))):
        begin = draw(st.integers(0, 20))
        pieces.append((begin, begin + draw(st.integers(0, 60))))
    return pieces


@given(ranges(), st.integers(1, 30), st.data())
def test_every_letter_once_with_the_context_that_is_promised(
    pieces: list[tuple[int, int]], window: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, window))
    plan = plan_windows(pieces, window=window, stride=stride)
    scored = [(w.piece, letter) for w in plan for letter in range(w.scored, w.end)]
    assert scored == [
        (piece, letter) for piece, (begin, end) in enumerate(pieces) for letter in range(begin, end)
    ]
    contexts = context_lengths(plan)
    assert len(contexts) == len(scored)
    for (_, letter), context in zip(scored, contexts.tolist(), strict=True):
        # Guards count as context; only the piece's own start takes any away.
        assert context >= min(letter, window - stride)
        assert context < window
    for item in plan:
        assert 0 <= item.start <= item.scored < item.end
        assert item.end - item.start <= window


@pytest.mark.parametrize("stride", [0, -1, 7])
def test_a_stride_that_does_not_fit(stride: int) -> None:
    with pytest.raises(InputError) as caught:
        plan_windows([(0, 10)], window=6, stride=stride)
    assert str(caught.value) == f"--stride is {stride}: use 1 to the window, 6"


def test_rows() -> None:
    letters = [np.arange(10, 20, dtype=np.uint8), np.arange(30, 34, dtype=np.uint8)]
    chosen = [
        Window(piece=0, start=2, scored=4, end=6),
        Window(piece=1, start=0, scored=0, end=3),
        Window(piece=0, start=0, scored=0, end=1),
    ]
    tokens, labels = window_rows(letters, chosen, width=5, bos=1, pad=0)
    assert tokens.tolist() == [[1, 12, 13, 14, 0], [1, 30, 31, 0, 0], [1, 0, 0, 0, 0]]
    assert labels.tolist() == [[12, 13, 14, 15, 0], [30, 31, 32, 0, 0], [10, 0, 0, 0, 0]]
    assert tokens.dtype == labels.dtype == np.int64
    # Label i of a row is letter start + i, so the scored ones are the row's last.
    assert labels[0, 4 - 2 : 6 - 2].tolist() == letters[0][4:6].tolist()


def test_context_lengths() -> None:
    chosen = [Window(piece=0, start=2, scored=4, end=6), Window(piece=1, start=0, scored=0, end=3)]
    assert context_lengths(chosen).tolist() == [2, 3, 0, 1, 2]
    assert context_lengths([]).tolist() == []
