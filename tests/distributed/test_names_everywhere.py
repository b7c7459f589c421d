"""The canonical names mean the same tensors in every layout, under both wrappers."""

import dataclasses
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.course import gathered
from tests.distributed.names_run import STEPS, held_pieces, train_or_restore
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny_run import MODEL, VOCAB
from tests.unit.models.expected_names import Shapes, expected_shapes

pytestmark = pytest.mark.timeout(180)

KINDS = ("weights", "exp_avg", "exp_avg_sq")
DENSE_TIED: dict[str, Any] = {
    "num_moe_experts": 0,
    "share_embeddings_and_output_weights": True,
    "stem_kmer_orders": (),
}


def layouts(world: int) -> list[dict[str, Any]]:
    """Both wrappers at the expert-parallel sizes of a number of ranks, and with a dense model."""
    models = [(ep_size, {}) for ep_size in {1: (1,), 2: (2,), 4: (2, 4)}[world]]
    return [
        {"parallel": {"expert_model_parallel_size": ep_size, "wrap": wrap}, "model": model}
        for wrap in ("ddp", "fsdp")
        for ep_size, model in [*models, (1, DENSE_TIED)]
    ]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_every_row_of_every_tensor_has_one_owner(world: int, tmp_path: Path) -> None:
    jobs = layouts(world)
    for job, *held in zip(jobs, *run_ranks(held_pieces, world, tmp_path, jobs), strict=True):
        want = expected_shapes(dataclasses.replace(MODEL, **job["model"]), VOCAB)
        check_names_by_rank(held, want, job["parallel"]["expert_model_parallel_size"])
        check_owned_once(held, want)


def check_names_by_rank(held: list[dict[str, Any]], want: Shapes, ep_size: int) -> None:
    """All ranks know every dense tensor and the experts of their part, under one name each."""
    dense = {name for name in want if ".experts." not in name}
    experts: dict[int, set[str]] = {}
    for rank in held:
        names = [piece[0] for piece in rank["pieces"]]
        mine = [n.removeprefix("weights/") for n in names if n.startswith("weights/")]
        assert len(mine) == len(set(mine)), "two parameters of a rank share a name"
        assert set(mine) & dense == dense
        assert experts.setdefault(rank["ep_rank"], set(mine) - dense) == set(mine) - dense
    assert len(experts) == ep_size
    assert sum(map(len, experts.values())) == len(set().union(*experts.values()))
    assert set().union(dense, *experts.values()) == set(want)


def check_owned_once(held: list[dict[str, Any]], want: Shapes) -> None:
    """Owned rows are the whole tensor, each once: of the weights and of both moments."""
    owned: dict[str, list[int]] = defaultdict(list)
    for name, shape, start, rows, is_owned in (p for rank in held for p in rank["pieces"]):
        assert tuple(shape) == want[name.split("/")[1]]
        if is_owned:
            owned[name] += range(start, start + rows)
    assert {name: sorted(rows) for name, rows in owned.items() if rows} == {
        f"{kind}/{name}": list(range(shape[0])) for kind in KINDS for name, shape in want.items()
    }


def test_sharded_checkpoint_opens_on_one_rank_bit_for_bit(small_data: Path, tmp_path: Path) -> None:
    """Trained and saved by (4, 2) under FSDP: one rank under DDP holds the very same tensors."""
    states = {}
    for name, world, parallel in (
        ("saved", 4, {"wrap": "fsdp", "expert_model_parallel_size": 2}),
        ("loaded", 1, {"wrap": "ddp"}),
    ):
        into = tmp_path / name
        into.mkdir()
        job = {
            "data": str(small_data),
            "run": str(tmp_path / "run"),
            "parallel": parallel,
            "into": str(into),
        }
        replies = run_ranks(train_or_restore, world, tmp_path / f"{name} ranks", job)
        assert replies == [{"steps": [STEPS]}] * world
        states[name] = gathered(into)
    saved, loaded = states["saved"], states["loaded"]
    assert sorted(loaded) == sorted(saved)
    for name, tensor in saved.items():
        assert loaded[name].dtype == tensor.dtype, name
        assert torch.equal(loaded[name], tensor), name
    # Not equal for want of content: every tensor has been trained.
    assert all(bool(saved[name].any()) for name in saved)
    weights = [name for name in saved if name.startswith("weights/")]
    assert len(saved) == len(KINDS) * len(weights) + 1  # and the load of the experts
