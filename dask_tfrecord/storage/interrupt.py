"""Ctrl-C ends what threads are reading: an interpreter waits for its threads, and some read for minutes.

Only a program that Ctrl-C ends is meant: by an exception that nobody took, or as a command that is about to leave.
Where somebody takes the exception and goes on, as a notebook does, what is being read goes on too. Imports nothing.
"""

from __future__ import annotations

# Imported first, because what is registered last is called first: its threads are waited for then.
import concurrent.futures.thread  # noqa: F401
import sys
import threading

__all__ = ["check_interrupt", "interrupt_reading", "interrupts"]

_interrupts = 0


def interrupts() -> int:
    """Count how often reading was ended: what begins to read takes note of it."""
    return _interrupts


def interrupt_reading() -> None:
    """End what is being read now by threads of this process, but for the main one."""
    global _interrupts
    _interrupts += 1


def check_interrupt(begun: int) -> None:
    """Raise where a thread reads on though the program was interrupted.

    Parameters
    ----------
    begun : int
        What `interrupts` said when reading began.

    Raises
    ------
    KeyboardInterrupt
        In a thread that is not the main one.
    """
    if _interrupts != begun and threading.current_thread() is not threading.main_thread():
        raise KeyboardInterrupt("the program was interrupted")


def _at_exit() -> None:
    # Set where a traceback was printed, just before.
    if isinstance(getattr(sys, "last_value", None), KeyboardInterrupt):
        interrupt_reading()


# The functions of `atexit` are called after threads have ended. Without this one, Ctrl-C waits for what is being read.
_register = getattr(threading, "_register_atexit", None)
if _register is not None:
    _register(_at_exit)
