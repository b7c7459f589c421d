"""Read a Hugging Face folder as a checkpoint of weights alone.

A folder that was exported here brings its genomoe.json: alphabet, rows and the settings that
transformers has no place for. Any other Mixtral or Llama of our letters needs `--alphabet`. The
padding of the vocabulary stayed behind at the export, so the imported model has none.
"""

import dataclasses
import math
from importlib.metadata import version
from pathlib import Path
from typing import Any

from genomoe.data.errors import InputError
from genomoe.data.json_codec import decode, encode
from genomoe.data.manifest import TOOL_VERSION
from genomoe.data.progress import Progress
from genomoe.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, Tokenizer, tokenizer_for
from genomoe.models.config import ModelConfig
from genomoe.models.mixtral import count_part_values, tensor_maps
from genomoe.models.mixtral_config import hf_config, model_config
from genomoe.tools.hf_export import SIDECAR, SIDECAR_VERSION
from genomoe.tools.hf_folder import HfTensors, find_tensors, read_json
from genomoe.tools.hf_options import HfImport
from genomoe.tools.output_folder import check_output, new_folder
from genomoe.training.checkpoint_files import LAYOUT
from genomoe.training.config import PretrainConfig, RowConfig
from genomoe.training.tensors import write_weights

UNKNOWN = "unknown"
# They change how a model was trained, not what it computes.
_TRAINING_ONLY = ("initializer_range", "router_aux_loss_coef")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Described:
    """What a folder says of its model.

    Attributes:
        model: Shape, without padding of the vocabulary.
        rows: How its training rows were cut, as far as it is known.
        tokenizer: Its letters.
        manifest_digest: Of the data set it was trained on, or `UNKNOWN`.
        iteration: Steps taken, 0 where it is not known.
    """

    model: ModelConfig
    rows: RowConfig
    tokenizer: Tokenizer
    manifest_digest: str
    iteration: int


def import_folder(options: HfImport) -> dict[str, Any]:
    """Import; returns the JSON object for stdout.

    Raises:
        InputError: If our model cannot be that of the folder, or OUT is taken.
    """
    check_output(options.out)
    if not options.folder.is_dir():
        raise InputError(f"{options.folder}: no such folder")
    described = describe(options.folder, options.alphabet)
    where = find_tensors(options.folder)
    _check_count(options.folder, described.model, len(where))
    maps = tensor_maps(described.model, described.tokenizer.vocab_size)
    tensors = HfTensors(options.folder, where, maps)
    parameters = count_part_values(maps)
    if not options.dry_run:
        progress = Progress("importing", 4 * parameters, "B")
        with new_folder(options.out) as folder:

            def assembled() -> Any:
                for tensor in maps:
                    whole = tensors.assemble(tensor)
                    progress.add(whole.nbytes)
                    yield tensor.name, whole

            write_weights(folder, assembled(), _facts(described, options.folder))
        progress.close()
    return {
        "folder": str(options.folder),
        "out": str(options.out),
        "alphabet": described.tokenizer.name,
        "parameters": parameters,
        "tensors": len(maps),
        "bytes": 4 * parameters,
        "read": [path.name for path in tensors.files],
        "holds": "weights alone: it can be scored, not trained further",
        "written": not options.dry_run,
    }


def describe(folder: Path, alphabet: str | None) -> Described:
    """Read and compare what the folder's JSON files say.

    Args:
        folder: Of the model.
        alphabet: As given on the command line.

    Raises:
        InputError: If they disagree, or our model cannot be that.
    """
    path = folder / "config.json"
    raw = read_json(path)
    has_sidecar = (folder / SIDECAR).exists()
    sidecar = _read_sidecar(folder / SIDECAR) if has_sidecar else None
    tokenizer = _tokenizer(folder, None if sidecar is None else sidecar["alphabet"], alphabet)
    try:
        model = model_config(raw, vocab_size=tokenizer.vocab_size)
        length = raw.get("max_position_embeddings")
        rows = RowConfig(seq_length=decode(int, length, "max_position_embeddings"))
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    _check_ids(path, raw)
    _check_letters(folder / "tokenizer.json", tokenizer)
    if sidecar is None:
        return Described(
            model=model, rows=rows, tokenizer=tokenizer, manifest_digest=UNKNOWN, iteration=0
        )
    if sidecar["tokenizer_fingerprint"] != tokenizer.fingerprint:
        raise InputError(
            f"{folder / SIDECAR}: tokenizer {str(sidecar['tokenizer_fingerprint'])[:12]} is not "
            f"that of the {tokenizer.name} alphabet here, {tokenizer.fingerprint[:12]}"
        )
    try:
        own = decode(ModelConfig, sidecar["model"], "model")
        own_rows = decode(RowConfig, sidecar["rows"], "rows")
        iteration = decode(int, sidecar["iteration"], "iteration")
        digest = decode(str, sidecar["manifest_digest"], "manifest_digest")
    except ValueError as error:
        raise InputError(f"{folder / SIDECAR}: {error}; of another version?") from None
    _check_agreement(folder, (model, rows), (own, own_rows), tokenizer.vocab_size)
    if own.padded_vocab_size(tokenizer.vocab_size) != tokenizer.vocab_size:
        own = dataclasses.replace(own, make_vocab_size_divisible_by=tokenizer.vocab_size)
    return Described(
        model=own,
        rows=own_rows,
        tokenizer=tokenizer,
        manifest_digest=digest,
        iteration=iteration,
    )


def _read_sidecar(path: Path) -> dict[str, Any]:
    sidecar = read_json(path)
    if sidecar.get("schema_version") != SIDECAR_VERSION:
        raise InputError(
            f"{path}: schema_version is {sidecar.get('schema_version')}, this version reads "
            f"{SIDECAR_VERSION}"
        )
    for key in ("model", "rows", "alphabet", "tokenizer_fingerprint", "iteration"):
        if key not in sidecar:
            raise InputError(f"{path}: {key} is missing; delete the file and give --alphabet")
    if not isinstance(sidecar["alphabet"], str):
        raise InputError(f"{path}: alphabet is {sidecar['alphabet']!r}, expected a name")
    return {"manifest_digest": UNKNOWN, **sidecar}


def _tokenizer(folder: Path, recorded: str | None, given: str | None) -> Tokenizer:
    if recorded is None and given is None:
        raise InputError(
            f"{folder}: has no {SIDECAR} that names its letters: give --alphabet "
            "dna, rna or protein"
        )
    if recorded is not None and given not in (None, recorded):
        raise InputError(f"--alphabet is {given}: {folder / SIDECAR} says {recorded}; leave it out")
    return tokenizer_for(recorded or given or "")


def _check_ids(path: Path, raw: dict[str, Any]) -> None:
    """The ids that our rows are made of must be the model's."""
    for field, wanted, may_lack in (
        ("bos_token_id", BOS_ID, False),
        ("eos_token_id", EOS_ID, True),
        ("pad_token_id", PAD_ID, True),
    ):
        found = raw.get(field, None if may_lack else wanted)
        if found != wanted and not (may_lack and found is None):
            raise InputError(f"{path}: {field} is {found!r}: the alphabets here have {wanted}")


def _check_letters(path: Path, tokenizer: Tokenizer) -> None:
    """Where the folder has a vocabulary of its own, its letters must have our ids."""
    if not path.exists():
        return
    model = read_json(path).get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocabulary, dict):
        return  # of a kind that names no letters
    for letter in tokenizer.letters[: tokenizer.num_scored]:
        if vocabulary.get(letter) != tokenizer.id_of(letter):
            raise InputError(
                f"{path}: {letter} has the id {vocabulary.get(letter)}, in the {tokenizer.name} "
                f"alphabet here {tokenizer.id_of(letter)}"
            )


def _check_agreement(
    folder: Path,
    said: tuple[ModelConfig, RowConfig],
    own: tuple[ModelConfig, RowConfig],
    vocab_size: int,
) -> None:
    (model, rows), (own_model, own_rows) = said, own
    scale = own_model.rotary_position_scale
    if math.isclose(model.rotary_position_scale, scale, rel_tol=1e-12):  # it went by way of 1 / x
        model = dataclasses.replace(model, rotary_position_scale=scale)
    ids = {"vocab_size": vocab_size, "pad": PAD_ID, "bos": BOS_ID, "eos": EOS_ID}
    theirs = hf_config(model, seq_length=rows.seq_length, **ids)
    ours = hf_config(own_model, seq_length=own_rows.seq_length, **ids)
    for field in sorted(ours.keys() | theirs.keys()):
        if field not in _TRAINING_ONLY and ours.get(field) != theirs.get(field):
            raise InputError(
                f"{folder}: {field} is {theirs.get(field)!r} by config.json, {ours.get(field)!r} "
                f"by {SIDECAR}; delete {SIDECAR} and give --alphabet to take config.json's"
            )


def _check_count(folder: Path, model: ModelConfig, tensors: int) -> None:
    """A model far larger than its files is refused before its tensors are listed."""
    if model.num_blocks * max(1, model.num_moe_experts) > tensors:
        raise InputError(
            f"{folder}: num_hidden_layers is {model.num_blocks} and num_local_experts is "
            f"{model.num_moe_experts}, but there are {tensors} tensors"
        )


def _facts(described: Described, folder: Path) -> dict[str, Any]:
    config = PretrainConfig(rows=described.rows, model=described.model)
    return {
        "state": {"iteration": described.iteration},
        "config": encode(config),
        "manifest_digest": described.manifest_digest,
        "alphabet": described.tokenizer.name,
        "tokenizer_fingerprint": described.tokenizer.fingerprint,
        "layout": LAYOUT,
        "holds": "weights",
        "source": {"folder": folder.resolve().name},
        "versions": {
            "genomoe": TOOL_VERSION,
            **{name: version(name) for name in ("torch", "safetensors")},
        },
    }
