"""A rank's pipeline as it is sent: what was planned comes out, and takes as long."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planner.sample_plans import frequency_plan
from tests.planner.samples import plan_record, rank_record
from tests.unit.planning.tiny_pipelines import (
    any_requests,
    equal_profile,
    merged_profile,
    request_of,
    slowed_request,
)

from flyball_pipeline.paths import earliest_finish_s
from flyball_pipeline.retiming import RetimedPipeline, retime
from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.planning_inputs import PlanningInputs, WorkModel
from flyball_server.jobs.versions import rank_plans
from flyball_server.jobs.versions.rank_plans import part_of, pipeline_part
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_server.planning.stragglers.slowed_pipelines import make_slowed_plan
from flyball_wire.codec import decode, encode
from flyball_wire.errors import CodecError
from flyball_wire.plan_options import Policy
from flyball_wire.plans.plan import Plan, Slowdown
from flyball_wire.plans.rank_pipeline import unpacked_pipeline
from flyball_wire.plans.rank_plan import RankPipeline

UNKNOWN = WorkModel()


def received(
    plan: Plan, profile: StageProfile, dp_rank: int = 0, work: WorkModel = UNKNOWN
) -> RankPipeline:
    """Return the pipeline as a rank of stage 0 gets it."""
    rank = rank_record(0, dp_rank=dp_rank)
    part = pipeline_part(plan, rank, profile, work)
    assert part is not None
    text = json.dumps(encode(part))
    assert len(text) <= part.most_bytes
    return decode(RankPipeline, json.loads(text))


def planned_time_s(part: RankPipeline) -> float:
    """Return the time of a step at the planned clocks, as a rank finds it."""
    dag, points, plan_mhz = unpacked_pipeline(part)
    durations_s = [
        next(point.time_s for point in of_node if point.clock_mhz == mhz)
        for of_node, mhz in zip(points, plan_mhz, strict=True)
    ]
    return max(earliest_finish_s(dag, durations_s))


@settings(max_examples=15)
@given(any_requests(), st.sampled_from([0.0, 20.0]), st.sampled_from([(), (5.0,)]))
def test_a_rank_finds_the_orders_clocks_and_time_of_the_plan(
    request: PlanRequest, tail_ms: float, transfer_ms: tuple[float, ...]
) -> None:
    if request.options.schedule not in {"pipedream", "pipedream-2bw"}:
        request = request.with_options(tail_ms=tail_ms, transfer_ms=transfer_ms or None)
    plan = make_plan(request).plan
    if plan.weight_versions is not None:
        assert pipeline_part(plan, rank_record(0), request.profile, UNKNOWN) is None
        return
    part = received(plan, request.profile)
    dag, _, plan_mhz = unpacked_pipeline(part)
    [pipeline] = plan.pipelines
    assert dag.instruction == tuple(item for stage in pipeline.order for item in stage)
    assert plan_mhz == [mhz for stage in pipeline.clocks_mhz for mhz in stage]
    assert planned_time_s(part) == pytest.approx(plan.iteration_time_s, rel=1e-9)


def test_a_step_like_the_plans_is_retimed_to_the_plan() -> None:
    request = request_of(equal_profile(2), 2, policy=Policy.ENVELOPE)
    plan = make_plan(request).plan
    part = received(plan, request.profile)
    dag, points, plan_mhz = unpacked_pipeline(part)
    pipeline = RetimedPipeline(
        dag=dag, points=points, waiting_power_w=part.waiting_power_w, plan_mhz=plan_mhz
    )
    clocks_mhz = retime(pipeline, [1.0] * dag.num_nodes, [plan.iteration_time_s])
    assert list(clocks_mhz) == plan_mhz


def test_each_of_separate_pipelines_has_its_slowdowns() -> None:
    """Stage 0 of pipeline 1 takes 7/6 as long: pipeline 0 then has time to run slower."""
    profile = merged_profile(2)
    slowdown = Slowdown(stage=0, slowdown=7 / 6, dp_rank=1)
    plan = make_slowed_plan(slowed_request(profile, slowdown, num_pipelines=2))
    for dp_rank, pipeline in enumerate(plan.by_dp_rank):
        time_s = planned_time_s(received(plan, profile, dp_rank))
        assert time_s == pytest.approx(pipeline.iteration_time_s)


def test_factors_of_work_reach_the_rank_by_place() -> None:
    request = request_of(equal_profile(2), 2, policy=Policy.ENVELOPE)
    plan = make_plan(request).plan
    kinds = ("forward", "backward")
    places = tuple((stage, kind, 0) for stage in (1, 0) for kind in kinds)
    coefficients = tuple((0.1 * number, 0.0, 1e-9) for number in range(4))
    work = WorkModel(places=places, coefficients=coefficients, reserve=(0.02, 0.01))
    part = received(plan, request.profile, work=work)
    assert part.reserve == (0.02, 0.01)
    found = {
        (stage, part.kinds[kind], chunk): each
        for (stage, kind, chunk), each in zip(part.groups, part.coefficients, strict=True)
    }
    assert found == dict(zip(places, coefficients, strict=True))
    # Of some places they are of no use.
    few = replace(work, places=places[:3], coefficients=coefficients[:3])
    assert received(plan, request.profile, work=few).coefficients == ()


def test_there_is_none_with_another_profile() -> None:
    assert pipeline_part(frequency_plan(), rank_record(0), equal_profile(3), UNKNOWN) is None


def test_none_is_sent_that_is_larger_than_what_ranks_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later plan may take more than the one that was looked at: its ranks slow no clock down."""
    request = request_of(equal_profile(2), 2, policy=Policy.ENVELOPE)
    record = plan_record(plan=make_plan(request).plan)
    inputs = PlanningInputs(work=UNKNOWN)
    rank = rank_record(0)
    sent = part_of(record, rank, request.profile, inputs)
    assert sent.pipeline is not None
    assert len(sent.sm_clocks_mhz) > 1
    most_bytes = sent.pipeline.most_bytes
    monkeypatch.setattr(rank_plans, "MAX_PART_BYTES", most_bytes)  # no room for the rest of a part
    assert pipeline_part(record.plan, rank, request.profile, UNKNOWN) is None
    part = part_of(record, rank, request.profile, inputs)
    assert part.pipeline is None
    assert part.sm_clocks_mhz == (max(sent.sm_clocks_mhz),)
    assert part.requests == ()


PART = received(
    make_plan(request_of(equal_profile(2), 2, policy=Policy.ENVELOPE)).plan, equal_profile(2)
)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"points": ("?", *PART.points[1:])}, "arrays must be base64 of three numbers of 8 bytes"),
        ({"instructions": ("AAAA", PART.instructions[1])}, "three numbers of 2 bytes each"),
        ({"points": PART.points[:1]}, "index out of range"),
        ({"points": ("", *PART.points[1:])}, "index out of range"),
        ({"groups": PART.groups[:1]}, "index out of range"),
        ({"kinds": ("forward", "sideways")}, "sideways"),
        ({"num_microbatches": 3}, "does not run all 3 microbatches"),
        ({"virtual_stages": ((1,), (0,))}, "deadlocks"),
    ],
)
def test_a_pipeline_that_cannot_be_used_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(CodecError, match=f"^pipeline: .*{said}"):
        unpacked_pipeline(replace(PART, **changes))
