"""Our letters as a Hugging Face tokenizer: one letter a token, the same ids.

Written as plain JSON for `AutoTokenizer` (`PreTrainedTokenizerFast`). BOS comes first, EOS last
where the alphabet trains it (proteins); case does not matter; letters that are read as another
(T as U in RNA, Z as X in proteins) are. Any other character is an error while encoding, as with
our own tokenizer: there is no unknown token that it could become.
"""

from typing import Any

from genomoe.data.tokenizer import BOS_ID, EOS_ID, FIRST_LETTER_ID, PAD_ID, Tokenizer

SPECIAL = {"<pad>": PAD_ID, "<bos>": BOS_ID, "<eos>": EOS_ID}


def tokenizer_files(tokenizer: Tokenizer, seq_length: int) -> dict[str, Any]:
    """Build the tokenizer's files.

    Args:
        tokenizer: The alphabet.
        seq_length: Tokens of the rows that the model was trained on.

    Returns:
        JSON values by file name.
    """
    names = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}
    return {
        "tokenizer.json": {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [_added(name, token) for name, token in SPECIAL.items()],
            "normalizer": {"type": "Sequence", "normalizers": _normalizers(tokenizer)},
            # Every character by itself.
            "pre_tokenizer": {
                "type": "Split",
                "pattern": {"Regex": r"[\s\S]"},
                "behavior": "Isolated",
                "invert": False,
            },
            "post_processor": _post_processor(tokenizer),
            "decoder": {"type": "Fuse"},
            # The unknown token is not in the vocabulary: an illegal letter fails.
            "model": {
                "type": "WordLevel",
                "vocab": vocabulary(tokenizer),
                "unk_token": "<not a letter>",
            },
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": seq_length,
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", "attention_mask"],
            "padding_side": "right",
            **names,
        },
        "special_tokens_map.json": names,
    }


def vocabulary(tokenizer: Tokenizer) -> dict[str, int]:
    """Name every id: special tokens, letters, and those that are reserved.

    Letters that are always read as another keep their ids, under a name that no input has.
    """
    replaced = {source for source, _ in tokenizer.read_as}
    names = dict(SPECIAL)
    for token, letter in enumerate(tokenizer.letters, start=FIRST_LETTER_ID):
        names[f"<unused_{letter}>" if letter in replaced else letter] = token
    for token in range(FIRST_LETTER_ID + len(tokenizer.letters), tokenizer.vocab_size):
        names[f"<reserved_{token}>"] = token
    return names


def _normalizers(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Replace each character that is read as another; the tables are the tokenizer's own."""
    table = tokenizer.encode_table
    replacements = []
    for code in range(128):
        if table[code] < tokenizer.vocab_size:
            letter = tokenizer.letters[table[code] - FIRST_LETTER_ID]
            if letter != chr(code):
                replacements.append((chr(code), letter))
    return [
        {"type": "Replace", "pattern": {"String": source}, "content": target}
        for source, target in replacements
    ]


def _added(name: str, token: int) -> dict[str, Any]:
    return {
        "id": token,
        "content": name,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def _post_processor(tokenizer: Tokenizer) -> dict[str, Any]:
    used = ["<bos>", "<eos>"] if tokenizer.trains_eos else ["<bos>"]

    def around(letters: str, kind: int) -> list[dict[str, Any]]:
        piece = {"Sequence": {"id": letters, "type_id": kind}}
        special = [{"SpecialToken": {"id": name, "type_id": kind}} for name in used]
        return [special[0], piece, *special[1:]]

    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": [*around("A", 0), *around("B", 1)],
        "special_tokens": {
            name: {"id": name, "ids": [SPECIAL[name]], "tokens": [name]} for name in used
        },
    }
