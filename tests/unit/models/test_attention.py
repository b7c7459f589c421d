import math
from types import SimpleNamespace

import pytest
import torch

from genomoe.models.attention import SdpaAttention, document_mask

LENGTH, BATCH, WIDTH = 12, 2, 6
CONFIG = SimpleNamespace(attention_dropout=0.0, context_parallel_size=1)
DOCUMENTS = torch.tensor([[0] * 5 + [1] * 4 + [2] * 3, [0] * 12])


def projections(heads: int, groups: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    shape = (LENGTH, BATCH, groups, WIDTH)
    query = torch.randn((LENGTH, BATCH, heads, WIDTH), generator=random)
    return query, torch.randn(shape, generator=random), torch.randn(shape, generator=random)


def plain(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, document: torch.Tensor
) -> torch.Tensor:
    """Masked softmax, one query at a time."""
    heads = query.shape[2]
    share = heads // key.shape[2]
    out = torch.zeros(LENGTH, BATCH, heads, WIDTH)
    for row in range(BATCH):
        for at in range(LENGTH):
            seen = [p for p in range(at + 1) if document[row, p] == document[row, at]]
            for head in range(heads):
                group = head // share
                scores = key[seen, row, group] @ query[at, row, head] / math.sqrt(WIDTH)
                out[at, row, head] = torch.softmax(scores, dim=0) @ value[seen, row, group]
    return out.flatten(2)


@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize("packed", [False, True])
def test_equals_a_plain_masked_softmax(heads: int, groups: int, packed: bool) -> None:
    document = DOCUMENTS if packed else torch.zeros_like(DOCUMENTS)
    q, k, v = projections(heads, groups)
    mask = document_mask(document)
    assert (mask is not None) == packed
    out = SdpaAttention(CONFIG)(q, k, v, mask)
    assert out.shape == (LENGTH, BATCH, heads * WIDTH)
    assert torch.allclose(out, plain(q, k, v, document), atol=1e-6)


def test_its_own_scale() -> None:
    q, k, v = projections(2, 2)
    scaled = SdpaAttention(CONFIG, softmax_scale=0.5)(q, k, v, None)
    document = torch.zeros_like(DOCUMENTS)
    assert torch.allclose(scaled, plain(q * 0.5 * math.sqrt(WIDTH), k, v, document), atol=1e-6)


def test_document_mask() -> None:
    mask = document_mask(DOCUMENTS)
    assert mask is not None and mask.shape == (2, 1, LENGTH, LENGTH)
    for row in range(2):
        for query in range(LENGTH):
            for key in range(LENGTH):
                same = DOCUMENTS[row, query] == DOCUMENTS[row, key]
                assert mask[row, 0, query, key] == (key > query or not same)


def test_one_document_a_row_needs_no_mask() -> None:
    assert document_mask(torch.tensor([[0, 0, 0], [4, 4, 4]])) is None


@pytest.mark.parametrize(
    "config",
    [
        SimpleNamespace(attention_dropout=0.1, context_parallel_size=1),
        SimpleNamespace(attention_dropout=0.0, context_parallel_size=2),
    ],
)
def test_what_it_cannot_do_is_refused(config: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="no attention dropout, no context parallelism"):
        SdpaAttention(config)
    q, k, v = projections(2, 2)
    with pytest.raises(ValueError, match="no bias"):
        SdpaAttention(CONFIG)(q, k, v, None, attention_bias=q)
