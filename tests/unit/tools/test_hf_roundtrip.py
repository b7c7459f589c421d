"""Weights go to Hugging Face and back, and the other way round, without a bit changed."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, MixtralConfig

from genomoe.tools.convert_checkpoint import main
from genomoe.tools.hf_export import export_checkpoint
from genomoe.tools.hf_options import HfExport
from tests.unit.tools.exported import (
    assert_same,
    debug_model,
    export,
    exported_tensors,
    imported,
    opened,
    our_logits,
    read,
    some_ids,
    stored,
    write_checkpoint,
)

MODELS: dict[str, dict[str, Any]] = {
    "debug": {},
    "groups": {"num_query_groups": 1, "num_moe_experts": 3, "moe_router_topk": 3},
    "dense": {"num_moe_experts": 0, "ffn_hidden_size": 40},
    "tied, padded": {
        "share_embeddings_and_output_weights": True,
        "make_vocab_size_divisible_by": 80,
    },
    "padded stem": {"stem_kmer_orders": (2, 3), "make_vocab_size_divisible_by": 128},
    "codons": {"rotary_position_scale": 2.0943951023931953, "rotary_base": 777},
    "dense stem": {"stem_kmer_orders": (2,), "num_moe_experts": 0},
}


@pytest.mark.parametrize("name", MODELS)
def test_there_and_back(topology: Any, tmp_path: Path, name: str) -> None:
    model = debug_model(**MODELS[name])
    checkpoint, _ = write_checkpoint(topology, tmp_path / "run", model)
    folder = export(checkpoint, tmp_path / "hf")
    back = imported(folder, tmp_path / "back")
    wanted = stored(checkpoint)
    for vocabulary in ("embedding.letters.weight", "output.weight"):
        if vocabulary in wanted:
            wanted[vocabulary] = wanted[vocabulary][:32]
    assert_same(stored(back), wanted)
    # And once more: byte for byte, with the texts that say what it is.
    again = export(back, tmp_path / "again")
    assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    for text in ("config.json", "tokenizer.json", "generation_config.json"):
        assert (again / text).read_bytes() == (folder / text).read_bytes()


@pytest.mark.parametrize("name", ["padded stem", "codons"])
def test_what_is_known_of_a_model_survives(topology: Any, tmp_path: Path, name: str) -> None:
    model = debug_model(**MODELS[name], dropout=0.25, moe_z_loss_coeff=0.5)
    checkpoint, _ = write_checkpoint(topology, tmp_path / "run", model)
    back = imported(export(checkpoint, tmp_path / "hf"), tmp_path / "back")
    before, after = read(checkpoint / "checkpoint.json"), read(back / "checkpoint.json")
    padding = "make_vocab_size_divisible_by"
    assert after["config"]["model"] == {
        **before["config"]["model"],
        padding: 32,  # the padded rows are gone
    }
    assert after["config"]["rows"] == before["config"]["rows"]
    for fact in ("state", "manifest_digest", "alphabet", "tokenizer_fingerprint", "layout"):
        assert after[fact] == before[fact]
    assert after["holds"] == "weights"


def test_no_path_of_this_machine_is_in_the_folder(topology: Any, tmp_path: Path) -> None:
    checkpoint, _ = write_checkpoint(topology, tmp_path / "run", debug_model())
    for path in export(checkpoint, tmp_path / "hf").iterdir():
        assert str(tmp_path).encode() not in path.read_bytes(), path.name


def test_shards_are_a_matter_of_the_files_alone(topology: Any, tmp_path: Path) -> None:
    model = debug_model(stem_kmer_orders=(2, 3))
    checkpoint, ours = write_checkpoint(topology, tmp_path / "run", model)
    one = export(checkpoint, tmp_path / "one")
    options = HfExport(run=checkpoint, out=tmp_path / "many")
    said = export_checkpoint(options, shard_bytes=50_000)
    shards = sorted((tmp_path / "many").glob("*.safetensors"))
    assert len(shards) > 3
    assert all(path.stat().st_size < 60_000 for path in shards)
    assert {path.name for path in (tmp_path / "many").iterdir()} == set(said["files"])
    assert_same(exported_tensors(tmp_path / "many"), exported_tensors(one))
    index = read(tmp_path / "many" / "model.safetensors.index.json")
    total = sum(tensor.nbytes for tensor in exported_tensors(one).values())
    assert index["metadata"]["total_size"] == said["bytes"] == total
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "many", trust_remote_code=True)
    with torch.no_grad():
        logits = theirs.eval()(some_ids()).logits
    assert (logits - our_logits(ours, some_ids())).abs().max() < 2e-5
    back = imported(tmp_path / "many", tmp_path / "back")
    assert_same(stored(back), stored(checkpoint))


def test_bfloat16(topology: Any, tmp_path: Path) -> None:
    checkpoint, _ = write_checkpoint(topology, tmp_path / "run", debug_model())
    whole = exported_tensors(export(checkpoint, tmp_path / "whole"))
    folder = export(checkpoint, tmp_path / "half", "--dtype", "bfloat16")
    half = exported_tensors(folder)
    assert_same(half, {name: tensor.bfloat16() for name, tensor in whole.items()})
    assert read(folder / "config.json")["torch_dtype"] == "bfloat16"
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert theirs.dtype == torch.bfloat16
    again = export(imported(folder, tmp_path / "back"), tmp_path / "again", "--dtype", "bfloat16")
    assert_same(exported_tensors(again), half)


SHAPE = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
FOREIGN = {
    "mixtral": lambda: MixtralConfig(**SHAPE, num_local_experts=3, sliding_window=None),
    "llama": lambda: LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "mistral": lambda: MistralConfig(**SHAPE, sliding_window=None),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_model_that_transformers_made(topology: Any, tmp_path: Path, kind: str) -> None:
    """Drawn and saved by transformers alone, our model gives its logits."""
    torch.manual_seed(11)
    theirs = AutoModelForCausalLM.from_config(FOREIGN[kind]()).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    theirs.save_pretrained(tmp_path / "hf")
    back = imported(tmp_path / "hf", tmp_path / "back", "--alphabet", "dna")
    ids = some_ids()
    with torch.no_grad():
        wanted = theirs(ids).logits
    assert wanted.std() > 0.5
    built, _ = opened(back, topology)
    assert (our_logits(built.module, ids) - wanted).abs().max() < 2e-5
    facts = read(back / "checkpoint.json")
    assert facts["manifest_digest"] == "unknown"
    assert_same(
        exported_tensors(export(back, tmp_path / "again")), exported_tensors(tmp_path / "hf")
    )


@pytest.mark.parametrize("name", ["debug", "padded stem", "dense stem"])
def test_opened_and_saved_by_transformers(topology: Any, tmp_path: Path, name: str) -> None:
    """Such as after training on there: the sidecar is gone, the model is the same."""
    checkpoint, _ = write_checkpoint(topology, tmp_path / "run", debug_model(**MODELS[name]))
    folder = export(checkpoint, tmp_path / "hf")
    theirs = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    theirs.save_pretrained(tmp_path / "saved")
    assert_same(exported_tensors(tmp_path / "saved"), exported_tensors(folder))
    back = imported(tmp_path / "saved", tmp_path / "back", "--alphabet", "dna")
    assert_same(exported_tensors(export(back, tmp_path / "again")), exported_tensors(folder))
    reopened = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", trust_remote_code=True)
    with torch.no_grad():
        assert torch.equal(reopened.eval()(some_ids()).logits, theirs.eval()(some_ids()).logits)


def test_a_dry_run_says_the_same_and_writes_nothing(
    topology: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, _ = write_checkpoint(topology, tmp_path / "run", debug_model())

    def said(*words: str) -> dict[str, Any]:
        capsys.readouterr()
        assert main(["hf", *words]) == 0
        return json.loads(capsys.readouterr().out)

    out, back = tmp_path / "hf", tmp_path / "back"
    dry = said("export", str(checkpoint), str(out), "--dry-run")
    assert dry["written"] is False and not out.exists()
    assert said("export", str(checkpoint), str(out)) == {**dry, "written": True}
    assert sorted(dry["files"]) == sorted(path.name for path in out.iterdir())
    dry = said("import", str(out), str(back), "--dry-run")
    assert dry["written"] is False and not back.exists()
    assert said("import", str(out), str(back)) == {**dry, "written": True}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "hf", "run"]
