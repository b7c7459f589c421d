from typing import Any

import pytest
import torch

from genomoe.models.conv_norm import ConvNorm
from genomoe.models.document_positions import DocumentPositions
from tests.unit.models.tiny import BOS

HIDDEN, WIDTH = 5, 4
IDS = torch.tensor([[BOS, 3, 4, 5, 6, BOS, 3, BOS, 4, 5, 6, 3], [BOS] + [3] * 11])


def make(ids: torch.Tensor, width: int = WIDTH) -> Any:
    positions = DocumentPositions(BOS)
    positions.set(ids)
    torch.manual_seed(1)
    layer = ConvNorm(torch.nn.Identity(), hidden_size=HIDDEN, width=width, positions=positions)
    torch.nn.init.normal_(layer.conv.weight)
    return layer


def activations(ids: torch.Tensor, seed: int = 2) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(ids.shape[1], ids.shape[0], HIDDEN, generator=random)


@pytest.mark.parametrize("width", [1, 2, 4, 20])
@pytest.mark.parametrize("ids", [IDS, IDS[1:]], ids=["packed", "one document"])
def test_against_a_slow_reference(width: int, ids: torch.Tensor) -> None:
    layer, x = make(ids, width), activations(ids)
    out = layer(x)
    for row, line in enumerate(ids.tolist()):
        for position in range(len(line)):
            start = max(p for p in range(position + 1) if line[p] == BOS)
            wanted = x[position, row].clone()
            for back in range(width):
                if position - back >= start:
                    wanted += layer.conv.weight[back] * x[position - back, row]
            assert torch.allclose(out[position, row], wanted, atol=1e-5)


def test_the_norm_comes_first() -> None:
    layer, x = make(IDS), activations(IDS)
    plain = layer(x)
    layer.norm = torch.nn.Softsign()
    assert torch.allclose(layer(x), make(IDS)(torch.nn.functional.softsign(x)))
    assert not torch.allclose(layer(x), plain)


def test_documents_do_not_see_each_other() -> None:
    layer, x = make(IDS), activations(IDS)
    edited = x.clone()
    edited[0:5, 0] += 1.0  # all of the first document of the packed row
    before, after = layer(x), layer(edited)
    assert torch.equal(before[5:, 0], after[5:, 0])
    assert torch.equal(before[:, 1], after[:, 1])
    assert not torch.equal(before[:5, 0], after[:5, 0])


def test_no_look_ahead() -> None:
    layer = make(IDS)
    for position in range(IDS.shape[1]):
        x = activations(IDS).requires_grad_()
        layer(x)[position, 1].sum().backward()
        touched = x.grad.abs().sum(dim=(1, 2)).nonzero().flatten().tolist()
        assert touched == list(range(max(0, position + 1 - WIDTH), position + 1))
        assert x.grad[:, 0].abs().sum() == 0.0
