"""Folder of a demo run, and the files that the ranks write there for the demo to read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from flyball_client.gpu.emulated import EmulatedGpu


@dataclass(frozen=True, kw_only=True)
class TrainedStep:
    """One step as rank 0 saw it end.

    Attributes:
        plan_version: the plan it ran; None: default clocks.
        loss: mean over the step's microbatches.
    """

    step: int
    plan_version: int | None
    loss: float


@dataclass(frozen=True)
class RunFolder:
    """The files of one demo run."""

    path: Path

    @property
    def planner_log(self) -> Path:
        """All that the planner printed."""
        return self.path / "planner.log"

    @property
    def database(self) -> Path:
        """The planner's SQLite file."""
        return self.path / "planner.sqlite"

    @property
    def torchrun_log(self) -> Path:
        """All that torchrun printed."""
        return self.path / "torchrun.log"

    @property
    def profile_csv(self) -> Path:
        """The stage profile of the emulated pipeline."""
        return self.path / "profile.csv"

    @property
    def plan_json(self) -> Path:
        """The plan that the ranks ran."""
        return self.path / "plan.json"

    @property
    def trained_steps_file(self) -> Path:
        """Rank 0 adds a line for each step."""
        return self.path / "steps.jsonl"

    def rank_log(self, rank: int) -> Path:
        """All that a rank printed."""
        return self.path / f"rank-{rank}.log"

    def rank_clocks(self, rank: int) -> Path:
        """The clocks that a rank's device saw (clock_witness.py)."""
        return self.path / f"rank-{rank}-clocks.json"

    def add_trained_step(self, step: TrainedStep) -> None:
        """Called by rank 0 after each step."""
        with self.trained_steps_file.open("a") as lines:
            lines.write(json.dumps(vars(step)) + "\n")

    def trained_steps(self) -> list[TrainedStep]:
        """All steps so far; a line that is just being written is left for the next time."""
        if not self.trained_steps_file.exists():
            return []
        lines = self.trained_steps_file.read_text().split("\n")[:-1]
        return [TrainedStep(**json.loads(line)) for line in lines]


def tail(log: Path, *, num_lines: int = 15) -> str:
    """The last lines of a log; a remark where there is none."""
    if not log.exists():
        return f"({log.name} was never written)"
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join(lines[-num_lines:]) or f"({log.name} is empty)"


ClocksOfStep = tuple[tuple[str, int], ...]


class ClockWitness:
    """Stands between session and device: notes the clock in force, then lets the device pad.

    The demo compares these notes with the plan, so that an applied plan is seen at the device
    and not believed from the session that set it.
    """

    def __init__(self, device: EmulatedGpu) -> None:
        self._device = device
        self._steps: list[list[tuple[str, int]]] = []

    def begin_step(self) -> None:
        """The next training step begins."""
        self._steps.append([])

    def on_instruction_begin(self, kind: str, chunk: int = 0) -> None:
        """Note the clock in force, and begin the emulated instruction."""
        if self._steps:
            self._steps[-1].append((kind, self._device.sm_clock_mhz()))
        self._device.on_instruction_begin(kind, chunk)

    def on_instruction_end(self, kind: str, chunk: int = 0) -> None:
        """End the emulated instruction."""
        self._device.on_instruction_end(kind, chunk)

    def write(self, file: Path) -> None:
        """Write the notes of all steps, in order, as JSON."""
        file.write_text(json.dumps(self._steps))


def read_witnessed_clocks(file: Path) -> tuple[ClocksOfStep, ...]:
    """Per step from 0, its (kind, MHz) in the order of execution."""
    steps = json.loads(file.read_text())
    return tuple(tuple((str(kind), int(mhz)) for kind, mhz in step) for step in steps)
