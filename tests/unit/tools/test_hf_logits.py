"""What transformers computes of an exported model is what the model itself computes."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from tests.unit.tools.exported import (
    debug_model,
    export,
    our_logits,
    some_ids,
    write_checkpoint,
)

# FP32 sums in another order, over logits of size 10: measured 4e-6 at most.
TOLERANCE = 2e-5

MODELS: dict[str, dict[str, Any]] = {
    "debug": {},
    "five experts": {"num_blocks": 3, "num_moe_experts": 5},
    "one query group": {"num_query_groups": 1},
    "as many groups as heads": {"num_query_groups": 4},
    "tied": {"share_embeddings_and_output_weights": True},
    "padded": {"make_vocab_size_divisible_by": 80},
    "tied and padded": {
        "share_embeddings_and_output_weights": True,
        "make_vocab_size_divisible_by": 128,
    },
    "rotary": {"rotary_position_scale": 2.0943951023931953, "rotary_base": 500},
    "stretched": {"rotary_position_scale": 0.25},
    "top-3": {"moe_router_topk": 3},
    "dense": {"num_moe_experts": 0, "ffn_hidden_size": 40},
    "epsilon": {"layernorm_epsilon": 0.1},
}
STEMS: dict[str, dict[str, Any]] = {
    "stem": {"stem_kmer_orders": (2, 3, 6), "rotary_position_scale": 2.0943951023931953},
    "hashed stem": {"stem_kmer_orders": (4, 5), "stem_kmer_buckets": 100},
    "stem of the longest": {"stem_kmer_orders": (16,)},
    "dense stem": {"stem_kmer_orders": (2, 5), "num_moe_experts": 0},
    "tied stem": {"stem_kmer_orders": (3,), "share_embeddings_and_output_weights": True},
}


def opened(folder: Path, *, kind: Any = AutoModelForCausalLM, stem: bool = False) -> Any:
    """Open a folder as a user does; nothing may be missing, left over or of another type."""
    model, report = kind.from_pretrained(folder, output_loading_info=True, trust_remote_code=stem)
    if kind is AutoModelForCausalLM:
        assert not any(report.values()), report
    return model.eval()


@torch.no_grad()
def difference(ours: Any, theirs: Any, ids: torch.Tensor) -> float:
    want = our_logits(ours, ids)
    assert want.std() > 0.5, "weights too small to tell anything"
    return float((theirs(ids).logits.float() - want).abs().max())


@pytest.mark.parametrize("name", [*MODELS, *STEMS])
def test_logits(topology: Any, tmp_path: Path, name: str) -> None:
    changes = {**MODELS, **STEMS}[name]
    checkpoint, ours = write_checkpoint(topology, tmp_path / "run", debug_model(**changes))
    theirs = opened(export(checkpoint, tmp_path / "hf"), stem=name in STEMS)
    kind = "Llama" if changes.get("num_moe_experts") == 0 else "Mixtral"
    assert isinstance(theirs, getattr(transformers, f"{kind}ForCausalLM"))
    assert theirs.dtype == torch.float32
    assert difference(ours, theirs, some_ids()) < TOLERANCE


@pytest.mark.parametrize("name", ["debug", *STEMS])
def test_rows_with_bos_anywhere(topology: Any, tmp_path: Path, name: str) -> None:
    """None at the start, several, or one of them last: k-mers start anew after each."""
    checkpoint, ours = write_checkpoint(
        topology, tmp_path / "run", debug_model(**{**MODELS, **STEMS}[name])
    )
    theirs = opened(export(checkpoint, tmp_path / "hf"), stem=name in STEMS)
    ids = some_ids(4, 40)
    ids[:3, 0] = 4
    ids[1, [7, 12]] = 1
    ids[2, [20, 39]] = 1
    ids[3, 1] = 1
    assert difference(ours, theirs, ids) < TOLERANCE


@pytest.mark.parametrize("side", ["left", "right"])
def test_letters_do_not_see_padding(topology: Any, tmp_path: Path, side: str) -> None:
    model = debug_model(stem_kmer_orders=(2, 3))
    checkpoint, ours = write_checkpoint(topology, tmp_path / "run", model)
    theirs = opened(export(checkpoint, tmp_path / "hf"), stem=True)
    ids = some_ids(2, 20)
    padding = torch.zeros(2, 6, dtype=ids.dtype)
    padded = torch.cat([padding, ids] if side == "left" else [ids, padding], dim=1)
    with torch.no_grad():
        got = theirs(padded, attention_mask=(padded != 0).long()).logits
    got = got[:, 6:] if side == "left" else got[:, :20]
    assert (got - our_logits(ours, ids)).abs().max() < TOLERANCE


# A model of random weights would leave A, C, G, T at once, and its k-mers with them.
NOT_BASES = [token for token in range(32) if not 3 <= token < 7]
GREEDY = {"do_sample": False, "suppress_tokens": NOT_BASES}


@torch.no_grad()
def greedy(module: Any, ids: torch.Tensor, new: int) -> torch.Tensor:
    for _ in range(new):
        scores = our_logits(module, ids)[:, -1]
        scores[:, NOT_BASES] = -torch.inf
        following = scores.argmax(-1, keepdim=True)
        ids = torch.cat([ids, following], dim=1)
    return ids


@pytest.mark.parametrize("name", ["debug", "dense", "stem", "hashed stem", "dense stem"])
@pytest.mark.parametrize("use_cache", [True, False])
def test_generation(topology: Any, tmp_path: Path, name: str, use_cache: bool) -> None:
    changes = {**MODELS, **STEMS}[name]
    checkpoint, ours = write_checkpoint(topology, tmp_path / "run", debug_model(**changes))
    theirs = opened(export(checkpoint, tmp_path / "hf"), stem=name in STEMS)
    for ids in (torch.tensor([[1, 3], [1, 4], [1, 5]]), some_ids(3, 9)):
        mask = torch.ones_like(ids)
        got = theirs.generate(
            ids, attention_mask=mask, use_cache=use_cache, max_new_tokens=24, **GREEDY
        )
        want = greedy(ours, ids, 24)
        assert len({tuple(row) for row in want[:, ids.shape[1] :].tolist()}) == 3, (
            "rows that differ"
        )
        assert got.tolist() == want.tolist()


def test_generation_by_beams(topology: Any, tmp_path: Path) -> None:
    """Beams change places between steps: each must keep its own letters."""
    model = debug_model(stem_kmer_orders=(2, 3, 6))
    checkpoint, _ = write_checkpoint(topology, tmp_path / "run", model)
    theirs = opened(export(checkpoint, tmp_path / "hf"), stem=True)
    options = {"num_beams": 4, "max_new_tokens": 16, **GREEDY}
    ids = some_ids(2, 7)
    mask = torch.ones_like(ids)
    with_cache, without = (
        theirs.generate(ids, attention_mask=mask, use_cache=use, **options).tolist()
        for use in (True, False)
    )
    assert with_cache == without


# The name that both versions know.
@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")
def test_a_cache_without_its_letters_is_refused(topology: Any, tmp_path: Path) -> None:
    model = debug_model(stem_kmer_orders=(2, 3))
    checkpoint, ours = write_checkpoint(topology, tmp_path / "run", model)
    theirs = opened(export(checkpoint, tmp_path / "hf"), stem=True)
    ids = some_ids(2, 12)
    with torch.no_grad():
        first = theirs(ids[:, :8], use_cache=True)
        cache = first.past_key_values
        with pytest.raises(ValueError, match="give them all as history_ids"):
            theirs(ids[:, 8:], past_key_values=cache)
        rest = theirs(ids[:, 8:], past_key_values=cache, history_ids=ids)
    assert (rest.logits - our_logits(ours, ids)[:, 8:]).abs().max() < TOLERANCE


def test_the_body_of_a_stem_model(topology: Any, tmp_path: Path) -> None:
    model = debug_model(stem_kmer_orders=(2, 3))
    checkpoint, ours = write_checkpoint(topology, tmp_path / "run", model)
    folder = export(checkpoint, tmp_path / "hf")
    body, whole = opened(folder, kind=AutoModel, stem=True), opened(folder, stem=True)
    ids = some_ids()
    with torch.no_grad():
        logits = whole.lm_head(body(ids).last_hidden_state)
    assert (logits - our_logits(ours, ids)).abs().max() < TOLERANCE


def test_a_stem_model_is_not_opened_without_its_code(topology: Any, tmp_path: Path) -> None:
    model = debug_model(stem_kmer_orders=(2, 3))
    checkpoint, _ = write_checkpoint(topology, tmp_path / "run", model)
    folder = export(checkpoint, tmp_path / "hf")
    for options in ({}, {"trust_remote_code": False}):  # {}: asked, and nobody answers
        with pytest.raises(ValueError, match="trust_remote_code"):
            AutoModelForCausalLM.from_pretrained(folder, **options)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    assert tokenizer("acgn")["input_ids"] == [1, 3, 4, 5, 7]
