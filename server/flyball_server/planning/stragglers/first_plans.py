"""First plans of a job's pipelines for one deadline, and what they run at now."""

from __future__ import annotations

import functools
import itertools
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flyball_profiles.stage_profile import OperatingPoint
from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.documents.planned_instructions import PlannedInstruction
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.frontier.event_arcs import EventArcs, event_arcs
from flyball_server.planning.frontier.first_plan import FirstPlan, FirstPlanner
from flyball_server.planning.frontier.path_bound import least_busy_j
from flyball_server.planning.frontier.solver import with_reserve
from flyball_server.planning.frontier.targets import Target, parse_target
from flyball_server.planning.model.data_parallel import join_pipelines, plan_of_pipelines
from flyball_server.planning.model.finish_times import FinishTimes, predicted_time_and_energy
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.model.simulator import iteration_energy_j
from flyball_server.planning.plan import DataParallelPlan, FrequencyPlan
from flyball_server.planning.planner import (
    SEARCHING,
    PhaseReport,
    PlanRequest,
    model_of_request,
    plan_of_choice,
)
from flyball_server.planning.policies._base import PolicyChoice
from flyball_server.planning.schedule_choice import is_auto
from flyball_server.planning.stragglers.slowed_pipelines import (
    SlowedRequest,
    make_slowed_plan,
    slowdown_classes,
    slowed_model,
)


@dataclass(frozen=True, kw_only=True)
class RunningClocks:
    """Clocks that a job's pipelines run at now.

    Attributes:
        schedule, num_microbatches: that it runs.
        iteration_time_s: that it was planned for, s.
        clocks_mhz: of each pipeline that is planned apart, MHz, stage after stage in the order of
            execution.
        pipeline_of: by `dp_rank`, the index of its pipeline; the last one's counts for any more.
    """

    schedule: str
    num_microbatches: int
    iteration_time_s: float
    clocks_mhz: tuple[array[int], ...]
    pipeline_of: tuple[int, ...]

    def alike(self, dp_ranks: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """The ranks by the pipeline whose clocks they run, by the first of each."""
        of_pipeline: dict[int, tuple[int, ...]] = {}
        for dp_rank in dp_ranks:
            pipeline = self._pipeline_of(dp_rank)
            of_pipeline[pipeline] = (*of_pipeline.get(pipeline, ()), dp_rank)
        return tuple(of_pipeline.values())

    def assignment(self, dp_rank: int, model: PipelineModel) -> Assignment | None:
        """The clocks of a pipeline as an assignment; None: the model has other instructions."""
        if self.num_microbatches != model.schedule.num_microbatches or model.schedule.is_periodic:
            return None
        clocks_mhz = self.clocks_mhz[self._pipeline_of(dp_rank)]
        if len(clocks_mhz) != model.dag.num_nodes:
            return None
        choices: dict[int, Mapping[int, int]] = {}
        assignment: Assignment = []
        for points, clock_mhz in zip(model.points, clocks_mhz, strict=True):
            by_clock = choices.get(id(points))
            if by_clock is None:
                by_clock = choices[id(points)] = _choice_by_clock(points)
            choice = by_clock.get(clock_mhz)
            if choice is None:
                return None
            assignment.append(choice)
        return assignment

    def _pipeline_of(self, dp_rank: int) -> int:
        return self.pipeline_of[min(dp_rank, len(self.pipeline_of) - 1)]


def running_clocks(plan: FrequencyPlan | DataParallelPlan) -> RunningClocks:
    """The clocks of a plan."""
    if isinstance(plan, FrequencyPlan):
        pipelines, pipeline_of = [plan.stages], [0]
    else:
        pipelines = [pipeline.stages for pipeline in plan.pipelines]
        by_dp_rank = {
            dp_rank: index
            for index, pipeline in enumerate(plan.pipelines)
            for dp_rank in pipeline.stands_for
        }
        pipeline_of = [by_dp_rank[dp_rank] for dp_rank in sorted(by_dp_rank)]
    return RunningClocks(
        schedule=plan.schedule,
        num_microbatches=plan.num_microbatches,
        iteration_time_s=plan.iteration_time_s,
        clocks_mhz=tuple(_clocks_mhz(stages) for stages in pipelines),
        pipeline_of=tuple(pipeline_of),
    )


def _clocks_mhz(stages: tuple[tuple[PlannedInstruction, ...], ...]) -> array[int]:
    return array("q", [item.frequency_mhz for item in itertools.chain(*stages)])


def _choice_by_clock(points: tuple[OperatingPoint, ...]) -> Mapping[int, int]:
    return {point.frequency_mhz: choice for choice, point in enumerate(points)}


@dataclass(frozen=True, kw_only=True)
class _Running:
    """Clocks that some of the pipelines that are alike run at now.

    Attributes:
        num_pipelines: how many of them.
        assignment: the clocks.
    """

    num_pipelines: int
    assignment: Assignment


@dataclass(frozen=True, kw_only=True)
class _SlowedPipeline:
    """Pipelines that are alike, as they are now.

    Attributes:
        dp_ranks: those that they are.
        model: with their slowdown factors.
        planner: of first plans of that, with a reserve where one is asked for.
        running: the clocks they run at, of all of them; empty: not known.
        running_s: durations of the clocks that most of them run at, as they were profiled and as
            they are now, s.
    """

    dp_ranks: tuple[int, ...]
    model: PipelineModel
    planner: FirstPlanner
    running: tuple[_Running, ...]
    running_s: tuple[list[float], ...]


class SlowedFirstPlans:
    """Makes first plans of the pipelines of a job.

    Args:
        slowed: the job; policy `frontier`, a schedule by its name.
        running: what the ranks run now; None: not known.
    """

    def __init__(self, slowed: SlowedRequest, running: RunningClocks | None) -> None:
        self._request = slowed.request
        profiled = model_of_request(slowed.request)
        classes = slowdown_classes(slowed.slowdowns, slowed.num_pipelines)
        if running is not None and running.schedule != slowed.request.schedule:
            running = None
        self._models = [
            slowed_model(profiled, slowdowns, share=len(dp_ranks) / slowed.num_pipelines)
            for slowdowns, dp_ranks in classes.items()
        ]
        self.baseline_s = max(map(_baseline_s, self._models))
        arcs = event_arcs(profiled.dag)
        self._pipelines = [
            _slowed_pipeline(dp_ranks, profiled, model, self._planner(model, arcs), running)
            for dp_ranks, model in zip(classes.values(), self._models, strict=True)
        ]

    def _planner(self, model: PipelineModel, arcs: EventArcs) -> FirstPlanner:
        cancellation_point()
        reserve = self._request.reserve
        return FirstPlanner(with_reserve(model, reserve, iteration_time_s=self.baseline_s), arcs)

    @property
    def fastest_s(self) -> float:
        """Return what an iteration takes at the highest clocks, with every reserve used, s."""
        return max(pipeline.planner.fastest_time_s for pipeline in self._pipelines)

    @property
    def slowest_s(self) -> float:
        """A later deadline allows nothing more, s."""
        return max(pipeline.planner.slowest_time_s for pipeline in self._pipelines)

    def plan(self, deadline_s: float) -> FrequencyPlan | DataParallelPlan | None:
        """The plan for a deadline; None: none is in time."""
        if deadline_s < self.fastest_s:
            return None
        deadline_s = min(deadline_s, self.slowest_s)
        first = [one.planner.plan(deadline_s, one.running_s) for one in self._pipelines]
        if any(
            one.planner.iteration_time_s(made.assignment) > deadline_s
            for one, made in zip(self._pipelines, first, strict=True)
        ):
            return None
        plan = self._plan(first, deadline_s)
        return plan if plan.iteration_time_s <= deadline_s else None

    @functools.cached_property
    def now(self) -> tuple[float, float] | None:
        """Time and energy of an iteration at the clocks that run, s and J; None: not known."""
        pipelines = self._pipelines
        if not all(pipeline.running for pipeline in pipelines):
            return None
        of_each = [(pipeline, now) for pipeline in pipelines for now in pipeline.running]
        time_s = max(
            predicted_time_and_energy(pipeline.model, now.assignment)[0]
            for pipeline, now in of_each
        )
        energy_j = sum(
            # The model's energies are those of all the pipelines that it stands for.
            now.num_pipelines
            / len(pipeline.dp_ranks)
            * iteration_energy_j(pipeline.model, now.assignment, time_s)
            for pipeline, now in of_each
        )
        return time_s, energy_j

    @functools.cached_property
    def _joint(self) -> PipelineModel:
        return join_pipelines(self._models)

    def _plan(
        self, first: Sequence[FirstPlan], deadline_s: float
    ) -> FrequencyPlan | DataParallelPlan:
        assignment = list(itertools.chain.from_iterable(one.assignment for one in first))
        bound_j = sum(one.lower_bound_j for one in first)
        plan = self._plan_of_choice(PolicyChoice(assignment=assignment, lower_bound_j=bound_j))
        if not plan.reserve:
            return plan
        bound_j = self._bound_with_reserve_j(bound_j, plan.iteration_time_s, deadline_s)
        return replace(plan, lower_bound_j=bound_j)

    def _plan_of_choice(self, choice: PolicyChoice) -> FrequencyPlan | DataParallelPlan:
        if len(self._models) == 1:
            return plan_of_choice(self._request, self._models[0], choice)
        dp_ranks = [pipeline.dp_ranks for pipeline in self._pipelines]
        plan = plan_of_pipelines(self._request, self._models, self._joint, choice, dp_ranks)
        # A GPU's, as it was profiled: the models hold shares of it.
        power_w = model_of_request(self._request).blocking_power_w * len(self._models)
        return replace(plan, blocking_power_w=power_w)

    def _bound_with_reserve_j(
        self, lower_bound_j: float, iteration_time_s: float, deadline_s: float
    ) -> float:
        """Return what no plan needs less than that keeps the reserve and is no faster, J.

        The bound of the longer instructions has the waiting in it that the reserve causes. A plan
        that takes x without it takes at most the deadline, and at most `reserve` times x more,
        with it: what is taken off here is the most of that for any x that is not shorter.
        """
        reserve = self._request.reserve
        added_s = min(deadline_s - iteration_time_s, reserve * deadline_s / (1 + reserve))
        waiting_w = sum(sum(model.stage_blocking_power_w) for model in self._models)
        return max(
            lower_bound_j - waiting_w * max(0.0, added_s), sum(map(least_busy_j, self._models))
        )


def _baseline_s(model: PipelineModel) -> float:
    return max(FinishTimes(model.dag).earliest_s(model.durations_s(model.baseline())))


def _slowed_pipeline(
    dp_ranks: tuple[int, ...],
    profiled: PipelineModel,
    model: PipelineModel,
    planner: FirstPlanner,
    running: RunningClocks | None,
) -> _SlowedPipeline:
    now = () if running is None else _running(dp_ranks, model, running)
    durations_s: tuple[list[float], ...] = ()
    if now:
        of_most = max(now, key=lambda one: one.num_pipelines).assignment
        durations_s = (profiled.durations_s(of_most), model.durations_s(of_most))
    return _SlowedPipeline(
        dp_ranks=dp_ranks,
        model=model,
        planner=planner,
        running=now,
        running_s=durations_s,
    )


def _running(
    dp_ranks: tuple[int, ...], model: PipelineModel, running: RunningClocks
) -> tuple[_Running, ...]:
    """Return what each of the pipelines runs now; empty where it is not known of one of them."""
    now: list[_Running] = []
    for alike in running.alike(dp_ranks):
        assignment = running.assignment(alike[0], model)
        if assignment is None:
            return ()
        now.append(_Running(num_pipelines=len(alike), assignment=assignment))
    return tuple(now)


# Of all pipelines that are planned apart: below, the search with the least effort takes no more
# than half a second, and comes nearer to the bound.
FIRST_PLANS_FROM = 3_000
# For a power budget; each plan takes as long as one for a deadline.
POWER_ROUNDS = 4
# A deadline for a budget is not looked for more closely than this share.
SAME_DEADLINE = 0.002

AnyPlan = FrequencyPlan | DataParallelPlan


def make_plan_at_once(
    slowed: SlowedRequest,
    running: RunningClocks | None = None,
    report: PhaseReport = lambda _: None,
) -> FrequencyPlan | DataParallelPlan:
    """A plan for these slowdown factors, in the time that ranks may wait for it.

    Args:
        slowed: as for `make_slowed_plan`, with the least effort.
        running: what the ranks run now; None: not known. A first plan is begun from it. Where
            these clocks are known of all ranks, the plan is given only if it is better at what
            the target asks for: if it needs no more energy than they do by now, unless they were
            planned for a longer iteration than a deadline allows; for a power budget, if they are
            beyond it by now or slower.
        report: told what is about to be done.

    Returns:
        A plan that meets the target; its bound is proven, and looser where it is a first plan.

    Raises:
        PlanningError, TargetUnreachableError: as for `make_slowed_plan`.
    """
    return make_first_plan(slowed, running, report) or make_slowed_plan(slowed, report)


def make_first_plan(
    slowed: SlowedRequest,
    running: RunningClocks | None = None,
    report: PhaseReport = lambda _: None,
) -> FrequencyPlan | DataParallelPlan | None:
    """The first plan for these slowdown factors; None: none is of use, or none is needed.

    Arguments and errors as for `make_plan_at_once`.
    """
    request = slowed.request
    target = _target(request)
    if target is None:
        return None
    num_pipelines = len(slowdown_classes(slowed.slowdowns, slowed.num_pipelines))
    if model_of_request(request).dag.num_nodes * num_pipelines < FIRST_PLANS_FROM:
        return None
    report(SEARCHING)
    plans = SlowedFirstPlans(slowed, running)
    # Where none is found the search says what can be met.
    if target.kind == "power":
        plan = _plan_for_power(plans, target.value)
    else:
        plan = plans.plan(_deadline_s(target, plans))
    is_useful = plan is not None and not _is_worse(plan, plans, target, running)
    return plan if is_useful else None


def _target(request: PlanRequest) -> Target | None:
    """Return what is aimed at; None: nothing for which a first plan can be made."""
    if request.policy != "frontier" or is_auto(request.schedule):
        return None
    try:
        return parse_target(request.target)
    except PlanningError:
        return None  # the search says so


def _deadline_s(target: Target, plans: SlowedFirstPlans) -> float:
    return {
        "fastest": plans.baseline_s,
        "slowdown": plans.baseline_s * (1 + target.value),
        "deadline": target.value,
        "least-energy": math.inf,
    }[target.kind]


def _plan_for_power(plans: SlowedFirstPlans, budget_w: float) -> AnyPlan | None:
    """The fastest plan that is found, not faster than the baseline, with this power on average.

    Along the frontier energy falls with time, and convexly. So between a deadline that is too
    short for the budget and one that is long enough, the straight line between their energies
    crosses the budget's at one that is long enough too, and nearer to the shortest there is.
    """
    plan = plans.plan(plans.baseline_s)
    if plan is None or _excess_j(plan, budget_w) <= 0:
        return plan
    within = plans.plan(math.inf)
    if within is None or _excess_j(within, budget_w) > 0:
        return None
    too_short_s, too_much_j = plans.baseline_s, _excess_j(plan, budget_w)
    for _ in range(POWER_ROUNDS):
        left_s = within.iteration_time_s - too_short_s
        if left_s < SAME_DEADLINE * too_short_s:
            break
        deadline_s = too_short_s + left_s * too_much_j / (too_much_j - _excess_j(within, budget_w))
        plan = plans.plan(deadline_s)
        if plan is None:
            break
        if _excess_j(plan, budget_w) > 0:
            too_short_s, too_much_j = deadline_s, _excess_j(plan, budget_w)
        else:
            within = min(plan, within, key=lambda one: one.iteration_time_s)
    return within


def _excess_j(plan: AnyPlan, budget_w: float) -> float:
    """Return how much more an iteration takes than the budget allows it, J."""
    return plan.energy_j - budget_w * plan.iteration_time_s


def _is_worse(
    plan: AnyPlan, plans: SlowedFirstPlans, target: Target, running: RunningClocks | None
) -> bool:
    """Return whether the clocks that run now are better by now than the plan, at what is aimed at.

    Clocks that were planned for slower iterations than a deadline allows may need less energy:
    that is no fault. Nor is anything found of clocks that are not known.
    """
    if running is None or plans.now is None:
        return False
    time_s, energy_j = plans.now
    if target.kind == "power":
        return energy_j <= target.value * time_s and time_s <= plan.iteration_time_s
    if target.kind != "least-energy" and running.iteration_time_s > plan.iteration_time_s:
        return False
    return plan.energy_j > energy_j
