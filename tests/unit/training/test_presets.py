import dataclasses
import json
from pathlib import Path

import pytest

from genomoe.data.tokenizer import tokenizer_for
from genomoe.models.flops import count_parameters
from genomoe.training import launch
from genomoe.training.presets import PRESETS, dense_twin

VOCAB = tokenizer_for("dna").vocab_size


def test_the_promised_names() -> None:
    assert list(PRESETS) == [
        "debug",
        "bacterium",
        "bacterium-dense",
        "clade",
        "genus",
        "protein",
        "8x1b",
        "fine-64e",
        "mixtral-8x7b",
    ]


@pytest.mark.parametrize("name", [name for name in PRESETS if PRESETS[name].model.is_moe])
def test_a_dense_twin_has_as_many_active_parameters(name: str) -> None:
    model = PRESETS[name].model
    twin = dense_twin(PRESETS[name])
    router = model.num_blocks * model.hidden_size * model.num_moe_experts
    active = count_parameters(model, VOCAB).active
    assert count_parameters(twin.model, VOCAB).total == active - router
    assert router < 0.02 * active
    same = dataclasses.replace(
        twin.model,
        num_moe_experts=model.num_moe_experts,
        ffn_hidden_size=model.ffn_hidden_size,
    )
    assert dataclasses.replace(twin, model=same) == PRESETS[name]


def test_the_twin_of_the_demo() -> None:
    assert PRESETS["bacterium-dense"] == dense_twin(PRESETS["bacterium"])


def test_proteins_have_neither_codons_nor_tables_of_kmers() -> None:
    model = PRESETS["protein"].model
    assert model.rotary_position_scale == 1.0 and model.stem_kmer_orders == ()


@pytest.mark.parametrize("name", PRESETS)
def test_a_dry_run_of_every_preset(
    name: str, dna_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = [name, "--data", str(dna_set), "--run", str(run), "--gpus", "0", "--procs", "1"]
    assert launch.main([*words, "--dry-run"]) == 0
    captured = capsys.readouterr()
    shown = json.loads(captured.out)
    assert captured.err == ""
    assert not run.exists()
    config = PRESETS[name]
    counted = count_parameters(config.model, VOCAB)
    assert shown["parameters_total"] == counted.total
    assert shown["parameters_active"] == counted.active
    batch = config.training.global_batch_size
    assert shown["tokens_per_step"] == batch * config.rows.seq_length
    assert shown["micro_batch_rows"] * shown["accumulation"] == batch
    assert shown["memory_per_rank_bytes"]["weights"] == 4 * counted.total
    assert shown["memory_per_rank_bytes"]["total"] > 16 * counted.total
    assert shown["iterations"] >= 1 and shown["rows_per_epoch"] >= 1
    assert shown["epochs"] == pytest.approx(shown["iterations"] * batch / shown["rows_per_epoch"])
    assert shown["config"]["model"]["hidden_size"] == config.model.hidden_size


def test_a_dry_run_of_many_ranks_shares_the_experts(
    dna_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["mixtral-8x7b", "--data", str(dna_set), "--run", str(tmp_path), "--gpus", "0"]
    more = ["--procs", "8", "--parallel.expert-model-parallel-size", "8"]
    more += ["--parallel.wrap", "fsdp", "--dry-run"]
    assert launch.main([*words, *more]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["ranks"] == 8
    held = shown["memory_per_rank_bytes"]["weights"]
    assert held == pytest.approx(4 * shown["parameters_total"] / 8, rel=1e-6)
