"""The one exception for a user's mistake.

Its message is a single line that names the file and line (or the field), the value, and the fix.
Every entry point prints it and exits with status 2; anything else is a fault of ours.
"""


class InputError(Exception):
    """Bad input or configuration; the message is the one line shown to the user."""

    def __init__(self, message: str) -> None:
        """Keep the message on one line, whatever a file name or header contained."""
        super().__init__(" ".join(message.splitlines()))
