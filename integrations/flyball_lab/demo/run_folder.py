"""Folder of a demo run, and the steps that rank 0 writes there for the demo to read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class TrainedStep:
    """One step as rank 0 saw it end."""

    #: Number of the step, from 0.
    step: int
    #: Version of the plan that ran; None: default clocks.
    plan_version: int | None
    #: Mean over the step's microbatches.
    loss: float


class RunFolder:
    """The files of one demo run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.planner_log = path / "planner.log"
        self.database = path / "planner.sqlite"
        self.profile_csv = path / "profile.csv"
        self.plan_json = path / "plan.json"
        #: File at which the ranks meet.
        self.store_file = path / "store"
        #: Queue of the clock calls of the emulated GPUs, which share a node.
        self.node_file = path / "node"
        #: Made by the demo where training shall end.
        self.end_file = path / "end"
        #: A line for each step, added by rank 0.
        self.trained_steps_file = path / "steps.jsonl"

    def rank_log(self, rank: int) -> Path:
        """Output of a rank."""
        return self.path / f"rank-{rank}.log"

    def rank_clocks(self, rank: int) -> Path:
        """Clocks that were requested of a rank's device."""
        return self.path / f"rank-{rank}-clocks.json"

    def add_trained_step(self, step: TrainedStep) -> None:
        """Add a step; called by rank 0."""
        with self.trained_steps_file.open("a") as lines:
            lines.write(json.dumps(vars(step)) + "\n")

    def trained_steps(self) -> list[TrainedStep]:
        """Return all steps so far, without a line that is just being written."""
        if not self.trained_steps_file.exists():
            return []
        lines = self.trained_steps_file.read_text().split("\n")[:-1]
        return [TrainedStep(**json.loads(line)) for line in lines]


class DemoFailedError(Exception):
    """A part of the demo ended or failed; one line, and in `log_tail` the end of its log."""

    def __init__(self, message: str, log: Path | None = None) -> None:
        super().__init__(message)
        self.log_tail = "" if log is None else tail(log)


def tail(log: Path, *, num_lines: int = 15) -> str:
    """Return the last lines of a log, or a remark where there is none."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else ()
    return "\n".join(lines[-num_lines:]) or f"({log.name} is empty or was never written)"


ClocksOfStep = tuple[tuple[str, int], ...]


def read_witnessed_clocks(file: Path) -> tuple[ClocksOfStep, ...]:
    """Return the (kind, MHz) of each step from 0, in the order of execution."""
    steps = json.loads(file.read_text())
    return tuple(tuple((str(kind), int(mhz)) for kind, mhz in step) for step in steps)
