import os

import pytest

from genomoe.parallel.threads import set_thread_environment


@pytest.mark.parametrize(("ranks", "threads"), [(1, "8"), (2, "4"), (3, "2"), (20, "1")])
def test_cores_are_shared_out(ranks: int, threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # so that what the call sets is undone afterwards
        monkeypatch.delenv(name)
    set_thread_environment(ranks)
    assert os.environ["OMP_NUM_THREADS"] == threads
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    set_thread_environment(1)
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
