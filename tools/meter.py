"""Progress of scoring on stderr: letters done, rate, time left."""

import sys
import time

from genomoe.training.metrics import Progress

_SECONDS_BETWEEN_LINES = 3.0


class Meter:
    """Counts scored windows and prints a line every few seconds."""

    def __init__(self, *, letters: int, windows: int, enabled: bool) -> None:
        """Start the clock.

        Args:
            letters: To be scored in all.
            windows: They are scored in.
            enabled: Whether this rank speaks.
        """
        self._letters, self._windows, self._enabled = letters, windows, enabled
        self._progress = Progress(total=letters, start=0, enabled=enabled)
        self._done = 0
        self._began = self._last_line = time.monotonic()

    def add(self, windows: int) -> None:
        """Count finished windows."""
        self._done += windows
        now = time.monotonic()
        if now - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = now
            letters = self._letters * self._done // self._windows
            rate = letters / (now - self._began)
            self._progress.line(letters, f"letters scored, {rate:,.0f} a second")

    def finish(self) -> None:
        """Print the total."""
        if self._enabled:
            seconds = time.monotonic() - self._began
            print(
                f"scored {self._letters:,} letters in {seconds:.1f} s "
                f"({self._letters / seconds:,.0f} a second)",
                file=sys.stderr,
                flush=True,
            )
