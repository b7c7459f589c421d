"""What a run will need and do, from its config alone: the dry run, and the check of memory."""

from genomoe.data.dataset import DataSet
from genomoe.data.json_codec import encode
from genomoe.data.tokenizer import VOCAB_SIZE
from genomoe.models.flops import count_parameters, flops_per_token
from genomoe.parallel.memory import memory_plan
from genomoe.training.config import PretrainConfig, num_microbatches, train_iterations
from genomoe.training.rows import row_source


def memory_per_rank(config: PretrainConfig, world_size: int) -> dict[str, int]:
    """Estimate the bytes of one rank by purpose, with their `total`."""
    model = config.model
    count = count_parameters(model, VOCAB_SIZE)
    micro, _ = num_microbatches(config.training, world_size)
    expert_width = model.moe_router_topk * model.moe_ffn_hidden_size
    return memory_plan(
        config.parallel,
        world_size=world_size,
        dense_parameters=count.embedding + count.dense,
        expert_parameters=count.experts,
        micro_batch_tokens=micro * config.rows.seq_length,
        hidden_size=model.hidden_size,
        num_blocks=model.num_blocks,
        inner_width=expert_width if model.is_moe else model.ffn_hidden_size,
    )


def memory_error(plan: dict[str, int], *, ranks: int, available_bytes: int) -> str | None:
    """Say why ranks that share one memory cannot fit in it, or None if they can.

    Args:
        plan: From `memory_per_rank`.
        ranks: How many share the memory.
        available_bytes: Its size.
    """
    needed = plan["total"] * ranks
    if needed <= available_bytes:
        return None
    parts = sorted((size, name) for name, size in plan.items() if name != "total")[::-1][:2]
    largest = ", ".join(f"{name.replace('_', ' ')} {size / 2**30:.1f}" for size, name in parts)
    return (
        f"not enough memory: {ranks} rank(s) would need about {needed / 2**30:.1f} GiB of "
        f"{available_bytes / 2**30:.1f} (of a rank: {largest}); use a smaller preset or "
        "--training.micro-batch-size, --parallel.recompute full, or more GPUs with wrap fsdp"
    )


def describe(config: PretrainConfig, dataset: DataSet | None, world_size: int) -> dict[str, object]:
    """What a dry run prints: config, parameters, memory, tokens and length of the run.

    Args:
        config: Placed.
        dataset: Its data; without it the length of the run is not known.
        world_size: Ranks.
    """
    count = count_parameters(config.model, VOCAB_SIZE)
    micro, accumulation = num_microbatches(config.training, world_size)
    tokens = config.training.global_batch_size * config.rows.seq_length
    plan: dict[str, object] = {
        "config": encode(config),
        "ranks": world_size,
        "parameters_total": count.total,
        "parameters_active": count.active,
        "parameters_experts": count.experts,
        "memory_per_rank_bytes": memory_per_rank(config, world_size),
        "micro_batch_rows": micro,
        "accumulation": accumulation,
        "tokens_per_step": tokens,
        "training_flops_per_step": tokens
        * flops_per_token(config.model, VOCAB_SIZE, config.rows.seq_length),
    }
    if dataset is not None:
        rows = row_source(config, dataset).num_rows
        iterations = train_iterations(config.training, rows)
        plan |= {
            "rows_per_epoch": rows,
            "iterations": iterations,
            "epochs": iterations * config.training.global_batch_size / rows,
        }
    return plan
