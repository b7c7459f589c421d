import os
from pathlib import Path

import pytest

from genomoe.data.errors import InputError
from genomoe.data.workfolder import WorkFolder, glob_escape


def fill(work: WorkFolder, text: str) -> None:
    (work.dataset / "manifest.json").write_text(text)
    (work.spool / "x").write_text("scratch")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_publishing_is_a_rename(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b" / "out"
    with WorkFolder(out, force=False) as work:
        fill(work, "1")
        inode = work.dataset.stat().st_ino
        assert not out.exists()
        work.publish()
    assert out.stat().st_ino == inode
    assert names(out) == ["manifest.json"]
    assert names(out.parent) == ["out"]


def test_failure_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    with (
        pytest.raises(RuntimeError),
        WorkFolder(tmp_path / "kept" / "a" / "out", force=False) as work,
    ):
        fill(work, "1")
        raise RuntimeError
    assert names(tmp_path) == ["kept"]
    assert names(tmp_path / "kept") == []


def test_the_destination_is_checked_again_before_publishing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(InputError, match="exists"), WorkFolder(out, force=False) as work:
        fill(work, "mine")
        out.mkdir()
        (out / "manifest.json").write_text("of another run")
        work.publish()
    assert (out / "manifest.json").read_text() == "of another run"
    assert names(tmp_path) == ["out"]


def test_a_failed_replacement_puts_the_old_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "manifest.json").write_text("old")
    rename = Path.rename

    def fail_once(self: Path, target: Path) -> Path:
        if self.name == "dataset":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_once)
    with pytest.raises(OSError, match="Input/output"), WorkFolder(out, force=True) as work:
        fill(work, "new")
        work.publish()
    assert (out / "manifest.json").read_text() == "old"
    assert names(tmp_path) == ["out"]


def test_a_set_lost_between_two_renames_comes_back(tmp_path: Path) -> None:
    old = tmp_path / ".out.replaced-999999"
    old.mkdir()
    (old / "manifest.json").write_text("old")
    with pytest.raises(InputError, match="exists"), WorkFolder(tmp_path / "out", force=False):
        pass
    assert names(tmp_path) == ["out"]
    old.mkdir()
    with WorkFolder(tmp_path / "out", force=True):
        assert not old.exists()
    assert (tmp_path / "out" / "manifest.json").read_text() == "old"


def test_remains_of_the_dead_go_and_the_living_stay(tmp_path: Path) -> None:
    dead = [".out.partial-999999", f".out.partial-{os.getpid()}", ".out.partial-word"]
    others = [".out.partial-1", ".other.partial-999999", ".out2.partial-999999"]
    for name in dead + others:
        (tmp_path / name).mkdir()
    locked = tmp_path / ".out.partial-999998"
    with WorkFolder(tmp_path / "x", force=False) as living:
        living._folder.rename(locked)
        with WorkFolder(tmp_path / "out", force=False) as work:
            assert work.dataset.exists()
        left = names(tmp_path)
        locked.rename(living._folder)
    assert left == sorted([*others, locked.name])


def test_file_systems_without_locks_fall_back_on_process_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("genomoe.data.workfolder.fcntl.flock", refuse)
    for name in (".out.partial-1", ".out.partial-999999"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
    with WorkFolder(tmp_path / "out", force=False) as work:
        fill(work, "1")
        work.publish()
    assert names(tmp_path) == [".out.partial-1", "out"]


@pytest.mark.parametrize("name", ["a[1]", "*", "q?"])
def test_odd_names_match_themselves_only(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    (tmp_path / "a1").touch()
    (tmp_path / "qx").touch()
    assert [path.name for path in tmp_path.glob(glob_escape(name))] == [name]
