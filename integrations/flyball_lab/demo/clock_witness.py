"""Writes down, at the emulated device, the clock that each instruction really ran at."""

from __future__ import annotations

import json
from pathlib import Path

from flyball_client.gpu.emulated import EmulatedGpu

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
