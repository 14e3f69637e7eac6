"""A probe plan: clocks that change from step to step, to measure what instructions take at them.

The ranks run its cycle over and over: step k runs row `(k - first step) mod num_steps`. As a
document it is plain data; reading is strict, as in `plan_document`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from flyball_pipeline.instruction import Instruction
from flyball_pipeline.schedule import VirtualStages
from flyball_pipeline.schedules.explicit import instruction_of
from flyball_server.planning.documents.plan_document import (
    count_of,
    counts_of,
    each_of,
    mapping_of,
    positive_of,
    text_of,
)
from flyball_server.planning.errors import PlanningError

PROBE_POLICY = "probe"


@dataclass(frozen=True, kw_only=True)
class ProbePlan:
    """Clocks of each instruction, by step of a cycle.

    Attributes:
        schedule: its name.
        virtual_stages: as in `Schedule` if stages hold several chunks; else empty.
        stages: per stage, its instructions in the order of execution.
        cycle_mhz: per step of the cycle, per stage, the clock of each instruction, MHz.
        iteration_time_s: of the cycle's longest step, predicted, s; before anything was
            measured, a guess.

    Raises:
        PlanningError: the cycle is empty, does not fit the stages or has a clock that is not
            positive.
    """

    schedule: str
    num_microbatches: int
    stages: tuple[tuple[Instruction, ...], ...]
    cycle_mhz: tuple[tuple[tuple[int, ...], ...], ...]
    iteration_time_s: float
    virtual_stages: VirtualStages = ()

    def __post_init__(self) -> None:
        if not self.cycle_mhz:
            raise PlanningError("must hold at least one step", field="cycle_mhz")
        lengths = [len(stage) for stage in self.stages]
        for row, clocks_mhz in enumerate(self.cycle_mhz):
            if [len(of_stage) for of_stage in clocks_mhz] != lengths:
                raise PlanningError(
                    "must have one clock per stage and instruction", field=f"cycle_mhz[{row}]"
                )
            if any(min(of_stage, default=1) < 1 for of_stage in clocks_mhz):
                raise PlanningError("clocks must be positive", field=f"cycle_mhz[{row}]")

    @property
    def num_stages(self) -> int:
        """Number of pipeline stages."""
        return len(self.stages)

    @property
    def num_steps(self) -> int:
        """Number of steps of the cycle."""
        return len(self.cycle_mhz)


def probe_document(plan: ProbePlan) -> dict[str, Any]:
    """Return the plan as JSON-ready data.

    Each distinct row of clocks of a stage is written once: `cycle` holds, per step and stage,
    an index into `rows_mhz` of the stage.
    """
    rows_mhz: list[list[list[int]]] = []
    cycle: list[list[int]] = [[] for _ in plan.cycle_mhz]
    for stage in range(plan.num_stages):
        index: dict[tuple[int, ...], int] = {}
        for step, clocks_mhz in enumerate(plan.cycle_mhz):
            cycle[step].append(index.setdefault(clocks_mhz[stage], len(index)))
        rows_mhz.append([list(row) for row in index])
    return {
        "policy": PROBE_POLICY,
        "schedule": plan.schedule,
        "num_stages": plan.num_stages,
        "num_microbatches": plan.num_microbatches,
        "virtual_stages": [list(of_stage) for of_stage in plan.virtual_stages],
        "iteration_time_s": plan.iteration_time_s,
        "stages": [[_entry(instruction) for instruction in stage] for stage in plan.stages],
        "rows_mhz": rows_mhz,
        "cycle": cycle,
    }


def is_probe(document: object) -> bool:
    """Return whether a document is of a probe plan, for `probe_from_document`."""
    if not isinstance(document, dict):
        return False
    return bool(cast("dict[str, Any]", document).get("policy") == PROBE_POLICY)


def probe_from_document(document: object) -> ProbePlan:
    """Return the plan that `probe_document` wrote.

    Raises:
        PlanningError: the document is not a probe plan; `field` says where.
    """
    if not is_probe(document):
        raise PlanningError(f"policy must be {PROBE_POLICY}", field="plan")
    fields = mapping_of(document, "plan")
    rows_mhz = each_of(
        fields.get("rows_mhz"), "rows_mhz", lambda rows, place: each_of(rows, place, counts_of)
    )
    return ProbePlan(
        schedule=text_of(fields, "schedule"),
        num_microbatches=count_of(fields.get("num_microbatches"), "num_microbatches"),
        stages=each_of(
            fields.get("stages"),
            "stages",
            lambda entries, place: each_of(entries, place, instruction_of),
        ),
        cycle_mhz=each_of(
            fields.get("cycle"), "cycle", lambda step, place: _step(step, rows_mhz, place)
        ),
        iteration_time_s=positive_of(fields.get("iteration_time_s"), "iteration_time_s"),
        virtual_stages=each_of(fields.get("virtual_stages"), "virtual_stages", counts_of),
    )


def _step(
    entry: object, rows_mhz: tuple[tuple[tuple[int, ...], ...], ...], where: str
) -> tuple[tuple[int, ...], ...]:
    indices = counts_of(entry, where)
    if len(indices) != len(rows_mhz) or any(
        index >= len(rows) for index, rows in zip(indices, rows_mhz, strict=True)
    ):
        raise PlanningError("must name one row of rows_mhz per stage", field=where)
    return tuple(rows[index] for index, rows in zip(indices, rows_mhz, strict=True))


def _entry(instruction: Instruction) -> list[str | int]:
    kind, microbatch, chunk = instruction
    return [str(kind), microbatch, chunk] if chunk else [str(kind), microbatch]
