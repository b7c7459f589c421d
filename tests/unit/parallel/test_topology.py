from typing import Any

import pytest

from genomoe.parallel.topology import RankInfo, rank_info

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


def test_without_a_launcher_this_is_the_only_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert rank_info() == RankInfo(rank=0, local_rank=0, world_size=1, local_world_size=1)


def test_what_the_launcher_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(VARIABLES, ("5", "1", "8", "4"), strict=True):
        monkeypatch.setenv(name, value)
    assert rank_info() == RankInfo(rank=5, local_rank=1, world_size=8, local_world_size=4)


def test_one_rank_alone(topology: Any) -> None:
    assert topology.is_main
    assert (topology.dp_rank, topology.dp_size) == (0, 1)
    assert (topology.ep_rank, topology.ep_size, topology.expert_dp_rank) == (0, 1, 0)
    assert topology.device.type == "cpu"
