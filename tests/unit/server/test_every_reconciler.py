"""All reconcilers over jobs of every schedule: whatever ranks post, none of them fails."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.planner.one_rank import acknowledge, register_rank, store_posts
from tests.planner.samples import job_services, job_spec, rank_record, step_record
from tests.planner.use_cases import put_profile, register_job
from tests.unit.planning.tiny_pipelines import EXPLICIT_SCHEDULE, any_contexts, any_shapes

from flyball_server.jobs.errors import JobsError
from flyball_server.jobs.measurements.measurements import RankPost
from flyball_server.jobs.reconcile import all_reconcilers
from flyball_server.jobs.registry.inspection import get_plan
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.step_records import StepDetail
from flyball_server.jobs.versions.rank_plans import rank_instructions
from flyball_wire.messages import Adaptation, Profiling

pytestmark = pytest.mark.slow
JOB = "job"


def reconcile(services: JobServices) -> None:
    """Run all reconcilers once; what only the job is to blame for is no failure."""
    for reconciler in all_reconcilers():
        try:
            reconciler(services, JOB)
        except JobsError:
            continue


def newest_version(services: JobServices) -> int | None:
    """Version that the ranks run, if the job has one."""
    with services.store.reading() as reader:
        newest = reader.newest_version(JOB)
    return None if newest is None else newest.version


def post_step(services: JobServices, step: int, num_ranks: int, data: st.DataObject) -> None:
    """Post a step of all ranks, on the newest version or on none."""
    version = newest_version(services) if data.draw(st.booleans()) else None
    rows: dict[int, list[tuple[str, int, int]]] = {}
    if version is not None:
        plan = get_plan(services, JOB, version).plan
        with services.store.reading() as reader:
            of_ranks = reader.list_ranks(JOB)
        rows = {
            of.rank: sorted({(str(each.kind), each.chunk, each.frequency_mhz) for each in planned})
            for of in of_ranks
            for planned in [rank_instructions(plan, of)]
        }
    posts: list[RankPost] = []
    for rank in range(num_ranks):
        record = step_record(
            step,
            rank,
            plan_version=version,
            time_s=data.draw(st.sampled_from([0.5, 1.0, 1.7])),
            energy_j=data.draw(st.sampled_from([None, 90.0, 120.0])),
            num_unplanned=data.draw(st.sampled_from([0, 0, 3])),
        )
        details = []
        if version is not None:
            by_clock = tuple((*row, 1, 0.1 + 0.05 * step % 0.3, 0.0) for row in rows[rank])
            details = [StepDetail(job_id=JOB, rank=rank, step=step, by_clock=by_clock)]
        posts.append(RankPost(rank=rank, steps=(record,), details=tuple(details)))
    store_posts(services, posts)


# An explicit order is no other case to a reconciler.
SHAPES = any_shapes(3, 4).filter(lambda shape: shape[0] != EXPLICIT_SCHEDULE)


@settings(max_examples=12)
@given(st.data())
def test_no_reconciler_fails(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    schedule, num_stages, _, num_microbatches = shape
    context = data.draw(any_contexts(shape, most_points=2))
    services = job_services()
    is_online = data.draw(st.booleans())
    adaptation = data.draw(st.sampled_from(Adaptation))
    is_raised = adaptation == Adaptation.RECONFIGURE  # for policy envelope and its one target only
    targets = ["fastest"] if is_raised else ["fastest", "slowdown:10%", "deadline:0.01"]
    spec = job_spec(
        num_stages=num_stages,
        num_microbatches=num_microbatches,
        num_ranks=num_stages,
        schedule=schedule,
        checkpoint=context.checkpoint,
        extra_forwards=(0,) * num_stages if schedule == "envpipe" else None,
        effort="low",
        policy="envelope" if is_raised else "frontier",
        target=data.draw(st.sampled_from(targets)),
        adaptation=adaptation,
        profiling=Profiling.ONLINE if is_online else Profiling.GIVEN,
    )
    try:
        register_job(services, JOB, spec)
        for rank in range(num_stages):
            register_rank(services, rank_record(rank))
        if not is_online:
            put_profile(services, JOB, context.profile)
    except JobsError:
        assume(False)
    for step in range(8):
        reconcile(services)
        version = newest_version(services)
        if version is not None and data.draw(st.booleans()):
            for rank in range(num_stages):
                acknowledge(services, JOB, rank, version=version, current_step=step)
        post_step(services, step, num_stages, data)
    reconcile(services)
