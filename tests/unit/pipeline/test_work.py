"""Work of a step: sums of lengths, factors by hand, and what is no work."""

from __future__ import annotations

import pytest

from flyball_pipeline.dag import build_dag
from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import InstructionKind, equal_stages
from flyball_pipeline.schedules.inputs import ScheduleInputs
from flyball_pipeline.schedules.table import make_schedule
from flyball_pipeline.work import WorkCoefficients, step_work, work_factors

FORWARD, BACKWARD = InstructionKind.FORWARD, InstructionKind.BACKWARD


def test_lengths_are_summed_and_factors_are_kept() -> None:
    assert step_work([[3, 4], (5,), 1.5]) == ((7, 25), (5, 25), (1.5,))


@pytest.mark.parametrize(
    "given",
    [
        [],
        "12",
        3,
        [[]],
        [[-1]],
        [0],
        [float("nan")],
        [[float("inf")]],
        [512],
        ["512"],
        [[True]],
        [10**400],
    ],
)
def test_what_is_no_work_is_refused(given: object) -> None:
    with pytest.raises(PipelineError, match=r"^work: "):
        step_work(given)  # type: ignore[arg-type]


def test_a_factor_is_linear_in_lengths_and_squares_and_has_bounds() -> None:
    coefficients = WorkCoefficients(0.5, 0.01, 0.001)
    assert coefficients.factor((7.0, 25.0)) == pytest.approx(0.5 + 0.07 + 0.025)
    assert coefficients.factor((3.0,)) == 3.0
    assert WorkCoefficients(0.0, 0.0, 0.1).factor((0.0, 0.0)) == 1e-3


def test_each_instruction_has_the_factor_of_its_microbatch_stage_and_kind() -> None:
    dag = build_dag(make_schedule("1f1b", ScheduleInputs(shape=equal_stages(2, 2))))
    coefficients = {
        (stage, kind, 0): WorkCoefficients(float(stage), weight, 0.0)
        for stage in (0, 1)
        for kind, weight in ((FORWARD, 1.0), (BACKWARD, 2.0))
    }
    factors = work_factors(dag, ((1.0, 1.0), (3.0, 9.0)), coefficients, slowness=(1.0, 1.1))
    assert factors is not None
    of_nodes = dict(zip(zip(dag.stage, dag.instruction, strict=True), factors, strict=True))
    assert {
        (stage, str(kind), microbatch): factor
        for (stage, (kind, microbatch, _)), factor in of_nodes.items()
    } == {
        (0, "forward", 0): 1.0,
        (0, "forward", 1): 3.0,
        (0, "backward", 0): 2.0,
        (0, "backward", 1): 6.0,
        (1, "forward", 0): pytest.approx(1.1 * 2.0),
        (1, "forward", 1): pytest.approx(1.1 * 4.0),
        (1, "backward", 0): pytest.approx(1.1 * 3.0),
        (1, "backward", 1): pytest.approx(1.1 * 7.0),
    }


def test_unknown_coefficients_take_factors_alone_and_other_numbers_of_microbatches_nothing() -> (
    None
):
    dag = build_dag(make_schedule("gpipe", ScheduleInputs(shape=equal_stages(1, 2))))
    assert work_factors(dag, ((1.0, 1.0), (3.0, 9.0)), {}) is None
    assert sorted(work_factors(dag, ((1.0,), (3.0,)), {}) or []) == [1.0, 1.0, 3.0, 3.0]
    assert work_factors(dag, ((1.0,),), {}) is None
