"""Formats of plans: what is written is read back the same, whatever the order and the clocks."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from flyball_pipeline.instruction import Instruction, InstructionKind
from flyball_pipeline.schedules.explicit import explicit_order
from flyball_pipeline.schedules.inputs import ExplicitOrder
from flyball_server.cli.convert.envpipe_files import log_rows, plan_of_log
from flyball_server.cli.convert.foreign_plan import ForeignPlan, named_schedule
from flyball_server.cli.convert.kareus_files import kernels_of_scheds, plan_of_scheds, scheds_text
from flyball_server.cli.convert.perseus_files import (
    freqs_text,
    plan_of_freqs,
    plan_of_sched_json,
    sched_json_text,
)
from flyball_server.cli.order_files import (
    order_document,
    order_of_document,
    order_of_torch_csv,
    torch_csv_text,
)
from flyball_server.replay.recorded_runs import schedule_of

CLOCKS_MHZ = st.integers(min_value=1, max_value=3105)


@st.composite
def stage_orders(draw: st.DrawFn, num_microbatches: int) -> tuple[Instruction, ...]:
    """Forwards and backwards in turn, each backward somewhere behind its forward."""
    num_forwards = num_backwards = 0
    order: list[Instruction] = []
    while num_backwards < num_microbatches:
        can_forward = num_forwards < num_microbatches
        if can_forward and (num_forwards == num_backwards or draw(st.booleans())):
            order.append(Instruction(InstructionKind.FORWARD, num_forwards))
            num_forwards += 1
        else:
            order.append(Instruction(InstructionKind.BACKWARD, num_backwards))
            num_backwards += 1
    return tuple(order)


@st.composite
def plans(draw: st.DrawFn) -> ForeignPlan:
    num_microbatches = draw(st.integers(1, 5))
    num_stages = draw(st.integers(1, 4))
    stages = tuple(draw(stage_orders(num_microbatches)) for _ in range(num_stages))
    clocks_mhz = tuple(tuple(draw(CLOCKS_MHZ) for _ in stage) for stage in stages)
    return ForeignPlan(schedule=named_schedule(ExplicitOrder(stages=stages)), clocks_mhz=clocks_mhz)


@given(plans())
def test_a_plan_survives_zeuss_and_envpipes_formats(plan: ForeignPlan) -> None:
    assert plan_of_freqs(freqs_text(plan)) == plan
    assert plan_of_log(log_rows(plan)) == plan


@given(plans())
def test_an_order_survives_torchs_format_and_ours(plan: ForeignPlan) -> None:
    document = json.loads(json.dumps(order_document(plan.order)))
    for options in (order_of_torch_csv(torch_csv_text(plan.order)), order_of_document(document)):
        assert named_schedule(explicit_order(*options)).stages == plan.schedule.stages


@settings(max_examples=25)
@given(plans(), st.data())
def test_kernel_schedules_survive_both_of_kareuss_forms(
    plan: ForeignPlan, data: st.DataObject
) -> None:
    knobs = st.tuples(st.text(max_size=8), st.text(max_size=8))
    kernels = tuple(tuple(data.draw(knobs) for _ in stage) for stage in plan.schedule.stages)
    with_kernels = replace(plan, kernels=kernels)
    for by_microbatch in (False, True):
        text = scheds_text(with_kernels, by_microbatch=by_microbatch)
        assert kernels_of_scheds(text, plan.schedule) == kernels
    in_order = scheds_text(with_kernels, by_microbatch=False)
    assert plan_of_scheds(in_order) == replace(with_kernels, clocks_mhz=None)


@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 3), st.data())
def test_clocks_of_1f1b_survive_meraks_commands(
    num_stages: int, num_microbatches: int, num_pipelines: int, data: st.DataObject
) -> None:
    schedule = schedule_of("1f1b", num_stages, num_microbatches)
    clocks_mhz = tuple(tuple(data.draw(CLOCKS_MHZ) for _ in stage) for stage in schedule.stages)
    plan = ForeignPlan(schedule=schedule, clocks_mhz=clocks_mhz)
    text = sched_json_text(plan, num_pipelines * num_stages)
    assert plan_of_sched_json(text, "", (num_stages, num_microbatches)) == plan
