"""Calls of several ranks that come at once: each is answered for itself, in one transaction."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest
from tests.planner.one_rank import register_rank, store_measurements
from tests.planner.samples import (
    CountingPlanner,
    Services,
    job_spec,
    profile,
    rank_record,
    step_record,
)
from tests.planner.use_cases import put_profile, register_job

from flyball_server.jobs.errors import (
    InvalidFieldError,
    JobsError,
    PlannerFaultError,
    StoreBusyError,
    UnknownPlanError,
    UnknownRankError,
)
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.measurements import measurements
from flyball_server.jobs.measurements.measurements import (
    FEWEST_KEPT_STEPS,
    KEPT_DETAILS,
    KEPT_DETAILS_OF_PROFILING,
    RankPost,
    list_steps,
    store_together,
)
from flyball_server.jobs.planning_inputs import PlanningInputs, WorkModel
from flyball_server.jobs.step_records import StepDetail
from flyball_server.jobs.versions.plan_versions import HeldVersion, acknowledge_together
from flyball_server.jobs.versions.rank_plans import PlanQuestion, RankPlans
from flyball_server.kit.batcher import Batcher
from flyball_wire.messages import JobState
from flyball_wire.plans.rank_plan import RankPlan

WAIT_S = 30.0


@pytest.fixture
def services() -> Services:
    """Four ranks on two stages, and plan version 1."""
    made = Services(CountingPlanner(iteration_time_s=0.4))
    register_job(made.jobs, "job", job_spec(num_ranks=4))
    put_profile(made.jobs, "job", profile())
    for rank in range(4):
        register_rank(made.jobs, rank_record(rank, stage=rank % 2, dp_rank=rank // 2))
    made.woken.clear()
    return made


# ------------------------------------------------------------------ acknowledgements


def held(rank: int, version: int = 1, step: int = 5) -> HeldVersion:
    return HeldVersion(rank=rank, version=version, current_step=step)


def test_unknown_ranks_and_versions_are_refused_alone_and_the_others_get_the_first_step(
    services: Services,
) -> None:
    wrong = [held(9), held(0, version=8), held(1, step=-1)]
    right = [held(0), held(1), held(2, step=9), held(3)]
    outcomes = acknowledge_together(services.jobs, "job", [*wrong, *right])
    kinds = [type(outcome) for outcome in outcomes[:3]]
    assert kinds == [UnknownRankError, UnknownPlanError, InvalidFieldError]
    # A margin of 2 steps and as many as take a second, beyond the furthest rank.
    assert {getattr(outcome, "first_step", None) for outcome in outcomes[3:]} == {14}
    assert services.woken == ["job"]


# ------------------------------------------------------------------ measurements


def test_a_post_of_an_unknown_rank_does_not_lose_the_others_steps(services: Services) -> None:
    posts = [RankPost(rank=rank, steps=(step_record(3, rank),)) for rank in (0, 9, 1)]
    stored, unknown, also_stored = store_together(services.jobs, "job", posts)
    assert [getattr(one, "stored", None) for one in (stored, also_stored)] == [1, 1]
    assert isinstance(unknown, UnknownRankError)
    assert list_steps(services.jobs, "job", limit=1)[0].num_ranks == 2


# ------------------------------------------------------------------ plans


def rendering(rendered: list[RankPlan]) -> RankPlans:
    def render(part: RankPlan) -> bytes:
        rendered.append(part)
        return f"{part.version} {part.stage}".encode()

    return RankPlans(render)


def ask(services: Services, plans: RankPlans, *ranks: int) -> tuple[bytes | JobsError | None, ...]:
    questions = [PlanQuestion(rank=rank, after_version=0) for rank in ranks]
    return plans.answer(services.jobs, "job", questions)


def test_ranks_of_a_stage_share_a_part_that_is_rendered_once_and_again_when_it_changes(
    services: Services,
) -> None:
    rendered: list[RankPlan] = []
    plans = rendering(rendered)
    answers = [ask(services, plans, 0, 1, 2, 3) for _ in range(3)]
    assert answers[0][0] == answers[0][2] != answers[0][1] == answers[0][3]
    assert answers[0] == answers[1] == answers[2]
    acknowledge_together(services.jobs, "job", [held(rank) for rank in range(4)])
    ask(services, plans, 0)
    assert [(part.stage, part.first_step) for part in rendered] == [(0, None), (1, None), (0, 10)]
    planned_inputs = PlanningInputs(work=WorkModel())
    with services.jobs.store.writing("job") as writer:
        writer.save_loop_state(JobLoopState(job_id="job", planned_inputs=planned_inputs))
    ask(services, plans, 0)
    assert [part.pipeline is None for part in rendered] == [True, True, True, False]


def test_a_part_that_cannot_be_made_costs_the_others_nothing(services: Services) -> None:
    def render(part: RankPlan) -> bytes:
        if part.stage == 1:
            raise ZeroDivisionError
        return b"part"

    first, failed, third = ask(services, RankPlans(render), 0, 1, 2)
    assert (first, third) == (b"part", b"part")
    assert isinstance(failed, PlannerFaultError)


# ------------------------------------------------------------------ request batching


class Held:
    """Work that waits until it is let go, and remembers its groups."""

    def __init__(self) -> None:
        self.groups: list[tuple[str, list[int]]] = []
        self.may_go = threading.Event()

    def __call__(self, key: str, items: Sequence[int]) -> list[int | JobsError]:
        self.groups.append((key, list(items)))
        assert self.may_go.wait(WAIT_S)
        return [
            UnknownRankError(job_id=key, rank=item) if item < 0 else 10 * item for item in items
        ]


async def until(count: int, groups: list[tuple[str, list[int]]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while len(groups) < count:
            await asyncio.sleep(0.001)


@pytest.fixture
def work() -> Held:
    return Held()


@pytest.mark.anyio
async def test_submissions_during_a_group_are_the_next_group(work: Held) -> None:
    batcher = Batcher(work, shared_error=JobsError)
    tasks = [asyncio.create_task(batcher.submit("a", 1))]
    await until(1, work.groups)
    tasks += [asyncio.create_task(batcher.submit("a", item)) for item in (2, 3, 4)]
    await asyncio.sleep(0)
    tasks[0].cancel()  # a caller that has gone away costs the others nothing
    work.may_go.set()
    assert await asyncio.gather(*tasks[1:]) == [20, 30, 40]
    assert work.groups == [("a", [1]), ("a", [2, 3, 4])]


@pytest.mark.anyio
async def test_one_key_does_not_wait_for_another(work: Held) -> None:
    batcher = Batcher(work, shared_error=JobsError)
    tasks = [asyncio.create_task(batcher.submit(key, 1)) for key in ("a", "b")]
    await until(2, work.groups)  # both, and nobody has been let go
    work.may_go.set()
    await asyncio.gather(*tasks)
    assert sorted(work.groups) == [("a", [1]), ("b", [1])]


@pytest.mark.anyio
async def test_large_groups_are_split_and_an_error_is_that_of_its_item_alone(work: Held) -> None:
    work.may_go.set()
    batcher = Batcher(work, shared_error=JobsError, max_batch_size=2)
    asked = (batcher.submit("a", item) for item in (0, 1, -2, 3, 4))
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert [one for one in outcomes if isinstance(one, int)] == [0, 10, 30, 40]
    assert isinstance(outcomes[2], UnknownRankError)
    assert [len(items) for _, items in work.groups] == [2, 2, 1]


@pytest.mark.anyio
async def test_a_jobs_error_is_that_of_the_whole_group_and_the_next_one_is_worked_on() -> None:
    calls: list[Sequence[int]] = []

    def fails_once(_key: str, items: Sequence[int]) -> Sequence[int | JobsError]:
        calls.append(items)
        if len(calls) == 1:
            raise StoreBusyError(location="here")
        return items

    batcher = Batcher(fails_once, shared_error=JobsError)
    asked = (batcher.submit("a", item) for item in (1, 2))
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreBusyError, StoreBusyError]
    assert await batcher.submit("a", 3) == 3


@pytest.mark.anyio
async def test_an_unforeseen_failure_is_that_of_the_items_that_lead_to_it() -> None:
    def fails_for_3(_key: str, items: Sequence[int]) -> Sequence[int | JobsError]:
        if 3 in items:
            raise ZeroDivisionError
        return items

    batcher = Batcher(fails_for_3, shared_error=JobsError)
    asked = (batcher.submit("a", item) for item in (1, 2, 3, 4, 5))
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert [outcome for outcome in outcomes if isinstance(outcome, int)] == [1, 2, 4, 5]
    assert isinstance(outcomes[2], ZeroDivisionError)


# ------------------------------------------------------------------ kept measurements


def post_instructions(services: Services, rank: int, steps: range, num_instructions: int) -> None:
    forward = ("forward", None, 0, 0.0, 0.1, 0.2, 0.3, None)
    details = [
        StepDetail(job_id="job", rank=rank, step=step, instructions=(forward,) * num_instructions)
        for step in steps
    ]
    store_measurements(
        services.jobs, "job", rank, [step_record(step, rank) for step in steps], details
    )


def kept_steps(services: Services, rank: int) -> list[int]:
    with services.jobs.store.reading() as reader:
        return [each.step for each in reader.list_step_details("job", 0) if each.rank == rank]


@pytest.mark.parametrize(("num_instructions", "num_kept"), [(4, 200), (40, FEWEST_KEPT_STEPS)])
def test_of_steps_with_many_instructions_only_the_newest_of_each_rank_are_kept(
    services: Services, num_instructions: int, num_kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurements, "KEPT_INSTRUCTIONS", 3200)
    num_steps = max(num_kept, 50)
    for steps in (range(num_steps // 2), range(num_steps // 2, num_steps)):
        for rank in (0, 1):
            post_instructions(services, rank, steps, num_instructions)
    newest = list(range(num_steps - num_kept, num_steps))
    assert kept_steps(services, 0) == kept_steps(services, 1) == newest


@pytest.mark.parametrize("num_far", [1, 2])
def test_steps_of_absurd_numbers_drop_no_others(
    services: Services, monkeypatch: pytest.MonkeyPatch, num_far: int
) -> None:
    monkeypatch.setattr(measurements, "KEPT_INSTRUCTIONS", 0)
    absurd = [10**12, 10**9, 10**15]
    for first, far in enumerate([10, *absurd]):
        for rank in (0, 1):
            post_instructions(services, rank, range(20 * first, 20 * first + 20), 4)
        post_instructions(services, 1, range(far, far + num_far), 4)
    newest = list(range(80 - FEWEST_KEPT_STEPS, 80))
    assert kept_steps(services, 0) == newest
    far_steps = [far + number for far in sorted(absurd) for number in range(num_far)]
    assert kept_steps(services, 1) == newest + far_steps
    # Nor does a step that is a little farther than those that are kept.
    post_instructions(services, 0, range(79 + 33, 79 + 34), 4)
    assert kept_steps(services, 0) == [*newest, 112]
    # A run that goes on far from where it was drops what is older, with its eighth step.
    post_instructions(services, 0, range(10_000, 10_007), 4)
    assert kept_steps(services, 0)[: len(newest)] == newest
    post_instructions(services, 0, range(10_007, 10_008), 4)
    assert kept_steps(services, 0) == list(range(10_000, 10_008))


def test_steps_that_are_far_from_each_other_are_bounded_too(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurements, "KEPT_INSTRUCTIONS", 0)
    for step in range(0, 5000, 100):
        post_instructions(services, 0, range(step, step + 1), 4)
    assert len(kept_steps(services, 0)) <= 9


@pytest.mark.parametrize(
    ("state", "num_kept"),
    [(JobState.PLANNED, KEPT_DETAILS), (JobState.PROFILING, KEPT_DETAILS_OF_PROFILING)],
)
def test_the_newest_steps_are_kept(services: Services, state: JobState, num_kept: int) -> None:
    with services.jobs.store.writing("job") as writer:
        job = writer.find_job("job")
        assert job is not None
        writer.save_job(job.evolve(state=state))
    details = [
        StepDetail(job_id="job", rank=0, step=step, by_clock=(("forward", 0, 1410, 1, 0.1, 0.0),))
        for step in range(num_kept + 9)
    ]
    store_measurements(services.jobs, "job", 0, [], details)
    assert kept_steps(services, 0) == list(range(9, num_kept + 9))
