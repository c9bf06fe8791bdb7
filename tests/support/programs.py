"""Python programs in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any


def environment() -> dict[str, str]:
    """Return variables with which a program finds the package that is tested, and the modules of the tests.

    A cluster that an earlier test started leaves a setting of the allocator behind, which is not the user's.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "MALLOC_TRIM_THRESHOLD_"}
    return {**inherited, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def run_python(*arguments: object, python: str = sys.executable, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the interpreter with these arguments and more variables; a failure of the program is one of the test."""
    done = run_program(python, *arguments, env=environment() | variables)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def run_program(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command, and return its output and status."""
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600, **options)
