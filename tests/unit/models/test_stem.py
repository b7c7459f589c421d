from typing import Any

import numpy as np
import pytest
import torch

from genomoe.models.stem import LetterStem, positions_since, shift_right
from tests.unit.models.tiny import BOS, FIRST_LETTER, PAD

HIDDEN, VOCAB, N = 6, 32, 7  # N is the first letter that is not plain


def make(orders: tuple[int, ...], buckets: int = 4096) -> Any:
    """A stem whose letters count for nothing, so that its output is the k-mers'."""
    letters = torch.nn.Embedding(VOCAB, HIDDEN)
    torch.nn.init.zeros_(letters.weight)
    return LetterStem(
        letters,
        hidden_size=HIDDEN,
        kmer_orders=orders,
        kmer_buckets=buckets,
        bos_id=BOS,
        first_letter_id=FIRST_LETTER,
    )


def packed_ids(seed: int, rows: int = 4, length: int = 40) -> torch.Tensor:
    """Rows of several documents with an N here and there and padding at the end of some."""
    random = np.random.default_rng(seed)
    ids = random.integers(FIRST_LETTER, FIRST_LETTER + 4, (rows, length))
    ids[random.random((rows, length)) < 0.05] = N
    ids[random.random((rows, length)) < 0.1] = BOS
    ids[:, 0] = BOS
    ids[1::2, -6:] = PAD
    return torch.from_numpy(ids)


def kmer_ending_at(ids: list[int], position: int, order: int) -> list[int] | None:
    """Digits of the k letters up to a position, if they are plain letters of one document."""
    if position + 1 < order:
        return None
    found = [token - FIRST_LETTER for token in ids[position + 1 - order : position + 1]]
    return found if all(0 <= digit < 4 for digit in found) else None


@pytest.mark.parametrize("orders", [(1,), (2, 3), (1, 4, 6)])
def test_rows_against_a_slow_reference(orders: tuple[int, ...]) -> None:
    stem = make(orders)
    ids = packed_ids(seed=1)
    out = stem(ids)
    num_whole = 0
    for row, line in enumerate(ids.tolist()):
        for position in range(len(line)):
            wanted = torch.zeros(HIDDEN)
            for order in orders:
                digits = kmer_ending_at(line, position, order)
                if digits is not None:
                    number = int("".join(map(str, digits)), base=4)
                    wanted += stem.kmers[str(order)].weight[number]
                    num_whole += 1
            assert torch.allclose(out[row, position], wanted, atol=1e-6), (row, position)
    assert num_whole > 50


def test_letters_are_added() -> None:
    stem = make((2,))
    ids = packed_ids(seed=2)
    without = stem(ids)
    torch.nn.init.normal_(stem.letters.weight)
    assert torch.allclose(stem(ids), without + stem.letters.weight[ids], atol=1e-6)
    assert stem.weight is stem.letters.weight  # what a tied output matrix uses


def test_hashed_orders() -> None:
    order, buckets = 9, 100
    stem = make((order,), buckets)
    table = stem.kmers[str(order)].weight
    assert len(table) == buckets
    ids = packed_ids(seed=3, rows=60)
    out = stem(ids)
    distance = (out[:, :, None, :] - table).abs().amax(dim=-1)
    row_of: dict[tuple[int, ...], int] = {}
    used = set()
    for row, line in enumerate(ids.tolist()):
        for position in range(len(line)):
            digits = kmer_ending_at(line, position, order)
            if digits is None:
                assert torch.equal(out[row, position], torch.zeros(HIDDEN))
                continue
            nearest = int(distance[row, position].argmin())
            assert distance[row, position, nearest] == 0.0, "not a row of the table"
            assert row_of.setdefault(tuple(digits), nearest) == nearest
            used.add(nearest)
    assert len(row_of) > 300
    # Drawn evenly, 300 k-mers leave about 5 of 100 rows unused.
    assert len(used) > 85


def test_a_table_as_large_as_its_kmers_is_exact() -> None:
    stem = make((3,), buckets=64)
    ids = torch.tensor([[BOS, *(np.array([3, 2, 1]) + FIRST_LETTER)]])
    assert torch.equal(stem(ids)[0, 3], stem.kmers["3"].weight[3 * 16 + 2 * 4 + 1])


def test_documents_do_not_see_each_other() -> None:
    stem = make((2, 5))
    ids = torch.tensor([[BOS, 3, 4, 5, 6, 3, BOS, 4, 4, 5, 6, 3, 4]])
    edited = ids.clone()
    edited[0, 1:6] = torch.tensor([6, 6, 3, 3, 4])
    before, after = stem(ids), stem(edited)
    assert torch.equal(before[0, 6:], after[0, 6:])
    assert not torch.equal(before[0, :6], after[0, :6])
    alone = stem(ids[:, 6:])
    assert torch.equal(alone[0], before[0, 6:])


def test_no_look_ahead() -> None:
    stem = make((1, 2, 4))
    ids = packed_ids(seed=4, rows=1)
    before = stem(ids)
    for position in range(1, ids.shape[1]):
        edited = ids.clone()
        edited[0, position:] = FIRST_LETTER + 2
        assert torch.equal(stem(edited)[0, :position], before[0, :position])


def test_shift_right() -> None:
    x = torch.tensor([[1, 2, 3]])
    assert shift_right(x, 0).tolist() == [[1, 2, 3]]
    assert shift_right(x, 2).tolist() == [[0, 0, 1]]


def test_positions_since() -> None:
    ids = torch.tensor([[BOS, 3, 3, BOS, 3], [BOS, 3, 3, 3, PAD]])
    assert positions_since(ids, BOS).tolist() == [[0, 1, 2, 0, 1], [0, 1, 2, 3, 4]]
