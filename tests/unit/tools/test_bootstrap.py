import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genomoe.tools.bootstrap import BLOCK_LETTERS, interval, make_units, resampled_means


@given(st.lists(st.integers(1, 45_000), min_size=1, max_size=10))
def test_blocks_cover_the_pieces_and_stay_inside_them(lengths):
    units = make_units([0] * len(lengths), lengths, may_cut=True)
    owners = units.of_letters(0, sum(lengths))
    assert len(owners) == sum(lengths)
    assert (np.bincount(owners, minlength=units.count) == units.lengths).all()
    assert units.lengths.max() <= 1.5 * BLOCK_LETTERS + 1
    ends = np.cumsum(lengths)
    assert set(ends) <= set(np.cumsum(units.lengths))


def test_records_are_units_where_there_are_twenty():
    records = [7] * 3 + list(range(20, 39))
    units = make_units(records, [15_000] * len(records), may_cut=True)
    assert (units.name, units.count) == ("record", 20)
    owners = units.of_letters(0, 60_000)
    assert len(np.unique(owners[:45_000])) == 1  # the three pieces of record 7
    assert owners[44_999] != owners[45_000]


def test_proteins_are_never_cut():
    units = make_units([0, 1], [30_000, 10], may_cut=False)
    assert (units.name, units.count) == ("record", 2)


def test_units_of_a_range_in_the_middle():
    units = make_units([0], [40_000], may_cut=True)
    whole = units.of_letters(0, 40_000)
    np.testing.assert_array_equal(units.of_letters(9_990, 20_020), whole[9_990:20_020])


def test_ratio_of_sums_and_not_mean_of_means():
    # All letters cost 1 but for one tiny unit of cost 100: the mean of means would be far off.
    counts = np.array([1000] * 30 + [1])
    sums = np.array([[1000.0]] * 30 + [[100.0]])
    drawn = resampled_means(sums, counts)
    assert drawn.max() < 1.05


def test_same_seed_same_draws_and_paired_columns():
    random = np.random.default_rng(0)
    counts = np.full(40, 1000)
    hard = random.normal(1300, 100, size=40)
    sums = np.stack([hard, hard + 5], axis=1)  # the second model is worse by 0.005 everywhere
    drawn = resampled_means(sums, counts)
    np.testing.assert_array_equal(drawn, resampled_means(sums, counts))
    difference = interval(-0.005, drawn[:, 0] - drawn[:, 1])
    assert difference.high - difference.low < 1e-9
    assert difference.excludes_zero
    alone = interval(1.3, drawn[:, 0])
    assert alone.high - alone.low > 0.03


def test_interval_covers_the_truth_about_as_often_as_it_says():
    random = np.random.default_rng(2)
    hits = 0
    for trial in range(100):
        units = random.normal(2.0, 0.3, size=(40, 1)) * 100
        drawn = resampled_means(units, np.full(40, 100), resamples=300, seed=trial)
        found = interval(float(units.mean() / 100), drawn[:, 0])
        hits += found.low <= 2.0 <= found.high
    assert 86 <= hits <= 99


@pytest.mark.parametrize(
    ("low", "high", "excludes"), [(-1, 1, False), (0.1, 1, True), (-2, -1, True)]
)
def test_zero_in_or_out(low, high, excludes):
    assert interval((low + high) / 2, np.array([low, high])).excludes_zero == excludes
