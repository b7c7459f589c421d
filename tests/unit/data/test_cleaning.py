import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genomoe.data import spool as spool_module
from genomoe.data.cleaning import CleaningRules, CleanPieces, clean_records
from genomoe.data.spool import Spool, write_records
from genomoe.data.spooling import spool_file
from genomoe.data.synthetic import write_fasta
from genomoe.data.tokenizer import tokenizer_for


def clean(folder: Path, sequences: list[str], alphabet: str = "dna", **rules: float) -> CleanPieces:
    path = write_fasta(folder / "x.fa", [(f"r{i}", s) for i, s in enumerate(sequences)], width=0)
    file = spool_file(path, "x.fa", 0, folder, tokenizer_for(alphabet))
    write_records(folder, [file.records])
    defaults = {"n_run": 3, "max_ambiguous": 1.0, "min_length": 1}
    with Spool(folder, ["x.fa"]) as spool:
        return clean_records(spool, tokenizer_for(alphabet), CleaningRules(**{**defaults, **rules}))


def expected_pieces(sequences: list[str], n_run: int) -> list[list[int]]:
    pieces = []
    for record, sequence in enumerate(s for s in sequences if s):
        for match in re.finditer(rf"(?:[^N]|(?<!N)N{{1,{n_run - 1}}}(?!N))+", sequence):
            begin = match.start() + len(match.group()) - len(match.group().lstrip("N"))
            end = match.end() - len(match.group()) + len(match.group().rstrip("N"))
            if begin < end:
                pieces.append([record, begin, end])
    return pieces


@pytest.mark.parametrize("read_letters", [1, 2, 5, 1 << 20])
def test_gaps_split_and_ends_are_trimmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_letters: int
) -> None:
    monkeypatch.setattr(spool_module, "READ_LETTERS", read_letters)
    result = clean(tmp_path, ["NACGNNTNNNACN", "NN", "NNNAC", "ACNN", "NNGT"])
    assert result.pieces.tolist() == [[0, 1, 7], [0, 10, 12], [2, 3, 5], [3, 0, 2], [4, 2, 4]]
    assert result.dropped_letters["gaps"] == 1 + 3 + 1 + 2 + 3 + 2 + 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    sequences=st.lists(st.text("ANNG", min_size=0, max_size=25), min_size=1, max_size=5),
    n_run=st.integers(2, 4),
    read_letters=st.integers(1, 30),
)
def test_pieces_of_any_records(
    tmp_path: Path,
    sequences: list[str],
    n_run: int,
    read_letters: int,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool_module, "READ_LETTERS", read_letters)
        result = clean(tmp_path, sequences, n_run=n_run)
    assert result.pieces.tolist() == expected_pieces(sequences, n_run)
    kept = int((result.pieces[:, 2] - result.pieces[:, 1]).sum())
    assert kept + sum(result.dropped_letters.values()) == sum(map(len, sequences))


def test_every_drop_is_counted_once_with_its_letters(tmp_path: Path) -> None:
    sequences = [
        "ACGTACGTAC",  # kept
        "ACGT",  # short record
        "ACGTACGTNNNACG",  # its second piece is short
        "RYACGTACGT",  # too ambiguous
        "RYRNNNNNNNNNNACGTACGT",  # a short piece that is ambiguous too counts as short
    ]
    result = clean(tmp_path, sequences, min_length=8, max_ambiguous=0.1)
    assert result.pieces.tolist() == [[0, 0, 10], [2, 0, 8], [4, 13, 21]]
    assert result.dropped == {"ambiguous_pieces": 1, "short_pieces": 2, "short_records": 1}
    assert result.dropped_letters == {
        "ambiguous_pieces": 10,
        "gaps": 13,
        "short_pieces": 6,
        "short_records": 4,
    }


def test_the_ambiguous_share_is_a_limit_not_a_bound(tmp_path: Path) -> None:
    result = clean(tmp_path, ["R" + "A" * 19, "RR" + "A" * 38, "RR" + "A" * 37], max_ambiguous=0.05)
    assert result.pieces[:, 0].tolist() == [0, 1]


def test_proteins_are_not_split(tmp_path: Path) -> None:
    result = clean(
        tmp_path, ["MKNNNNNVL", "XXXXXMKVLA", "MK*VL"], "protein", max_ambiguous=0.3, min_length=3
    )
    assert result.pieces.tolist() == [[0, 0, 9], [2, 0, 5]]
    assert result.dropped["ambiguous_pieces"] == 1


def test_nothing_in_nothing_out(tmp_path: Path) -> None:
    result = clean(tmp_path, ["NNNN"])
    assert result.pieces.shape == (0, 3)
    assert result.dropped_letters["gaps"] == 4
    assert np.issubdtype(result.pieces.dtype, np.int64)
