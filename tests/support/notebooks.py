"""Cells that a kernel of Jupyter executes, as in a notebook."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

needs_jupyter = pytest.mark.skipif(
    not (importlib.util.find_spec("jupyter_client") and importlib.util.find_spec("ipykernel")),
    reason="needs jupyter_client and ipykernel",
)


def executed(folder: Path, *cells: str) -> list[list[dict[str, Any]]]:
    """Execute cells in one kernel with this working directory; return the messages of the outputs of each cell."""
    from jupyter_client.manager import start_new_kernel

    folder.mkdir(exist_ok=True)
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(folder))
    found = []
    try:
        for code in cells:
            outputs: list[dict[str, Any]] = []
            reply = client.execute_interactive(code, timeout=120, output_hook=outputs.append)
            assert reply["content"]["status"] == "ok", reply["content"]
            found.append([message for message in outputs if message["msg_type"] not in ("status", "execute_input")])
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return found
