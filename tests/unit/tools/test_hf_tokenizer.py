"""The exported tokenizer gives the ids of our own, and fails where ours fails."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from genomoe.data.errors import InputError
from genomoe.data.tokenizer import ALPHABETS, BOS_ID, EOS_ID, PAD_ID, tokenizer_for
from genomoe.tools.hf_tokenizer import tokenizer_files, vocabulary

PRINTABLE = [chr(code) for code in range(32, 127)] + ["\n", "\t", "é", "Ä", "Δ", "😀", " ", "İ"]


@pytest.fixture(scope="module", params=ALPHABETS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Our tokenizer of an alphabet, and the exported one as a user opens it."""
    folder = tmp_path_factory.mktemp(request.param)
    for name, value in tokenizer_files(tokenizer_for(request.param), 64).items():
        (folder / name).write_text(json.dumps(value))
    (folder / "config.json").write_text(json.dumps({"model_type": "mixtral"}))
    return tokenizer_for(request.param), AutoTokenizer.from_pretrained(folder)


def bare(theirs: Any, text: str) -> list[int]:
    return list(theirs(text, add_special_tokens=False)["input_ids"])


def test_every_character(pair: Any) -> None:
    """A letter in either case has our id; anything else fails, and becomes no letter."""
    ours, theirs = pair
    for character in PRINTABLE:
        try:
            wanted = ours.encode(character).tolist()
        except InputError:
            with pytest.raises(Exception, match="UNK"):
                bare(theirs, character)
        else:
            assert bare(theirs, character) == wanted, character


def test_letters_in_a_row(pair: Any) -> None:
    ours, theirs = pair
    text = ours.letters + ours.letters.lower()[::-1] + "NNNnnn" + ours.letters
    assert bare(theirs, text) == ours.encode(text).tolist()


@pytest.mark.parametrize("text", ["AC-GT", "AC GT", "ACGT\n", " ACGT", "AC@", ">ACGT", "ACéT"])
def test_an_illegal_letter_among_others_fails(pair: Any, text: str) -> None:
    ours, theirs = pair
    with pytest.raises(InputError):
        ours.encode(text)
    with pytest.raises(Exception, match="UNK"):
        theirs(text)


def test_uracil_is_a_mistake_in_dna_and_thymine_is_uracil_in_rna(pair: Any) -> None:
    ours, theirs = pair
    if ours.name == "dna":
        with pytest.raises(Exception, match="UNK"):
            theirs("ACU")
    elif ours.name == "rna":
        assert bare(theirs, "ACTtUu") == [3, 4, 6, 6, 6, 6]
        assert theirs.decode([6]) == "U"


def test_what_stands_around_the_letters(pair: Any) -> None:
    """BOS before, as in our rows; after proteins EOS, which they train."""
    ours, theirs = pair
    end = [EOS_ID] if ours.trains_eos else []
    assert list(theirs("acA")["input_ids"]) == [BOS_ID, 3, 4, 3, *end]
    assert list(theirs("")["input_ids"]) == [BOS_ID, *end]


def test_rows_of_unequal_length(pair: Any) -> None:
    _, theirs = pair
    rows = theirs(["AC", "A"], padding=True, add_special_tokens=False)
    assert rows["input_ids"] == [[3, 4], [3, PAD_ID]]
    assert rows["attention_mask"] == [[1, 1], [1, 0]]


def test_back_to_letters(pair: Any) -> None:
    ours, theirs = pair
    ids = theirs(ours.letters)["input_ids"]
    assert theirs.decode(ids, skip_special_tokens=True) == ours.decode(ids)


def test_every_id_has_a_name(pair: Any) -> None:
    ours, theirs = pair
    assert isinstance(theirs, PreTrainedTokenizerFast)
    assert len(theirs) == theirs.vocab_size == ours.vocab_size == 32
    assert (theirs.pad_token_id, theirs.bos_token_id, theirs.eos_token_id) == (
        PAD_ID,
        BOS_ID,
        EOS_ID,
    )
    assert theirs.unk_token is None
    assert theirs.model_max_length == 64
    assert sorted(vocabulary(ours).values()) == list(range(32))
    for name, token in vocabulary(ours).items():
        assert theirs.convert_ids_to_tokens(token) == name


def test_saved_again_it_is_the_same(pair: Any, tmp_path: Path) -> None:
    ours, theirs = pair
    theirs.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mixtral"}))
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again(ours.letters)["input_ids"] == theirs(ours.letters)["input_ids"]
    with pytest.raises(Exception, match="UNK"):
        again("AC-GT")
