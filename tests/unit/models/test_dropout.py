import pytest
import torch

from genomoe.models.dropout import EmbeddingDropout, SampleDropout, bias_dropout_add


def masked(samples: list[int], *, seed: int = 1, place: int = 0, p: float = 0.25) -> torch.Tensor:
    """The dropout of a batch of ones [sequence, batch, hidden]."""
    dropout = SampleDropout(p, seed)
    dropout.samples = samples
    return dropout.apply(torch.ones(40, len(samples), 50), place)


def test_a_mask_depends_on_seed_sample_and_place_alone() -> None:
    torch.manual_seed(1)
    first = masked([7, 8])
    torch.manual_seed(2)
    assert torch.equal(masked([7, 8]), first)
    assert not torch.equal(masked([7, 9])[:, 1], first[:, 1])
    assert not torch.equal(masked([7, 8], seed=2), first)
    assert not torch.equal(masked([7, 8], place=1), first)
    assert not torch.equal(first[:, 0], first[:, 1])


def test_rows_move_with_their_samples() -> None:
    together = masked([3, 4, 5])
    assert torch.equal(masked([5, 3, 4]), together[:, [2, 0, 1]])
    assert torch.equal(masked([4])[:, 0], together[:, 1])


def test_the_process_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    masked([1, 2])
    assert torch.equal(torch.get_rng_state(), before)


def test_share_dropped_and_mean_kept() -> None:
    # 80,000 entries: a standard deviation of 0.0015 for the share.
    values = masked(list(range(40)))
    assert values.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert (values == 0).float().mean().item() == pytest.approx(0.25, abs=0.008)
    assert values.mean().item() == pytest.approx(1.0, abs=0.012)


def test_a_batch_that_was_not_announced() -> None:
    dropout = SampleDropout(0.1, 1)
    dropout.samples = [1, 2]
    with pytest.raises(ValueError, match="3 rows in the batch, 2 announced"):
        dropout.apply(torch.ones(4, 3, 2), 0)


def test_no_dropout_asks_for_no_samples() -> None:
    x = torch.ones(4, 3, 2)
    assert SampleDropout(0.0, 1).apply(x, 0) is x


def test_none_in_evaluation() -> None:
    dropout = SampleDropout(0.5, 1)  # no samples announced: it would raise if it were at work
    embedding = EmbeddingDropout(dropout).eval()
    x = torch.ones(4, 3, 2)
    assert embedding(x) is x
    add = bias_dropout_add(dropout, 2)(False, False)
    assert torch.equal(add((x, None), 2 * x, 0.5), 3 * x)


def test_the_residual_is_never_dropped() -> None:
    dropout = SampleDropout(0.5, 1)
    dropout.samples = [1]
    branch, residual = torch.ones(30, 1, 30), torch.full((30, 1, 30), 10.0)
    add = bias_dropout_add(dropout, 2)(True, False)
    out = add((branch, None), residual, 0.5)
    assert torch.equal(out, residual + dropout.apply(branch, 2))
    assert set(out.unique().tolist()) == {10.0, 12.0}


def test_the_gradient_has_the_same_mask() -> None:
    dropout = SampleDropout(0.25, 1)
    dropout.samples = [1, 2]
    x = torch.ones(4, 2, 8, requires_grad=True)
    out = dropout.apply(x, 0)
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())
