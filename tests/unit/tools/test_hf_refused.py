"""What cannot be converted is one line that names it, exit 2, and leaves nothing behind."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from genomoe.data.tokenizer import tokenizer_for
from genomoe.tools import hf_export
from genomoe.tools.convert_checkpoint import main
from genomoe.training import tensors as training_tensors
from genomoe.training.checkpoint_files import describe_file
from tests.unit.tools.exported import debug_model, export, read, write_checkpoint

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def source(topology: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint and its export; never written to."""
    folder = tmp_path_factory.mktemp("source")
    checkpoint, _ = write_checkpoint(topology, folder / "run", debug_model())
    checkpoint.rename(folder / "checkpoint")
    export(folder / "checkpoint", folder / "hf")
    return folder


@pytest.fixture
def checkpoint(source: Path, tmp_path: Path) -> Path:
    return shutil.copytree(source / "checkpoint", tmp_path / "checkpoint")


@pytest.fixture
def hf(source: Path, tmp_path: Path) -> Path:
    return shutil.copytree(source / "hf", tmp_path / "hf")


def names(folder: Path) -> list[str]:
    """What lies in a folder, hidden files too."""
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def refused(capsys: Capture, out: Path, *words: str, code: int = 2) -> str:
    """Run a command that must fail; returns its one line."""
    before = names(out.parent)
    capsys.readouterr()
    assert main(["hf", *words]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = printed.err.strip().splitlines()
    assert len(lines) == 1, printed.err
    assert lines[0].startswith("error: ")
    assert names(out.parent) == before, "something was left behind"
    return lines[0]


def not_exported(capsys: Capture, checkpoint: Path) -> str:
    out = checkpoint.parent / "out"
    return refused(capsys, out, "export", str(checkpoint), str(out))


def not_imported(capsys: Capture, hf: Path, *words: str) -> str:
    out = hf.parent / "out"
    return refused(capsys, out, "import", str(hf), str(out), *words)


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    value = read(path)
    change(value)
    path.write_text(json.dumps(value))


def retensor(path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


# The place to write


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_a_place_that_is_taken(source: Path, tmp_path: Path, capsys: Capture, kind: str) -> None:
    out = tmp_path / "out"
    if kind == "folder":
        out.mkdir()
        (out / "precious").write_text("x")
    elif kind == "file":
        out.write_text("x")
    else:
        out.symlink_to(tmp_path / "nowhere")
    for words in (("export", source / "checkpoint"), ("import", source / "hf")):
        line = refused(capsys, out, words[0], str(words[1]), str(out))
        assert f"{out}: exists and is not an empty folder; give another OUT" in line
    if kind == "folder":
        assert (out / "precious").read_text() == "x"


def test_a_parent_that_is_no_folder(source: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").write_text("x")
    out = tmp_path / "file" / "out"
    for words in (("export", source / "checkpoint"), ("import", source / "hf")):
        line = refused(capsys, out, words[0], str(words[1]), str(out))
        assert str(out) in line and "Not a directory" in line


def test_a_parent_that_may_not_be_written(source: Path, capsys: Capture) -> None:
    """/proc takes no folder from anyone, root included."""
    out = Path("/proc/genomoe")
    line = refused(capsys, out / "out", "export", str(source / "checkpoint"), str(out / "out"))
    assert f"{out / 'out'}: cannot be written" in line


def test_a_name_that_is_too_long(source: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / ("x" * 250)
    line = refused(capsys, out, "export", str(source / "checkpoint"), str(out))
    assert "File name too long" in line


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (OSError(28, "No space left on device"), "not written: [Errno 28] No space left on device"),
        (KeyboardInterrupt(), "interrupted; nothing was written"),
    ],
)
def test_a_disk_that_fills_up_half_way(
    source: Path,
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    failure: BaseException,
    words: str,
) -> None:
    def full(tensors: Any, path: Path, **options: Any) -> None:
        path.write_bytes(b"half")
        raise failure

    monkeypatch.setattr(hf_export, "save_file", full)
    monkeypatch.setattr(training_tensors, "save_file", full)
    out = tmp_path / "new" / "out"
    for command, where in (("export", "checkpoint"), ("import", "hf")):
        assert words in refused(capsys, out, command, str(source / where), str(out), code=1)
        assert names(tmp_path) == []


def test_remains_of_a_killed_command_are_replaced(source: Path, tmp_path: Path) -> None:
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "stray.safetensors").write_text("x")
    export(source / "checkpoint", tmp_path / "out")
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == names(source / "hf")


def test_an_empty_folder_is_filled(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.chdir(out)
    export(source / "checkpoint", Path())
    assert names(out) == names(source / "hf")
    assert names(tmp_path) == ["out"]


def test_parents_are_made_and_kept_only_on_success(
    source: Path, checkpoint: Path, tmp_path: Path
) -> None:
    export(source / "checkpoint", tmp_path / "a" / "b" / "out")
    assert (tmp_path / "a" / "b" / "out" / "config.json").is_file()
    (checkpoint / "index.json").write_text("{")
    assert main(["hf", "export", str(checkpoint), str(tmp_path / "c" / "out")]) == 2
    assert not (tmp_path / "c").exists()


# Checkpoints that are not whole


def test_not_a_checkpoint(tmp_path: Path, capsys: Capture) -> None:
    assert "no such run or checkpoint folder" in not_exported(capsys, tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert "no complete checkpoint in it; train first" in not_exported(capsys, tmp_path / "empty")


@pytest.mark.parametrize("name", ["checkpoint.json", "index.json"])
def test_truncated_texts_of_a_checkpoint(checkpoint: Path, capsys: Capture, name: str) -> None:
    text = (checkpoint / name).read_text()
    (checkpoint / name).write_text(text[: len(text) // 2])
    assert f"{checkpoint / name}" in not_exported(capsys, checkpoint)


def test_a_damaged_file_of_a_checkpoint(checkpoint: Path, capsys: Capture) -> None:
    path = next(checkpoint.glob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    line = not_exported(capsys, checkpoint)
    assert f"{path}: not the file that was saved (size or checksum differs)" in line
    path.unlink()
    assert f"{path}: missing" in not_exported(capsys, checkpoint)


def rewrite(checkpoint: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Change tensors and index of a checkpoint so that size and checksum agree."""
    path = next(checkpoint.glob("*.safetensors"))
    tensors, index = load_file(path), read(checkpoint / "index.json")
    change(tensors, index["tensors"])
    save_file(tensors, path)
    found = describe_file(path)
    index["files"][path.name] = {"sha256": found.sha256, "bytes": found.bytes}
    (checkpoint / "index.json").write_text(json.dumps(index))


def test_a_missing_tensor(checkpoint: Path, capsys: Capture) -> None:
    def change(tensors: dict[str, Any], index: dict[str, Any]) -> None:
        del tensors["weights/final_norm.weight@0"], index["weights/final_norm.weight"]

    rewrite(checkpoint, change)
    assert "it has no weights/final_norm.weight" in not_exported(capsys, checkpoint)


def test_a_tensor_too_many(checkpoint: Path, capsys: Capture) -> None:
    def change(tensors: dict[str, Any], index: dict[str, Any]) -> None:
        tensors["weights/extra@0"] = tensors["weights/final_norm.weight@0"].clone()
        index["weights/extra"] = json.loads(
            json.dumps(index["weights/final_norm.weight"]).replace("final_norm.weight", "extra")
        )

    rewrite(checkpoint, change)
    assert "the model has no place for weights/extra" in not_exported(capsys, checkpoint)


def test_another_shape(checkpoint: Path, capsys: Capture) -> None:
    edit(checkpoint / "checkpoint.json", lambda f: f["config"]["model"].update(num_query_groups=4))
    assert "linear_qkv.weight is (64, 32) there, (96, 32) in the model" in not_exported(
        capsys, checkpoint
    )


def test_another_layout_of_rows(checkpoint: Path, capsys: Capture) -> None:
    edit(checkpoint / "checkpoint.json", lambda facts: facts.pop("layout"))
    assert "tensors are laid out as None" in not_exported(capsys, checkpoint)


def test_paths_in_the_index_of_a_checkpoint(checkpoint: Path, capsys: Capture) -> None:
    outside = shutil.copy(next(checkpoint.glob("*.safetensors")), checkpoint.parent / "x")
    found = describe_file(Path(outside))
    entry = {"sha256": found.sha256, "bytes": found.bytes}
    edit(checkpoint / "index.json", lambda index: index["files"].update({"../x": entry}))
    assert "names the file '../x': not a plain name" in not_exported(capsys, checkpoint)


# Hugging Face folders


def test_not_a_folder_of_a_model(tmp_path: Path, hf: Path, capsys: Capture) -> None:
    assert "none: no such folder" in not_imported(capsys, tmp_path / "none")
    (hf / "config.json").unlink()
    assert "config.json: no such file; give a Hugging Face" in not_imported(capsys, hf)


@pytest.mark.parametrize("name", ["config.json", "genomoe.json", "tokenizer.json"])
@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"a": 1', "\x00\xff", "[" * 100_000, '{"a": ' + "9" * 5000 + "}"]
)
def test_broken_texts(hf: Path, capsys: Capture, name: str, text: str) -> None:
    (hf / name).write_bytes(text.encode("latin-1"))
    assert str(hf / name) in not_imported(capsys, hf)


def test_pickles_are_not_read(hf: Path, capsys: Capture) -> None:
    (hf / "model.safetensors").rename(hf / "pytorch_model.bin")
    line = not_imported(capsys, hf)
    assert "pytorch_model.bin: a pickle, which can run code, is not read" in line


@pytest.mark.parametrize("text", [b"", b"\x00" * 7, b"\xff" * 64, b"{}"])
def test_no_whole_safetensors(hf: Path, capsys: Capture, text: bytes) -> None:
    (hf / "model.safetensors").write_bytes(text)
    assert "model.safetensors: not a whole safetensors file" in not_imported(capsys, hf)


def test_a_truncated_shard(hf: Path, capsys: Capture) -> None:
    data = (hf / "model.safetensors").read_bytes()
    (hf / "model.safetensors").write_bytes(data[:-10])
    assert "model.safetensors: not a whole safetensors file" in not_imported(capsys, hf)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("model.norm.weight"), "it has no model.norm.weight, which its config"),
        (
            lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)}),
            "has no place for model.layers.0.self_attn.q_proj.bias",
        ),
        (
            lambda t: t.update({"model.norm.weight": torch.zeros(33)}),
            "model.norm.weight is (33,), config.json asks for (32,)",
        ),
        (
            lambda t: t.update({"model.norm.weight": torch.zeros(32, dtype=torch.float64)}),
            "model.norm.weight is F64: use float32, bfloat16, float16",
        ),
    ],
    ids=["missing", "too many", "shape", "type"],
)
def test_other_tensors(hf: Path, capsys: Capture, change: Any, words: str) -> None:
    retensor(hf / "model.safetensors", change)
    assert words in not_imported(capsys, hf)


@pytest.mark.parametrize(
    "file", ["../x.safetensors", "/x.safetensors", "a/b.safetensors", "..", "", "a\\b.safetensors"]
)
def test_paths_in_an_index(hf: Path, capsys: Capture, file: str) -> None:
    tensors = load_file(hf / "model.safetensors")
    index = {"weight_map": dict.fromkeys(tensors, file)}
    (hf / "model.safetensors.index.json").write_text(json.dumps(index))
    shutil.copy(hf / "model.safetensors", hf.parent / "x.safetensors")
    assert f"is in {file!r}: not a plain file name" in not_imported(capsys, hf)


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        (None, "has no weight_map"),
        ({"a": 3}, "a is in 3: not a plain file name"),
        ({"a": "pytorch_model.bin"}, "only safetensors are read"),
        ({"a": "other.safetensors"}, "other.safetensors: missing"),
        ({"a": "model.safetensors"}, "is not both here and in model.safetensors.index.json"),
        ({}, "but there are 0 tensors"),
    ],
)
def test_an_index_that_lies(hf: Path, capsys: Capture, weight_map: Any, words: str) -> None:
    (hf / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert words in not_imported(capsys, hf)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention_bias": True}, "config.json: attention_bias is True"),
        ({"vocab_size": 64}, "config.json: vocab_size is 64: the alphabets here have 32 ids"),
        ({"bos_token_id": 0}, "bos_token_id is 0: the alphabets here have 1"),
        ({"pad_token_id": 5}, "pad_token_id is 5: the alphabets here have 0"),
        ({"max_position_embeddings": "64"}, "max_position_embeddings is '64'"),
        ({"max_position_embeddings": 0}, "seq-length is 0: use 2 or more"),
        ({"num_hidden_layers": 2_000_000_000}, "num_hidden_layers is 2000000000"),
        ({"num_local_experts": 2_000_000_000}, "num_local_experts is 2000000000"),
    ],
)
def test_another_config(hf: Path, capsys: Capture, changes: dict[str, Any], words: str) -> None:
    (hf / "genomoe.json").unlink()
    edit(hf / "config.json", lambda config: config.update(changes))
    assert words in not_imported(capsys, hf, "--alphabet", "dna")


def test_the_letters_must_be_known_and_the_same(hf: Path, capsys: Capture) -> None:
    line = not_imported(capsys, hf, "--alphabet", "protein")
    assert f"--alphabet is protein: {hf / 'genomoe.json'} says dna; leave it out" in line
    assert "alphabet" in not_imported(capsys, hf, "--alphabet", "klingon")
    (hf / "genomoe.json").unlink()
    assert "give --alphabet dna, rna or protein" in not_imported(capsys, hf)
    line = not_imported(capsys, hf, "--alphabet", "protein")
    assert "C has the id 4, in the protein alphabet" not in line  # C is 4 in both
    assert "tokenizer.json: D has the id 15, in the protein alphabet here 5" in line


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.update(schema_version=2), "schema_version is 2, this version reads 1"),
        (lambda s: s.pop("rows"), "rows is missing; delete the file and give --alphabet"),
        (lambda s: s.update(model={}), "is missing; of another version?"),
        (lambda s: s.update(iteration="many"), "iteration is 'many', expected int"),
        (lambda s: s.update(alphabet="klingon"), "'klingon' is unknown"),
        (lambda s: s.update(alphabet=["dna"]), "alphabet is ['dna'], expected a name"),
        (lambda s: s.update(alphabet="rna"), "is not that of the rna alphabet here"),
        (lambda s: s.update(tokenizer_fingerprint="0" * 64), "tokenizer 000000000000 is not"),
        (lambda s: s["model"].update(num_blocks=3), "num_hidden_layers is 2 by config.json, 3 by"),
        (
            lambda s: s["model"].update(rotary_position_scale=2.0),
            "rope_scaling is None by config.json",
        ),
    ],
)
def test_a_sidecar_that_is_not_the_models(
    hf: Path, capsys: Capture, change: Any, words: str
) -> None:
    edit(hf / "genomoe.json", change)
    uracil = tokenizer_for("rna").id_of("U")  # so that it is the fingerprint that tells
    edit(hf / "tokenizer.json", lambda t: t["model"]["vocab"].update(U=uracil))
    assert words in not_imported(capsys, hf)
