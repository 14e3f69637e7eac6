"""The condition of a job: trouble that would hide behind its state."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.planner.samples import MOMENT, job_record, rank_record

from flyball_server.jobs.lifecycle.condition import condition_of
from flyball_server.jobs.lifecycle.job_life import DEFAULT_LIFE
from flyball_server.jobs.loop_state import AnnouncedSlowdown, JobLoopState, RefusedRegistration
from flyball_server.jobs.planning_inputs import MeasuredDelays, RankSlowdown
from flyball_server.jobs.records import JobRecord, RankRecord
from flyball_wire.closed_loop import StragglerReason
from flyball_wire.messages import ConditionName, JobCondition, JobState

NOW = MOMENT + timedelta(hours=1)
HERE = [rank_record(rank, last_seen_at=NOW) for rank in (0, 1)]
SILENT = MOMENT + timedelta(minutes=30)
PLANNED = job_record(state=JobState.PLANNED)
NOTHING = JobLoopState(job_id="job")
DIFFERING = MeasuredDelays(version=1, num_steps=12, work=0.3)
TWO_SLOW = (
    RankSlowdown(rank=0, slowdown=1.1),
    RankSlowdown(rank=1, slowdown=1.25, reason=StragglerReason.THERMAL),
)
ANNOUNCED = AnnouncedSlowdown(rank=1, slowdown=1.2, from_unix_s=MOMENT.timestamp())
REFUSED = RefusedRegistration(
    rank=None, host="node-0", problem="8 stages, not 4", at_unix_s=NOW.timestamp()
)


def found(
    state: JobLoopState = NOTHING, ranks: list[RankRecord] = HERE, job: JobRecord = PLANNED
) -> JobCondition | None:
    return condition_of(job, ranks, state, now=NOW, times=DEFAULT_LIFE)


@pytest.mark.parametrize(
    ("state", "ranks", "name", "action"),
    [
        (NOTHING.evolve(refused=REFUSED), [], "refused", "from node-0: 8 stages, not 4"),
        (
            NOTHING.evolve(detected=TWO_SLOW),
            [rank.evolve(last_seen_at=SILENT) for rank in HERE],
            "no ranks",
            f"no rank has called since {SILENT:%H:%M:%S} UTC: the training was killed",
        ),
        (
            NOTHING,
            [HERE[0], HERE[1].evolve(last_seen_at=SILENT)],
            "ranks missing",
            "rank 1 has been silent for 90 s",
        ),
        (
            NOTHING.evolve(detected=TWO_SLOW),
            [HERE[0], HERE[1].evolve(no_clocks="not permitted")],
            "no clocks",
            "rank 1 sets no clocks: not permitted",
        ),
        (
            NOTHING.evolve(detected=TWO_SLOW[:1], delays=DIFFERING),
            HERE,
            "slow GPU",
            "rank 0 takes 1.10 times as long as profiled, cause unknown",
        ),
        (
            NOTHING.evolve(detected=TWO_SLOW),
            HERE,
            "slow GPU",
            "ranks 0 and 1 are slow; rank 1 takes 1.25 times as long as profiled, held down",
        ),
    ],
)
def test_the_gravest_trouble_is_named_with_what_to_look_at(
    state: JobLoopState, ranks: list[RankRecord], name: str, action: str
) -> None:
    condition = found(state, ranks)
    assert condition is not None
    assert condition.name == name
    assert action in (condition.action or "")


def test_what_nobody_has_to_act_on_has_no_line() -> None:
    """Somebody has announced the slow GPU, and steps that differ are the job's own."""
    announced = NOTHING.evolve(stragglers=(ANNOUNCED,))
    assert found(announced) == JobCondition(name=ConditionName.SLOW_GPU)
    differing = NOTHING.evolve(delays=DIFFERING)
    assert found(differing) == JobCondition(name=ConditionName.STEPS_DIFFER)


def test_a_quiet_job_and_one_that_is_over_have_none() -> None:
    assert found() is None
    assert found(ranks=[]) is None  # its ranks are to come
    left = [rank.evolve(has_left=True) for rank in HERE]
    over = job_record(state=JobState.ENDED)
    assert found(NOTHING.evolve(detected=TWO_SLOW), left, over) is None
