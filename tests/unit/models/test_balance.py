import math
from typing import Any

import pytest
import torch

from genomoe.models.balance import LoadBalance
from tests.unit.models import tiny

LAYERS, EXPERTS, TOPK, TOKENS = 2, 4, 2, 50


def make(aux: float = 0.5, z: float = 0.25) -> LoadBalance:
    return LoadBalance(
        num_layers=LAYERS,
        num_experts=EXPERTS,
        topk=TOPK,
        aux_loss_coeff=aux,
        z_loss_coeff=z,
        device=torch.device("cpu"),
    )


def routed(seed: int, tokens: int = TOKENS) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits that prefer the first experts, and the map of the chosen ones."""
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(tokens, EXPERTS, generator=random) + torch.tensor([1.0, 0.5, 0.0, -1.0])
    chosen = torch.zeros(tokens, EXPERTS, dtype=torch.bool)
    chosen.scatter_(1, logits.topk(TOPK).indices, True)
    return logits, chosen


def direct(logits: torch.Tensor, load: torch.Tensor, aux: float, z: float) -> torch.Tensor:
    """The two losses by their definitions: sums over tokens."""
    probs = torch.softmax(logits.double(), dim=1)
    balance = EXPERTS * (load.double() * probs.mean(dim=0)).sum() * len(logits)
    z_loss = torch.logsumexp(logits.double(), dim=1).square().sum()
    return aux * balance + z * z_loss


def test_losses_of_the_first_step_take_an_even_load() -> None:
    logits, chosen = routed(1)
    loss = make().losses(0, logits, chosen, None)
    even = torch.full((EXPERTS,), 0.25)
    assert loss.item() == pytest.approx(direct(logits, even, 0.5, 0.25).item(), rel=1e-5)
    # With an even load the balance loss is exactly one a token.
    assert make(aux=1.0, z=0.0).losses(0, logits, chosen, None).item() == pytest.approx(TOKENS)


def test_the_gradient_takes_the_load_of_the_batch_before(topology: Any) -> None:
    balance = make()
    first_logits, first_chosen = routed(1)
    for layer in range(LAYERS):
        balance.losses(layer, first_logits, first_chosen, None)
    balance.finish_step(topology.groups.dp)
    load = first_chosen.sum(dim=0) / (TOKENS * TOPK)
    assert torch.allclose(balance.previous_load[0], load)

    logits, chosen = routed(2)
    ours = logits.clone().requires_grad_()
    loss = balance.losses(0, ours, chosen, None)
    loss.backward()
    theirs = logits.clone().requires_grad_()
    wanted = direct(theirs, load, 0.5, 0.25)
    wanted.backward()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-5)
    now = logits.clone().requires_grad_()
    direct(now, chosen.sum(dim=0) / (TOKENS * TOPK), 0.5, 0.25).backward()
    assert not torch.allclose(ours.grad, now.grad, atol=1e-3)


def test_the_report_is_of_the_batch_itself(topology: Any) -> None:
    balance = make()
    batches = [routed(seed) for seed in (1, 2, 3)]
    for logits, chosen in batches:  # three micro-batches of one step
        for layer in range(LAYERS):
            balance.losses(layer, logits * (layer + 1), chosen, None)
    report = balance.finish_step(topology.groups.dp)
    chosen = torch.cat([c for _, c in batches]).double()
    aux, z_loss = [], []
    for layer in range(LAYERS):
        logits = torch.cat([x for x, _ in batches]).double() * (layer + 1)
        probs = torch.softmax(logits, dim=1)
        load = chosen.sum(dim=0) / chosen.sum()
        assert report.load[layer] == pytest.approx(load.tolist())
        entropy = -(probs * probs.log()).sum(dim=1).mean().item()
        assert report.entropy[layer] == pytest.approx(entropy, rel=1e-5)
        aux.append((EXPERTS * (load * probs.mean(dim=0)).sum()).item())
        z_loss.append(torch.logsumexp(logits, dim=1).square().mean().item())
    assert report.aux_loss == pytest.approx(sum(aux) / LAYERS, rel=1e-5)
    assert report.z_loss == pytest.approx(sum(z_loss) / LAYERS, rel=1e-5)


def test_padding_is_in_neither(topology: Any) -> None:
    logits, chosen = routed(1)
    real = torch.arange(TOKENS) < 30
    padded, alone = make(), make()
    ours = logits.clone().requires_grad_()
    loss = padded.losses(0, ours, chosen, real)
    loss.backward()
    alone.losses(0, logits[:30], chosen[:30], None)
    padded.losses(1, logits, chosen, real)
    alone.losses(1, logits[:30], chosen[:30], None)
    wanted = direct(logits[:30], torch.full((EXPERTS,), 0.25), 0.5, 0.25)
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert torch.equal(ours.grad[30:], torch.zeros(20, EXPERTS))
    ours_report = padded.finish_step(topology.groups.dp)
    wanted_report = alone.finish_step(topology.groups.dp)
    assert ours_report.load == wanted_report.load
    assert ours_report.entropy == pytest.approx(wanted_report.entropy, rel=1e-6)
    assert ours_report.z_loss == pytest.approx(wanted_report.z_loss, rel=1e-6)
    assert ours_report.aux_loss == pytest.approx(wanted_report.aux_loss, rel=1e-6)


def test_an_even_router_has_loss_one_and_full_entropy(topology: Any) -> None:
    balance = make()
    chosen = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1]] * 5, dtype=torch.bool)
    for layer in range(LAYERS):
        balance.losses(layer, torch.zeros(10, EXPERTS), chosen, None)
    report = balance.finish_step(topology.groups.dp)
    assert report.aux_loss == pytest.approx(1.0)
    assert report.entropy == pytest.approx([math.log(EXPERTS)] * LAYERS)
    assert report.z_loss == pytest.approx(math.log(EXPERTS) ** 2)


def test_a_step_starts_from_nothing_and_an_empty_one_keeps_the_load(topology: Any) -> None:
    balance = make()
    logits, chosen = routed(1)
    for layer in range(LAYERS):
        balance.losses(layer, logits, chosen, None)
    first = balance.finish_step(topology.groups.dp)
    kept = balance.previous_load.clone()
    empty = balance.finish_step(topology.groups.dp)
    assert empty.load == [[0.0] * EXPERTS] * LAYERS
    assert torch.equal(balance.previous_load, kept)
    assert first.load[0] == pytest.approx(kept[0].tolist())


def test_the_model_counts_in_training_with_gradients_only(topology: Any) -> None:
    built = tiny.build(topology)
    batch = tiny.batch_of(
        [tiny.documents_row([tiny.random_letters(length, seed=1)], 24) for length in (24, 20)]
    )
    group = topology.groups.dp
    # Recomputation and validation pass without gradients: neither may count.
    tiny.nats(built.module.train(), batch)
    with torch.enable_grad():
        built.module.eval()(batch.tokens, None, None, labels=batch.labels)
    assert built.balance.finish_step(group).load == [[0.0] * EXPERTS] * 2
    built.module.train()(
        batch.tokens, None, None, labels=batch.labels, padding_mask=batch.padding_mask
    )
    report = built.balance.finish_step(group)
    for row in report.load:
        assert sum(row) == pytest.approx(1.0)
        # Of 44 real tokens, not 48.
        assert all(round(share * 88) == pytest.approx(share * 88, abs=1e-6) for share in row)
