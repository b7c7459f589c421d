import os
import signal
import time
from concurrent.futures.process import BrokenProcessPool

import pytest

from genomoe.data.errors import InputError
from genomoe.data.jobs import run_jobs


def square(number: int, seconds: float = 0.0) -> tuple[int, int]:
    time.sleep(seconds)
    return number * number, os.getpid()


def refuse(number: int, seconds: float) -> int:
    time.sleep(seconds)
    if number % 2:
        raise InputError(f"bad {number}")
    return number


def end(number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_results_come_in_order(num_workers: int) -> None:
    found = list(run_jobs(square, [(3, 0.2), (2, 0.0), (1, 0.0)], num_workers))
    assert [result for result, _ in found] == [9, 4, 1]
    assert (os.getpid() in {pid for _, pid in found}) == (num_workers == 1)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_the_first_error_in_order_is_raised(num_workers: int) -> None:
    results = run_jobs(refuse, [(0, 0.0), (1, 0.3), (3, 0.0), (5, 30.0)], num_workers)
    assert next(results) == 0
    start = time.monotonic()
    with pytest.raises(InputError, match="bad 1"):
        next(results)
    assert time.monotonic() - start < 15


def test_one_job_needs_no_process() -> None:
    assert list(run_jobs(square, [(3,)], 8)) == [(9, os.getpid())]
    assert list(run_jobs(square, [], 8)) == []


def test_a_killed_worker_is_noticed() -> None:
    with pytest.raises(BrokenProcessPool):
        list(run_jobs(end, [(1,), (2,)], 2))
