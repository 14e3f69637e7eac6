"""One run of the evaluation: a job at the planner, its ranks, and steps on its plan.

As in a real run, the planner gets the profile over REST, each rank session registers,
receives its part of the plan, acknowledges it, and runs it from the step that the planner names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import fmean

from flyball_client.api.errors import PlannerError
from flyball_client.api.planner_client import PlannerClient
from flyball_client.gpu.emulated import (
    DEFAULT_PHYSICS,
    EmulatedGpu,
    EmulatedGpuSettings,
    EmulatedNode,
)
from flyball_client.session.planner_link import LinkTimes
from flyball_client.session.rank_session import RankSession
from flyball_lab.emulation.emulated_pipeline import (
    EmulatedRank,
    Order,
    RankClock,
    run_step,
)
from flyball_lab.evaluation.configurations import Configuration, merged_profile
from flyball_profiles.stage_profile import InstructionKind, StageProfile
from flyball_profiles.stage_profile_csv import write_stage_profile
from flyball_wire.messages import JobRegistration, StepMeasurement

# Of the energy counter: so fine that a step's energy is exact, and the same in every run.
_COUNTER_PERIOD_S = 1e-9
_GPUS_PER_NODE = 8
_ACTIVATION_TIMEOUT_S = 60.0
_POLL_S = 0.01
_CALL_TIMEOUT_S = 30.0
# Virtual steps pass so fast that the ranks' own threads would hardly run.
_YIELD_S = 0.002
_ACTIVATIONS = {"forward": 1, "backward": -1, "backward_weight": -1}
_LINK_TIMES = LinkTimes(poll_wait_s=1.0)


class EvaluationFailedError(Exception):
    """A run failed; the text is one line."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Time and energy of one run: emulated, and as the planner had predicted it.

    Attributes:
        emulated_iteration_time_s: mean over the steps on the plan, s.
        emulated_energy_j: energy of an iteration over all GPUs, mean over the steps, J.
        predicted_iteration_time_s, predicted_energy_j: the plan's own figures.
        lower_bound_j: lower bound of the plan's energy, J; None: its policy has none.
        num_switches: clocks set in an iteration, all GPUs; the last one's.
        peak_activations: per stage, the most microbatches held for their backward.
    """

    configuration: Configuration
    emulated_iteration_time_s: float
    emulated_energy_j: float
    predicted_iteration_time_s: float
    predicted_energy_j: float
    lower_bound_j: float | None
    num_switches: int
    peak_activations: tuple[int, ...]

    @property
    def time_difference_percent(self) -> float:
        """Excess of the emulated time over the predicted one, %."""
        return 100 * (self.emulated_iteration_time_s / self.predicted_iteration_time_s - 1)

    @property
    def energy_difference_percent(self) -> float:
        """Excess of the emulated energy over the predicted one, %."""
        return 100 * (self.emulated_energy_j / self.predicted_energy_j - 1)

    @property
    def microbatches_per_s(self) -> float:
        """Throughput of all pipelines together, emulated."""
        run = self.configuration
        return run.num_pipelines * run.num_microbatches / self.emulated_iteration_time_s


def run_configuration(
    planner_url: str,
    job_id: str,
    configuration: Configuration,
    *,
    num_steps: int,
    settings: EmulatedGpuSettings = DEFAULT_PHYSICS,
    check_interrupted: Callable[[], None] = lambda: None,
) -> RunResult:
    """Plan and train on the plan, in virtual time; its first step is a warm-up and not counted.

    Args:
        planner_url: of a planner without this job.
        job_id: the job.
        configuration: what is run.
        num_steps: counted, at least 1.
        settings: of the emulated GPUs; each has a seed of its own.
        check_interrupted: called between steps; may raise.

    Raises:
        EvaluationFailedError: the planner failed or refused, or no plan took effect.
    """
    profile = merged_profile(configuration.model.profile, configuration.num_pipelines)
    try:
        with PlannerClient(planner_url, timeout_s=_CALL_TIMEOUT_S) as planner:
            version = _register(planner, job_id, configuration, profile)
            plan = planner.get_plan(job_id, version).plan
            orders: list[Order] = [
                tuple((str(kind), int(microbatch)) for kind, microbatch, *_ in stage)
                for stage in plan["stages"]
            ]
            ranks = _make_ranks(planner, job_id, configuration, profile, orders, settings=settings)
            with _started(ranks):
                _until_activated(planner, job_id, version, check_interrupted)
                steps, num_switches = _train(ranks, version, num_steps, check_interrupted)
    except PlannerError as error:
        raise EvaluationFailedError(f"{configuration.title}: {error}") from None
    num_unplanned = sum(of_rank.num_unplanned for step in steps for of_rank in step)
    energies_j = [[of_rank.energy_j for of_rank in step] for step in steps]
    if num_unplanned or any(None in step_j for step_j in energies_j):
        raise EvaluationFailedError(
            f"{configuration.title}: {num_unplanned} instructions ran outside the plan, or a rank"
            " could not read its energy"
        )
    return RunResult(
        configuration=configuration,
        emulated_iteration_time_s=fmean(max(of_rank.time_s for of_rank in step) for step in steps),
        emulated_energy_j=fmean(sum(rank_j or 0.0 for rank_j in step_j) for step_j in energies_j),
        predicted_iteration_time_s=float(plan["iteration_time_s"]),
        predicted_energy_j=float(plan["energy_j"]),
        lower_bound_j=plan["lower_bound_j"],
        num_switches=num_switches,
        # Activations are held from a forward to the end of its backward.
        peak_activations=tuple(
            max(accumulate(_ACTIVATIONS.get(kind, 0) for kind, _ in order)) for order in orders
        ),
    )


def _register(
    planner: PlannerClient, job_id: str, configuration: Configuration, profile: StageProfile
) -> int:
    """Register the job with its profile; return the version of its plan."""
    model, manner = configuration.model, configuration.manner
    planner.put_job(
        job_id,
        JobRegistration(
            num_stages=model.num_stages,
            num_microbatches=configuration.num_microbatches,
            num_ranks=configuration.num_ranks,
            schedule=manner.schedule,
            extra_forwards=(
                _extra_forwards(profile, configuration.num_microbatches)
                if manner.schedule == "envpipe"
                else None
            ),
            policy=manner.policy,
            reconfigure=manner.reconfigure,
            blocking_power_w=(model.blocking_power_w,),
            emulated=True,
        ),
    )
    version = planner.put_profile_csv(job_id, write_stage_profile(profile)).newest_version
    if version is None:
        raise EvaluationFailedError(f"{configuration.title}: the planner made no plan")
    return version


def _extra_forwards(profile: StageProfile, num_microbatches: int) -> tuple[int, ...]:
    """Return EnvPipe's extra forwards of each stage, by its formula in docs/theory.md."""
    num_stages = profile.num_stages
    extra: list[int] = []
    for stage in range(num_stages):
        later_stages, room = num_stages - 1 - stage, num_microbatches - (num_stages - stage)
        forwards, backwards = (
            {point.frequency_mhz: point for point in profile.points[stage, kind]}
            for kind in (InstructionKind.FORWARD, InstructionKind.BACKWARD)
        )
        least_energy_mhz = min(
            forwards.keys() & backwards.keys(),
            key=lambda mhz: (forwards[mhz].energy_j + backwards[mhz].energy_j, -mhz),
        )
        waited_s = backwards[max(backwards)].time_s * later_stages
        fitting = min(int(waited_s / forwards[least_energy_mhz].time_s), room)
        extra.append(max(0, fitting) if later_stages else 0)
        if (
            stage
            and extra[-2] < extra[-1]
            and num_stages - stage + 1 + extra[-2] < num_microbatches
        ):
            extra[-1] = extra[-2]
    return tuple(extra)


def _make_ranks(
    planner: PlannerClient,
    job_id: str,
    configuration: Configuration,
    profile: StageProfile,
    orders: Sequence[Order],
    *,
    settings: EmulatedGpuSettings,
) -> list[EmulatedRank]:
    """Return all ranks of the run, pipeline by pipeline, not started yet."""
    model = configuration.model
    ranks: list[EmulatedRank] = []
    nodes = [EmulatedNode() for _ in range(0, configuration.num_ranks, _GPUS_PER_NODE)]
    for number in range(configuration.num_ranks):
        pipeline, stage = divmod(number, model.num_stages)
        clock = RankClock()
        gpu = EmulatedGpu(
            profile,
            stage,
            blocking_power_w=model.blocking_power_w,
            settings=replace(settings, seed=settings.seed + number),
            node=nodes[number // _GPUS_PER_NODE],
            counter_period_s=_COUNTER_PERIOD_S,
            clock=clock,
            product=model.gpu.upper(),
        )
        session = RankSession(
            gpu=gpu,
            job_id=job_id,
            rank=number,
            stage=stage,
            dp_rank=pipeline,
            planner=planner,
            times=_LINK_TIMES,
        )
        ranks.append(
            EmulatedRank(
                pipeline=pipeline,
                stage=stage,
                order=orders[stage],
                session=session,
                gpu=gpu,
                clock=clock,
            )
        )
    return ranks


@contextmanager
def _started(ranks: Sequence[EmulatedRank]) -> Iterator[None]:
    """Start the sessions of all ranks, and close them at the end."""
    try:
        for rank in ranks:
            rank.session.start()
        yield
    finally:
        # One after the other they would wait for each other's last calls.
        with ThreadPoolExecutor(len(ranks)) as pool:
            list(pool.map(lambda rank: rank.session.close(), ranks))


def _until_activated(
    planner: PlannerClient, job_id: str, version: int, check_interrupted: Callable[[], None]
) -> None:
    """Return once all ranks have acknowledged the plan and its first step is named."""
    deadline_s = time.monotonic() + _ACTIVATION_TIMEOUT_S
    while planner.get_first_step(job_id, version).first_step is None:
        check_interrupted()
        if time.monotonic() > deadline_s:
            raise EvaluationFailedError(f"job {job_id}: not all ranks acknowledged the plan")
        time.sleep(_POLL_S)


def _train(
    ranks: Sequence[EmulatedRank],
    version: int,
    num_steps: int,
    check_interrupted: Callable[[], None],
) -> tuple[list[tuple[StepMeasurement, ...]], int]:
    """Train until `num_steps` and a warm-up ran on the plan on every rank.

    Returns:
        Measurements of these steps, and the clocks set in the last one.
    """
    num_stages = 1 + max(rank.stage for rank in ranks)
    deadline_s = time.monotonic() + _ACTIVATION_TIMEOUT_S
    on_plan: list[tuple[StepMeasurement, ...]] = []
    totals = [0]
    while len(on_plan) <= num_steps:
        check_interrupted()
        measured = run_step(ranks, num_stages=num_stages)
        totals.append(sum(rank.session.clock_report.num_switches for rank in ranks))
        if all(of_rank.plan_version == version for of_rank in measured):
            on_plan.append(measured)
        elif time.monotonic() > deadline_s:
            raise EvaluationFailedError(f"plan {version} took effect on some ranks only")
        else:
            time.sleep(_YIELD_S)
    return on_plan[1:], totals[-1] - totals[-2]
