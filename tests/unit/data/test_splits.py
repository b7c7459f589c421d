import hashlib

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from genomoe.data.errors import InputError
from genomoe.data.splits import (
    END,
    RECORD,
    SCORED_END,
    SCORED_START,
    SPLITS,
    START,
    BlockRules,
    cut_units,
    split_by_blocks,
    split_by_records,
    split_table,
)


def rules(**changes: float) -> BlockRules:
    defaults = {
        "block_length": 100,
        "guard": 10,
        "valid_fraction": 0.05,
        "test_fraction": 0.1,
        "seed": 1,
    }
    return BlockRules(**{**defaults, **changes})


def pieces_of(lengths: list[int], *, per_record: int = 1) -> np.ndarray:
    """Pieces with holes of 50 letters between those of one record."""
    rows = []
    for number, length in enumerate(lengths):
        record, place = divmod(number, per_record)
        start = 0 if place == 0 else rows[-1][2] + 50
        rows.append((record, start, start + length))
    return np.array(rows, dtype=np.int64)


genomes = st.builds(
    pieces_of, st.lists(st.integers(1, 3000), min_size=1, max_size=12), per_record=st.integers(1, 3)
)


@given(genomes, st.integers(1, 400))
def test_units_tile_the_pieces(pieces: np.ndarray, block_length: int) -> None:
    units = cut_units(pieces, block_length)
    lengths = units[:, 3] - units[:, 2]
    for number, (record, start, end) in enumerate(pieces.tolist()):
        mine = units[units[:, 0] == number]
        assert set(mine[:, 1].tolist()) == {record}
        assert mine[0, 2] == start
        assert mine[-1, 3] == end
        assert np.array_equal(mine[1:, 2], mine[:-1, 3])
        assert (mine[:-1, 3] - mine[:-1, 2] == block_length).all()
    whole = pieces[units[:, 0], 2] - pieces[units[:, 0], 1]
    assert (2 * lengths >= np.minimum(block_length, 2 * whole)).all()
    assert (2 * lengths < 3 * block_length).all()


@given(genomes, st.integers(20, 120), st.integers(0, 60), st.integers(0, 5))
def test_targets_are_disjoint_and_guarded(
    pieces: np.ndarray, block_length: int, guard: int, seed: int
) -> None:
    assume(2 * guard < block_length)
    plan = rules(block_length=block_length, guard=guard, seed=seed)
    try:
        splits = split_by_blocks(pieces, plan)
    except InputError:
        return
    size = int(pieces[:, 2].max()) + 1
    owner = np.zeros((int(pieces[:, 0].max()) + 1, size), dtype=np.int8)
    touched = np.zeros_like(owner)
    for code, name in enumerate(SPLITS, start=1):
        for record, start, end, scored_start, scored_end in splits[name].tolist():
            assert start <= scored_start < scored_end <= end
            assert not owner[record, scored_start:scored_end].any()
            owner[record, scored_start:scored_end] = code
            # What a window of one split can see is never a target of another.
            touched[record, start:end] += 1
    assert touched.max() == 1
    covered = np.zeros_like(touched)
    for record, start, end in pieces.tolist():
        covered[record, start:end] = 1
    assert np.array_equal(touched, covered)
    for name in ("valid", "test"):
        for record, start, end, scored_start, scored_end in splits[name].tolist():
            piece = pieces[
                (pieces[:, 0] == record) & (pieces[:, 1] <= start) & (end <= pieces[:, 2])
            ]
            assert len(piece) == 1
            assert scored_start - start == min(guard, scored_start - piece[0, 1])
            assert end - scored_end == min(guard, piece[0, 2] - scored_end)
    for name in SPLITS:
        rows = splits[name]
        assert np.array_equal(rows, rows[np.lexsort((rows[:, START], rows[:, RECORD]))])


@given(genomes, st.integers(0, 3))
def test_held_out_blocks_are_counted_spread_and_inside(pieces: np.ndarray, seed: int) -> None:
    plan = rules(seed=seed)
    units = cut_units(pieces, plan.block_length)
    try:
        splits = split_by_blocks(pieces, plan)
    except InputError:
        return
    num_test = max(8, round(0.1 * len(units)))
    num_valid = max(4, round(0.05 * len(units)))
    assert len(splits["test"]) == num_test
    assert len(splits["valid"]) == num_valid
    per_record = np.bincount(units[:, 1])
    for name in ("valid", "test"):
        for row in splits[name].tolist():
            mine = units[units[:, 1] == row[RECORD]]
            if per_record[row[RECORD]] > 4:
                assert row[SCORED_START] > mine[0, 2]
                assert row[SCORED_END] < mine[-1, 3]
    # One in each of equally many stretches, so no two are next to one another.
    held = np.concatenate([splits["valid"], splits["test"]])
    held = held[np.lexsort((held[:, START], held[:, RECORD]))]
    index = [
        int(np.flatnonzero((units[:, 1] == r[RECORD]) & (units[:, 2] == r[SCORED_START]))[0])
        for r in held
    ]
    assert (np.diff(index) > 1).all()


def test_valid_blocks_lie_among_the_test_blocks() -> None:
    splits = split_by_blocks(pieces_of([100_000]), rules())
    starts = [(row[START], name) for name in ("valid", "test") for row in splits[name].tolist()]
    order = "".join(name[0] for _, name in sorted(starts))
    assert order == "vtt" * 50 or set(order.split("v")[1:]) <= {"t", "tt", "ttt"}
    assert len(splits["valid"]) == 50
    assert len(splits["test"]) == 100


def test_the_seed_changes_the_plan_and_nothing_else_does() -> None:
    pieces = pieces_of([20_000, 30_000])
    same = [split_by_blocks(pieces, rules()) for _ in range(2)]
    other = split_by_blocks(pieces, rules(seed=2))
    for name in SPLITS:
        assert np.array_equal(same[0][name], same[1][name])
    assert not np.array_equal(same[0]["test"], other["test"])


def test_too_small_a_genome_is_refused_with_a_way_out() -> None:
    with pytest.raises(InputError) as caught:
        split_by_blocks(pieces_of([48_502]), rules(block_length=20_000, guard=1000))
    message = str(caught.value)
    assert message.startswith("no room for a validation split: 48502 letters")
    words = message.split("try ")[1].split(",")[0].split()
    fixed = rules(block_length=int(words[1]), guard=int(words[3]))
    assert len(split_by_blocks(pieces_of([48_502]), fixed)["test"]) >= 8


def test_guards_must_fit_between_blocks() -> None:
    with pytest.raises(InputError, match=r"--guard 50 is not less than half of --block-length 100"):
        split_by_blocks(pieces_of([100_000]), rules(guard=50))


def digests_of(names: list[str]) -> np.ndarray:
    rows = [np.frombuffer(hashlib.sha256(name.encode()).digest(), np.uint8) for name in names]
    return np.stack(rows)


def by_records(names: list[str], *, seed: int = 1) -> dict[str, str]:
    """Return the split of each name."""
    pieces = pieces_of([10] * len(names))
    splits = split_by_records(
        pieces,
        np.arange(len(names)),
        digests_of(names),
        valid_fraction=0.1,
        test_fraction=0.2,
        seed=seed,
    )
    return {names[row]: name for name in SPLITS for row in splits[name][:, RECORD].tolist()}


def test_a_records_split_does_not_depend_on_the_others() -> None:
    names = [f"protein {i}" for i in range(400)]
    everything = by_records(names)
    part = by_records(names[100:250][::-1])
    assert part == {name: everything[name] for name in part}
    assert by_records(names, seed=2) != everything
    counts = {split: list(everything.values()).count(split) for split in SPLITS}
    assert 25 <= counts["valid"] <= 58
    assert 58 <= counts["test"] <= 105


def test_equal_sequences_fall_together_and_pieces_follow_their_record() -> None:
    pieces = pieces_of([10] * 200, per_record=2)
    digests = digests_of([f"sequence {i // 2}" for i in range(100)])
    splits = split_by_records(
        pieces, np.arange(100), digests, valid_fraction=0.2, test_fraction=0.2, seed=1
    )
    home = {}
    for name in SPLITS:
        for row in splits[name].tolist():
            assert home.setdefault(row[RECORD] // 2, name) == name
            assert (row[START], row[END]) == (row[SCORED_START], row[SCORED_END])
    assert sum(len(rows) for rows in splits.values()) == 200


def test_a_split_without_records_is_refused() -> None:
    with pytest.raises(InputError, match=r"no room for a validation split: .*train"):
        by_records(["a", "b"])


@given(genomes)
def test_the_table_tiles_what_is_kept(pieces: np.ndarray) -> None:
    try:
        splits = split_by_blocks(pieces, rules(block_length=30, guard=7))
    except InputError:
        return
    table, names = split_table(splits)
    merged = []
    for record, start, end, name in table.tolist():
        assert start < end
        assert names[name] in (*SPLITS, "guard")
        if merged and merged[-1][0] == record and merged[-1][2] == start:
            merged[-1][2] = end
        else:
            merged.append([record, start, end])
    assert merged == pieces.tolist()
