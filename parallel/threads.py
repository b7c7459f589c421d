"""Threads of the ranks on one machine. Without torch: it must act before torch is imported."""

import os


def set_thread_environment(local_world_size: int) -> None:
    """Share this machine's cores out over its ranks; call before torch is imported.

    Threads that wait actively for each other lose most of their time as soon as another process
    wants a core, so they sleep instead. What the user has set stays.
    """
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // local_world_size)))
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
