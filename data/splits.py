"""Which letters are trained on, validated on and tested on; decided before anything is cut.

``blocks`` spreads held-out blocks along the records, with guards around them that are nobody's
target. ``records`` sends whole records to splits by a hash of their sequence. Both are pure
functions of their arguments; targets of the splits never overlap.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

from genomoe.data.errors import InputError

SPLITS = ("train", "valid", "test")
MIN_VALID_BLOCKS = 4
MIN_TEST_BLOCKS = 8
_LONG_RECORD_UNITS = 4

RECORD, START, END, SCORED_START, SCORED_END = range(5)
"""Columns of the array of a split."""


@dataclass(frozen=True, kw_only=True)
class BlockRules:
    """How held-out blocks are laid out."""

    block_length: int
    guard: int
    """Letters on each side of a held-out block that are nobody's target."""
    valid_fraction: float
    test_fraction: float
    seed: int


def split_by_blocks(pieces: np.ndarray, rules: BlockRules) -> dict[str, np.ndarray]:
    """Hold out blocks spread along the pieces.

    The held-out blocks are drawn one from each of equally many stretches of the input, so that
    they never touch one another and cover it evenly.

    Args:
        pieces: int64 [p, 3] of record, start, end; in input order.
        rules: sizes and fractions.

    Returns:
        For each split an int64 [n, 5] array with the columns record, start, end, scored start and
        scored end, in coordinates of the record and in input order. Held-out pieces include their
        guards as context outside the scored range.

    Raises:
        InputError: there are too few blocks, or the guards do not fit between them.
    """
    # Strictly less: some of train stays between any two held-out pieces, so they never touch.
    if 2 * rules.guard >= rules.block_length:
        raise InputError(
            f"--guard {rules.guard} is not less than half of --block-length {rules.block_length}; "
            f"lower the guard or raise the block length"
        )
    units = cut_units(pieces, rules.block_length)
    num_valid = max(MIN_VALID_BLOCKS, round(rules.valid_fraction * len(units)))
    num_test = max(MIN_TEST_BLOCKS, round(rules.test_fraction * len(units)))
    eligible = _eligible_units(units)
    num_held_out = num_valid + num_test
    if len(eligible) < 2 * num_held_out:
        _refuse_no_room(pieces, rules, len(eligible), num_held_out)
    labels = np.zeros(len(units), dtype=np.int64)
    for slot in range(num_held_out):
        begin = slot * len(eligible) // num_held_out
        end = (slot + 1) * len(eligible) // num_held_out
        # Without the last unit of a slot, what is drawn never touches the next slot's.
        candidates = (
            eligible[begin + 1 : end - 1] if end - begin >= 3 else eligible[begin : end - 1]
        )
        drawn = candidates[_draw(rules.seed, slot, len(candidates))]
        is_test = (slot + 1) * num_test // num_held_out > slot * num_test // num_held_out
        labels[drawn] = SPLITS.index("test" if is_test else "valid")
    return _with_guards(pieces, units, labels, rules.guard)


def split_by_records(
    pieces: np.ndarray,
    records: np.ndarray,
    digests: np.ndarray,
    *,
    valid_fraction: float,
    test_fraction: float,
    seed: int,
) -> dict[str, np.ndarray]:
    """Send whole records to splits by a hash of their sequence.

    A record's split depends on its sequence and the seed alone: it stays when other records come
    or go, and equal sequences fall together.

    Args:
        pieces: int64 [p, 3] of record, start, end; in input order.
        records: int64 [r], the records that occur in ``pieces``, increasing.
        digests: uint8 [r, 32], a digest of the sequence of each.
        valid_fraction: expected share of records in valid.
        test_fraction: expected share of records in test.
        seed: changes the assignment.

    Returns:
        As ``split_by_blocks``; everything is scored.

    Raises:
        InputError: a split is left without records.
    """
    codes = np.array(
        [_split_of(digest.tobytes(), valid_fraction, test_fraction, seed) for digest in digests],
        dtype=np.int64,
    )
    counts = np.bincount(codes, minlength=len(SPLITS))
    if counts.min() == 0:
        shown = ", ".join(f"{name} {n}" for name, n in zip(SPLITS, counts.tolist(), strict=True))
        raise InputError(
            f"no room for a validation split: whole records went to {shown}; give more records, "
            f"raise --valid-fraction and --test-fraction, or change --seed"
        )
    labels = codes[np.searchsorted(records, pieces[:, 0])]
    rows = np.column_stack([pieces, pieces[:, 1:]])
    return {name: rows[labels == code] for code, name in enumerate(SPLITS)}


def cut_units(pieces: np.ndarray, block_length: int) -> np.ndarray:
    """Cut the pieces into units of ``block_length`` letters.

    A last unit shorter than half is merged into the one before.

    Returns:
        int64 [u, 4]: piece, record, start, end.
    """
    lengths = pieces[:, 2] - pieces[:, 1]
    full, rest = np.divmod(lengths, block_length)
    counts = np.maximum(1, full + (2 * rest >= block_length))
    piece = np.repeat(np.arange(len(pieces)), counts)
    first = np.cumsum(counts) - counts
    number = np.arange(len(piece)) - first[piece]
    start = pieces[piece, 1] + number * block_length
    is_last = number == counts[piece] - 1
    end = np.where(is_last, pieces[piece, 2], start + block_length)
    return np.column_stack([piece, pieces[piece, 0], start, end])


def split_table(splits: dict[str, np.ndarray]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the plan as one table in input order; guards are a split of their own.

    Returns:
        int64 [n, 4] of record, start, end and the number of a name; and the names.
    """
    names = (*SPLITS, "guard")
    parts = []
    for name, rows in splits.items():
        for begin, end, code in (
            (SCORED_START, SCORED_END, names.index(name)),
            (START, SCORED_START, names.index("guard")),
            (SCORED_END, END, names.index("guard")),
        ):
            part = rows[:, [RECORD, begin, end]]
            part = part[part[:, 1] < part[:, 2]]
            parts.append(np.column_stack([part, np.full(len(part), code)]))
    table = np.concatenate(parts)
    return table[np.lexsort((table[:, 1], table[:, 0]))], names


def _eligible_units(units: np.ndarray) -> np.ndarray:
    """Return the units that may be held out: not the ends of a record of more than four units."""
    record = units[:, 1]
    changes = record[1:] != record[:-1]
    is_first = np.append(True, changes)[: len(units)]
    is_last = np.append(changes, True)[: len(units)]
    _, inverse, counts = np.unique(record, return_inverse=True, return_counts=True)
    is_long = counts[inverse] > _LONG_RECORD_UNITS
    return np.flatnonzero(~(is_long & (is_first | is_last)))


def _with_guards(
    pieces: np.ndarray, units: np.ndarray, labels: np.ndarray, guard: int
) -> dict[str, np.ndarray]:
    """Turn labelled units into the pieces of each split."""
    rows: dict[str, list[tuple[int, int, int, int, int]]] = {name: [] for name in SPLITS}
    held_out = np.flatnonzero(labels)
    first = np.searchsorted(units[held_out, 0], np.arange(len(pieces) + 1))
    for index, (record, piece_start, piece_end) in enumerate(pieces.tolist()):
        cursor = piece_start
        for unit in held_out[first[index] : first[index + 1]].tolist():
            start, end = units[unit, 2:].tolist()
            outer_start = max(piece_start, start - guard)
            outer_end = min(piece_end, end + guard)
            if cursor < outer_start:
                rows["train"].append((record, cursor, outer_start, cursor, outer_start))
            rows[SPLITS[labels[unit]]].append((record, outer_start, outer_end, start, end))
            cursor = outer_end
        if cursor < piece_end:
            rows["train"].append((record, cursor, piece_end, cursor, piece_end))
    return {name: np.array(found, np.int64).reshape(-1, 5) for name, found in rows.items()}


def _draw(seed: int, slot: int, size: int) -> int:
    digest = hashlib.sha256(f"block:{seed}:{slot}".encode("ascii")).digest()
    return int.from_bytes(digest[:8], "big") % size


def _split_of(digest: bytes, valid_fraction: float, test_fraction: float, seed: int) -> int:
    keyed = hashlib.sha256(f"record:{seed}:".encode("ascii") + digest).digest()
    position = int.from_bytes(keyed[:8], "big") / 2**64
    if position < test_fraction:
        return SPLITS.index("test")
    return SPLITS.index("valid" if position < test_fraction + valid_fraction else "train")


def _refuse_no_room(
    pieces: np.ndarray, rules: BlockRules, num_eligible: int, num_held_out: int
) -> None:
    letters = int((pieces[:, 2] - pieces[:, 1]).sum())
    num_least = MIN_VALID_BLOCKS + MIN_TEST_BLOCKS
    # Three blocks for each that is held out, and some for the ends of records; one round digit.
    fitting = letters // (3 * num_least + 4)
    fitting -= fitting % 10 ** (len(str(fitting)) - 1)
    fix = ""
    if num_held_out == num_least and 10 <= fitting < rules.block_length:
        fix = f"try --block-length {fitting} --guard {min(rules.guard, fitting // 10)}, "
    raise InputError(
        f"no room for a validation split: {letters} letters give {num_eligible} blocks of "
        f"--block-length {rules.block_length} that may be held out, {num_held_out} are wanted and "
        f"as many must lie between them; {fix}lower --valid-fraction and --test-fraction, or "
        f"give more sequence"
    )
