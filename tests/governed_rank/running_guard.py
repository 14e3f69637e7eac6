"""`flyball guard` as a process of its own, for the ranks of one test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.false_nvml.library import FalseNvml
from tests.governed_rank.processes import PATIENCE_S, wait_until


class RunningGuard:
    """A guard, ended with its `with` block.

    Args:
        nvml: GPUs whose clocks it restores.
        node_dir: Folder that it watches.

    Attributes:
        said: Its lines, after its end.
    """

    def __init__(self, nvml: FalseNvml, node_dir: Path) -> None:
        self.said: list[str] = []
        self._log = node_dir.parent / "guard.log"
        variables = {"FLYBALL_STATE_DIR": str(node_dir), "FLYBALL_CLOCK_CONTROL": "nvml"}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "flyball_client", "guard"],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=nvml.environment | variables,
            )

    def __enter__(self) -> Self:
        wait_until(lambda: "watching " in self._log.read_text(), "the guard watches")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """End it as systemd does."""
        self.process.terminate()
        assert self.process.wait(PATIENCE_S) == 0
        self.said = self._log.read_text().splitlines()[1:]
