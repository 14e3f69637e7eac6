"""Jobs with an order of their own, profiles and plans with chunks: kept by every store as given."""

from __future__ import annotations

from dataclasses import replace

from tests.planner.samples import job_record, job_spec, plan_record
from tests.planner.stores import opened_store
from tests.unit.planning.tiny_pipelines import B, F, equal_profile, timed_profile

from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.plan import FrequencyPlan
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_wire.plan_options import Checkpoint, PlanOptions, Policy

V = (("forward", 0), ("forward", 0, 1), ("backward", 0, 1), ("backward", 0))
PLACES = ((0, 3), (1, 2))


def plan_of(profile: StageProfile, schedule: str) -> FrequencyPlan:
    is_explicit = schedule == "explicit"
    return make_plan(
        PlanRequest(
            profile=profile,
            num_microbatches=1 if is_explicit else 4,
            options=PlanOptions(
                blocking_power_w=(5.0,),
                schedule=schedule,
                policy=Policy.ENVELOPE,
                order=(V, V) if is_explicit else None,
                virtual_stages=PLACES if is_explicit else None,
            ),
        )
    ).plan


def test_order_chunks_and_weight_versions_come_out_as_they_went_in() -> None:
    spec = job_spec(schedule="explicit", num_microbatches=1, order=(V, V), virtual_stages=PLACES)
    chunked = timed_profile(2, {F: 0.1, B: 1 / 3}, num_chunks=2)
    job = job_record(registered=spec, in_force=replace(spec, target="least-energy"))
    recomputing = job_spec(schedule="torchgpipe", checkpoint=Checkpoint.ALWAYS)
    other = job_record("other", registered=recomputing, in_force=recomputing)
    explicit = plan_of(chunked, "explicit")
    periodic = plan_of(equal_profile(2), "pipedream")
    assert explicit.virtual_stages == PLACES
    assert periodic.weight_versions == (2, 1)
    plans = (plan_record(1, plan=explicit), plan_record(2, plan=periodic))
    store = opened_store()
    with store.writing("job") as writer:
        writer.save_job(job)
        writer.save_job(other)
        writer.save_profile("job", chunked)
        for plan in plans:
            writer.add_plan(plan)
    with store.reading() as reader:
        assert reader.find_job("job") == job
        assert reader.find_job("other") == other
        assert reader.find_profile("job") == chunked
        assert reader.list_plans("job") == plans
