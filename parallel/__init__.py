"""Process groups, expert-parallel and sharded wrapping, the CPU engine, the memory plan."""
