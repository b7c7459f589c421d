import json
import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from genomoe.data.errors import InputError
from genomoe.training.presets import PRESETS
from genomoe.training.run_folder import RunLock, read_config, write_config, write_json

HOLDER = """
import sys, time
from pathlib import Path
from genomoe.training.run_folder import RunLock
with RunLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_holder_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with RunLock(run):
        with pytest.raises(InputError) as caught, RunLock(run):
            pass
        assert str(caught.value).startswith(f"{run}: another process is training")
    with RunLock(run):
        pass


def test_the_lock_goes_with_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), RunLock(tmp_path):
        raise RuntimeError
    with RunLock(tmp_path):
        pass


def test_the_lock_dies_with_its_holder(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(InputError, match="another process"), RunLock(tmp_path):
            pass
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with RunLock(tmp_path):
        pass


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for run in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(InputError) as caught, RunLock(run):
            pass
        assert str(caught.value).startswith(f"{run}: no run folder can be here (")


def test_a_child_does_not_inherit_the_lock(tmp_path: Path) -> None:
    with RunLock(tmp_path):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        with RunLock(tmp_path):
            pass
    finally:
        child.kill()
        child.wait()


def test_json_is_whole_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"b": 1, "a": [1.5, None]})
    assert json.loads(path.read_text()) == {"a": [1.5, None], "b": 1}
    with pytest.raises(ValueError):
        write_json(path, {"bad": math.nan})
    assert json.loads(path.read_text()) == {"a": [1.5, None], "b": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_config_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    write_config(path, PRESETS["clade"])
    assert read_config(path) == PRESETS["clade"]


def test_no_config(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file; this is not a run or checkpoint folder"):
        read_config(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"novelty": 1}, r"config\.novelty is unknown"),
        ({"data": 3}, r"config\.data is 3, expected Path"),
        ({"rows": None}, r"config\.rows is None, expected an object"),
    ],
)
def test_an_edited_config(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = tmp_path / "config.json"
    write_config(path, PRESETS["debug"])
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=words) as caught:
        read_config(path)
    assert str(caught.value).startswith(str(path))


def test_a_config_that_is_no_json(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"data": ')
    with pytest.raises(InputError, match=r"config\.json: .*written by another version or edited"):
        read_config(path)
