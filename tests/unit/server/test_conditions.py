"""Plans that were made under other conditions of the GPUs are not run silently."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import count
from types import SimpleNamespace

import pytest
from tests.planner.one_rank import register_rank, store_measurements, take_up
from tests.planner.running import two_stages
from tests.planner.samples import MOMENT, job_services, job_spec, rank_record, step_record
from tests.planner.use_cases import change_target, put_profile, register_job

from flyball_profiles.gpu_conditions import GpuConditions
from flyball_profiles.stage_profile import StageProfile
from flyball_server.http.mapping import rank_post
from flyball_server.jobs.conditions import reconciler
from flyball_server.jobs.conditions.changes import (
    ProfiledConditions,
    changed_ranks,
    stage_conditions,
)
from flyball_server.jobs.conditions.reconciler import (
    SETTLE_S,
    SHORTEST_PERIOD_S,
    ConditionsReconciler,
)
from flyball_server.jobs.measurements.measurements import store_together
from flyball_server.jobs.reconcile.plans import PlanReconciler
from flyball_server.jobs.reconcile.probes import ProbeReconciler
from flyball_server.jobs.registry.inspection import get_job, get_plan, get_profile, notes
from flyball_server.jobs.registry.launch import Launch
from flyball_server.views.job_power import get_power
from flyball_wire.measurements import MeasurementBatch, StepMeasurement
from flyball_wire.messages import JobState, Profiling
from flyball_wire.plan_options import TargetChange
from flyball_wire.targets import LIMIT_TARGET

H100 = GpuConditions(
    power_limit_w=700.0, default_power_limit_w=700.0, power_profile="none", driver="580.1"
)
# The profile draws 327 W at its highest clock.
CAPPED = replace(H100, power_limit_w=330.0)
LINE = "ranks 0 and 1: power limit 330 W (profiled: 700 W)"
UNTIL_SENT = "until that is restored, or a profile measured under it is sent"


def under(conditions: GpuConditions | None) -> StageProfile:
    """The profile of two stages, measured under these conditions."""
    return replace(two_stages(), conditions=(conditions, conditions))


@pytest.fixture(autouse=True)
def _time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read of the monotonic clock is a period later."""
    moments = count(0.0, SHORTEST_PERIOD_S)
    monkeypatch.setattr(reconciler, "time", SimpleNamespace(monotonic=lambda: next(moments)))


class Conditioned:
    """A job of two ranks whose GPUs' conditions change."""

    def __init__(self, profile: StageProfile | None = None, **options: object) -> None:
        self.now = MOMENT
        self.services = job_services(now=lambda: self.now)
        self.options: dict[str, object] = {"effort": "low", "emulated": False} | options
        register_job(self.services, "job", job_spec(**self.options))
        if profile is not None:
            put_profile(self.services, "job", profile)
        self._reconciler = ConditionsReconciler()
        self.step = 0

    def register(self, conditions: GpuConditions | None) -> None:
        for rank in (0, 1):
            record = rank_record(rank, emulated=False, conditions=conditions)
            register_rank(self.services, record)

    def post(self, rank: int, conditions: GpuConditions | None) -> None:
        """A measured step, with what was read after it."""
        self.step += 1
        step = StepMeasurement(
            step=self.step, plan_version=None, time_s=1.0, energy_j=9.0, conditions=conditions
        )
        post = rank_post("job", rank, MeasurementBatch(steps=(step,)))
        store_together(self.services, "job", [post])

    def react(self) -> float | None:
        wait_s = self._reconciler(self.services, "job")
        PlanReconciler()(self.services, "job")
        return wait_s

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @property
    def newest(self) -> int:
        return get_job(self.services, "job").newest_version or 0

    @property
    def policy(self) -> str:
        return get_plan(self.services, "job", self.newest).plan.policy

    @property
    def target(self) -> str:
        return get_plan(self.services, "job", self.newest).plan.target

    @property
    def drawn_w(self) -> float:
        plan = get_plan(self.services, "job", self.newest).plan
        return plan.predicted.energy_j / plan.iteration_time_s

    @property
    def state(self) -> JobState:
        return get_job(self.services, "job").job.state

    @property
    def notes(self) -> list[str]:
        found = notes(self.services, get_job(self.services, "job"))
        return [line for line in found if "profiled: " in line]


@pytest.fixture
def job() -> Iterator[Conditioned]:
    made = Conditioned(under(H100))
    made.register(H100)
    yield made


def test_a_lowered_limit_in_mid_run_ends_the_plan_until_it_is_restored(job: Conditioned) -> None:
    assert job.react() is None
    job.post(0, replace(H100, power_limit_w=699.9))  # as it is rounded
    job.react()
    assert (job.newest, job.policy, job.notes) == (1, "frontier", [])
    job.post(0, CAPPED)
    job.post(0, None)  # tells nothing new
    job.react()
    assert (job.newest, job.policy) == (2, "baseline")
    job.post(1, CAPPED)
    job.react()
    assert job.newest == 2, "the highest clocks already"
    assert job.notes == [f"{LINE}; the highest clocks are kept {UNTIL_SENT}"]
    for rank in (0, 1):
        job.post(rank, H100)
    job.react()
    assert (job.newest, job.policy, job.notes) == (3, "frontier", [])


def test_a_driver_or_a_limit_far_above_what_is_drawn_is_noted_and_the_plan_stays(
    job: Conditioned,
) -> None:
    for rank in (0, 1):
        job.post(rank, replace(H100, driver="590.2", power_limit_w=400.0))
    job.react()
    assert (job.newest, job.policy) == (1, "frontier")
    assert job.notes == [
        "ranks 0 and 1: power limit 400 W (profiled: 700 W); noted only, the plan is kept",
        "ranks 0 and 1: driver 590.2 (profiled: 580.1); noted only, the plan is kept",
    ]


def test_what_is_not_known_is_no_change() -> None:
    job = Conditioned(under(None))
    job.register(CAPPED)
    job.react()
    assert (job.newest, job.policy, job.notes) == (1, "frontier", [])
    other = Conditioned(under(H100))
    other.register(None)
    other.react()
    assert (other.newest, other.policy, other.notes) == (1, "frontier", [])


def test_a_target_of_power_keeps_its_plan_and_says_so() -> None:
    job = Conditioned(under(H100), target="power:400")
    job.register(CAPPED)
    job.react()
    assert job.policy == "frontier"
    assert job.notes == [
        f"{LINE}; the plan is kept for its power, and its time does not hold {UNTIL_SENT}"
    ]


def test_a_budget_of_limits_follows_them_as_they_move() -> None:
    """Two GPUs; what the plan may draw on average is what their limits let them, together."""
    job = Conditioned(two_stages(), target=LIMIT_TARGET)
    assert job.target == "fastest", "no limit is known yet"
    job.register(replace(H100, power_limit_w=None))
    job.react()
    note = (
        "target power:limit: the power limits of ranks 0 and 1 are not known; those of the profile"
        " count, or none"
    )
    assert note in notes(job.services, get_job(job.services, "job"))
    job.register(replace(H100, power_limit_w=250.0))
    job.react()
    assert job.target == "power:500"
    assert job.drawn_w <= 500
    job.post(0, replace(H100, power_limit_w=200.0))
    job.react()
    assert job.target == "power:450"
    version = job.newest
    job.post(0, replace(H100, power_limit_w=200.5))
    job.react()
    assert job.newest == version, "rounded"
    assert note not in notes(job.services, get_job(job.services, "job"))


def test_a_budget_of_limits_begins_with_those_of_the_profile() -> None:
    job = Conditioned(under(CAPPED), target=LIMIT_TARGET)
    assert job.target == "power:660"
    change_target(job.services, "job", TargetChange(target="fastest"))
    job.register(replace(CAPPED, power_limit_w=327.5))
    job.react()
    assert job.target == "fastest"
    change_target(job.services, "job", TargetChange(target=LIMIT_TARGET))
    assert job.target == "power:655", "of the ranks, which had been read before"


def test_planned_watts_are_those_of_each_ranks_gpu() -> None:
    job = Conditioned(
        replace(under(H100), num_ranks_per_stage=(1, 2)), num_ranks=3, target="power:500"
    )
    for rank, stage in enumerate((0, 1, 1)):
        record = rank_record(rank, stage=stage, dp_rank=rank // 2, emulated=False, conditions=H100)
        register_rank(job.services, record)
    found = get_power(job.services, "job")
    assert (found.version, found.target, found.power_limit_w) == (1, "power:500", 2100.0)
    planned_w = [rank.planned_power_w or 0.0 for rank in found.ranks]
    assert planned_w[1] == planned_w[2]
    assert sum(planned_w) == pytest.approx(job.drawn_w)
    assert found.planned_power_w == pytest.approx(job.drawn_w)
    register_rank(job.services, rank_record(2, stage=1, dp_rank=1, emulated=False))
    assert get_power(job.services, "job").power_limit_w is None


def test_without_a_plan_no_watts_are_planned() -> None:
    job = Conditioned()
    job.register(H100)
    found = get_power(job.services, "job")
    assert (found.version, found.planned_power_w, found.power_limit_w) == (None, None, 1400.0)
    assert [rank.planned_power_w for rank in found.ranks] == [None, None]


def test_a_profile_for_the_present_conditions_is_planned_from(job: Conditioned) -> None:
    """Two profiles were sent: the plan is always from that which the GPUs' conditions are of."""
    slower = replace(two_stages(1.05), conditions=(CAPPED, CAPPED))
    put_profile(job.services, "job", slower)
    job.react()
    assert get_profile(job.services, "job") == under(H100), "the one sent first fits, not the last"
    for rank in (0, 1):
        job.post(rank, CAPPED)
    job.react()
    assert get_profile(job.services, "job") == slower
    assert (job.policy, job.notes) == ("frontier", [])
    for rank in (0, 1):
        job.post(rank, H100)
    job.react()
    assert get_profile(job.services, "job") == under(H100)
    assert (job.policy, job.notes) == ("frontier", [])


def test_a_profile_that_is_sent_is_planned_from_at_once_if_it_is_of_the_present_conditions(
    job: Conditioned,
) -> None:
    for rank in (0, 1):
        job.post(rank, CAPPED)
    job.react()
    put_profile(job.services, "job", under(replace(H100, power_limit_w=200.0)))
    assert job.policy == "baseline"
    assert job.notes[0].startswith("ranks 0 and 1: power limit 330 W (profiled: 200 W); ")
    put_profile(job.services, "job", under(CAPPED))
    assert (job.policy, job.notes) == ("frontier", [])
    version = job.newest
    job.react()
    assert job.newest == version


def test_profiles_are_kept_for_the_next_run(job: Conditioned) -> None:
    slower = replace(two_stages(1.05), conditions=(CAPPED, CAPPED))
    put_profile(job.services, "job", slower)
    job.pass_time(86_400.0)  # all ranks are gone
    register_job(job.services, "job", job_spec(**job.options, num_microbatches=3), Launch())
    assert get_profile(job.services, "job") == slower
    job.register(H100)
    job.react()
    assert get_profile(job.services, "job") == under(H100)


def test_a_job_profiled_online_is_measured_again_once_a_change_has_held() -> None:
    job = Conditioned(profiling=Profiling.ONLINE)
    job.register(H100)
    put_profile(job.services, "job", under(H100))
    job.react()
    assert job.policy == "frontier"
    for rank in (0, 1):
        job.post(rank, CAPPED)
    assert job.react() == SETTLE_S
    assert (job.newest, job.policy) == (2, "baseline")
    assert job.notes == [
        f"{LINE}; the highest clocks are kept until the job has been measured again"
    ]
    job.pass_time(SETTLE_S - 50)
    for rank in (0, 1):
        job.post(rank, replace(CAPPED, power_limit_w=250.0))
    assert job.react() == SETTLE_S, "a limit that moves on is waited for"
    job.pass_time(SETTLE_S)
    assert job.react() is None
    assert job.state == JobState.AWAITING_PROFILE
    with job.services.store.reading() as reader:
        assert not reader.has_profile("job")
        assert reader.find_loop_state("job").profiling is None
    for rank in (0, 1):  # the limit is restored while it waits
        job.post(rank, H100)
    job.react()
    assert get_profile(job.services, "job") == under(H100)
    assert (job.state, job.policy) == (JobState.PLANNED, "frontier")


def test_a_job_that_is_measured_again_is_probed_under_the_new_conditions() -> None:
    job = Conditioned(profiling=Profiling.ONLINE, num_microbatches=8)
    job.register(H100)
    put_profile(job.services, "job", under(H100))
    for rank in (0, 1):
        job.post(rank, CAPPED)
    job.react()
    job.pass_time(SETTLE_S)
    job.react()
    for rank in (0, 1):
        record = rank_record(
            rank, emulated=False, conditions=CAPPED, sm_clocks_mhz=(1400, 1300, 1200, 1100)
        )
        register_rank(job.services, record)
    first_step = take_up(job.services, (0, 1), version=job.newest, current_step=job.step)
    for rank in (0, 1):
        step = step_record(first_step, rank, plan_version=job.newest)
        store_measurements(job.services, "job", rank, [step])
    ProbeReconciler()(job.services, "job")
    assert job.state == JobState.PROFILING
    assert get_plan(job.services, "job", job.newest).plan.is_probe


def test_a_measured_profile_is_of_what_all_ranks_of_a_stage_have_in_common() -> None:
    ranks = [
        rank_record(0, conditions=H100),
        rank_record(1, conditions=H100),
        rank_record(2, stage=1, conditions=CAPPED),
    ]
    assert stage_conditions(ranks, 2) == (H100, CAPPED), "the lowest limit of stage 1"
    ranks.append(rank_record(3, stage=0))
    assert stage_conditions(ranks, 2)[0] is None


def test_of_the_limits_of_a_stage_the_lowest_counts() -> None:
    """Its slowest GPU decides when an iteration ends."""
    profiled = ProfiledConditions.of(under(CAPPED))
    assert profiled is not None

    def changed(*limits_w: float | None) -> list[str]:
        ranks = [
            rank_record(number, stage=0, conditions=replace(H100, power_limit_w=limit_w))
            for number, limit_w in enumerate(limits_w)
        ]
        return [str(one) for one in changed_ranks(profiled, ranks) if one.is_of_work]

    of = " W (profiled: 330 W)"
    assert changed(330.0, 700.0) == changed(330.0, 331.0) == []
    assert changed(700.0, 400.0) == [f"rank 1: power limit 400{of}"]
    assert changed(700.0, 700.0) == [f"ranks 0 and 1: power limit 700{of}"]
    assert changed(200.0, 330.0) == changed(200.0, None) == [f"rank 0: power limit 200{of}"]
    both = [f"rank 0: power limit 200{of}", f"rank 1: power limit 250{of}"]
    assert changed(200.0, 250.0) == both, "each lowered limit counts"
    assert changed(700.0, None) == [], "it may be the lowest"


def test_ranks_that_have_left_do_not_count() -> None:
    profiled = ProfiledConditions.of(under(H100))
    ranks = [rank_record(0, conditions=CAPPED, has_left=True), rank_record(1, conditions=CAPPED)]
    assert [one.ranks for one in changed_ranks(profiled, ranks)] == [(1,)]
