"""EnvPipe's loop from measured waits beside plans of the frontier, before and after a drift.

All times and energies are of emulated GPUs in virtual time.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmark_report import Limit, Report, at_most, run_benchmark, show_progress, table_of
from emulated_loop import Course, EmulatedPipeline, reconfigure_from_waits
from flyball_profiles.stage_profile import StageProfile
from flyball_profiles.stage_profile_csv import read_stage_profile
from flyball_server.jobs.versions.plan_versions import margin_steps
from flyball_server.planning.documents.recorded_plan import model_of_plan
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.planner import PlanRequest, make_plan, model_of_request
from flyball_server.planning.policies.measured_reconfigure import MeasuredLoop
from flyball_wire.plan_options import PlanOptions, Policy, Reconfigure
from gpt3_cells import A100, SCHEDULE, add_profiles_argument
from made_profiles import scaled

DRIFT_STAGE, DRIFT_SLOWDOWN = 3, 1.08
# What a transfer takes over a fast link; EnvPipe's threshold is four times that.
TRANSFER_S = 0.0002
NUM_MICROBATCHES = (12, 24)
NOISES = (0.0, 0.02)
MANNERS = (Reconfigure.GREEDY, Reconfigure.BALANCED)
START, DRIFT = "start", "drift"
# So many measured steps in a row tell a drift, and how far it went.
DRIFT_WINDOW_STEPS = 5
# Of what a loop ends with, and of the baseline.
MEASURED_STEPS = 20


@dataclass(frozen=True, kw_only=True)
class DriftingCell:
    """GPT-3 175B on A100.

    Attributes:
        profile: of its stages.
        noise: of each emulated instruction, as in EmulatedGpuSettings.
    """

    profile: StageProfile
    num_microbatches: int
    noise: float

    def request(self, policy: Policy, profile: StageProfile | None = None) -> PlanRequest:
        """For a plan in which nothing is reconfigured; of another profile, where one is given."""
        return PlanRequest(
            profile=self.profile if profile is None else profile,
            num_microbatches=self.num_microbatches,
            options=PlanOptions(
                blocking_power_w=(A100.blocking_power_w,),
                schedule=SCHEDULE,
                policy=policy,
                reconfigure=Reconfigure.DEFAULT,
            ),
        )

    @property
    def model(self) -> PipelineModel:
        """Its order and operating points."""
        return model_of_request(self.request(Policy.ENVELOPE))

    def planned(self, policy: Policy, profile: StageProfile | None = None) -> Assignment:
        """The clocks of such a plan."""
        return model_of_plan(self.profile, make_plan(self.request(policy, profile)).plan)[1]

    def emulate(self, *, drifted: bool) -> EmulatedPipeline:
        """The pipeline as it begins to run, one stage slower than its profile or none."""
        pipeline = EmulatedPipeline(
            self.profile, self.model, noise=self.noise, transfer_s=TRANSFER_S
        )
        if drifted:
            pipeline.set_slowdown(DRIFT_STAGE, DRIFT_SLOWDOWN)
        return pipeline


@dataclass(frozen=True, kw_only=True)
class OnlineFigure:
    """Result of one way of choosing clocks, emulated.

    Attributes:
        phase: `start`, GPUs as profiled, or `drift`, one stage slower than its profile.
        num_versions: plan versions made on the way.
        num_steps: until the last of them took effect, detecting the drift included.
        mean_slowdown_percent, largest_slowdown_percent: of these steps, against the mean of all
            clocks at their highest; None: there were none.
        lost_iterations: what all these steps took longer, in iterations at the highest clocks.
        final_slowdown_percent: likewise, of the clocks that it ended with.
        final_energy_to_baseline: of these, an iteration's energy to that at the highest clocks.
    """

    num_microbatches: int
    noise: float
    phase: str
    way: str
    num_versions: int
    num_steps: int
    mean_slowdown_percent: float | None
    largest_slowdown_percent: float | None
    lost_iterations: float
    final_slowdown_percent: float
    final_energy_to_baseline: float


def measure(arguments: argparse.Namespace) -> Report:
    """Let every way find its clocks, in every cell."""
    profile = read_stage_profile(A100.profile(arguments.profiles))
    figures = [
        figure
        for num_microbatches in NUM_MICROBATCHES
        for noise in NOISES
        for figure in _figures(
            DriftingCell(profile=profile, num_microbatches=num_microbatches, noise=noise)
        )
    ]
    return Report(
        figures={
            "emulated": True,
            "transfer_s": TRANSFER_S,
            "drift": {"stage": DRIFT_STAGE, "slowdown": DRIFT_SLOWDOWN},
            "ways": figures,
        },
        text=_text(figures),
        limits=list(_limits(figures)),
    )


def _figures(cell: DriftingCell) -> Iterator[OnlineFigure]:
    envelope, frontier = cell.planned(Policy.ENVELOPE), cell.planned(Policy.FRONTIER)
    ended: dict[str, Assignment] = {}
    for manner in MANNERS:
        course = _from_waits(cell, START, manner, envelope)
        ended[manner] = course.assignment
        yield _figure(cell, START, manner, course)
    yield _figure(cell, START, "frontier", _at_once(frontier))
    for manner in MANNERS:
        yield _figure(cell, DRIFT, f"{manner}, left alone", _at_once(ended[manner]))
        course = _from_waits(cell, DRIFT, manner, ended[manner])
        yield _figure(cell, DRIFT, f"{manner}, going on", course)
        course = _from_waits(cell, DRIFT, manner, envelope)
        yield _figure(cell, DRIFT, f"{manner}, begun anew", course)
    yield _figure(cell, DRIFT, "frontier, left alone", _at_once(frontier))
    yield _figure(cell, DRIFT, "frontier, solved again", _solved_again(cell, frontier))


def _from_waits(
    cell: DriftingCell, phase: str, manner: Reconfigure, start: Sequence[int]
) -> Course:
    show_progress(
        f"{cell.num_microbatches} microbatches, {cell.noise:.0%} noise, {phase}, {manner}"
    )
    request = cell.request(Policy.ENVELOPE)
    loop = MeasuredLoop(
        model=cell.model, manner=manner, granularity_mhz=request.reconfigure_granularity_mhz
    )
    return reconfigure_from_waits(cell.emulate(drifted=phase == DRIFT), loop, start)


def _at_once(assignment: Assignment) -> Course:
    return Course(assignment=assignment, num_versions=0, times_s=())


def _solved_again(cell: DriftingCell, assignment: Assignment) -> Course:
    """Measure the drifted stage against its profile, and plan with its times scaled."""
    pipeline = cell.emulate(drifted=True)
    steps = [pipeline.run_step(assignment) for _ in range(DRIFT_WINDOW_STEPS)]
    intended_s = cell.model.durations_s(assignment)
    nodes = [node for node, stage in enumerate(cell.model.dag.stage) if stage == DRIFT_STAGE]
    measured_s = sum(step.measured.computed_s[node] for step in steps for node in nodes)
    slowdown = measured_s / (len(steps) * sum(intended_s[node] for node in nodes))
    factors = {DRIFT_STAGE: (slowdown, slowdown)}
    measured = scaled(cell.profile, lambda stage, *_: factors.get(stage, (1.0, 1.0)))
    again = cell.planned(Policy.FRONTIER, measured)
    margin = margin_steps(fmean(step.time_s for step in steps))
    steps += [pipeline.run_step(assignment) for _ in range(margin)]
    return Course(assignment=again, num_versions=1, times_s=tuple(step.time_s for step in steps))


def _figure(cell: DriftingCell, phase: str, way: str, course: Course) -> OnlineFigure:
    baseline_s, baseline_j = _mean(cell.emulate(drifted=phase == DRIFT), cell.model.baseline())
    final_s, final_j = _mean(cell.emulate(drifted=phase == DRIFT), course.assignment)
    slowdowns_percent = [100 * (time_s / baseline_s - 1) for time_s in course.times_s]
    return OnlineFigure(
        num_microbatches=cell.num_microbatches,
        noise=cell.noise,
        phase=phase,
        way=way,
        num_versions=course.num_versions,
        num_steps=len(course.times_s),
        mean_slowdown_percent=fmean(slowdowns_percent) if slowdowns_percent else None,
        largest_slowdown_percent=max(slowdowns_percent, default=None),
        lost_iterations=sum(slowdowns_percent) / 100,
        final_slowdown_percent=100 * (final_s / baseline_s - 1),
        final_energy_to_baseline=final_j / baseline_j,
    )


def _mean(pipeline: EmulatedPipeline, assignment: Sequence[int]) -> tuple[float, float]:
    """Time and energy of a step at these clocks, s and J."""
    steps = [pipeline.run_step(assignment) for _ in range(MEASURED_STEPS)]
    return fmean(step.time_s for step in steps), fmean(step.energy_j for step in steps)


def _limits(figures: Sequence[OnlineFigure]) -> Iterator[Limit]:
    """All end as fast as the highest clocks; no loop's clocks take less than the frontier's.

    Under noise any of several nearly critical paths may be the longest in a step, which plans of
    the frontier have more of; and no plan counts transfers, here 0.1 % of an iteration.
    """
    for figure in figures:
        if not figure.way.endswith("left alone"):
            most_percent = 1.5 if figure.noise else 0.2
            yield at_most(
                f"{_name(figure)}: slowdown, %", figure.final_slowdown_percent, most_percent
            )
    for phase, way in ((START, "frontier"), (DRIFT, "frontier, solved again")):
        for frontier in figures:
            others = [
                other.final_energy_to_baseline
                for other in figures
                if (other.num_microbatches, other.noise, other.phase)
                == (frontier.num_microbatches, frontier.noise, phase)
                and not other.way.startswith("frontier")
                and not other.way.endswith("left alone")
            ]
            if (frontier.phase, frontier.way) == (phase, way):
                energy = frontier.final_energy_to_baseline
                yield at_most(
                    f"{_name(frontier)}: energy to the best loop's", energy / min(others), 1.0
                )


def _name(figure: OnlineFigure) -> str:
    return (
        f"{figure.num_microbatches} microbatches, {figure.noise:.0%} noise, {figure.phase},"
        f" {figure.way}"
    )


def _text(figures: Sequence[OnlineFigure]) -> str:
    columns = {
        "microbatches, noise, phase: way": "{num_microbatches} {noise:.0%} {phase}: {way}",
        "versions": "{num_versions}",
        "steps": "{num_steps}",
        "mean, %": "{mean_slowdown_percent:+.2f}",
        "largest, %": "{largest_slowdown_percent:+.2f}",
        "lost": "{lost_iterations:.1f}",
        "final, %": "{final_slowdown_percent:+.2f}",
        "energy to baseline": "{final_energy_to_baseline:.4f}",
    }
    return (
        f"GPT-3 175B, {A100.name}, 8 stages, {SCHEDULE}; emulated GPUs, a transfer takes"
        f" {1e3 * TRANSFER_S:g} ms\n"
        f"drift: stage {DRIFT_STAGE} takes {DRIFT_SLOWDOWN:g} times as long as profiled; all"
        " against the highest clocks on the same GPUs\n"
        "steps: until the clocks changed no more; mean, largest: slowdown of these steps; lost:"
        f" iterations' worth of time in them\n\n{table_of(figures, columns)}"
    )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    add_profiles_argument(options)
    run_benchmark(options, measure)
