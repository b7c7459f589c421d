"""Fixed vocabularies of one letter per token: DNA, RNA and protein.

Ids 0, 1, 2 are PAD, BOS, EOS in every alphabet; letters follow from 3, and the ids from the last
letter up to ``vocab_size`` are reserved for tags. Case never changes an id: lower case is a mask
that travels beside the tokens. RNA shares DNA's ids, with U in T's place. A model can read any
letter, but only the four bases or the twenty amino acids are ever scored.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from genomoe.data.errors import InputError

PAD_ID = 0
BOS_ID = 1
EOS_ID = 2
FIRST_LETTER_ID = 3
ILLEGAL = 255
VOCAB_SIZE = 32


def _frozen(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """One alphabet: the tables from letters to ids and back."""

    name: str
    letters: str
    """The letter of each id, from id 3 on."""
    num_scored: int
    """How many of the first letters are scored."""
    read_as: tuple[tuple[str, str], ...]
    """Letters that are read as another letter, such as T as U in RNA."""
    complement_letters: str | None
    """The complement of each of ``letters``; None where there is no such thing."""
    gap_letter: str | None
    """The letter whose long runs are assembly gaps; None for proteins."""
    unit: str
    """What one letter is called: "base" or "residue"."""
    trains_eos: bool
    """Whether the end of a record is a target."""
    vocab_size: int = VOCAB_SIZE

    @cached_property
    def encode_table(self) -> np.ndarray:
        """Id of each byte, uint8 [256]; 255 where the byte is not a letter of the alphabet."""
        table = np.full(256, ILLEGAL, dtype=np.uint8)
        sources = [(letter, letter) for letter in self.letters] + list(self.read_as)
        for source, target in sources:
            token = FIRST_LETTER_ID + self.letters.index(target)
            table[ord(source.upper())] = token
            table[ord(source.lower())] = token
        return _frozen(table)

    @cached_property
    def scored_ids(self) -> np.ndarray:
        """The ids that may be scored as targets, uint8 [num_scored]."""
        return _frozen(
            np.arange(FIRST_LETTER_ID, FIRST_LETTER_ID + self.num_scored, dtype=np.uint8)
        )

    @cached_property
    def is_scored(self) -> np.ndarray:
        """Whether each id may be scored as a target, bool [256]."""
        table = np.zeros(256, dtype=bool)
        table[self.scored_ids] = True
        return _frozen(table)

    @cached_property
    def complement(self) -> np.ndarray | None:
        """Id of the complementary letter for each id, uint8 [256]; None for proteins."""
        if self.complement_letters is None:
            return None
        table = np.arange(256, dtype=np.uint8)
        for token, letter in enumerate(self.complement_letters, start=FIRST_LETTER_ID):
            table[token] = FIRST_LETTER_ID + self.letters.index(letter)
        return _frozen(table)

    @cached_property
    def gap_id(self) -> int | None:
        """Id of the gap letter, or None."""
        return None if self.gap_letter is None else self.id_of(self.gap_letter)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that gives an id its meaning."""
        description = {
            "name": self.name,
            "vocab_size": self.vocab_size,
            "special": {"PAD": PAD_ID, "BOS": BOS_ID, "EOS": EOS_ID},
            "letters": self.letters,
            "num_scored": self.num_scored,
            "encode": self.encode_table.tolist(),
            "complement": None if self.complement is None else self.complement.tolist(),
        }
        text = json.dumps(description, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    def id_of(self, letter: str) -> int:
        """Return the id of one letter of the alphabet."""
        return FIRST_LETTER_ID + self.letters.index(letter)

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a string of letters, uint8 [len(text)].

        Raises:
            InputError: a character is not in the alphabet.
        """
        codes = np.frombuffer(text.encode("latin-1", "replace"), dtype=np.uint8)
        tokens = self.encode_table[codes]
        illegal = np.flatnonzero(tokens == ILLEGAL)
        if illegal.size:
            position = int(illegal[0])
            raise InputError(
                f"letter {text[position]!r} at position {position + 1} "
                f"is not in the {self.name} alphabet{illegal_hint(text[position], self.name)}"
            )
        return tokens

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the letters of ``ids``; PAD, BOS and EOS vanish, reserved ids become "?"."""
        tokens = np.asarray(ids, dtype=np.int64).ravel()
        if tokens.size and not 0 <= tokens.min() <= tokens.max() < self.vocab_size:
            raise ValueError(f"ids must lie in [0, {self.vocab_size})")
        symbols = ["", "", "", *self.letters]
        symbols += ["?"] * (self.vocab_size - len(symbols))
        return "".join([symbols[token] for token in tokens.tolist()])


_IUPAC = "NRYSWKMBDHV"
_IUPAC_COMPLEMENT = "NYRSWMKVHDB"
_AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"

_TOKENIZERS = {
    "dna": Tokenizer(
        name="dna",
        letters="ACGT" + _IUPAC,
        num_scored=4,
        read_as=(),
        complement_letters="TGCA" + _IUPAC_COMPLEMENT,
        gap_letter="N",
        unit="base",
        trains_eos=False,
    ),
    "rna": Tokenizer(
        name="rna",
        letters="ACGU" + _IUPAC,
        num_scored=4,
        read_as=(("T", "U"),),
        complement_letters="UGCA" + _IUPAC_COMPLEMENT,
        gap_letter="N",
        unit="base",
        trains_eos=False,
    ),
    "protein": Tokenizer(
        name="protein",
        letters=_AMINO_ACIDS + "XBZUOJ*",
        num_scored=20,
        # Too rare to learn, or two residues in one letter; counted by letter in the manifest.
        read_as=(("B", "X"), ("Z", "X"), ("J", "X"), ("O", "X"), ("U", "C")),
        complement_letters=None,
        gap_letter=None,
        unit="residue",
        trains_eos=True,
    ),
}

ALPHABETS = tuple(_TOKENIZERS)


def tokenizer_for(name: str) -> Tokenizer:
    """Return the tokenizer of an alphabet.

    Raises:
        InputError: the alphabet is unknown.
    """
    try:
        return _TOKENIZERS[name]
    except KeyError:
        raise InputError(
            f"alphabet: {name!r} is unknown; choose one of {', '.join(ALPHABETS)}"
        ) from None


def illegal_hint(letter: str, alphabet: str) -> str:
    """Return what to try when ``letter`` is not in ``alphabet``, as the tail of a message."""
    if alphabet == "dna" and letter in "uU":
        return "; RNA is read with --alphabet rna"
    if alphabet in ("dna", "rna") and letter in "EFILPQXZJOefilpqxzjo*":
        return "; proteins are read with --alphabet protein"
    if letter in "-.~":
        return "; gaps of an alignment are not read, remove them"
    if letter == ">":
        return "; a line break is missing before this header"
    if letter in ";#":
        return "; comment lines are not read, remove them"
    return "; correct the file, or name another --alphabet"
