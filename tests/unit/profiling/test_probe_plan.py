import json
from typing import Any

import pytest
from tests.unit.planning.tiny_pipelines import refuses, replaced

from flyball_pipeline.instruction import Instruction, InstructionKind
from flyball_pipeline.schedule import Schedule
from flyball_server.planning.documents.plan_document import plan_document, plan_from_document
from flyball_wire.plans.plan import CycleClocks, probe_of

FORWARD, BACKWARD = InstructionKind.FORWARD, InstructionKind.BACKWARD
ORDER = (
    ((FORWARD, 0), (FORWARD, 1), (BACKWARD, 1), (BACKWARD, 0)),
    ((FORWARD, 0), (BACKWARD, 0), (FORWARD, 1), (BACKWARD, 1)),
)
SCHEDULE = Schedule(
    name="interleaved-1f1b",
    num_microbatches=1,
    virtual_stages=((0, 2), (1, 3)),
    stages=tuple(
        tuple(Instruction(kind, 0, chunk) for kind, chunk in of_stage) for of_stage in ORDER
    ),
)
CYCLE_MHZ = (
    ((1410, 1410, 1410, 1410), (1410, 1410, 1410, 1410)),
    ((1410, 1200, 1410, 1410), (1410, 900, 1410, 1410)),
    ((1410, 1410, 1410, 1410), (1410, 900, 1410, 1410)),
)
PLAN = probe_of(SCHEDULE, CYCLE_MHZ, 1.5)


def fresh_document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(plan_document(PLAN, solve_s=0.5)))
    return document


def test_a_document_has_each_distinct_row_of_a_stage_once_and_is_read_as_its_plan() -> None:
    document = fresh_document()
    assert document["policy"] == "probe"
    assert document["rows_mhz"][0] == [[1410, 1410, 1410, 1410], [1410, 1200, 1410, 1410]]
    assert document["cycle"] == [[0, 0], [1, 1], [0, 1]]
    assert plan_from_document(document) == PLAN


@pytest.mark.parametrize(
    ("cycle_mhz", "field"),
    [
        ((), "cycle_mhz"),
        ((((1410, 1410), (1410, 1410)),), "cycle_mhz[0]"),
        ((((1410, 0, 1410, 1410), (1410, 1410, 1410, 1410)),), "cycle_mhz[0]"),
    ],
)
def test_a_cycle_that_does_not_fit_is_refused(cycle_mhz: CycleClocks, field: str) -> None:
    with refuses(field):
        probe_of(SCHEDULE, cycle_mhz, 1.5)


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (("policy",), "frontier", "energy_j"),
        (("schedule",), 1, "schedule"),
        (("num_microbatches",), True, "num_microbatches"),
        (("iteration_time_s",), 0, "iteration_time_s"),
        (("stages", 0, 1), ["forward"], "stages[0][1][1]"),
        (("stages", 0), "forward", "stages[0]"),
        (("rows_mhz", 1, 0), [1410, -1], "rows_mhz[1][0][1]"),
        (("rows_mhz", 1, 0), [1410], "cycle_mhz[0]"),
        (("cycle",), [], "cycle_mhz"),
        (("cycle", 1), [0], "cycle[1]"),
        (("cycle", 1), [0, 2], "cycle[1]"),
    ],
)
def test_a_document_that_is_no_probe_plan_is_refused_with_its_place(
    path: tuple[str | int, ...], value: object, field: str
) -> None:
    with refuses(field):
        plan_from_document(replaced(fresh_document(), path, value))
