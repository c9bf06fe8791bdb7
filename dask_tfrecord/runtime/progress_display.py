"""Drawing of progress bars with rich, in terminals and notebooks."""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from rich.console import Console, ConsoleRenderable, RichCast
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

_NOTEBOOK_WIDTH = 100


class Display(Protocol):
    """A bar on a screen."""

    def advance(self, step: float) -> None:
        """Add an amount of finished work."""

    def draw(self) -> None:
        """Draw the current state."""

    def end(self, text: str) -> None:
        """Remove the bar and leave a line of text."""


class _BarWithLine(Progress):
    """A bar with a line of text below."""

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
        self.bar = self.add_task(Text(label).markup, total=max(total, 1e-9), completed=int(before))

    def get_renderables(self) -> Iterable[ConsoleRenderable | RichCast | str]:
        """Yield the bar and the line."""
        yield from super().get_renderables()
        if self._line is not None:
            yield Text(self._line(), overflow="ellipsis", no_wrap=True)


class TerminalDisplay:
    """Bar on stderr."""

    def __init__(self, label: str, total: float, before: float, line: Callable[[], str] | None) -> None:
        self._progress = _BarWithLine(label, total, before, line)

    def advance(self, step: float) -> None:
        """Add an amount of finished work."""
        self._progress.advance(self._progress.bar, step)

    def draw(self) -> None:
        """Draw the current state."""
        self._progress.start()
        self._progress.refresh()

    def end(self, text: str) -> None:
        """Remove the bar and leave a line of text."""
        self._progress.stop()
        if text:
            self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)


class NotebookDisplay:
    """Bar below a cell. The display of rich itself would require ipywidgets."""

    def __init__(self, label: str, total: float, before: float, line: Callable[[], str] | None) -> None:
        self._progress = _BarWithLine(label, total, before, line)
        self._handle: Any = None

    def advance(self, step: float) -> None:
        """Add an amount of finished work."""
        self._progress.advance(self._progress.bar, step)

    def draw(self) -> None:
        """Draw the current state."""
        self._show(self._progress.get_renderable())

    def end(self, text: str) -> None:
        """Replace the bar by a line of text."""
        self._show(Text(text))

    def _show(self, content: Any) -> None:
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
