"""A run folder without tensors, and a scorer with known probabilities in the model's place."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from genomoe.data.dataset import DataSet
from genomoe.data.json_codec import encode
from genomoe.data.windows import Window
from genomoe.training.config import PretrainConfig, RowConfig
from genomoe.training.run_folder import write_config

SEQ_LENGTH = 48


def write_run(folder: Path, data: Path, iterations: Sequence[int] = (20,)) -> Path:
    """Write what the evaluation reads of a run before it loads weights."""
    dataset = DataSet.open(data)
    config = PretrainConfig(data=data, run=folder, rows=RowConfig(seq_length=SEQ_LENGTH))
    for iteration in iterations:
        checkpoint = folder / "checkpoints" / f"iter_{iteration:07d}"
        checkpoint.mkdir(parents=True)
        facts = {
            "schema_version": 1,
            "state": {"iteration": iteration},
            "config": encode(config),
            "manifest_digest": dataset.manifest.digest,
            "alphabet": dataset.tokenizer.name,
            "tokenizer_fingerprint": dataset.tokenizer.fingerprint,
        }
        (checkpoint / "checkpoint.json").write_text(json.dumps(facts))
    write_config(folder / "config.json", config)
    return folder


class StubScorer:
    """Gives every letter the nats that a function of its piece and position says."""

    def __init__(self, nats_of: Callable[[np.ndarray, int, np.ndarray], np.ndarray]) -> None:
        self.topology = SimpleNamespace(is_main=True)
        self._nats_of = nats_of

    def nats(
        self,
        letters: Sequence[np.ndarray],
        windows: Sequence[Window],
        *,
        batch_size: int,
        progress: Callable[[int], None],
    ) -> np.ndarray:
        parts = []
        for window in windows:
            positions = np.arange(window.scored, window.end)
            parts.append(self._nats_of(letters[window.piece], window.piece, positions))
            progress(1)
        return np.concatenate(parts).astype(np.float32)
