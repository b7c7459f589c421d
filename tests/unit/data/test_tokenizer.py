import dataclasses
import pickle

import numpy as np
import pytest

from genomoe.data.errors import InputError
from genomoe.data.tokenizer import (
    ALPHABETS,
    ILLEGAL,
    Tokenizer,
    illegal_hint,
    tokenizer_for,
)


@pytest.fixture(params=ALPHABETS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return tokenizer_for(request.param)


def test_ids_are_the_documented_ones() -> None:
    dna, protein = tokenizer_for("dna"), tokenizer_for("protein")
    assert dna.encode("ACGTNRYSWKMBDHV").tolist() == list(range(3, 18))
    assert tokenizer_for("rna").encode("ACGUNRYSWKMBDHV").tolist() == list(range(3, 18))
    assert protein.encode("ACDEFGHIKLMNPQRSTVWY").tolist() == list(range(3, 23))
    assert [protein.id_of(letter) for letter in "XBZUOJ*"] == list(range(23, 30))
    assert dna.vocab_size == protein.vocab_size == 32


def test_case_never_changes_an_id(tokenizer: Tokenizer) -> None:
    assert np.array_equal(
        tokenizer.encode(tokenizer.letters), tokenizer.encode(tokenizer.letters.lower())
    )


def test_every_byte_is_a_letter_or_illegal(tokenizer: Tokenizer) -> None:
    table = tokenizer.encode_table
    legal = {chr(code) for code in np.flatnonzero(table != ILLEGAL)}
    expected = set(tokenizer.letters) | {source for source, _ in tokenizer.read_as}
    assert legal == expected | {letter.lower() for letter in expected}
    assert table[table != ILLEGAL].min() == 3
    assert table[table != ILLEGAL].max() < tokenizer.vocab_size


def test_letters_survive_a_round_trip_unless_they_are_read_as_others(tokenizer: Tokenizer) -> None:
    kept = "".join(x for x in tokenizer.letters if x not in dict(tokenizer.read_as))
    assert tokenizer.decode(tokenizer.encode(kept)) == kept
    for source, target in tokenizer.read_as:
        assert tokenizer.decode(tokenizer.encode(source)) == target


def test_rare_residues_become_their_documented_stand_ins() -> None:
    protein = tokenizer_for("protein")
    assert protein.decode(protein.encode("BZJOUbzjou")) == "XXXXCXXXXC"


def test_decode_drops_specials_and_marks_reserved_ids() -> None:
    assert tokenizer_for("dna").decode([1, 3, 4, 2, 0, 31]) == "AC?"
    with pytest.raises(ValueError, match="32"):
        tokenizer_for("dna").decode([32])


@pytest.mark.parametrize("name", ["dna", "rna"])
def test_complement_is_right_for_every_code(name: str) -> None:
    tokenizer = tokenizer_for(name)
    meaning = {
        "R": "AG",
        "Y": "CT",
        "S": "GC",
        "W": "AT",
        "K": "GT",
        "M": "AC",
        "B": "CGT",
        "D": "AGT",
        "H": "ACT",
        "V": "ACG",
        "N": "ACGT",
        "A": "A",
        "C": "C",
        "G": "G",
        "T": "T",
    }
    bases = {"A": "T", "C": "G", "G": "C", "T": "A"}
    code_of = {frozenset(value): key for key, value in meaning.items()}
    table = tokenizer.complement
    assert table is not None
    for letter, stands_for in meaning.items():
        expected = code_of[frozenset(bases[base] for base in stands_for)]
        token = int(tokenizer.encode(letter if name == "dna" else letter.replace("T", "U"))[0])
        assert tokenizer.decode([int(table[token])]).replace("U", "T") == expected
    assert np.array_equal(table[table], np.arange(256))
    assert np.array_equal(table[:3], np.arange(3))


def test_proteins_have_no_complement_but_an_end() -> None:
    assert tokenizer_for("protein").complement is None
    assert tokenizer_for("protein").trains_eos
    assert not tokenizer_for("dna").trains_eos


def test_scored_letters_are_the_first_ones(tokenizer: Tokenizer) -> None:
    expected = "ACDEFGHIKLMNPQRSTVWY" if tokenizer.unit == "residue" else tokenizer.letters[:4]
    assert tokenizer.decode(tokenizer.scored_ids) == expected
    assert tokenizer.is_scored.sum() == len(expected)


def test_fingerprints_differ_and_do_not_move() -> None:
    prints = {name: tokenizer_for(name).fingerprint for name in ALPHABETS}
    assert len(set(prints.values())) == 3
    # A change here makes every existing data set unreadable: raise the schema version with it.
    assert {name: value[:16] for name, value in prints.items()} == {
        "dna": "b901ee2fa98a8491",
        "rna": "a2e0a039eaca3aa9",
        "protein": "c64afae958a38171",
    }
    renamed = dataclasses.replace(tokenizer_for("dna"), letters="CAGTNRYSWKMBDHV")
    assert renamed.fingerprint != prints["dna"]


def test_tables_cannot_be_changed(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="read-only"):
        tokenizer.encode_table[65] = 0
    assert pickle.loads(pickle.dumps(tokenizer)) == tokenizer


def test_unknown_alphabet_and_letter_are_named() -> None:
    with pytest.raises(InputError, match=r"'xna'.*dna, rna, protein"):
        tokenizer_for("xna")
    with pytest.raises(InputError, match=r"'U' at position 3 .*--alphabet rna"):
        tokenizer_for("dna").encode("ACU")
    with pytest.raises(InputError, match="position 2"):
        tokenizer_for("dna").encode("A\N{SNOWMAN}")


@pytest.mark.parametrize(
    ("letter", "alphabet", "word"),
    [
        ("u", "dna", "rna"),
        ("E", "dna", "protein"),
        ("-", "protein", "gaps"),
        (">", "dna", "line break"),
        (";", "dna", "comment"),
        ("7", "protein", "correct"),
    ],
)
def test_hints_name_the_likely_fix(letter: str, alphabet: str, word: str) -> None:
    assert word in illegal_hint(letter, alphabet)
