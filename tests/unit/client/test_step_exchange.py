"""A step's clocks by exchanges between ranks in threads; the plans are those of `retime`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from tests.unit.client.step_parts import (
    COEFFICIENTS,
    HEAVY,
    HIGHEST_MHZ,
    LIGHT,
    SUPPORTED_MHZ,
    part_of_stage,
)
from tests.unit.pipeline.small_pipelines import small_pipeline

from flyball_client.helper.step_planner import StepPlanner
from flyball_client.session.active_plan import compile_plan
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_client.steps.agreement import Coupling, Pending
from flyball_client.steps.step_exchange import StepExchange
from flyball_client.steps.step_plans import StepDeadlines, StepLoad
from flyball_pipeline.retiming import StepReserve, own_times, retime
from flyball_pipeline.work import StepWork, step_work, work_factors


class Meeting:
    """Ranks in threads of one process; each exchange is complete once all of them came to it."""

    def __init__(self, num_pipelines: int, num_stages: int) -> None:
        self.num_stages, self.num_pipelines = num_stages, num_pipelines
        self.said: dict[tuple[object, ...], dict[int, Any]] = {}

    def agreement(self, pipeline: int, stage: int) -> MeetingAgreement:
        return MeetingAgreement(self, pipeline, stage)


@dataclass
class MeetingAgreement:
    """One rank's part in the meeting."""

    meeting: Meeting
    pipeline: int
    stage: int
    counts: dict[str, int] = field(default_factory=dict[str, int])
    is_closed: bool = False

    def gather(self, message: bytes) -> Pending[list[bytes]]:
        key = "gather", self.pipeline, self.count("gather")
        pending: Pending[list[bytes]] = self.pending(
            key, self.stage, message, self.meeting.num_stages, list
        )
        return pending

    def greatest(self, numbers: Sequence[float]) -> Pending[list[float]]:
        key = "greatest", self.stage, self.count("greatest")

        def of_all(each: Any) -> list[float]:  # noqa: ANN401
            return [max(column) for column in zip(*each, strict=True)]

        pending: Pending[list[float]] = self.pending(
            key, self.pipeline, numbers, self.meeting.num_pipelines, of_all
        )
        return pending

    def count(self, what: str) -> int:
        self.counts[what] = self.counts.get(what, 0) + 1
        return self.counts[what]

    def pending(
        self,
        key: tuple[object, ...],
        who: int,
        said: Any,  # noqa: ANN401
        num: int,
        found: Callable[[Any], Any],
    ) -> Any:  # noqa: ANN401
        of_all = self.meeting.said.setdefault(key, {})
        of_all[who] = said

        class Waiting:
            def result(self) -> Any:  # noqa: ANN401
                return (
                    found([of_all[one] for one in sorted(of_all)]) if len(of_all) == num else None
                )

        return Waiting()

    def close(self) -> None:
        self.is_closed = True


class Rank:
    """One rank: its exchange, and the thread of its helper that plans."""

    def __init__(
        self,
        meeting: Meeting,
        pipeline: int,
        stage: int,
        *,
        coupling: Coupling = "step",
        timeout_s: float = 20.0,
        answers: bool = True,
        **rules: Any,  # noqa: ANN401
    ) -> None:
        self.part = part_of_stage(stage, meeting.num_stages, **rules)
        self.plan: CompiledPlan = compile_plan(self.part, stage=stage, supported_mhz=SUPPORTED_MHZ)
        self.agreement = meeting.agreement(pipeline, stage)
        self.asked: list[StepLoad | StepDeadlines] = []
        self.answers = answers
        self.exchange = StepExchange(
            self.agreement,
            ask=self.ask,
            first_step=0,
            stage=stage,
            rank_name=f"rank {pipeline}.{stage}",
            timeout_s=timeout_s,
        )
        self.planner = StepPlanner(self.exchange, "rank", coupling, SUPPORTED_MHZ)
        self.planner.keep(self.part)

    def ask(self, question: StepLoad | StepDeadlines) -> None:
        self.asked.append(question)
        if self.answers:
            self.planner.ask(question)

    def begin(self, step: int) -> None:
        self.exchange.begin(step, next_version=self.part.version, last_mhz=HIGHEST_MHZ)

    def has_plan(self, step: int) -> bool:
        return step in self.exchange._plans

    def clocks(self, step: int) -> tuple[int, ...]:
        return self.exchange.clocks(self.plan, step)


@contextmanager
def running(*ranks: Rank) -> Iterator[None]:
    """Run the threads of these ranks, which begin step 0 without a plan."""
    for rank in ranks:
        rank.planner.start()
        rank.exchange.start()
        rank.begin(0)
    try:
        yield
    finally:
        for rank in ranks:
            rank.exchange.close()
            rank.planner.stop()
        assert all(rank.agreement.is_closed for rank in ranks)
        assert not any(each.name == "flyball-exchange" for each in threading.enumerate())


def wait_until(condition: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < give_up_s
        time.sleep(0.005)


def expected_mhz(
    num_stages: int,
    work: StepWork,
    slowest: StepWork,
    **rules: Any,  # noqa: ANN401
) -> list[list[int]]:
    """Return per stage the clocks of a pipeline whose job has this slowest one."""
    pipeline = small_pipeline(num_stages, 2)
    places, _ = pipeline.dag.alike
    of_places = dict.fromkeys(places, COEFFICIENTS)
    retimed = pipeline.retimed()

    def factors(of: StepWork) -> list[float]:
        found = work_factors(pipeline.dag, of, of_places)
        assert found is not None
        return found

    deadline = [max(own_times(retimed, factors(of))[0] for of in (work, slowest))]
    mhz = retime(retimed, factors(work), deadline, **rules)
    return [
        [mhz[node] for node, of in enumerate(pipeline.dag.stage) if of == stage]
        for stage in range(num_stages)
    ]


def test_pipelines_of_other_work_run_at_the_clocks_that_keep_the_slowest_ones_time() -> None:
    meeting = Meeting(2, 2)
    ranks = [Rank(meeting, pipeline, stage) for pipeline in (0, 1) for stage in (0, 1)]
    with running(*ranks):
        # Only first stages read the batch.
        ranks[0].exchange.announce(1, LIGHT, None)
        ranks[2].exchange.announce(1, HEAVY, None)
        for rank in (ranks[1], ranks[3]):
            rank.exchange.announce(1, LIGHT if rank is ranks[1] else HEAVY, None)
        wait_until(lambda: all(rank.has_plan(1) for rank in ranks))
        light, heavy = step_work(LIGHT), step_work(HEAVY)
        expected = [
            *expected_mhz(2, light, heavy),
            *expected_mhz(2, heavy, heavy),
        ]
        assert [list(rank.clocks(1)) for rank in ranks] == expected
        assert max(ranks[0].clocks(1)) < HIGHEST_MHZ
        # What was decided stays as the step begins, and is reported as it ends.
        assert list(ranks[0].clocks(1)) == expected[0]
        work, report = ranks[0].exchange.end(1, 1, lambda: 1.0)
        assert work == light
        assert report is not None
        slack, lowest_mhz, highest_mhz, saved_j = report
        assert (lowest_mhz, highest_mhz) == (min(expected[0]), max(expected[0]))
        assert 0 < slack < 1
        assert saved_j > 0


def test_a_stage_without_the_batch_gets_its_pipelines_work_by_the_gathering() -> None:
    meeting = Meeting(1, 2)
    first, last = (Rank(meeting, 0, stage, deadline_ratio=1.3) for stage in (0, 1))
    with running(first, last):
        first.exchange.announce(1, HEAVY, None)
        # The last stage has nothing to announce until the step begins.
        last.exchange.begin(1, next_version=1, last_mhz=HIGHEST_MHZ)
        wait_until(lambda: 1 in last.exchange._works)
        assert last.exchange.end(1, 1, lambda: 1.0) == (step_work(HEAVY), None)
        assert last.clocks(1) == last.plan.highest_mhz


def test_a_deadline_that_the_plan_stretches_is_stretched_for_every_step() -> None:
    meeting = Meeting(1, 1)
    rank = Rank(meeting, 0, 0, deadline_ratio=1.2, reserve=StepReserve(0.05, 0.0))
    with running(rank):
        rank.exchange.announce(1, HEAVY, None)
        wait_until(lambda: rank.has_plan(1))
        pipeline = small_pipeline(1, 2)
        retimed = pipeline.retimed()
        of_places = dict.fromkeys(pipeline.dag.alike[0], COEFFICIENTS)
        factors = work_factors(pipeline.dag, step_work(HEAVY), of_places)
        assert factors is not None
        [own_s] = own_times(retimed, factors)
        clocks = retime(retimed, factors, [1.2 * own_s], reserve=StepReserve(0.05, 0.0))
        assert rank.clocks(1) == clocks
        assert min(clocks) < HIGHEST_MHZ


def test_ranks_that_meet_at_every_instruction_have_a_deadline_for_each() -> None:
    meeting = Meeting(2, 1)
    ranks = [Rank(meeting, pipeline, 0, coupling="instruction") for pipeline in (0, 1)]
    with running(*ranks):
        # Each is the heavy one in one microbatch: nowhere may it be slower.
        ranks[0].exchange.announce(1, [1.0, 3.0], None)
        ranks[1].exchange.announce(1, [2.0, 2.0], None)
        wait_until(lambda: all(rank.has_plan(1) for rank in ranks))
        microbatch_of = ranks[0].plan.microbatches
        for rank, heavy in zip(ranks, (1, 0), strict=True):
            of_microbatch = {
                number: {
                    mhz
                    for mhz, of in zip(rank.clocks(1), microbatch_of, strict=True)
                    if of == number
                }
                for number in (0, 1)
            }
            assert of_microbatch[heavy] == {HIGHEST_MHZ}
            assert max(of_microbatch[1 - heavy]) < HIGHEST_MHZ


@pytest.mark.parametrize("coupling", ["unknown", "instruction"])
def test_an_unknown_coupling_and_pipelines_that_meet_within_a_step_get_no_plans(
    coupling: Coupling, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="flyball_client")
    meeting = Meeting(1, 2)
    ranks = [Rank(meeting, 0, stage, coupling=coupling) for stage in (0, 1)]
    with running(*ranks):
        for rank in ranks:
            rank.exchange.announce(1, LIGHT, None)
        wait_until(lambda: all("no plan of its own" in text for text in caplog.messages[:2]))
        for rank in ranks:
            rank.begin(1)
            assert rank.clocks(1) == rank.plan.highest_mhz


def test_the_caller_may_name_the_slowest_pipelines_time() -> None:
    meeting = Meeting(1, 1)
    rank = Rank(meeting, 0, 0)
    with running(rank):
        rank.exchange.announce(1, [1.0, 1.0], slowest_s=100.0)
        wait_until(lambda: rank.has_plan(1))
        # The clocks of least energy net of waiting, 80 W.
        assert set(rank.clocks(1)) == {1000}


def test_a_plan_of_another_version_is_void() -> None:
    meeting = Meeting(1, 1)
    rank = Rank(meeting, 0, 0, deadline_ratio=1.3)
    with running(rank):
        rank.exchange.announce(1, HEAVY, None)
        wait_until(lambda: rank.has_plan(1))
        newer = part_of_stage(0, 1, version=2)
        plan = compile_plan(newer, stage=0, supported_mhz=SUPPORTED_MHZ)
        assert rank.exchange.clocks(plan, 1) == plan.highest_mhz


def test_ranks_that_know_other_versions_have_no_plan_for_that_step_only() -> None:
    meeting = Meeting(2, 1)
    old, new = Rank(meeting, 0, 0, deadline_ratio=1.3), Rank(meeting, 1, 0, deadline_ratio=1.3)
    with running(old, new):
        new.exchange.begin(0, next_version=2, last_mhz=HIGHEST_MHZ)
        for rank in (old, new):
            rank.exchange.announce(1, HEAVY, None)
        wait_until(lambda: 1 in old.exchange._works and 1 in new.exchange._works)
        for rank in (old, new):
            rank.begin(1)
            rank.exchange.announce(2, HEAVY, None)
        wait_until(lambda: old.has_plan(2) and new.has_plan(2))
        assert old.clocks(1) == old.plan.highest_mhz


@pytest.mark.parametrize(
    ("announce", "why"),
    [
        (lambda ranks: None, "did not come within 0.2 s"),
        (lambda ranks: ranks[1].exchange.announce(1, HEAVY, None), "different work for step 1"),
    ],
)
def test_ranks_that_cannot_agree_end_step_plans_with_one_line(
    announce: Callable[[Sequence[Rank]], None], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="flyball_client")
    meeting = Meeting(1, 2)
    ranks = [Rank(meeting, 0, stage, timeout_s=0.2) for stage in (0, 1)]
    with running(*ranks):
        ranks[0].exchange.announce(1, LIGHT, None)
        announce(ranks)
        wait_until(lambda: any(why in text for text in caplog.messages))
        for step in (2, 3):
            ranks[0].begin(step)
            assert ranks[0].clocks(step) == ranks[0].plan.highest_mhz
    of_rank = [text for text in caplog.messages if text.startswith("rank 0.0: steps have no plans")]
    assert len(of_rank) == 1


def test_a_helper_that_does_not_answer_costs_a_plan_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flyball_client.steps.step_exchange._HELPER_TIMEOUT_S", 0.05)
    meeting = Meeting(1, 1)
    rank = Rank(meeting, 0, 0, answers=False, deadline_ratio=1.3)
    with running(rank):
        rank.exchange.announce(1, HEAVY, None)
        wait_until(lambda: rank.agreement.counts.get("greatest") == 1)
        rank.answers = True
        rank.begin(1)
        rank.exchange.announce(2, HEAVY, None)
        wait_until(lambda: rank.has_plan(2))
        assert rank.clocks(1) == rank.plan.highest_mhz


def test_no_work_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="flyball_client")
    rank = Rank(Meeting(1, 1), 0, 0)
    rank.exchange.announce(1, [[-1]], None)
    rank.exchange.announce(2, None, None)  # type: ignore[arg-type]
    assert ["work of step 1 is not used: work: " in text for text in caplog.messages] == [True]


def test_a_rank_that_is_slower_than_planned_gives_the_others_slack() -> None:
    meeting = Meeting(2, 1)
    quick, slow = (Rank(meeting, pipeline, 0) for pipeline in (0, 1))
    with running(quick, slow):
        for step in range(1, 8):
            for rank in (quick, slow):
                rank.exchange.announce(step, [1.0, 1.0], None)
            for rank, times_longer in ((quick, 1.0), (slow, 1.25)):
                wait_until(partial(rank.has_plan, step))
                lowest_mhz = min(rank.clocks(step))
                assert (lowest_mhz < HIGHEST_MHZ) == (rank is quick and step > 5), step
                run(rank, step, times_longer)


def run(rank: Rank, step: int, times_longer: float) -> None:
    """Run a step that takes so much longer than its instructions alone would."""
    decided = rank.exchange._decided
    assert decided is not None
    assert decided[2] is not None
    time_s = times_longer * decided[2].planned_s / decided[2].slowness
    rank.begin(step)
    rank.exchange.end(step, 1, lambda: time_s)
