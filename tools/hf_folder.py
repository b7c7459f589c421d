"""Read a Hugging Face folder as material: its JSON and its safetensors, nothing else.

No pickle is read, no code of the folder runs, and no path that a file of it names is followed
out of it.
"""

import json
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from genomoe.data.errors import InputError
from genomoe.models.mixtral import TensorMap

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_TYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


class HfTensors:
    """The tensors of a folder, compared with those that a model must have."""

    def __init__(self, folder: Path, where: dict[str, Path], maps: list[TensorMap]) -> None:
        """Compare name, shape and type of every tensor, both ways.

        Args:
            folder: For messages.
            where: From `find_tensors`.
            maps: The model's tensors.

        Raises:
            InputError: At the first difference.
        """
        self._where = where
        wanted = {p.name: t.part_shape(p) for t in maps for p in t.parts}
        for name in wanted:
            if name not in self._where:
                raise InputError(f"{folder}: it has no {name}, which its config.json asks for")
        if stray := sorted(set(self._where) - set(wanted)):
            raise InputError(f"{folder}: the model of its config.json has no place for {stray[0]}")
        for path in sorted(set(self._where.values())):
            _check_file(path, {n: wanted[n] for n, p in self._where.items() if p == path})

    @property
    def files(self) -> list[Path]:
        """The files that hold the tensors."""
        return sorted(set(self._where.values()))

    def assemble(self, tensor: TensorMap) -> torch.Tensor:
        """Put one of our tensors together, FP32 (exact from the narrower types)."""
        whole = torch.empty(tensor.shape)
        for part in tensor.parts:
            with safe_open(self._where[part.name], framework="pt") as file:
                rows = file.get_tensor(part.name)
            start = 0
            for first, count in part.rows:
                whole[first : first + count] = rows[start : start + count]
                start += count
        return whole


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        InputError: If there is none.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; give a Hugging Face model folder") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError, OSError) as error:  # not text, or made to choke on
        raise InputError(f"{path}: cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: holds {type(value).__name__}, expected an object")
    return value


def find_tensors(folder: Path) -> dict[str, Path]:
    """Say which file holds each tensor.

    Raises:
        InputError: If there are no safetensors, or they and their index disagree.
    """
    if (folder / INDEX).exists():
        return _from_index(folder)
    path = folder / SINGLE
    if not path.exists():
        pickles = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth"))
        if pickles:
            raise InputError(
                f"{folder / pickles[0]}: a pickle, which can run code, is not read; "
                "save the model as safetensors"
            )
        raise InputError(f"{folder}: has no {SINGLE} and no {INDEX}")
    return dict.fromkeys(_keys(path), path)


def _from_index(folder: Path) -> dict[str, Path]:
    index = folder / INDEX
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict):
        raise InputError(f"{index}: has no weight_map")
    for name, file in where.items():
        if not isinstance(file, str) or not _is_plain(file):
            raise InputError(f"{index}: {name} is in {file!r}: not a plain file name")
        if not file.endswith(".safetensors"):
            raise InputError(f"{index}: {name} is in {file}: only safetensors are read")
    for file in sorted(set(where.values())):
        named = {name for name, other in where.items() if other == file}
        if not (folder / file).is_file():
            raise InputError(f"{folder / file}: missing; {INDEX} names it")
        if stray := _keys(folder / file) ^ named:
            raise InputError(f"{folder / file}: {min(stray)} is not both here and in {INDEX}")
    return {name: folder / file for name, file in where.items()}


def _is_plain(file: str) -> bool:
    is_name = PurePosixPath(file).name == file and "\\" not in file
    return is_name and not file.startswith(".") and file != ""


def _keys(path: Path) -> set[str]:
    try:
        with safe_open(path, framework="pt") as file:
            return set(file.keys())
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a whole safetensors file: {error}") from None


def _check_file(path: Path, wanted: dict[str, tuple[int, ...]]) -> None:
    with safe_open(path, framework="pt") as file:
        for name, shape in wanted.items():
            kept = file.get_slice(name)
            if tuple(kept.get_shape()) != shape:
                raise InputError(
                    f"{path}: {name} is {tuple(kept.get_shape())}, config.json asks for {shape}"
                )
            if kept.get_dtype() not in _TYPES:
                raise InputError(
                    f"{path}: {name} is {kept.get_dtype()}: use {', '.join(_TYPES.values())}"
                )
