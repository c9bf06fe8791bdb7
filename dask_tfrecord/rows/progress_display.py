"""Drawing of progress bars with rich, in terminals and notebooks."""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console, ConsoleRenderable, RichCast
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

_NOTEBOOK_WIDTH = 100


class TerminalDisplay(Progress):
    """Bar on stderr with a line of text below."""

    def __init__(self, label: str, total: float, before: float, line: Callable[[], str] | None) -> None:
        self._line = line
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
            auto_refresh=False,
            transient=True,
            # Output that is redirected to a file stays there.
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
            expand=True,
        )
        self._bar = self.add_task(Text(label).markup, total=max(total, 1e-9), completed=int(before))

    def get_renderables(self) -> Iterable[ConsoleRenderable | RichCast | str]:
        """Yield the bar and the line."""
        yield from super().get_renderables()
        if self._line is not None:
            yield Text(self._line(), overflow="ellipsis", no_wrap=True)

    def move(self, step: float) -> None:
        """Add an amount of finished work."""
        self.advance(self._bar, step)

    def draw(self) -> None:
        """Draw the current state."""
        self.start()
        self.refresh()

    def end(self, text: str) -> None:
        """Remove the bar and leave a line of text."""
        self.stop()
        if text:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)


class NotebookDisplay(TerminalDisplay):
    """Bar below a cell. The display of rich itself would require ipywidgets."""

    _handle: Any = None

    def draw(self) -> None:
        """Draw the current state."""
        self._show(self.get_renderable())

    def end(self, text: str) -> None:
        """Replace the bar by a line of text."""
        self._show(Text(text))

    def _show(self, content: Any) -> None:
        """Show the content in the cell that runs; the next call replaces it."""
        console = Console(
            file=io.StringIO(), record=True, width=_NOTEBOOK_WIDTH, force_terminal=True, force_jupyter=False
        )
        console.print(content, soft_wrap=isinstance(content, Text))
        data = {
            "text/plain": console.export_text(clear=False).rstrip(),
            "text/html": console.export_html(inline_styles=True, code_format='<pre style="margin:0">{code}</pre>'),
        }
        if self._handle is None:
            self._handle = importlib.import_module("IPython.display").display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)
