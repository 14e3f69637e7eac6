"""The jobs on the dashboard's pictures: emulated GPUs that train in virtual time at a real planner.

Nothing is made up: each step was run by emulated GPUs, with noise, and posted by their sessions.
Which profiles these GPUs have, and what is behind them, stands in `profiles/flyball_profiles` and
`benchmarks/fitted_models.py`, so that folder is in PYTHONPATH.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from docs.scripts.reading_governor import ReadingGovernor
from tests.planner.emulated_ranks import (
    LINK_TIMES,
    EmulatedTraining,
    one_forward_one_backward,
)
from tests.planner.patience import PATIENCE_S

from fitted_models import load_fitted_model
from flyball_client import EmulatedGpu, PlannerClient, RankSession
from flyball_client.gpu.emulated import IDEAL_GPU, LeapingClock
from flyball_lab.emulation.emulated_pipeline import EmulatedRank
from flyball_profiles.examples import load_example_profile
from flyball_profiles.stage_profile import StageProfile
from flyball_profiles.stage_profile_csv import write_stage_profile
from flyball_wire.closed_loop import ComparisonRequest, Straggler
from flyball_wire.messages import Adaptation, JobRegistration, Profiling
from flyball_wire.plan_options import TargetChange

NOISE = 0.01
# Of the shipped example, on A100; the others bring theirs.
A100_BLOCKING_POWER_W = 83.64
CHOSEN, SLOWED, PROFILED = "gpt3-175b", "megatron-1.3b", "megatron-760m"
STEADY, ENDED = "gpt-350m", "bert-1.3b"
SLOW_STAGE, SLOWDOWN = 2, 1.12
# The slowest one, which runs at its highest clock.
CAPPED_STAGE, CAP_MHZ = 7, 1320


@dataclass(frozen=True, kw_only=True)
class ShownJob:
    """Training settings of one job.

    Attributes:
        gpu: for the GPUs' name.
        profile: what its emulated GPUs take.
    """

    job_id: str
    gpu: str
    profile: StageProfile
    blocking_power_w: float
    num_microbatches: int

    def registration(self, *, profiling: Profiling = Profiling.GIVEN) -> JobRegistration:
        """Its plan follows what is measured."""
        is_given = profiling == Profiling.GIVEN
        return JobRegistration(
            num_stages=self.profile.num_stages,
            num_microbatches=self.num_microbatches,
            blocking_power_w=(self.blocking_power_w,) if is_given else None,
            adaptation=Adaptation.FRONTIER,
            profiling=profiling,
            emulated=True,
        )


def example_job() -> ShownJob:
    """GPT-3 175B on eight A100."""
    return ShownJob(
        job_id=CHOSEN,
        gpu="A100",
        profile=load_example_profile(),
        blocking_power_w=A100_BLOCKING_POWER_W,
        num_microbatches=12,
    )


def fitted_job(job_id: str, model: str, gpu: str, num_microbatches: int) -> ShownJob:
    """A model of EnvPipe's evaluation."""
    fitted = load_fitted_model(model)
    return ShownJob(
        job_id=job_id,
        gpu=gpu,
        profile=fitted.profile,
        blocking_power_w=fitted.blocking_power_w,
        num_microbatches=num_microbatches,
    )


@contextmanager
def shown_jobs(planner_url: str, say: Callable[[str], None]) -> Iterator[None]:
    """All jobs, trained as far as they are shown; in the block their ranks are still there."""
    with ExitStack() as running:
        for show in (_show_ended, _show_steady, _show_profiled, _show_slowed, _show_chosen):
            show(planner_url, running, say)
        yield


def _show_chosen(planner_url: str, running: ExitStack, say: Callable[[str], None]) -> None:
    """A job that has measured what it saves, and was given another target since."""
    say(f"{CHOSEN}: training, comparing, another target")
    training = running.enter_context(emulated_job(planner_url, example_job()))
    training.train(24)
    _put_profile(training, example_job())
    training.train_until_newest_in_force()
    training.train(40)
    training.planner.put_comparison(CHOSEN, ComparisonRequest(num_pairs=24))
    training.train_until(
        lambda: training.planner.get_comparison(CHOSEN).state == "done", max_steps=400
    )
    training.train_until_newest_in_force()
    training.train(30)
    for target, num_steps in (("slowdown:0.04", 60), ("fastest", 120)):
        training.planner.put_target(CHOSEN, TargetChange(target=target))
        training.train_until_newest_in_force()
        training.train(num_steps)
    training.await_measured()


def _show_slowed(planner_url: str, running: ExitStack, say: Callable[[str], None]) -> None:
    """A job of which one GPU has become slow, and one is held down by its power limit."""
    say(f"{SLOWED}: training, a slow GPU, one that is capped")
    job = fitted_job(SLOWED, "megatron-1.3b-pp8", "V100", 32)
    training = running.enter_context(emulated_job(planner_url, job))
    training.train(16)
    _put_profile(training, job)
    training.train_until_newest_in_force()
    training.train(50)
    training.gpus[SLOW_STAGE].set_slowdown(SLOWDOWN)
    training.train(40)
    training.train_until_newest_in_force()
    capped = training.gpus[CAPPED_STAGE]
    limit_w = _power_limit_w(job)
    for num_held_down in (3, 2, 4):
        training.train(9)
        capped.set_power_limit_w(limit_w)
        training.train(num_held_down)
        capped.set_power_limit_w(None)
    training.train(12)
    capped.set_power_limit_w(limit_w)
    training.train_until(lambda: len(_in_force(training)) > 1, max_steps=80)
    _train_on_last_version(training, 30)
    training.await_measured()


def _power_limit_w(job: ShownJob) -> float:
    """Return the limit in W that no instruction of the capped stage exceeds at CAP_MHZ."""
    return max(
        point.energy_j / point.time_s
        for (stage, _), points in job.profile.points.items()
        if stage == CAPPED_STAGE
        for point in points
        if point.frequency_mhz <= CAP_MHZ
    )


def _train_on_last_version(training: EmulatedTraining, num_steps: int) -> None:
    """Train until no other version has come for so many steps."""
    version = 0
    while version != training.newest_version():
        version = training.train_until_newest_in_force()
        training.train(num_steps)


def _in_force(training: EmulatedTraining) -> list[Straggler]:
    stragglers = training.planner.list_stragglers(training.job_id)
    return [straggler for straggler in stragglers if straggler.is_planned]


def _show_profiled(planner_url: str, running: ExitStack, say: Callable[[str], None]) -> None:
    """A job that is being measured in its own training."""
    say(f"{PROFILED}: profiling")
    job = fitted_job(PROFILED, "megatron-760m", "RTX 3090", 24)
    training = running.enter_context(emulated_job(planner_url, job, profiling=Profiling.ONLINE))
    training.train_until(lambda: training.newest_version() >= 2, max_steps=60)
    training.train_until_newest_in_force(max_steps=100)
    training.train(8)
    training.await_measured()


def _show_steady(planner_url: str, running: ExitStack, say: Callable[[str], None]) -> None:
    """A job that may take a little longer."""
    say(f"{STEADY}: training")
    job = fitted_job(STEADY, "gpt-350m", "RTX 3090", 8)
    training = running.enter_context(emulated_job(planner_url, job))
    training.train(24)
    training.planner.put_target(STEADY, TargetChange(target="slowdown:0.02"))
    _put_profile(training, job)
    training.train_until_newest_in_force()
    training.train(60)
    training.await_measured()


def _show_ended(planner_url: str, running: ExitStack, say: Callable[[str], None]) -> None:
    """A job that is over."""
    del running
    say(f"{ENDED}: training to its end")
    job = fitted_job(ENDED, "bert-1.3b", "RTX 3090", 16)
    with emulated_job(planner_url, job) as training:
        training.train(24)
        _put_profile(training, job)
        training.train_until_newest_in_force()
        training.train(120)
        training.await_measured()


def _put_profile(training: EmulatedTraining, job: ShownJob) -> None:
    training.planner.put_profile_csv(job.job_id, write_stage_profile(job.profile))


@contextmanager
def emulated_job(
    planner_url: str, job: ShownJob, *, profiling: Profiling = Profiling.GIVEN
) -> Iterator[EmulatedTraining]:
    """Its ranks, which follow the planner until the block ends."""
    orders = one_forward_one_backward(job.profile.num_stages, job.num_microbatches)
    with ExitStack() as opened:
        planner = opened.enter_context(PlannerClient(planner_url, timeout_s=PATIENCE_S))
        planner.put_job(job.job_id, job.registration(profiling=profiling))
        ranks: list[EmulatedRank] = []
        gpus: list[EmulatedGpu] = []
        for stage in range(job.profile.num_stages):
            clock = LeapingClock()
            gpu = EmulatedGpu(
                job.profile,
                stage,
                blocking_power_w=job.blocking_power_w,
                settings=replace(IDEAL_GPU, noise=NOISE, seed=stage),
                clock=clock,
                product=job.gpu,
            )
            session = RankSession(
                gpu=gpu,
                job_id=job.job_id,
                rank=stage,
                stage=stage,
                planner=opened.enter_context(PlannerClient(planner_url)),
                governor=ReadingGovernor(gpu, f"job {job.job_id} rank {stage}"),
                times=LINK_TIMES,
            )
            opened.enter_context(session)
            gpus.append(gpu)
            ranks.append(
                EmulatedRank(
                    pipeline=0,
                    stage=stage,
                    order=orders[stage],
                    session=session,
                    gpu=gpu,
                    clock=clock,
                )
            )
        yield EmulatedTraining(
            job_id=job.job_id,
            planner=planner,
            ranks=ranks,
            gpus=gpus,
            num_stages=job.profile.num_stages,
        )
