"""The plan as people of this field read it: EnvPipe's rows, for a terminal.

A row a stage; each unit as `F0 1980 23.4` = kind and microbatch, MHz, ms waited before it;
units on the critical path in `[ ]`.
"""

from __future__ import annotations

from collections.abc import Sequence

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.planning.pipeline_model import PipelineModel
from flyball_server.planning.simulator import Simulation

LETTERS = {
    InstructionKind.FORWARD: "F",
    InstructionKind.BACKWARD: "B",
    InstructionKind.BACKWARD_INPUT: "I",
    InstructionKind.BACKWARD_WEIGHT: "W",
    InstructionKind.RECOMPUTE: "R",
}


def plan_rows(model: PipelineModel, assignment: Sequence[int], simulation: Simulation) -> list[str]:
    """One line per stage, its units in columns."""
    critical = set(simulation.critical_path)
    units: list[list[str]] = [[] for _ in model.schedule.stages]
    for node, choice in enumerate(assignment):
        kind, microbatch, chunk = model.dag.instruction[node]
        name = f"{LETTERS[kind]}{microbatch}" + (f".{chunk}" if chunk else "")
        clock_mhz = model.points[node][choice].frequency_mhz
        unit = f"{name} {clock_mhz} {simulation.wait_s[node] * 1e3:.1f}"
        units[model.dag.stage[node]].append(f"[{unit}]" if node in critical else f" {unit} ")
    width = max(len(unit) for row in units for unit in row)
    stage_width = len(str(len(units) - 1))
    return [
        f"Stage {stage:>{stage_width}} | " + " ".join(f"{unit:<{width}}" for unit in row).rstrip()
        for stage, row in enumerate(units)
    ]
