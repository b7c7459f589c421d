"""What a run tells: metrics.jsonl, TensorBoard, and a line of progress now and then."""

import json
import math
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from torch.utils.tensorboard import SummaryWriter


class MetricsWriter:
    """Writes one JSON object a line; drops the lines after the point a run resumes from."""

    def __init__(self, run: Path, *, resume_iteration: int) -> None:
        self.path = run / "metrics.jsonl"
        _truncate_after(self.path, resume_iteration)
        self._file: TextIO = self.path.open("a")
        self._board = SummaryWriter(
            str(run / "tensorboard"), purge_step=resume_iteration + 1 if resume_iteration else None
        )

    def write(self, record: dict[str, Any]) -> None:
        """Append a record; numbers also go to TensorBoard under their names."""
        self._file.write(json.dumps(record, allow_nan=False) + "\n")
        self._file.flush()
        for name, value in record.items():
            if isinstance(value, float | int) and name != "iteration":
                self._board.add_scalar(name, value, record["iteration"])

    def close(self) -> None:
        """Flush and close both."""
        self._file.close()
        self._board.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read metrics.jsonl; a last line that a crash cut short is left out."""
    records = []
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return records


def _truncate_after(path: Path, iteration: int) -> None:
    kept = [r for r in read_metrics(path) if r["iteration"] <= iteration]
    partial = path.with_name(f".{path.name}.partial")  # a kill must not cost the old lines
    partial.write_text("".join(json.dumps(record) + "\n" for record in kept))
    partial.rename(path)


class Progress:
    """Lines on stderr with the time left, from one rank; also appended to a log."""

    def __init__(self, *, total: int, start: int, enabled: bool, log: Path | None = None) -> None:
        self._total, self._start, self._enabled = total, start, enabled
        self._log = log
        self._began = time.monotonic()

    def line(self, iteration: int, text: str) -> None:
        """Print a line about an iteration."""
        elapsed = time.monotonic() - self._began
        done = max(1, iteration - self._start)
        left = elapsed / done * (self._total - iteration)
        width = len(str(self._total))
        self.say(f"[{iteration:{width}d}/{self._total}] {text}  {_clock(left)} left")

    def say(self, text: str) -> None:
        """Print a line as it is."""
        if not self._enabled:
            return
        print(text, file=sys.stderr, flush=True)
        if self._log is not None:
            with self._log.open("a") as file:
                file.write(text + "\n")


def bits(nats: float) -> float:
    """Nats to bits."""
    return nats / math.log(2.0)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
