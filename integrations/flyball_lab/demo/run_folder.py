"""Folder of a demo run, and the files that the ranks write there for the demo to read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from flyball_client.gpu.emulated import EmulatedGpu
from flyball_lab.demo.options import DemoOptions


@dataclass(frozen=True, kw_only=True)
class TrainedStep:
    """One step as rank 0 saw it end.

    Attributes:
        step: number of the step, from 0.
        plan_version: version of the plan that ran; None: default clocks.
        loss: mean over the step's microbatches.
    """

    step: int
    plan_version: int | None
    loss: float


class RunFolder:
    """The files of one demo run.

    Attributes:
        path: the folder.
        planner_log: output of the planner.
        database: the planner's SQLite file.
        torchrun_log: output of torchrun.
        profile_csv: stage profile of the emulated pipeline.
        plan_json: the plan that the ranks ran.
        node_file: queue of the clock calls of the emulated GPUs, which share a node.
        trained_steps_file: a line for each step, added by rank 0.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.planner_log = path / "planner.log"
        self.database = path / "planner.sqlite"
        self.torchrun_log = path / "torchrun.log"
        self.profile_csv = path / "profile.csv"
        self.plan_json = path / "plan.json"
        self.node_file = path / "node"
        self.trained_steps_file = path / "steps.jsonl"
        self._options_file = path / "options.json"

    def rank_log(self, rank: int) -> Path:
        """Output of a rank."""
        return self.path / f"rank-{rank}.log"

    def rank_clocks(self, rank: int) -> Path:
        """Clocks that were requested of a rank's device."""
        return self.path / f"rank-{rank}-clocks.json"

    def write_options(self, options: DemoOptions) -> None:
        """Write the options for the ranks."""
        self._options_file.write_text(json.dumps(vars(options)))

    def read_options(self) -> DemoOptions:
        """Return the options."""
        return DemoOptions(**json.loads(self._options_file.read_text()))

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


def tail(log: Path, *, num_lines: int = 15) -> str:
    """Return the last lines of a log, or a remark where there is none."""
    if not log.exists():
        return f"({log.name} was never written)"
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join(lines[-num_lines:]) or f"({log.name} is empty)"


ClocksOfStep = tuple[tuple[str, int], ...]


class ClockWitness:
    """Observer between session and device: notes the requested clock, then lets the device pad.

    The demo compares these notes with the plan, so that an applied plan is proven by the device
    and not by the session that set it. The clock in force may follow a few ms later.
    """

    def __init__(self, device: EmulatedGpu) -> None:
        self._device = device
        self._steps: list[list[tuple[str, int]]] = []

    def begin_step(self) -> None:
        """Begin the notes of the next training step."""
        self._steps.append([])

    def on_instruction_begin(self, kind: str, chunk: int = 0) -> None:
        """Note the requested clock, and begin the emulated instruction."""
        if self._steps:
            self._steps[-1].append((kind, self._device.requested_sm_clock_mhz))
        self._device.on_instruction_begin(kind, chunk)

    def on_instruction_end(self, kind: str, chunk: int = 0) -> None:
        """End the emulated instruction."""
        self._device.on_instruction_end(kind, chunk)

    def write(self, file: Path) -> None:
        """Write the notes of all steps, in order, as JSON."""
        file.write_text(json.dumps(self._steps))


def read_witnessed_clocks(file: Path) -> tuple[ClocksOfStep, ...]:
    """Return the (kind, MHz) of each step from 0, in the order of execution."""
    steps = json.loads(file.read_text())
    return tuple(tuple((str(kind), int(mhz)) for kind, mhz in step) for step in steps)
