"""What the conversions to and from Hugging Face are told. Without torch, so that --help answers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True, kw_only=True)
class HfExport:
    """Write a checkpoint as a folder for Hugging Face transformers, with its tokenizer."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run folder (its best checkpoint by validation, else its newest) or checkpoint folder."""
    out: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OUT")]
    """Folder to write; it must not exist, or be empty."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the written weights. A checkpoint has float32; bfloat16 is half the size, rounded."""
    dry_run: bool = False
    """Say what would be written, and write nothing."""


@dataclass(frozen=True, kw_only=True)
class HfImport:
    """Read a Hugging Face folder as a checkpoint of weights, which tools/eval_perplexity.py scores.

    The folder was exported here, or holds a Mixtral or Llama of the same letters.
    """

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="HF_FOLDER")]
    """Folder with config.json and safetensors."""
    out: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OUT")]
    """Checkpoint folder to write; it must not exist, or be empty."""
    alphabet: Literal["dna", "rna", "protein"] | None = None
    """Letters of the model; needed where the folder has no genomoe.json."""
    dry_run: bool = False
    """Check the config and the tensors' shapes, say what would be written, and write nothing."""
