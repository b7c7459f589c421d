"""Documents that share a row know nothing of each other, to the last bit; nor of padding."""

from typing import Any

import numpy as np
import pytest
import torch

from genomoe.training.batch import MicroBatch, to_micro_batch
from tests.unit.models import tiny

LENGTH = 24
DENSE = {"num_moe_experts": 0, "ffn_hidden_size": 80}
# Large weights, so that a leak would show.
LARGE = {"init_method_std": 0.3}
# Documents by length; 24 fills the row to its end, less leaves padding after.
PACKINGS = [(7, 9, 5), (1, 8, 1, 14), (6, 18), (10, 1, 2)]


def documents(lengths: tuple[int, ...]) -> list[list[int]]:
    return [tiny.random_letters(n, seed=100 + i) for i, n in enumerate(lengths)]


def edited(letters: list[int], seed: int) -> list[int]:
    """Other letters, each of them."""
    shift = np.random.default_rng(seed).integers(1, 4, len(letters))
    return [
        (a - tiny.FIRST_LETTER + int(s)) % 4 + tiny.FIRST_LETTER
        for a, s in zip(letters, shift, strict=True)
    ]


def places(lengths: tuple[int, ...]) -> list[slice]:
    ends = np.cumsum(lengths)
    return [slice(int(e) - n, int(e)) for e, n in zip(ends, lengths, strict=True)]


def packed(made: list[list[int]]) -> MicroBatch:
    return tiny.batch_of([tiny.documents_row(made, LENGTH)])


def front_padded(row: dict[str, np.ndarray], by: int) -> dict[str, np.ndarray]:
    """The row with `by` positions of padding put before its first letter."""
    pad = {"tokens": tiny.PAD, "labels": tiny.PAD, "weights": 0.0, "document": 0}
    return {
        name: np.concatenate([np.full((1, by), pad[name], array.dtype), array], axis=1)
        for name, array in row.items()
    }


def others_apart(module: Any, lengths: tuple[int, ...]) -> float:
    """Edit each document in turn; the largest change of any other document's losses, in nats."""
    made = documents(lengths)
    before = tiny.nats(module, packed(made))[0]
    worst = 0.0
    for changed in range(len(made)):
        for seed in range(3):
            other = [*made]
            other[changed] = edited(made[changed], seed)
            apart = (tiny.nats(module, packed(other))[0] - before).abs()
            for number, place in enumerate(places(lengths)):
                if number == changed:
                    assert apart[place].max() > 1e-2, "the edit changed nothing"
                else:
                    worst = max(worst, float(apart[place].max()))
    return worst


def one_row_at_a_time(expert: Any) -> None:
    """Make an expert compute each token in a call of its own: a GEMM's rounding then cannot
    depend on which other tokens came to the same expert."""
    whole = expert.forward

    def forward(x: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, None]:
        parts = [whole(x[i : i + 1], *(r[i : i + 1] for r in rest))[0] for i in range(len(x))]
        return torch.cat(parts) if parts else whole(x, *rest)[0], None

    expert.forward = forward


@pytest.mark.parametrize("lengths", PACKINGS)
# top-k of all experts: every expert sees every token, so the GEMMs keep their shapes.
@pytest.mark.parametrize("shape", [DENSE, {"moe_router_topk": 4}])
def test_editing_one_document_leaves_the_others_bit_equal(
    shape: dict[str, Any], lengths: tuple[int, ...], topology: Any
) -> None:
    module = tiny.build(topology, **LARGE, **shape).module.eval()
    assert others_apart(module, lengths) == 0.0


@pytest.mark.parametrize("lengths", PACKINGS)
def test_through_experts_only_the_shape_of_a_gemm_is_felt(
    lengths: tuple[int, ...], topology: Any
) -> None:
    """An edit sends other numbers of tokens to an expert, and the GEMM of another number of rows
    may round a row differently. That is all: row by row, the losses are bit-equal."""
    module = tiny.build(topology, **LARGE).module.eval()
    # 1.4e-6 was the most seen: a unit and a half in the last place of a loss above 8 nats.
    assert others_apart(module, lengths) <= 5e-6
    for layer in module.decoder.layers[1::2]:
        for expert in layer.mlp.experts.local_experts:
            one_row_at_a_time(expert)
    assert others_apart(module, lengths) == 0.0


def losses_and_stem(module: Any, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses [sequence] of a one-row batch, and the stem's output that they come from."""
    kept = []
    stem = module.embedding.word_embeddings
    handle = stem.register_forward_hook(lambda _module, _inputs, out: kept.append(out))
    nats = module(
        batch.tokens,
        None,
        batch.attention_mask,
        labels=batch.labels,
        padding_mask=batch.padding_mask,
    )
    handle.remove()
    return nats[0], kept[0]


@pytest.mark.parametrize("lengths", PACKINGS)
@pytest.mark.parametrize("shape", [{}, DENSE])
def test_no_gradient_crosses_into_another_document(
    shape: dict[str, Any], lengths: tuple[int, ...], topology: Any
) -> None:
    module = tiny.build(topology, **LARGE, **shape).module.eval()
    batch = packed(documents(lengths))
    for number, place in enumerate(places(lengths)):
        # Anew each time: the cross entropy's backward pass works in place.
        losses, stem = losses_and_stem(module, batch)
        (gradient,) = torch.autograd.grad(losses[place].sum(), stem)
        inside = torch.zeros(LENGTH, dtype=torch.bool)
        inside[place] = True
        assert gradient[0, inside].abs().amin(dim=1).max() > 0, number
        assert torch.equal(gradient[0, ~inside], torch.zeros_like(gradient[0, ~inside])), number


def test_the_stem_spells_no_word_across_documents(topology: Any) -> None:
    """The embedding of a letter is the same whatever the documents before and after it."""
    module = tiny.build(topology, **LARGE, stem_kmer_orders=(2, 4, 6)).module.eval()
    stem = module.embedding.word_embeddings
    lengths = (5, 1, 9, 2, 7)
    made = documents(lengths)
    together = stem(packed(made).tokens)[0]
    for letters, place in zip(made, places(lengths), strict=True):
        alone = tiny.batch_of([tiny.documents_row([letters], len(letters))])
        assert torch.equal(together[place], stem(alone.tokens)[0])


@pytest.mark.parametrize("lengths", PACKINGS)
@pytest.mark.parametrize("shape", [{}, DENSE])
@pytest.mark.parametrize("by", [1, 6])
def test_padding_before_the_letters_changes_nothing(
    by: int, shape: dict[str, Any], lengths: tuple[int, ...], topology: Any
) -> None:
    module = tiny.build(topology, **LARGE, **shape).module.eval()
    row = tiny.documents_row(documents(lengths), LENGTH)
    want = tiny.nats(module, tiny.batch_of([row]))[0, : sum(lengths)]
    got = tiny.nats(module, tiny.batch_of([front_padded(row, by)]))[0, by : by + sum(lengths)]
    # Rotation by another angle rounds differently: 3e-6 was the most seen.
    assert torch.allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("by", [1, 6])
def test_padding_before_a_row_of_one_document_is_masked(by: int) -> None:
    letters = tiny.random_letters(LENGTH, 1)
    row = front_padded(tiny.documents_row([letters], LENGTH), by)
    batch = to_micro_batch(row, [0], pad=tiny.PAD, device=torch.device("cpu"))
    assert batch.num_tokens == LENGTH
    assert batch.attention_mask is not None
    seen = ~batch.attention_mask[0, 0]
    assert seen.any(dim=1).all(), "a position without a place to look at would be no number"
    assert not seen[by:, :by].any()
    assert torch.equal(seen[by:, by:], torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril())
