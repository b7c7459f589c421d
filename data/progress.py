"""Progress on stderr: a bar on a terminal, a line now and then otherwise."""

import sys
import time

from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Progress of one stage of known size."""

    def __init__(self, stage: str, total: int, unit: str) -> None:
        """Start a stage.

        Args:
            stage: what is being done.
            total: its size in units; 0 where it is not known.
            unit: such as "B".
        """
        self._stage = stage
        self._total = total
        self._unit = unit
        self._done = 0
        self._start = self._last_line = time.monotonic()
        self._bar = None
        if sys.stderr.isatty():
            self._bar = tqdm(
                total=total or None, desc=stage, unit=unit, unit_scale=True, leave=False
            )

    def add(self, amount: int) -> None:
        """Count work done."""
        self._done += amount
        if self._bar is not None:
            self._bar.update(amount)
        elif time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            self._print_line()

    def close(self) -> None:
        """End the stage."""
        if self._bar is not None:
            self._bar.close()

    def _print_line(self) -> None:
        rate = self._done / (self._last_line - self._start)
        line = (
            f"{self._stage}: {self._done / 1e6:.1f} M{self._unit}, {rate / 1e6:.1f} M{self._unit}/s"
        )
        if self._total and rate:
            left = max(0, self._total - self._done) / rate
            line += f", {self._done / self._total:.0%}, about {left:.0f} s left"
        print(line, file=sys.stderr, flush=True)
