from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from genomoe.data.intervals import RunJoiner, clip, cut_at, empty_intervals, runs_of, to_mask

masks = st.lists(st.booleans(), max_size=60).map(lambda values: np.array(values, dtype=bool))


def _plain_runs(mask: list[bool], cuts: set[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for position, value in enumerate(mask):
        if not value:
            continue
        if runs and runs[-1][1] == position and position not in cuts:
            runs[-1][1] = position + 1
        else:
            runs.append([position, position + 1])
    return runs


@given(masks, st.sets(st.integers(0, 60)))
def test_runs_are_maximal_between_cuts(mask: np.ndarray, cuts: set[int]) -> None:
    inside = {cut for cut in cuts if cut < len(mask)}
    found = runs_of(mask, np.array(sorted(inside), dtype=np.int64))
    assert found.tolist() == _plain_runs(mask.tolist(), inside)
    assert found.dtype == np.int64
    assert found.shape == (len(found), 2)


@given(masks, st.sets(st.integers(1, 59)), st.sets(st.integers(0, 59)))
def test_runs_do_not_depend_on_chunks(
    mask: np.ndarray, borders: set[int], starts: set[int]
) -> None:
    joiner = RunJoiner()
    found = []
    edges = [0, *sorted(border for border in borders if border < len(mask)), len(mask)]
    for begin, end in pairwise(edges):
        cuts = np.array(sorted(s - begin for s in starts if begin <= s < end), dtype=np.int64)
        runs = runs_of(mask[begin:end], cuts) + begin
        found.append(joiner.push(runs, joins=begin not in starts))
    found.append(joiner.flush())
    expected = _plain_runs(mask.tolist(), starts)
    assert np.concatenate(found).tolist() == expected


@given(masks, st.integers(0, 60), st.integers(0, 60))
def test_clip_agrees_with_the_mask(mask: np.ndarray, one: int, other: int) -> None:
    begin, end = sorted((min(one, len(mask)), min(other, len(mask))))
    intervals = runs_of(mask, np.array([], dtype=np.int64))
    assert np.array_equal(to_mask(clip(intervals, begin, end), end - begin), mask[begin:end])


@given(masks, st.sets(st.integers(0, 59)))
def test_cut_intervals_cover_the_same_letters(mask: np.ndarray, cuts: set[int]) -> None:
    intervals = runs_of(mask, np.array([], dtype=np.int64))
    cut = cut_at(intervals, np.array(sorted(cuts), dtype=np.int64))
    assert np.array_equal(to_mask(cut, len(mask)), mask)


def test_nothing_gives_nothing() -> None:
    assert runs_of(np.zeros(0, dtype=bool), np.zeros(0, dtype=np.int64)).shape == (0, 2)
    assert clip(empty_intervals(), 0, 5).shape == (0, 2)
    assert RunJoiner().flush().shape == (0, 2)
