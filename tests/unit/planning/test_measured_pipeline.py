"""Rows of ranks laid over the DAG: order, medians, steady-state periods."""

from __future__ import annotations

from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.policies.measured_reconfigure import (
    InstructionTimes,
    MeasuredStep,
    is_as_ordered,
    pipeline_of_steps,
)

from .tiny_pipelines import B, F, equal_profile, model_of, node_of


def step_of(model: PipelineModel, computed_s: float, received_s: float = 0.5) -> MeasuredStep:
    """The same times for all, so that a sum or a median is plain to see."""
    return [
        [
            InstructionTimes(kind, microbatch, chunk, received_s, computed_s)
            for kind, microbatch, chunk in stage
        ]
        for stage in model.schedule.stages
    ]


def test_each_node_has_the_median_over_steps() -> None:
    model = model_of(equal_profile(2), 2)
    steps = [step_of(model, computed_s) for computed_s in (1.0, 9.0, 2.0)]
    measured = pipeline_of_steps(model.schedule, model.dag, steps)
    assert measured.computed_s == (2.0,) * model.dag.num_nodes
    assert measured.received_s == (0.5,) * model.dag.num_nodes


def test_each_instruction_goes_to_its_own_node() -> None:
    model = model_of(equal_profile(2), 3)
    step = [list(ran) for ran in step_of(model, 1.0)]
    position = [(times.kind, times.microbatch) for times in step[1]].index((B, 1))
    step[1][position] = step[1][position]._replace(computed_s=7.0, received_s=0.25)
    measured = pipeline_of_steps(model.schedule, model.dag, [step])
    node = node_of(model, 1, B, 1)
    assert [index for index, time_s in enumerate(measured.computed_s) if time_s == 7] == [node]
    assert [index for index, time_s in enumerate(measured.received_s) if time_s == 0.25] == [node]


def test_a_node_of_a_period_has_the_sum_over_its_microbatches() -> None:
    model = model_of(equal_profile(2), 3, "pipedream")
    measured = pipeline_of_steps(model.schedule, model.dag, [step_of(model, 1.0)])
    assert measured.computed_s == (3.0,) * 4


def test_a_rank_that_left_its_order_is_told_apart() -> None:
    model = model_of(equal_profile(2), 2)
    ran = list(step_of(model, 1.0)[0])
    assert is_as_ordered(model.schedule, 0, ran)
    assert is_as_ordered(model.schedule, 0, [times._replace(microbatch=None) for times in ran])
    assert not is_as_ordered(model.schedule, 0, ran[:-1])
    assert not is_as_ordered(model.schedule, 0, ran[::-1])
    assert not is_as_ordered(model.schedule, 0, [ran[0]._replace(chunk=1), *ran[1:]])
    assert not is_as_ordered(model.schedule, 0, [ran[0]._replace(kind=B.value), *ran[1:]])
    assert ran[0].kind == F
