"""Baselines of a data set's train split, as sums over bootstrap units."""

from collections.abc import Sequence

import numpy as np

from genomoe.data.dataset import DataSet
from genomoe.data.errors import InputError
from genomoe.data.pieces import Piece
from genomoe.data.tokenizer import FIRST_LETTER_ID, Tokenizer
from genomoe.models.order_k import Document, OrderK, choose, count
from genomoe.tools.bootstrap import Units

# Order 10 has 4**11 words, order 3 of proteins 20**4: small tables, and contexts beyond them are
# too rare in a genome to help.
MAX_ORDER_BASES = 10
MAX_ORDER_RESIDUES = 3


def as_documents(pieces: Sequence[Piece], tokenizer: Tokenizer) -> list[Document]:
    """Turn pieces into symbols 0 to A - 1, with -1 for letters that are never scored."""
    table = np.full(256, -1, dtype=np.int8)
    table[tokenizer.scored_ids] = np.arange(tokenizer.num_scored)
    return [
        Document(symbols=table[piece.tokens], begin=piece.scored_begin, end=piece.scored_end)
        for piece in pieces
    ]


def fit(dataset: DataSet) -> OrderK:
    """Count the train split and choose on the validation split.

    Raises:
        InputError: If the validation split has no letter to score.
    """
    tokenizer = dataset.tokenizer
    counts = count(
        as_documents(dataset.pieces("train"), tokenizer),
        alphabet_size=tokenizer.num_scored,
        max_order=MAX_ORDER_BASES if tokenizer.unit == "base" else MAX_ORDER_RESIDUES,
        complement=_complement(tokenizer),
    )
    try:
        return choose(counts, as_documents(dataset.pieces("valid"), tokenizer))
    except ValueError as error:
        raise InputError(f"{dataset.folder}: valid split: {error}") from None


def _complement(tokenizer: Tokenizer) -> list[int] | None:
    if tokenizer.complement is None:
        return None
    return (tokenizer.complement[tokenizer.scored_ids].astype(int) - FIRST_LETTER_ID).tolist()


def unit_sums(
    model: OrderK,
    pieces: Sequence[Piece],
    tokenizer: Tokenizer,
    *,
    contexts: np.ndarray,
    units: Units,
) -> np.ndarray:
    """Sum the nats of every order over units.

    Args:
        model: From `fit`.
        pieces: What is scored.
        tokenizer: Of the pieces.
        contexts: Letters of context of each letter, as the model had them.
        units: Bootstrap units.

    Returns:
        float64 [units, orders].
    """
    sums = np.zeros((units.count, model.counts.max_order + 1))
    begin = 0
    for nats in model.nats(as_documents(pieces, tokenizer), contexts):
        owners = units.of_letters(begin, begin + nats.shape[1])
        keep = ~np.isnan(nats[0])
        for order, row in enumerate(nats):
            sums[:, order] += np.bincount(owners[keep], row[keep], minlength=units.count)
        begin += nats.shape[1]
    return sums
