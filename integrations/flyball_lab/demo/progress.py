"""The demo's progress on stderr: a bar on a terminal, a line per phase elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


class DemoProgress:
    """Progress display of the demo; enter it for as long as something runs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} steps"),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=1, visible=False)
        self._phase = ""

    def __enter__(self) -> DemoProgress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def say(self, phase: str) -> None:
        """A new phase begins; saying it again changes nothing."""
        if phase != self._phase:
            self._phase = phase
            self._console.print(phase, highlight=False, soft_wrap=True)

    def show(self, *, num_done: int, num_total: int, loss: float | None) -> None:
        """Show the number of steps trained, of all as far as their number is known."""
        description = "" if loss is None else f"loss {loss:.2f}"
        self._bar.update(
            self._task,
            completed=num_done,
            total=max(num_total, num_done, 1),
            description=description,
            visible=True,
        )
