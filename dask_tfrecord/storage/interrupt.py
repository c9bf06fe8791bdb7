"""Interruption of reading threads by Ctrl-C.

An interpreter waits for its threads before it exits, and some threads read for minutes. When Ctrl-C ends the program,
by an uncaught KeyboardInterrupt or as a command that is about to exit, reading threads raise KeyboardInterrupt. When
the program catches the exception, as notebooks do, they continue.
"""

from __future__ import annotations

# Exit functions are called in reverse order of registration. This import registers the one that waits for threads, so
# that `_at_exit` below is called before it.
import concurrent.futures.thread  # noqa: F401
import sys
import threading

__all__ = ["check_interrupt", "interrupt_count", "interrupt_reading"]

_interrupts = 0


def interrupt_count() -> int:
    """Return the number of interruptions so far; a reader stores it when it starts."""
    return _interrupts


def interrupt_reading() -> None:
    """Interrupt all current reads of this process, except in the main thread."""
    global _interrupts
    _interrupts += 1


def check_interrupt(started: int) -> None:
    """Raise KeyboardInterrupt if reading was interrupted since it started.

    Parameters
    ----------
    started : int
        Value of `interrupt_count` when reading started.

    Raises
    ------
    KeyboardInterrupt
        In threads other than the main thread.
    """
    if _interrupts != started and threading.current_thread() is not threading.main_thread():
        raise KeyboardInterrupt("the program was interrupted")


def _at_exit() -> None:
    # The interpreter sets `last_value` when it prints the traceback of an uncaught exception, which happens first.
    if isinstance(getattr(sys, "last_value", None), KeyboardInterrupt):
        interrupt_reading()


# Private API of threading: functions of `atexit` are called only after all threads have ended, which is what Ctrl-C
# would wait for. concurrent.futures uses the same hook: https://github.com/python/cpython/issues/83993
_register = getattr(threading, "_register_atexit", None)
if _register is not None:
    _register(_at_exit)
