"""The plan as people of this field read it: EnvPipe's rows, for a terminal.

A row a stage; each unit as `F0 1980 23.4` = kind and microbatch, MHz, ms waited before it;
units on the critical path in `[ ]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flyball_pipeline.instruction import Instruction, InstructionKind
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import Simulation
from flyball_wire.closed_loop import Reserve
from flyball_wire.plans.plan import Plan

LETTERS = {
    InstructionKind.FORWARD: "F",
    InstructionKind.BACKWARD: "B",
    InstructionKind.BACKWARD_INPUT: "I",
    InstructionKind.BACKWARD_WEIGHT: "W",
    InstructionKind.RECOMPUTE: "R",
    InstructionKind.STEP: "S",
}


def instruction_label(instruction: Instruction) -> str:
    """Return kind and microbatch, as `F3`; `F3.1` in model chunk 1."""
    kind, microbatch, chunk = instruction
    return f"{LETTERS[kind]}{microbatch}" + (f".{chunk}" if chunk else "")


Paint = Callable[[str, int, bool], str]
"""A unit's text, its clock in MHz, whether it is on the critical path -> the text in colour."""


def plan_rows(
    model: PipelineModel,
    assignment: Sequence[int],
    simulation: Simulation,
    paint: Paint | None = None,
) -> list[str]:
    """One line per stage, its units in columns; None: without colour."""
    critical = set(simulation.critical_path)
    units: list[list[tuple[str, int]]] = [[] for _ in model.schedule.stages]
    for node, choice in enumerate(assignment):
        label = instruction_label(model.dag.instruction[node])
        clock_mhz = model.points[node][choice].frequency_mhz
        unit = f"{label} {clock_mhz} {simulation.wait_s[node] * 1e3:.1f}"
        text = f"[{unit}]" if node in critical else f" {unit} "
        units[model.dag.stage[node]].append((text, clock_mhz))
    width = max(len(text) for row in units for text, _ in row)
    stage_width = len(str(len(units) - 1))
    return [
        f"Stage {stage:>{stage_width}} | " + _joined(row, width, paint)
        for stage, row in enumerate(units)
    ]


def kept_reserve(reserve: Reserve) -> str:
    """Return the words that follow `no plan` in a text on a bound; empty without a reserve."""
    return f" that keeps {100 * reserve.share:g} % in reserve" if reserve.share else ""


def reserve_lines(reserve: Reserve) -> list[str]:
    """Return the lines on a plan's reserve, its reason and cost; none without a reserve."""
    share, choice = reserve.share, reserve.choice
    if choice is None:
        return [f"reserve {100 * share:g} %, not chosen for this plan"] if share else []
    noise = [
        f"{value:.2g} % of {name}"
        for value, name in (
            (choice.jitter_percent, "jitter"),
            (choice.time_error_percent, "standard error"),
        )
        if value
    ]
    first = f"reserve {100 * share:.3g} % for {' and '.join(noise)} in the profile's times"
    second = (
        f"with this noise the mean iteration is about {choice.slowdown_percent:.2f} % longer than"
        " at the highest clocks"
    )
    if share:
        first += f": costs {choice.cost_points:.2f} points of saving"
        second += f", without a reserve {choice.slowdown_without_percent:.2f} %"
    return [first, second]


def lateness(transitions: ClockTransitions | None) -> str:
    """Return how late clocks change, in a few words; None: at once."""
    if transitions is None:
        return "clock changes at once"
    if transitions.exact_s is not None:
        return f"clock changes {transitions.exact_s * 1e3:g} ms late"
    up_ms, down_ms = transitions.up_p50_s * 1e3, transitions.down_p50_s * 1e3
    return f"clock changes {up_ms:.4g} ms late up, {down_ms:.4g} ms down"


def iteration_delays(plan: Plan) -> str:
    """Return the plan's tail and transfers in a few words; empty: it has none."""
    parts = [f"a tail of {plan.tail_s * 1e3:g} ms"] if plan.tail_s else []
    if any(plan.transfer_s):
        times_ms = ", ".join(f"{time_s * 1e3:g}" for time_s in plan.transfer_s)
        parts.append(f"transfers of {times_ms} ms between stages")
    return " and ".join(parts)


def _joined(row: Sequence[tuple[str, int]], width: int, paint: Paint | None) -> str:
    """Units in columns; what fills up a column has no colour."""
    if paint is None:
        return " ".join(f"{text:<{width}}" for text, _ in row).rstrip()
    return " ".join(
        paint(text.rstrip(), clock_mhz, text.startswith("[")) + " " * (width - len(text.rstrip()))
        for text, clock_mhz in row
    ).rstrip()
