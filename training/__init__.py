"""Training: configuration, launch, loop, optimizer, checkpoints, metrics, scoring."""
