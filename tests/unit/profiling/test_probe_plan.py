import json
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.planning.tiny_pipelines import replaced

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import Instruction, InstructionKind
from flyball_server.planning.probe_plan import (
    ProbePlan,
    is_probe,
    probe_document,
    probe_from_document,
)

FORWARD, BACKWARD = InstructionKind.FORWARD, InstructionKind.BACKWARD
PLAN = ProbePlan(
    schedule="interleaved-1f1b",
    num_microbatches=1,
    stages=(
        (Instruction(FORWARD, 0), Instruction(FORWARD, 0, 1), Instruction(BACKWARD, 0, 1)),
        (Instruction(FORWARD, 0), Instruction(BACKWARD, 0)),
    ),
    cycle_mhz=(
        ((1410, 1410, 1410), (1410, 1410)),
        ((1410, 1200, 1410), (1410, 900)),
        ((1410, 1410, 1410), (1410, 900)),
    ),
    iteration_time_s=1.5,
    virtual_stages=((0, 2), (1, 3)),
)


def test_a_document_has_each_distinct_row_of_a_stage_once_and_is_read_as_its_plan() -> None:
    document = json.loads(json.dumps(probe_document(PLAN)))
    assert document["policy"] == "probe"
    assert is_probe(document)
    assert document["rows_mhz"][0] == [[1410, 1410, 1410], [1410, 1200, 1410]]
    assert document["cycle"] == [[0, 0], [1, 1], [0, 1]]
    assert probe_from_document(document) == PLAN


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cycle_mhz": ()}, "cycle_mhz"),
        ({"cycle_mhz": (((1410, 1410), (1410, 1410)),)}, r"cycle_mhz\[0\]"),
        ({"cycle_mhz": (((1410, 0, 1410), (1410, 1410)),)}, r"cycle_mhz\[0\]"),
    ],
)
def test_a_cycle_that_does_not_fit_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(PipelineError, match=f"^{field}: "):
        replace(PLAN, **changes)


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (("policy",), "frontier", "plan"),
        (("schedule",), 1, "schedule"),
        (("num_microbatches",), True, "num_microbatches"),
        (("iteration_time_s",), 0, "iteration_time_s"),
        (("stages", 0, 1), ["forward"], r"stages\[0\]\[1\]"),
        (("stages", 0), "forward", r"stages\[0\]"),
        (("rows_mhz", 1, 0), [1410, -1], r"rows_mhz\[1\]\[0\]"),
        (("cycle", 1), [0], r"cycle\[1\]"),
        (("cycle", 1), [0, 2], r"cycle\[1\]"),
    ],
)
def test_a_document_that_is_no_probe_plan_is_refused_with_its_place(
    path: tuple[str | int, ...], value: object, field: str
) -> None:
    document = json.loads(json.dumps(probe_document(PLAN)))
    with pytest.raises(PipelineError, match=f"^{field}: "):
        probe_from_document(replaced(document, path, value))
