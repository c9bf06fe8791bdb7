"""A terminal that a test looks at: what is written to it is read all the time, as a window would."""

from __future__ import annotations

import os
import re
import threading
import time
from typing import TextIO


class Terminal:
    """A pseudo terminal; `stream` is what a program calls its stderr."""

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
        except OSError:  # how Linux says that nobody has it open any more
            pass

    @property
    def text(self) -> str:
        """All that was shown so far, without what moves the cursor and sets colours."""
        return re.sub(r"\x1b\[[\d;?]*\w", "", self._shown.decode(errors="replace"))

    def wait_for(self, text: str) -> None:
        """Wait until something is shown."""
        deadline = time.monotonic() + 20
        while text not in self.text:
            assert time.monotonic() < deadline, f"{text!r} was never shown, but {self.text!r}"
            time.sleep(0.01)

    def close(self) -> str:
        """Close it, and give all that was shown."""
        if not self.stream.closed:
            self.stream.close()
            self._reader.join(60)
            os.close(self._ours)
        return self.text
