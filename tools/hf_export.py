"""Write a checkpoint as a folder that Hugging Face transformers opens.

    config.json, generation_config.json      the model, as Mixtral, Llama or (k-mer stem) genomoe
    model*.safetensors                       the weights; above 5 GB in shards with an index
    tokenizer.json, ...                      one letter a token
    genomoe.json                             what importing needs and transformers has no place for
    modeling_genomoe.py                      with a k-mer stem: its code, for trust_remote_code

The tensors are copied one by one; a shard is in memory at a time.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from genomoe.data.errors import InputError
from genomoe.data.json_codec import encode
from genomoe.data.manifest import TOOL_VERSION
from genomoe.data.progress import Progress
from genomoe.data.tokenizer import BOS_ID, EOS_ID, PAD_ID
from genomoe.models.mixtral import Part, TensorMap, count_part_values, tensor_maps
from genomoe.models.mixtral_config import hf_config
from genomoe.tools.hf_options import HfExport
from genomoe.tools.hf_tokenizer import tokenizer_files
from genomoe.tools.output_folder import check_output, new_folder
from genomoe.training.checkpoint_files import LAYOUT, read_facts
from genomoe.training.scorer import CheckpointFacts, find_checkpoint, read_checkpoint
from genomoe.training.tensors import StoredWeights

SHARD_BYTES = 5_000_000_000
SIDECAR = "genomoe.json"
SIDECAR_VERSION = 1
MODELING = "modeling_genomoe"

Shard = list[tuple[TensorMap, Part]]


def export_checkpoint(options: HfExport, *, shard_bytes: int = SHARD_BYTES) -> dict[str, Any]:
    """Export; returns the JSON object for stdout.

    Args:
        options: As given.
        shard_bytes: Largest file of weights (a larger tensor has one for itself).

    Raises:
        InputError: If the checkpoint is not whole or OUT is taken.
    """
    check_output(options.out)
    facts = read_checkpoint(find_checkpoint(options.run))
    layout = read_facts(facts.path).get("layout")
    if layout != LAYOUT:
        raise InputError(f"{facts.path}: tensors are laid out as {layout}, here as {LAYOUT}")
    maps = tensor_maps(facts.config.model, facts.tokenizer.vocab_size)
    weights = StoredWeights(facts.path, {tensor.name: tensor.shape for tensor in maps})
    dtype = getattr(torch, options.dtype)
    shards = plan_shards(maps, dtype.itemsize, shard_bytes)
    texts = text_files(facts, options.dtype)
    size = count_part_values(maps) * dtype.itemsize
    if not options.dry_run:
        with new_folder(options.out) as folder:
            _write_weights(folder, weights, shards, dtype, size)
            for name, text in texts.items():
                (folder / name).write_text(text)
    names = [*_shard_names(len(shards)), *(["model.safetensors.index.json"] * (len(shards) > 1))]
    return {
        "checkpoint": str(facts.path),
        "out": str(options.out),
        "architecture": _config(facts, options.dtype)["architectures"][0],
        "trust_remote_code": bool(facts.config.model.stem_kmer_orders),
        "dtype": options.dtype,
        "parameters": count_part_values(maps),
        "tensors": sum(len(shard) for shard in shards),
        "bytes": size,
        "files": sorted([*names, *texts]),
        "written": not options.dry_run,
    }


def plan_shards(maps: list[TensorMap], itemsize: int, shard_bytes: int) -> list[Shard]:
    """Share the tensors out over files, in the order of the layers.

    Args:
        maps: Every tensor.
        itemsize: Bytes of a number.
        shard_bytes: A file is closed when the next tensor would make it larger.
    """
    shards: list[Shard] = [[]]
    filled = 0
    for tensor in maps:
        for part in tensor.parts:
            size = torch.Size(tensor.part_shape(part)).numel() * itemsize
            if shards[-1] and filled + size > shard_bytes:
                shards.append([])
                filled = 0
            shards[-1].append((tensor, part))
            filled += size
    return shards


def text_files(facts: CheckpointFacts, dtype: str) -> dict[str, str]:
    """Build everything but the weights; the text by file name."""
    config = _config(facts, dtype)
    ids = {key: config[key] for key in ("pad_token_id", "bos_token_id", "eos_token_id")}
    values = {
        "config.json": config,
        "generation_config.json": ids,
        SIDECAR: _sidecar(facts),
        **tokenizer_files(facts.tokenizer, facts.config.rows.seq_length),
    }
    texts = {name: f"{json.dumps(value, indent=1)}\n" for name, value in values.items()}
    if facts.config.model.stem_kmer_orders:
        texts[f"{MODELING}.py"] = Path(__file__).with_name(f"{MODELING}.py").read_text()
    return texts


def _config(facts: CheckpointFacts, dtype: str) -> dict[str, Any]:
    config = hf_config(
        facts.config.model,
        vocab_size=facts.tokenizer.vocab_size,
        seq_length=facts.config.rows.seq_length,
        pad=PAD_ID,
        bos=BOS_ID,
        eos=EOS_ID,
    )
    config["torch_dtype"] = dtype
    if facts.config.model.stem_kmer_orders:
        causal = config["architectures"][0]
        stem = causal.removesuffix("ForCausalLM")
        config["auto_map"] = {
            "AutoConfig": f"{MODELING}.{stem}Config",
            "AutoModel": f"{MODELING}.{stem}Model",
            "AutoModelForCausalLM": f"{MODELING}.{causal}",
        }
    return config


def _sidecar(facts: CheckpointFacts) -> dict[str, Any]:
    return {
        "schema_version": SIDECAR_VERSION,
        "model": encode(facts.config.model),
        "rows": encode(facts.config.rows),
        "alphabet": facts.tokenizer.name,
        "tokenizer_fingerprint": facts.tokenizer.fingerprint,
        "iteration": facts.iteration,
        "manifest_digest": facts.manifest_digest,
        "source": {"checkpoint": facts.path.resolve().name, "genomoe": TOOL_VERSION},
    }


def _shard_names(count: int) -> list[str]:
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)]


def _write_weights(
    folder: Path, weights: StoredWeights, shards: list[Shard], dtype: torch.dtype, size: int
) -> None:
    progress = Progress("exporting", size, "B")
    where: dict[str, str] = {}
    for name, shard in zip(_shard_names(len(shards)), shards, strict=True):
        tensors = {}
        for tensor, part in shard:
            tensors[part.name] = weights.read(tensor.name, part.rows).to(dtype)
            where[part.name] = name
            progress.add(tensors[part.name].nbytes)
        # transformers refuses a file that does not say which library wrote it.
        save_file(tensors, folder / name, metadata={"format": "pt"})
    progress.close()
    if len(shards) > 1:
        index = {"metadata": {"total_size": size}, "weight_map": where}
        text = f"{json.dumps(index, indent=1)}\n"
        (folder / "model.safetensors.index.json").write_text(text)
