"""Which machine and process wrote an object, and whether that has ended."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sys
from contextlib import suppress
from pathlib import Path

# Hexadecimal digits of the machine, the process number and the start of the process in `process_digits`.
_DIGITS = 8


@functools.cache
def machine() -> str:
    """Name this machine, its boot, and the namespace of process numbers: containers may share a host name."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return "/".join(parts)


def process_start(pid: int) -> str | None:
    """Return when a process of this machine started; "" if the system hides it, None if the process has ended."""
    if sys.platform == "win32":
        # On Windows `os.kill` ends the process.
        return ""
    try:
        # The name of the program, in parentheses, may hold spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    except (OSError, IndexError):
        pass
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except OSError:
        pass
    return ""


def process_digits() -> str:
    """Return 24 hexadecimal digits of this process, for names of its temporary files."""
    return _digits_of(os.getpid())


@functools.cache
def _digits_of(pid: int) -> str:
    return f"{_digest(machine())}{pid & 0xFFFFFFFF:08x}{_digest(process_start(pid) or '')}"


def has_exited(digits: str) -> bool:
    """Return True if `process_digits` of a process of this machine begins a text, and that process has ended."""
    if not digits.startswith(_digest(machine())):
        return False
    pid = int(digits[_DIGITS : 2 * _DIGITS], 16)
    start = process_start(pid)
    # Process numbers are reused.
    return start is None or (start != "" and digits[2 * _DIGITS : 3 * _DIGITS] != _digest(start))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:_DIGITS]
