"""`flyball guard` as a process of its own, for the ranks of one test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.false_nvml.library import FalseNvml
from tests.governed_rank.processes import wait_until
from tests.planner.patience import PATIENCE_S

_PROGRAM = """
import json, sys
from flyball_client.__main__ import main
from flyball_client.governor import guard
vars(guard).update(json.loads(sys.argv[1]))
sys.exit(main(["guard"]))
"""


class RunningGuard:
    """A guard, ended with its `with` block.

    Args:
        nvml: GPUs whose clocks it restores.
        node_dir: Folder that it watches.
        launcher: Command that starts it; none: it is started from here.
        times_s: Constants of the guard's module that are other ones, s.

    Attributes:
        said: Its lines, after its end.
    """

    def __init__(
        self,
        nvml: FalseNvml,
        node_dir: Path,
        *,
        launcher: tuple[str, ...] = (),
        **times_s: float,
    ) -> None:
        self.said: list[str] = []
        self._is_launched = bool(launcher)
        self._log = node_dir.parent / "guard.log"
        variables = {"FLYBALL_STATE_DIR": str(node_dir), "FLYBALL_CLOCK_CONTROL": "nvml"}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*launcher, sys.executable, "-P", "-c", _PROGRAM, json.dumps(times_s)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=nvml.environment | variables,
            )

    def __enter__(self) -> Self:
        self.wait_until_said("watching ")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def wait_until_said(self, text: str) -> None:
        """Wait for a text in its output."""
        wait_until(lambda: text in self._log.read_text(), f"the guard says {text!r}")

    def end(self) -> None:
        """End it as systemd does."""
        if self._is_launched:
            # `unshare` kills it at its own end.
            self.process.kill()
            self.process.wait(PATIENCE_S)
        else:
            self.process.terminate()
            assert self.process.wait(PATIENCE_S) == 0
        self.said = self._log.read_text().splitlines()[1:]
