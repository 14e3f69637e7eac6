"""A step's clocks by exchanges between ranks in threads; the plans are those of `retime`."""

from __future__ import annotations

import itertools
import json
import logging
import sys
import threading
import time
from collections import deque
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
from tests.unit.pipeline.small_pipelines import BACKWARD, FORWARD, small_pipeline

from flyball_client.helper.step_planner import StepPlanner
from flyball_client.session.active_plan import compile_plan
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_client.steps.agreement import AloneAgreement, Coupling, Pending
from flyball_client.steps.rank_slowness import Slowness
from flyball_client.steps.step_exchange import StepExchange
from flyball_client.steps.step_plans import PlanKey, StepDeadlines, StepLoad, StepPlan
from flyball_pipeline.clock_rounding import ChangeDelays
from flyball_pipeline.retiming import StepReserve, own_times, retime
from flyball_pipeline.work import StepWork, step_work, work_factors


class Meeting:
    """Ranks in threads of one process; each exchange is complete once all of them came to it."""

    def __init__(self, num_pipelines: int, num_stages: int) -> None:
        self.num_stages, self.num_pipelines = num_stages, num_pipelines
        self.said: dict[tuple[object, ...], dict[int, Any]] = {}

    def agreement(self, pipeline: int, stage: int) -> MeetingAgreement:
        return MeetingAgreement(self, pipeline, stage)

    def has_times_of(self, step: int) -> bool:
        """Return whether all ranks have come to exchange the times of a step."""
        keys = [("greatest", stage, step + 1) for stage in range(self.num_stages)]
        return all(len(self.said.get(key, {})) == self.num_pipelines for key in keys)


@dataclass
class MeetingAgreement:
    """One rank's part in the meeting."""

    meeting: Meeting
    pipeline: int
    stage: int
    counts: dict[str, int] = field(default_factory=dict[str, int])
    is_closed: bool = False

    @property
    def gather(self) -> Callable[[bytes], Pending[list[bytes]]] | None:
        return self.gathering if self.meeting.num_stages > 1 else None

    @property
    def greatest(self) -> Callable[[Sequence[float]], Pending[list[float]]] | None:
        return self.finding if self.meeting.num_pipelines > 1 else None

    def gathering(self, message: bytes) -> Pending[list[bytes]]:
        key = "gather", self.pipeline, self.count("gather")
        pending: Pending[list[bytes]] = self.pending(
            key, self.stage, message, self.meeting.num_stages, list
        )
        return pending

    def finding(self, numbers: Sequence[float]) -> Pending[list[float]]:
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
        reads_batch: bool = True,
        **rules: Any,  # noqa: ANN401
    ) -> None:
        self.part = part_of_stage(stage, meeting.num_stages, **rules)
        self.plan: CompiledPlan = compile_plan(self.part, stage=stage, supported_mhz=SUPPORTED_MHZ)
        self.key = PlanKey(self.part.version, self.part.plan_id)
        self.agreement = meeting.agreement(pipeline, stage)
        self.now_s = 0.0
        # Plans that come as packets, which the exchange takes.
        self.packets = deque[StepPlan]()
        self.exchange = StepExchange(
            self.agreement,
            ask=self.ask,
            take=self.take,
            first_step=0,
            stage=stage,
            rank_name=f"rank {pipeline}.{stage}",
            clock_s=lambda: self.now_s,
            timeout_s=timeout_s,
        )
        self.planner = StepPlanner(self.exchange, "rank", coupling, SUPPORTED_MHZ)
        self.planner.keep(self.part)
        if reads_batch:
            self.exchange.announce(0, LIGHT, None)

    def ask(self, question: StepLoad | StepDeadlines) -> bool:
        self.planner.ask(question)
        return True

    def take(self) -> bool:
        if not self.packets:
            return False
        self.exchange.step_planned(self.packets.popleft())
        return True

    def begin(self, step: int) -> None:
        self.exchange.begin(step, next_plan=self.key, last_mhz=HIGHEST_MHZ)

    def has_plan(self, step: int) -> bool:
        return step in self.exchange._plans

    def clocks(self, step: int) -> tuple[int, ...]:
        clocks_mhz = self.exchange.clocks(self.plan, step)
        assert clocks_mhz is not None
        return clocks_mhz


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
        for rank in ranks:
            assert rank.exchange._agreement is not rank.agreement or rank.agreement.is_closed
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
    *,
    deadline_ratio: float = 1.0,
    delays: ChangeDelays | None = None,
    **rules: Any,  # noqa: ANN401
) -> list[list[int]]:
    """Return per stage the clocks of a pipeline whose job has this slowest one."""
    pipeline = small_pipeline(num_stages, 2)
    places, _ = pipeline.dag.alike
    of_places = dict.fromkeys(places, COEFFICIENTS)
    highest_mhz = [HIGHEST_MHZ] * pipeline.dag.num_nodes
    retimed = pipeline.retimed(delays=delays, plan_mhz=highest_mhz)

    def factors(of: StepWork) -> list[float]:
        found = work_factors(pipeline.dag, of, of_places)
        assert found is not None
        return found

    slowest_s = max(own_times(retimed, factors(of))[0] for of in (work, slowest))
    mhz = retime(retimed, factors(work), [deadline_ratio * slowest_s], **rules)
    return [
        [mhz[node] for node, of in enumerate(pipeline.dag.stage) if of == stage]
        for stage in range(num_stages)
    ]


def test_pipelines_of_other_work_run_at_the_clocks_that_keep_the_slowest_ones_time() -> None:
    meeting = Meeting(2, 2)
    ranks = [Rank(meeting, pipeline, stage) for pipeline in (0, 1) for stage in (0, 1)]
    with running(*ranks):
        for rank, announced in zip(ranks, (LIGHT, LIGHT, HEAVY, HEAVY), strict=True):
            rank.exchange.announce(1, announced, None)
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
        work, report = ranks[0].exchange.end(1, ranks[0].key)
        assert work == light
        assert report is not None
        slack, lowest_mhz, highest_mhz, saved_j = report
        assert (lowest_mhz, highest_mhz) == (min(expected[0]), max(expected[0]))
        assert 0 < slack < 1
        assert saved_j > 0


def test_ranks_that_do_not_read_the_batch_get_its_work_and_the_plans_stretch_and_reserve() -> None:
    meeting = Meeting(1, 3)
    rules: dict[str, Any] = {"deadline_ratio": 1.3, "reserve": StepReserve(0.05, 0.0)}
    ranks = [Rank(meeting, 0, stage, reads_batch=stage != 1, **rules) for stage in range(3)]
    with running(*ranks):
        for step in range(1, 4):
            for rank in (ranks[0], ranks[2]):
                rank.exchange.announce(step, HEAVY, None)
            for rank in ranks:
                wait_until(partial(rank.has_plan, step))
            heavy = step_work(HEAVY)
            expected = expected_mhz(3, heavy, heavy, **rules)
            assert [list(rank.clocks(step)) for rank in ranks] == expected
            for rank in ranks:
                rank.begin(step)
                assert rank.exchange.end(step, rank.key)[0] == heavy


def test_lengths_that_a_pipelines_times_are_not_known_for_give_all_the_highest_clocks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """LIGHT has sums of 3 and 2, HEAVY of 7 and 5."""
    caplog.set_level(logging.WARNING, logger="flyball_client")
    meeting = Meeting(2, 2)
    ranks = [
        Rank(meeting, pipeline, stage, deadline_ratio=1.3, lengths_range=(2.0, 6.0))
        for pipeline in (0, 1)
        for stage in (0, 1)
    ]
    with running(*ranks):
        for rank, announced in zip(ranks, (LIGHT, LIGHT, HEAVY, HEAVY), strict=True):
            for step in (1, 2):
                rank.exchange.announce(step, announced, None)
            rank.exchange.announce(3, LIGHT, None)
        for step in (1, 2):
            wait_until(partial(meeting.has_times_of, step))
            for rank in ranks:
                rank.begin(step)
        wait_until(lambda: all(rank.has_plan(3) for rank in ranks))
        assert {mhz for rank in ranks for mhz in rank.clocks(2)} == {HIGHEST_MHZ}
        assert max(ranks[0].clocks(3)) < HIGHEST_MHZ
        # The planner learns of the lengths all the same.
        assert ranks[2].exchange.end(2, ranks[2].key)[0] == step_work(HEAVY)
    assert len(caplog.messages) == len(ranks[2:])  # once each


def test_clocks_that_come_after_the_step_before_has_ended_are_there_as_the_step_begins() -> None:
    # Alone, also with a pipeline of several stages.
    rank = Rank(Meeting(1, 2), 0, 0, deadline_ratio=1.2)
    rank.exchange._agreement = AloneAgreement()
    with running(rank):
        assert rank.clocks(1) == rank.plan.highest_mhz  # as step 0 ends: an epoch's last one
        rank.exchange.announce(1, HEAVY, None)
        wait_until(partial(rank.has_plan, 1))
        heavy = step_work(HEAVY)
        assert list(rank.clocks(1)) == expected_mhz(2, heavy, heavy, deadline_ratio=1.2)[0]
        rank.begin(1)
        work, report = rank.exchange.end(1, rank.key)
        assert work == heavy
        assert report is not None


@pytest.mark.parametrize("last_mhz", [HIGHEST_MHZ, 1000])
def test_the_clock_in_force_before_a_step_counts(last_mhz: int) -> None:
    delays = ChangeDelays(up_s=0.05, down_s=0.02)
    rank = Rank(Meeting(1, 1), 0, 0, deadline_ratio=1.1, delays=delays)
    with running(rank):
        rank.exchange.begin(0, next_plan=rank.key, last_mhz=last_mhz)
        rank.exchange.announce(1, HEAVY, None)
        wait_until(partial(rank.has_plan, 1))
        heavy = step_work(HEAVY)
        rules: dict[str, Any] = {"deadline_ratio": 1.1, "delays": delays}
        assert [list(rank.clocks(1))] == expected_mhz(
            1, heavy, heavy, in_force_mhz=[last_mhz], **rules
        )
        other_mhz = HIGHEST_MHZ + 1000 - last_mhz
        assert [list(rank.clocks(1))] != expected_mhz(
            1, heavy, heavy, in_force_mhz=[other_mhz], **rules
        )


def test_the_least_time_between_the_last_steps_counts_on_any_rank_of_the_pipeline() -> None:
    """A first clock that is requested so long before its step is in force as that begins."""
    delays = ChangeDelays(up_s=0.5, down_s=0.02)
    rules: dict[str, Any] = {"deadline_ratio": 1.1, "delays": delays}
    meeting = Meeting(1, 2)
    ranks = [Rank(meeting, 0, stage, **rules) for stage in (0, 1)]
    heavy = step_work(HEAVY)

    def run(step: int, gaps_s: Sequence[float]) -> list[list[int]]:
        """Return the clocks of a step, after gaps on both ranks."""
        for rank, gap_s in zip(ranks, gaps_s, strict=True):
            rank.exchange.learn(list, HIGHEST_MHZ)
            rank.now_s += gap_s
            rank.exchange.begin(step - 1, next_plan=rank.key, last_mhz=1000)
            rank.exchange.announce(step, HEAVY, None)
        wait_until(lambda: all(rank.has_plan(step) for rank in ranks))
        return [list(rank.clocks(step)) for rank in ranks]

    def expected(gap_s: float) -> list[list[int]]:
        return expected_mhz(2, heavy, heavy, in_force_mhz=[1000, 1000], gap_s=gap_s, **rules)

    distinct = [expected(gap_s) for gap_s in (0.0, 0.33, 0.38, 0.44)]
    assert all(one != other for one, other in itertools.combinations(distinct, 2))
    with running(*ranks):
        for step in range(1, 8):
            assert run(step, (0.33, 0.38)) == expected(0.0)  # too few steps have ended
        assert run(8, (0.33, 0.38)) == expected(0.33)
        for step in range(9, 16):
            run(step, (0.38, 0.44))
        assert run(16, (0.44, 0.44)) == expected(0.38)
        # Failed steps end without a request.
        for rank in ranks * 8:
            rank.exchange.begin(16, next_plan=rank.key, last_mhz=1000)
        assert run(17, (0.44, 0.44)) == expected(0.38)


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


def test_a_step_may_say_that_its_ranks_meet_elsewhere_or_who_knows_where() -> None:
    meeting = Meeting(2, 1)
    ranks = [Rank(meeting, pipeline, 0, coupling="backward") for pipeline in (0, 1)]
    with running(*ranks):
        highest_of = []
        couplings: list[Coupling | None] = [None, "step", "unknown", None]
        for step, coupling in enumerate(couplings, 1):
            # Rank 0 is as heavy as the other in the second microbatch, and lighter in sum.
            ranks[0].exchange.announce(step, [1.0, 3.0], coupling=coupling)
            ranks[1].exchange.announce(step, [3.0, 3.0], coupling=coupling)
            is_known = coupling != "unknown"
            for rank in ranks:
                refused = partial(bool, rank.planner._refused)
                wait_until(partial(rank.has_plan, step) if is_known else refused)
                assert rank.has_plan(step) == is_known
            highest_of.append(max(ranks[0].clocks(step)))
            for rank in ranks:
                rank.begin(step)
    assert highest_of[0] == highest_of[2] == highest_of[3] == HIGHEST_MHZ > highest_of[1]


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
        assert rank.exchange.end(1, PlanKey(2, None)) == (step_work(HEAVY), None)


def test_ranks_that_know_other_versions_have_no_plan_for_that_step_only() -> None:
    meeting = Meeting(2, 1)
    old, new = Rank(meeting, 0, 0, deadline_ratio=1.3), Rank(meeting, 1, 0, deadline_ratio=1.3)
    with running(old, new):
        new.exchange.begin(0, next_plan=PlanKey(2, None), last_mhz=HIGHEST_MHZ)
        for rank in (old, new):
            rank.exchange.announce(1, HEAVY, None)
        wait_until(lambda: 1 in old.exchange._works and 1 in new.exchange._works)
        for rank in (old, new):
            rank.begin(1)
            rank.exchange.announce(2, HEAVY, None)
        wait_until(lambda: old.has_plan(2) and new.has_plan(2))
        assert old.clocks(1) == old.plan.highest_mhz


def test_pipelines_with_other_versions_for_a_number_of_microbatches_have_no_plans_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, ask = list[StepLoad | StepDeadlines](), StepPlanner.ask

    def record(planner: StepPlanner, question: StepLoad | StepDeadlines) -> None:
        asked.append(question)
        ask(planner, question)

    monkeypatch.setattr(StepPlanner, "ask", record)
    meeting, three = Meeting(2, 1), [[4, 3], [5], [2]]
    ranks = [Rank(meeting, pipeline, 0, deadline_ratio=1.3) for pipeline in (0, 1)]
    with running(*ranks):
        for version, rank in enumerate(ranks, 2):
            rules: dict[str, Any] = {"num_microbatches": 3, "deadline_ratio": 1.3}
            rank.planner.keep(part_of_stage(0, 1, version=version, **rules))
            other_plans = {3: PlanKey(version, None)}
            rank.exchange.begin(
                0, next_plan=rank.key, other_plans=other_plans, last_mhz=HIGHEST_MHZ
            )
            rank.exchange.announce(1, three)
            rank.exchange.announce(2, HEAVY)
        wait_until(partial(meeting.has_times_of, 1))
        for rank in ranks:
            rank.begin(1)
        wait_until(lambda: all(rank.has_plan(2) for rank in ranks))
    assert [type(each) for each in asked if each.step == 1] == [StepLoad] * 2


@pytest.mark.parametrize("knows_it", [True, False])
def test_a_step_of_another_number_of_microbatches_has_the_plan_for_that(knows_it: bool) -> None:
    """Three in place of two; the second rank reads no batch."""
    meeting, three = Meeting(1, 2), [[4, 3], [5], [2]]
    ranks = [Rank(meeting, 0, stage, reads_batch=stage == 0) for stage in (0, 1)]
    key, plans = PlanKey(2, None), list[CompiledPlan]()
    with running(*ranks):
        for stage, rank in enumerate(ranks):
            rules: dict[str, Any] = {"num_microbatches": 3, "deadline_ratio": 1.3}
            part = part_of_stage(stage, 2, version=2, **rules)
            rank.planner.keep(part)
            plans.append(compile_plan(part, stage=stage, supported_mhz=SUPPORTED_MHZ))
            rank.exchange.begin(
                0,
                next_plan=rank.key,
                other_plans={3: key} if stage == 0 or knows_it else {},
                last_mhz=HIGHEST_MHZ,
            )
        ranks[0].exchange.announce(1, three, None)
        ranks[0].exchange.announce(2, HEAVY, None)
        wait_until(lambda: all(1 in rank.exchange._works for rank in ranks))
        if knows_it:
            wait_until(lambda: all(rank.has_plan(1) for rank in ranks))
        assert [rank.exchange.num_microbatches(1) for rank in ranks] == [3, 3]
        for rank, plan in zip(ranks, plans, strict=True):
            clocks_mhz = rank.exchange.clocks(plan, 1)
            assert clocks_mhz is not None
            assert len(clocks_mhz) == 6
            assert (min(clocks_mhz) < HIGHEST_MHZ) is knows_it
        # The next one has two again.
        for rank in ranks:
            rank.begin(1)
        wait_until(lambda: all(rank.has_plan(2) for rank in ranks))
        assert [rank.exchange.num_microbatches(2) for rank in ranks] == [2, 2]


@pytest.mark.parametrize(
    ("announces", "timeout_s", "why"),
    [(False, 0.2, "did not come within 0.2 s"), (True, 20.0, "different work for step 1")],
)
def test_ranks_that_cannot_agree_end_step_plans_with_one_line(
    announces: bool, timeout_s: float, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="flyball_client")
    meeting = Meeting(1, 2)
    ranks = [Rank(meeting, 0, stage, timeout_s=timeout_s) for stage in (0, 1)]
    with running(*ranks):
        ranks[0].exchange.announce(1, LIGHT, None)
        if announces:
            ranks[1].exchange.announce(1, HEAVY, None)
        wait_until(lambda: any(why in text for text in caplog.messages))
        for step in (2, 3):
            ranks[0].begin(step)
            assert ranks[0].clocks(step) == ranks[0].plan.highest_mhz
    of_rank = [text for text in caplog.messages if text.startswith("rank 0.0: steps have no plans")]
    assert len(of_rank) == 1


@pytest.mark.parametrize("num_pipelines", [1, 2])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_helper_that_does_not_answer_costs_a_plan_and_nothing_else(
    is_there: bool, num_pipelines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting = Meeting(num_pipelines, 1)
    rank, *others = (
        Rank(meeting, pipeline, 0, deadline_ratio=1.3) for pipeline in range(num_pipelines)
    )
    # One that is there has until the step begins.
    monkeypatch.setattr(rank.exchange, "_ask", lambda question: is_there)
    with running(rank, *others):
        for each in (rank, *others):
            each.exchange.announce(1, HEAVY, None)
        if not is_there or not others:
            wait_until(lambda: rank.exchange._step == 2)
        monkeypatch.setattr(rank.exchange, "_ask", rank.ask)
        for each in (rank, *others):
            each.begin(1)
            each.exchange.announce(2, HEAVY, None)
        wait_until(partial(rank.has_plan, 2))
        assert rank.clocks(1) == rank.plan.highest_mhz


@pytest.mark.parametrize("answers", [True, False])
def test_plans_that_come_after_their_steps_have_begun_are_told_once_they_are_many(
    answers: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, logger="flyball_client")
    rank = Rank(Meeting(1, 1), 0, 0, deadline_ratio=1.3)
    asked: list[StepLoad | StepDeadlines] = []

    def keep(question: StepLoad | StepDeadlines) -> bool:
        asked.append(question)
        return True

    monkeypatch.setattr(rank.exchange, "_ask", keep)

    def run_late(first: int, num: int) -> None:
        for step in range(first, first + num):
            rank.exchange.announce(step, HEAVY, None)
            wait_until(lambda: bool(asked))
            rank.begin(step)
            question = asked.pop()
            if answers:
                rank.exchange.step_planned(StepPlan(question.step, clocks_mhz=(1000,) * 4))
            assert rank.clocks(step) == rank.plan.highest_mhz

    with running(rank):
        run_late(1, 9)
        rank.exchange.announce(10, HEAVY, None)
        wait_until(lambda: bool(asked))
        rank.exchange.step_planned(StepPlan(9, clocks_mhz=(1000,) * 4))  # of an older question
        assert not rank.has_plan(9)
        rank.ask(asked.pop())
        wait_until(partial(rank.has_plan, 10))  # in time
        rank.begin(10)
        run_late(11, 9)
        assert not caplog.messages
        run_late(20, 4)
    assert [text.count("the clocks of 10 steps in a row") for text in caplog.messages] == [1]


@pytest.mark.parametrize("is_there", [True, False])
def test_steps_without_a_helper_or_that_it_refuses_are_not_late(
    is_there: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, logger="flyball_client")
    rank = Rank(Meeting(1, 1), 0, 0)

    def refuse(question: StepLoad | StepDeadlines) -> bool:
        if is_there:
            rank.begin(question.step)
            rank.exchange.step_planned(StepPlan(question.step))
        return is_there

    monkeypatch.setattr(rank.exchange, "_ask", refuse)
    with running(rank):
        for step in range(1, 15):
            rank.exchange.announce(step, HEAVY, None)
            wait_until(lambda: rank.exchange._step == step + 1)  # noqa: B023 - called at once
            rank.begin(step)
    assert not caplog.messages


@pytest.mark.parametrize(
    ("work", "slowest_s", "step", "coupling"),
    [
        ([[-1]], None, 1, None),
        (None, None, 1, None),
        ([10**400], None, 1, None),
        (LIGHT, "2", 1, None),
        (LIGHT, float("nan"), 1, None),
        (LIGHT, None, "1", None),
        (LIGHT, None, 1, "steps"),
    ],
)
def test_no_work_is_logged_once_and_raises_nothing(
    work: Any,  # noqa: ANN401
    slowest_s: Any,  # noqa: ANN401
    step: Any,  # noqa: ANN401
    coupling: Any,  # noqa: ANN401
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, logger="flyball_client")
    rank = Rank(Meeting(1, 1), 0, 0)
    for _ in range(3):
        rank.exchange.announce(step, work, slowest_s, coupling)
    assert ["work of step 1 is not used: " in text for text in caplog.messages] == [True]


def test_steps_may_be_announced_far_ahead_while_the_thread_takes_them() -> None:
    interval_s = sys.getswitchinterval()
    rank = Rank(Meeting(1, 2), 0, 0)
    asked: list[int] = []
    rank.exchange._agreement = Listening(asked)
    try:
        sys.setswitchinterval(1e-6)
        with running(rank):
            for step in range(1, 400):
                for ahead in range(4):
                    rank.exchange.announce(step + ahead, LIGHT, None)
                rank.begin(step)
            wait_until(lambda: 400 in asked)
            assert rank.exchange._thread.is_alive()
    finally:
        sys.setswitchinterval(interval_s)


class Listening(AloneAgreement):
    """Agreement of a pipeline's only rank that gathers all the same; whose steps are kept."""

    def __init__(self, steps: list[int]) -> None:
        self._steps = steps

    @property
    def gather(self) -> Callable[[bytes], Pending[list[bytes]]]:  # type: ignore[override]
        return self.gathering

    def gathering(self, message: bytes) -> Pending[list[bytes]]:
        self._steps.append(json.loads(message.partition(b"\n")[0])[0])

        class Gathered:
            def result(self) -> list[bytes]:
                return [message]

        return Gathered()


# ------------------------------------------------------------------ a rank that is alone


def clocks_of(step: int) -> tuple[int, ...]:
    """Return clocks that tell a step from others."""
    return (SUPPORTED_MHZ[1 + step % 2],) * 4


def rank_alone() -> tuple[Rank, list[int]]:
    """Return a rank that is alone, and the steps that it asks for."""
    rank, asked = Rank(Meeting(1, 1), 0, 0), list[int]()

    def ask(question: StepLoad | StepDeadlines) -> bool:
        asked.append(question.step)
        return True

    rank.exchange._ask = ask
    return rank, asked


@pytest.fixture
def alone() -> Iterator[tuple[Rank, list[int]]]:
    """The same, started."""
    rank, asked = rank_alone()
    with running(rank):
        assert rank.exchange._thread.ident is None
        yield rank, asked


def test_a_rank_alone_asks_in_its_hooks_for_the_next_step_once(
    alone: tuple[Rank, list[int]],
) -> None:
    rank, asked = alone
    for step in (1, 2, 3, 5, 5):  # announced far ahead, and one twice
        rank.exchange.announce(step, LIGHT, None)
    assert asked == [1]
    for step in range(1, 8):
        rank.begin(step)
    assert asked == [1, 2, 3, 5]
    rank.exchange.announce(6, LIGHT, None)  # too late
    rank.exchange.announce(20, LIGHT, None)
    rank.begin(19)  # steps in between were not told
    assert asked == [1, 2, 3, 5, 20]


def test_a_rank_alone_takes_plans_as_a_step_ends_and_as_it_begins(
    alone: tuple[Rank, list[int]],
) -> None:
    rank, _ = alone
    rank.exchange.announce(1, LIGHT, None)
    assert rank.clocks(1) == rank.plan.highest_mhz
    rank.packets.extend(StepPlan(step, clocks_of(step)) for step in (0, 1))  # the older one first
    assert rank.clocks(1) == clocks_of(1)
    rank.begin(1)
    assert rank.clocks(1) == clocks_of(1)
    rank.exchange.announce(2, LIGHT, None)
    rank.packets.append(StepPlan(2, clocks_of(2)))
    assert rank.clocks(2) == clocks_of(2)
    rank.packets.append(StepPlan(2, clocks_of(3)))  # another answer to the same question
    assert rank.clocks(2) == clocks_of(2)
    assert rank.packets


def test_a_question_that_fails_costs_its_step_alone_and_is_told_once(
    alone: tuple[Rank, list[int]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.WARNING, logger="flyball_client")
    rank, asked = alone
    ask = rank.exchange._ask

    def fail(question: StepLoad | StepDeadlines) -> bool:
        raise RuntimeError(f"a signal's handler in step {question.step}")

    monkeypatch.setattr(rank.exchange, "_ask", fail)
    rank.exchange.announce(1, [], None)  # is told for itself
    for step in range(1, 4):
        rank.exchange.announce(step, LIGHT, None)
        rank.begin(step)
    monkeypatch.setattr(rank.exchange, "_ask", ask)
    rank.exchange.announce(4, LIGHT, None)
    assert asked == [4]
    rank.packets.append(StepPlan(4, clocks_of(4)))
    assert rank.clocks(4) == clocks_of(4)
    of_work, of_question = caplog.messages
    assert "the work of step 1 is not used" in of_work
    assert "step 1 gets no plan of its own: a signal's handler in step 1" in of_question


def test_a_handler_that_announces_within_a_question_does_not_ask_again(
    alone: tuple[Rank, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rank, asked = alone

    def ask(question: StepLoad | StepDeadlines) -> bool:
        asked.append(question.step)
        rank.exchange.announce(question.step, LIGHT, None)
        return True

    monkeypatch.setattr(rank.exchange, "_ask", ask)
    rank.exchange.announce(1, LIGHT, None)
    assert asked == [1]


def test_other_work_voids_a_plan_that_is_still_on_its_way(alone: tuple[Rank, list[int]]) -> None:
    rank, asked = alone
    for work in (LIGHT, HEAVY):  # for both of the next steps
        rank.exchange.announce(1, work, None)
        rank.exchange.announce(2, work, None)
    assert asked == [1]
    rank.packets.append(StepPlan(1, clocks_of(1)))
    assert rank.clocks(1) == rank.plan.highest_mhz
    for step in (1, 2):
        rank.begin(step)
    rank.exchange.announce(3, HEAVY, None)
    rank.packets.append(StepPlan(3, clocks_of(3)))
    assert rank.clocks(3) == clocks_of(3)


def test_steps_that_the_helper_refuses_by_packets_are_not_late(
    alone: tuple[Rank, list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="flyball_client")
    rank, asked = alone
    for step in range(1, 15):
        rank.exchange.announce(step, LIGHT, None)
        rank.begin(step)
        rank.packets.append(StepPlan(step))
    assert asked == list(range(1, 15))
    assert not caplog.messages


def test_a_rank_alone_asks_for_what_was_announced_once_it_starts() -> None:
    rank, asked = rank_alone()
    rank.begin(0)
    rank.exchange.announce(1, LIGHT, None)
    assert asked == []
    rank.exchange.start()
    assert asked == [1]


def test_a_session_may_close_while_its_hook_asks(
    alone: tuple[Rank, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rank, asked = alone

    def close(question: StepLoad | StepDeadlines) -> bool:
        asked.append(question.step)
        rank.exchange.close()
        return False

    monkeypatch.setattr(rank.exchange, "_ask", close)
    rank.exchange.announce(1, LIGHT, None)
    rank.begin(1)
    rank.exchange.announce(2, LIGHT, None)
    assert asked == [1]


def test_other_work_for_a_step_and_a_failed_step_void_its_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rank = Rank(Meeting(1, 1), 0, 0, deadline_ratio=1.3)
    with running(rank):
        rank.exchange.announce(1, LIGHT, None)
        wait_until(partial(rank.has_plan, 1))
        rank.exchange.announce(1, HEAVY, None)
        assert rank.clocks(1) == rank.plan.highest_mhz
        rank.begin(1)
        assert rank.exchange.end(1, rank.key) == (step_work(HEAVY), None)
        rank.exchange.announce(2, LIGHT, None)
        wait_until(partial(rank.has_plan, 2))
        rank.exchange.void(2)
        assert rank.clocks(2) == rank.plan.highest_mhz
        # Also while its plan is made.
        rank.begin(2)
        asked: list[StepLoad | StepDeadlines] = []

        def void_first(question: StepLoad | StepDeadlines) -> bool:
            rank.exchange.void(3)
            asked.append(question)
            return rank.ask(question)

        monkeypatch.setattr(rank.exchange, "_ask", void_first)
        rank.exchange.announce(3, LIGHT, None)
        wait_until(lambda: rank.exchange._answered == 3)
        assert asked
        assert not rank.has_plan(3)


def test_work_is_posted_whatever_becomes_of_the_exchanges() -> None:
    rank = Rank(Meeting(1, 2), 0, 0, timeout_s=0.05)
    with running(rank):
        rank.exchange._asked = 1, rank.key
        wait_until(lambda: not rank.exchange._thread.is_alive())
        rank.packets.append(StepPlan(1, (1000,) * 4))
        assert rank.clocks(1) == rank.plan.highest_mhz
        rank.exchange.announce(1, HEAVY, None)
        rank.begin(1)
        assert rank.exchange.end(1, None) == (step_work(HEAVY), None)


def test_an_agreement_that_fails_to_close_is_left() -> None:
    class Stubborn(AloneAgreement):
        def close(self) -> None:
            raise RuntimeError("not now")

    rank = Rank(Meeting(1, 1), 0, 0)
    rank.exchange._agreement = Stubborn()
    rank.exchange.close()


def test_a_rank_that_is_slower_than_planned_gives_the_others_slack() -> None:
    meeting = Meeting(2, 1)
    quick, slow = (Rank(meeting, pipeline, 0) for pipeline in (0, 1))
    with running(quick, slow):
        for step in range(1, 8):
            for rank in (quick, slow):
                rank.exchange.announce(step, [1.0, 1.0], None)
            for rank, slowness in ((quick, 1.0), (slow, 1.25)):
                wait_until(partial(rank.has_plan, step))
                lowest_mhz = min(rank.clocks(step))
                assert (lowest_mhz < HIGHEST_MHZ) == (rank is quick and step > 5), step
                run(rank, step, [1.0, 1.0], slowness=slowness)
        # What another plan assumes is not known yet.
        assert slow.exchange._slowness.of(PlanKey(2, None)) == Slowness()


def test_times_at_lower_clocks_raise_clocks_and_move_no_deadline() -> None:
    meeting = Meeting(2, 1)
    light, heavy = (Rank(meeting, pipeline, 0) for pipeline in (0, 1))
    rose: list[float] = []
    with running(light, heavy):
        for step in range(1, 20):
            for rank, factor in ((light, 0.8), (heavy, 1.0)):
                rank.exchange.announce(step, [factor, factor], None)
            for rank, factor in ((light, 0.8), (heavy, 1.0)):
                wait_until(partial(rank.has_plan, step))
                if rank is heavy:
                    assert set(rank.clocks(step)) == {HIGHEST_MHZ}
                else:
                    rose.append(sum(rank.clocks(step)))
                # At lower clocks the light one is 15 % slower than its curve says.
                run(rank, step, [factor, factor], at_lower=1.15)
    assert min(rose[6:]) > max(rose[:5])


def run(
    rank: Rank, step: int, factors: Sequence[float], *, slowness: float = 1.0, at_lower: float = 1.0
) -> None:
    """Run a step whose instructions take these factors of their times by clock."""
    curves = {"forward": FORWARD, "backward": BACKWARD}
    times_s = [
        slowness
        * factors[microbatch]
        * next(point.time_s for point in curves[kind] if point.clock_mhz == mhz)
        * (1.0 if mhz == HIGHEST_MHZ else at_lower)
        for kind, microbatch, mhz in zip(
            rank.plan.kinds, rank.plan.microbatches, rank.clocks(step), strict=True
        )
    ]
    rank.begin(step)
    rank.exchange.end(step, rank.key)
    rank.exchange.learn(lambda: times_s, HIGHEST_MHZ)


def test_of_questions_that_have_piled_up_the_newest_is_answered() -> None:
    answered: list[int] = []

    class Asking:
        def step_timed(self, step: int, times_s: tuple[float, ...]) -> None:
            assert not times_s  # it has no such version
            answered.append(step)

        def step_planned(self, plan: StepPlan) -> None:
            raise AssertionError(plan)

    planner = StepPlanner(Asking(), "rank", "step", SUPPORTED_MHZ)
    for step in range(5):
        planner.ask(StepLoad(step, PlanKey(1, None), ((1.0,),), (1.0,), 0.0))
    planner.start()
    wait_until(lambda: bool(answered))
    planner.stop(1.0)
    assert answered == [4]
