"""Checkpoints of random weights and their conversions: what the tests of both sides use."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from genomoe.data.json_codec import encode
from genomoe.data.tokenizer import tokenizer_for
from genomoe.models.config import ModelConfig
from genomoe.tools.convert_checkpoint import main
from genomoe.training.config import PretrainConfig, RowConfig

SEQ_LENGTH = 64
# Large enough that every matrix, the router and the k-mer tables decide about the logits.
STD = 0.3
DNA_LETTERS = 15


def debug_model(**changes: Any) -> ModelConfig:
    """Two blocks of four experts."""
    shape: dict[str, Any] = {
        "num_blocks": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_query_groups": 2,
        "num_moe_experts": 4,
        "moe_ffn_hidden_size": 48,
        "dropout": 0.0,
        "init_method_std": STD,
    }
    return ModelConfig(**{**shape, **changes})


def write_checkpoint(
    topology: Any, run: Path, model: ModelConfig, *, alphabet: str = "dna"
) -> tuple[Path, Any]:
    """Save a model whose norms are random too; returns the checkpoint and the model itself."""
    from genomoe.parallel.wrap import wrap
    from genomoe.training.checkpoint import save
    from genomoe.training.checkpoint_files import LAYOUT
    from genomoe.training.state import collect
    from genomoe.training.trainer import build_from_config

    config = PretrainConfig(rows=RowConfig(seq_length=SEQ_LENGTH), model=model)
    tokenizer = tokenizer_for(alphabet)
    built = build_from_config(config, tokenizer, topology, torch.float32)
    random = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in built.module.named_parameters():
            if parameter.dim() == 1:
                parameter.copy_(0.5 + torch.rand(parameter.shape, generator=random))
            elif name.endswith("output_layer.weight"):
                parameter.mul_(0.3)  # logits of a trained model's size
    wrapped = wrap(built.module, config.parallel, topology)
    facts = {
        "state": {"iteration": 5},
        "config": encode(config),
        "manifest_digest": "d" * 64,
        "alphabet": alphabet,
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "layout": LAYOUT,
    }
    path = save(run, 5, collect(built, wrapped, None, topology), facts)
    return path, built.module.eval()


def export(checkpoint: Path, out: Path, *words: str) -> Path:
    """Export by the command."""
    assert main(["hf", "export", str(checkpoint), str(out), *words]) == 0
    return out


def some_ids(rows: int = 3, length: int = 48, *, seed: int = 0) -> torch.Tensor:
    """Rows of BOS and letters, ambiguity codes among them."""
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 7, (rows, length), generator=random)
    rare = torch.rand(rows, length, generator=random) < 0.05
    ids = torch.where(rare, torch.randint(7, 3 + DNA_LETTERS, ids.shape, generator=random), ids)
    ids[:, 0] = 1
    return ids


@torch.no_grad()
def our_logits(module: Any, ids: torch.Tensor) -> torch.Tensor:
    """Logits of the real vocabulary [rows, sequence, 32]."""
    return module(ids, None, None)[..., :32].float()


def read(path: Path) -> Any:
    """A JSON file."""
    return json.loads(path.read_text())


def stored(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Weights of a checkpoint by canonical name: the chunks of all its files, put together."""
    chunks: dict[str, dict[int, torch.Tensor]] = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        for key, tensor in load_file(path).items():
            kind, name = key.split("/", 1)
            name, _, row = name.partition("@")
            if kind == "weights":
                chunks.setdefault(name, {})[int(row or 0)] = tensor
    return {name: torch.cat([rows[r] for r in sorted(rows)]) for name, rows in chunks.items()}


def exported_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Tensors of a Hugging Face folder by name."""
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    return found


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    """Compare names, types and bits."""
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype, name
        assert torch.equal(tensor, right[name]), name


def imported(folder: Path, out: Path, *words: str) -> Path:
    """Import by the command."""
    assert main(["hf", "import", str(folder), str(out), *words]) == 0
    return out


def opened(checkpoint: Path, topology: Any) -> tuple[Any, Any]:
    """Our model of a checkpoint on one rank as scoring opens it: as built, and wrapped."""
    from genomoe.parallel.config import ParallelConfig
    from genomoe.parallel.wrap import wrap
    from genomoe.training.checkpoint import load
    from genomoe.training.scorer import read_checkpoint
    from genomoe.training.state import collect
    from genomoe.training.trainer import build_from_config

    facts = read_checkpoint(checkpoint)
    alone = dataclasses.replace(facts.config, parallel=ParallelConfig())
    built = build_from_config(alone, facts.tokenizer, topology, torch.float32)
    wrapped = wrap(built.module, alone.parallel, topology)
    load(checkpoint, collect(built, wrapped, None, topology), kinds=("weights",))
    built.module.eval()
    return built, wrapped
