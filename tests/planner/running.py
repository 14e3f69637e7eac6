"""A job of one or more pipelines that runs step after step, over a store in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache

from tests.planner.one_rank import register_rank, store_posts, take_up
from tests.planner.samples import job_services, job_spec, rank_record, step_record
from tests.planner.solved_once import plan_once
from tests.planner.use_cases import put_profile, register_job

from flyball_profiles.stage_profile import StageProfile
from flyball_profiles.stage_profile_csv import parse_stage_profile
from flyball_server.jobs.findings.announcements import announce_straggler
from flyball_server.jobs.findings.step_ratios import clock_times
from flyball_server.jobs.findings.stragglers import StragglerReconciler
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.measurements.measurements import RankPost
from flyball_server.jobs.reconcile.plans import PlanReconciler
from flyball_server.jobs.records import PlanRecord
from flyball_server.jobs.step_records import StepDetail
from flyball_server.jobs.versions.rank_plans import rank_instructions
from flyball_server.planning.planner import PlanRequest
from flyball_wire.closed_loop import StragglerAnnouncement
from flyball_wire.plan_options import Policy
from flyball_wire.plans.plan import Plan

NUM_STAGES, NUM_MICROBATCHES = 2, 4
Factor = Callable[[int], float]
"""rank -> how many times as long its instructions take."""


@cache
def two_stages(factor: float = 1.0) -> StageProfile:
    """Forward 0.1 s and backward 0.2 s at 1400 MHz; a slower clock saves energy."""
    rows = [
        f"{stage},{kind},{mhz},{factor * time_s * 1400 / mhz:.6f},{time_s * mhz**2 / 6e3}"
        for stage in range(NUM_STAGES)
        for kind, time_s in (("forward", 0.1), ("backward", 0.2))
        for mhz in (1400, 1300, 1200, 1100)
    ]
    return parse_stage_profile("stage,instruction,frequency,time,energy\n" + "\n".join(rows) + "\n")


@dataclass
class Running:
    """A job that runs step after step, on a clock that stands until it is set.

    Attributes:
        requests: that plans without paces were made for.
    """

    num_pipelines: int = 1
    adaptation: str = "announced"
    effort: str = "normal"
    policy: Policy = Policy.FRONTIER
    target: str = "fastest"
    now: datetime = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
    pacing: StragglerReconciler = field(default_factory=StragglerReconciler)
    step: int = 0

    def __post_init__(self) -> None:
        self.requests: list[PlanRequest] = []
        self.services = job_services(now=lambda: self.now, planner=self._planned)
        num_ranks = NUM_STAGES * self.num_pipelines
        spec = job_spec(
            num_microbatches=NUM_MICROBATCHES,
            num_ranks=num_ranks,
            adaptation=self.adaptation,
            effort=self.effort,
            policy=self.policy,
            target=self.target,
        )
        register_job(self.services, "job", spec)
        self.ranks = [
            rank_record(rank, stage=rank % NUM_STAGES, dp_rank=rank // NUM_STAGES)
            for rank in range(num_ranks)
        ]
        for rank in self.ranks:
            register_rank(self.services, rank)
        put_profile(self.services, "job", two_stages())
        self.acknowledged()

    def _planned(self, request: PlanRequest) -> Plan:
        self.requests.append(request)
        return plan_once(request)

    @property
    def loop_state(self) -> JobLoopState:
        with self.services.store.reading() as reader:
            return reader.find_loop_state("job")

    @property
    def newest(self) -> PlanRecord:
        with self.services.store.reading() as reader:
            plan = reader.newest_plan("job")
        assert plan is not None
        return plan

    @property
    def plan(self) -> Plan:
        plan = self.newest.plan
        assert not plan.is_probe
        return plan

    def react(self) -> float | None:
        """Look once, and plan for what was found; in how many seconds to look again."""
        self.pacing(self.services, "job")
        return PlanReconciler()(self.services, "job")

    def acknowledged(self) -> None:
        """All ranks have the newest version, and are at its first step."""
        ranks = (rank.rank for rank in self.ranks)
        version = self.newest.version
        self.step = take_up(self.services, ranks, version=version, current_step=self.step)

    def settle(self) -> None:
        """React and acknowledge until nothing new comes of it."""
        for _ in range(4):
            version = self.newest.version
            self.react()
            if self.newest.version == version:
                return
            self.acknowledged()
        raise AssertionError("the job is planned again and again")

    def run(self, num_steps: int, factor: Factor = lambda rank: 1.0, **changes: int) -> None:
        """Steps on the newest plan, each looked at."""
        for _ in range(num_steps):
            self.post(factor, **changes)
            self.react()

    def run_unseen(self, num_steps: int, factor: Factor) -> None:
        """Steps on the newest plan, looked at after the last."""
        for _ in range(num_steps):
            self.post(factor)
        self.react()

    def post(self, factor: Factor, **changes: int) -> None:
        """One step of all ranks, at the clocks of the newest plan."""
        record, profile = self.newest, two_stages()
        posts: list[RankPost] = []
        for rank in self.ranks:
            times_s = clock_times(profile, rank.stage)
            counts = Counter(
                (str(item.kind), item.chunk, item.frequency_mhz)
                for item in rank_instructions(record.plan, rank)
            )
            rows = tuple(
                (*key, count, times_s[key] * factor(rank.rank), 0.0)
                for key, count in counts.items()
            )
            step = step_record(self.step, rank.rank, plan_version=record.version, **changes)
            detail = StepDetail(job_id="job", rank=rank.rank, step=self.step, by_clock=rows)
            posts.append(RankPost(rank=rank.rank, steps=(step,), details=(detail,)))
        store_posts(self.services, posts)
        self.step += 1

    def announce(
        self,
        rank: int,
        slowdown: float,
        *,
        after_s: float | None = None,
        for_s: float | None = None,
    ) -> None:
        """A straggler from some seconds on, and for so long."""
        from_time = self.now + timedelta(seconds=after_s or 0.0)
        until_time = None if for_s is None else from_time + timedelta(seconds=for_s)
        announce_straggler(
            self.services,
            "job",
            StragglerAnnouncement(
                rank=rank,
                slowdown=slowdown,
                from_time=None if after_s is None else from_time.isoformat(),
                until_time=None if until_time is None else until_time.isoformat(),
            ),
        )

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def slow(rank: int, slowdown: float) -> Factor:
    return lambda one: slowdown if one == rank else 1.0
