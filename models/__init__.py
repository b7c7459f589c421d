"""Models: configuration, megatron-core building, experts, baselines, counting."""
