"""What a rank needs in memory, from counts alone.

An estimate for planning: weights, gradients and optimizer state are exact for the layouts used
here; activations count the tensors that the backward pass keeps, by layer.
"""

from genomoe.parallel.config import ParallelConfig


def memory_plan(
    config: ParallelConfig,
    *,
    world_size: int,
    dense_parameters: int,
    expert_parameters: int,
    micro_batch_tokens: int,
    hidden_size: int,
    num_blocks: int,
    inner_width: int,
) -> dict[str, int]:
    """Estimate the bytes of one rank.

    Args:
        config: Layout.
        world_size: Ranks.
        dense_parameters: Parameters outside the experts.
        expert_parameters: Parameters of all experts.
        micro_batch_tokens: Tokens that a rank computes at a time.
        hidden_size: Width of the residual stream.
        num_blocks: Blocks of attention and feed-forward.
        inner_width: Inner feed-forward width that one token passes through, over its experts.

    Returns:
        Bytes by purpose, with their `total`.
    """
    ep = config.expert_model_parallel_size
    cpu = config.engine == "cpu"
    compute = 4 if cpu else 2
    sharded = config.wrap_for(world_size) == "fsdp"
    dense_share = world_size if sharded else 1
    expert_share = world_size // ep if sharded else 1
    dense = dense_parameters / dense_share
    experts = expert_parameters / ep / expert_share
    held = dense + experts
    # Under FSDP the blocks in use are whole for a moment: two of them, gathered ahead.
    gathered = 2 * (dense_parameters + expert_parameters / ep) / num_blocks if sharded else 0.0
    # A block keeps, by token: norm inputs, q k v, attention out (about 8 hidden), the router's
    # copies of the token for its experts and three inner activations.
    per_token = 8 * hidden_size + 4 * inner_width
    kept_blocks = 1 if config.recompute == "full" else num_blocks
    residual = num_blocks * hidden_size if config.recompute == "full" else 0
    activations = micro_batch_tokens * (per_token * kept_blocks + residual) * compute
    plan = {
        "weights": int(held * compute),
        "master_weights": 0 if cpu else int(held * 4),
        "gradients": int(held * 4),
        "optimizer_moments": int(held * 8),
        "gathered_weights": int(gathered * compute),
        "activations": int(activations),
    }
    return {**plan, "total": sum(plan.values())}
