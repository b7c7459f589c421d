import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genomoe.data.order import draw_below, draw_bits, draw_coin, permute


@given(st.integers(1, 3000), st.integers(-(2**63), 2**63 - 1), st.integers(0, 99))
def test_permutation_is_a_bijection(size: int, seed: int, epoch: int) -> None:
    assert np.array_equal(np.sort(permute(np.arange(size), size, (seed, epoch))), np.arange(size))


@given(st.integers(1, 2**62), st.data())
def test_any_index_alone_gives_what_the_whole_gives(size: int, data: st.DataObject) -> None:
    index = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=8, unique=True))
    together = permute(np.array(index), size, (1, 2))
    alone = [int(permute(np.array([i]), size, (1, 2))[0]) for i in index]
    assert together.tolist() == alone
    assert len(set(alone)) == len(index)
    assert 0 <= together.min() <= together.max() < size


def test_keys_give_unrelated_orders() -> None:
    size = 5000
    orders = [permute(np.arange(size), size, key) for key in ((1, 0), (1, 1), (2, 0))]
    for i, one in enumerate(orders):
        assert abs(np.corrcoef(one, np.arange(size))[0, 1]) < 0.06
        assert (one == np.arange(size)).sum() < 10
        for other in orders[i + 1 :]:
            assert (one == other).sum() < 10


def test_small_permutations_come_in_all_orders() -> None:
    seen = {tuple(permute(np.arange(3), 3, (seed,)).tolist()) for seed in range(200)}
    assert len(seen) == 6


def test_every_place_is_equally_likely() -> None:
    counts = np.zeros((6, 6), dtype=int)
    for seed in range(1200):
        counts[np.arange(6), permute(np.arange(6), 6, (seed,))] += 1
    expected = 200
    assert (np.abs(counts - expected) < 6 * np.sqrt(expected)).all()


def test_order_never_changes() -> None:
    # A change here silently changes what every resumed run reads.
    assert permute(np.arange(10), 10, (1, 0)).tolist() == [0, 6, 7, 5, 1, 9, 8, 2, 4, 3]
    far = permute(np.array([0, 10**12]), 10**15, (7, 3)).tolist()
    assert far == [
        257720043015294,
        853361939288320,
    ]
    assert draw_bits("window", 1, 2, 3) == 15984457500444596082


def test_shape_is_kept_and_range_checked() -> None:
    assert permute(np.arange(6).reshape(2, 3), 6, (1,)).shape == (2, 3)
    assert permute(np.zeros(0, dtype=np.int64), 5, (1,)).shape == (0,)
    for index in (-1, 5):
        with pytest.raises(ValueError, match="must lie"):
            permute(np.array([index]), 5, (1,))


def test_draws_are_even() -> None:
    draws = [draw_below(7, "window", seed, 1) for seed in range(7000)]
    assert set(draws) == set(range(7))
    assert (np.abs(np.bincount(draws) - 1000) < 200).all()
    heads = sum(draw_coin(0.25, "strand", seed) for seed in range(4000))
    assert 850 < heads < 1150
    assert not any(draw_coin(0.0, "strand", seed) for seed in range(200))
    assert all(draw_coin(1.0, "strand", seed) for seed in range(200))


def test_draws_depend_on_purpose_and_place() -> None:
    values = {draw_bits(*key) for key in (("a", 1), ("a", 2), ("b", 1), ("a", 1, 0), ("a", 0, 1))}
    assert len(values) == 5
