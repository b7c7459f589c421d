import dataclasses
from typing import Any

import pytest

from genomoe.parallel.preflight import GradientOptions, engine_errors, gradient_errors

# What `wrap` asks for, on four ranks with EP 2.
GOOD = GradientOptions(
    sharding="optim_grads_params",
    per_token_loss=True,
    main_grads_dtype="torch.float32",
    grad_comm_dtype=None,
    dp_size=4,
    ep_size=2,
    num_microbatches=2,
)


def errors(**changes: Any) -> list[str]:
    return gradient_errors(dataclasses.replace(GOOD, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sharding": None},
        {"dp_size": 1, "ep_size": 1},
        {"dp_size": 4, "ep_size": 4},
        {"sharding": "no_shard", "ep_size": 1},
        {"grad_comm_dtype": "torch.float32", "ep_size": 4},
        # Wrong only where a gradient is reduced over a group of one rank.
        {"grad_comm_dtype": "torch.bfloat16"},
        {"per_token_loss": False},
        {"per_token_loss": False, "ep_size": 4, "num_microbatches": 1},
        # Wrong only where gradients are sharded.
        {"sharding": "optim", "grad_comm_dtype": "torch.bfloat16", "ep_size": 4},
        {"sharding": None, "per_token_loss": False, "ep_size": 4},
    ],
)
def test_right_options(changes: dict[str, Any]) -> None:
    assert errors(**changes) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sharding": "no_shard"}, "wrong gradient norm"),
        ({"grad_comm_dtype": "torch.bfloat16", "ep_size": 4}, "doubles the gradients"),
        (
            {"grad_comm_dtype": "torch.bfloat16", "dp_size": 1, "ep_size": 1},
            "doubles the gradients",
        ),
        (
            {"sharding": "optim_grads", "grad_comm_dtype": "torch.bfloat16", "ep_size": 4},
            "doubles the gradients",
        ),
        ({"per_token_loss": False, "ep_size": 4}, "calculate_per_token_loss"),
        ({"per_token_loss": False, "dp_size": 1, "ep_size": 1}, "calculate_per_token_loss"),
    ],
)
def test_options_that_are_silently_wrong_upstream(changes: dict[str, Any], words: str) -> None:
    (error,) = errors(**changes)
    assert words in error
    assert ": " in error, "no fix is named"


def test_a_model_without_the_per_token_loss_is_not_wrapped(topology: Any) -> None:
    from genomoe.parallel.config import ParallelConfig
    from genomoe.parallel.wrap import wrap
    from tests.unit.models import tiny

    module = tiny.build(topology).module
    module.config.calculate_per_token_loss = False
    with pytest.raises(ValueError, match="keep the per-token loss"):
        wrap(module, ParallelConfig(wrap="fsdp"), topology)


def test_engines() -> None:
    assert engine_errors("cpu", "sequential", has_transformer_engine=False) == []
    assert engine_errors("gpu", "te_grouped", has_transformer_engine=True) == []
    (error,) = engine_errors("cpu", "te_grouped", has_transformer_engine=True)
    assert "model.expert-backend te_grouped" in error and "use sequential" in error
    (error,) = engine_errors("gpu", "te_grouped", has_transformer_engine=False)
    assert "not installed" in error and "--model.expert-backend sequential" in error
