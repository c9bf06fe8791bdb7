"""Pseudo terminal for tests: a thread reads its output continuously, as a terminal window does."""

from __future__ import annotations

import os
import re
import threading
from typing import TextIO

from support.waiting import PATIENCE, wait_until


class Terminal:
    """Pseudo terminal; `stream` is the stderr of the program."""

    def __init__(self) -> None:
        import pty

        self._ours, self.theirs = pty.openpty()
        self.stream: TextIO = os.fdopen(self.theirs, "w", buffering=1)
        self._shown = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            while chunk := os.read(self._ours, 1 << 16):
                self._shown += chunk
        except OSError:  # Linux reports the end of a terminal as an error.
            pass

    @property
    def text(self) -> str:
        """Text displayed so far, without control sequences."""
        return re.sub(r"\x1b\[[\d;?]*\w", "", self._shown.decode(errors="replace"))

    def wait_for(self, text: str) -> None:
        """Wait until `text` is displayed."""
        wait_until(lambda: text in self.text, state=lambda: f"{text!r} was not displayed; found {self.text!r}")

    def close(self) -> str:
        """Close the terminal, and return the displayed text."""
        if not self.stream.closed:
            self.stream.close()
            self._reader.join(PATIENCE)
            os.close(self._ours)
        return self.text
