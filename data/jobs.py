"""Run the same function on many arguments, in this process or over worker processes.

Results come in the order of the arguments, and so does the first error: neither depends on the
number of workers. When anything goes wrong the workers are stopped before the error goes on.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def run_jobs[Result](
    function: Callable[..., Result], arguments: Sequence[tuple[Any, ...]], num_workers: int
) -> Iterator[Result]:
    """Yield ``function(*argument)`` for every argument, in order."""
    if num_workers == 1 or len(arguments) < 2:
        for argument in arguments:
            yield function(*argument)
        return
    before = set(multiprocessing.active_children())
    executor = ProcessPoolExecutor(
        max_workers=min(num_workers, len(arguments)),
        # A fresh interpreter: forking a process that has threads may deadlock.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_prepare_worker,
    )
    try:
        futures = [executor.submit(function, *argument) for argument in arguments]
        for future in futures:
            yield future.result()
    except BaseException:
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        raise
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _prepare_worker() -> None:
    """Leave interrupts to the parent process, and end when it ends, even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
