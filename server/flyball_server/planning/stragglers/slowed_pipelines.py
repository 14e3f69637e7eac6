"""Plans for GPUs that are slower, or faster, than their profile.

In one pipeline the other stages stretch to what the slow one leaves them. Of data-parallel
pipelines all wait for the slowest: those that are alike are planned once, as a class, and all
classes together to one iteration time T' (Chung et al., SOSP 2024, section 2.3), so that one
certificate covers the whole job.

A GPU that takes f times as long does so at the same power: its energies are f times as large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flyball_profiles.stage_profile import OperatingPoint, ProfileError
from flyball_server.planning.data_parallel import plan_models
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.frontier_curve import frontier_of_models
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import time_and_energy
from flyball_server.planning.planner import (
    PlanRequest,
    choose_clocks,
    make_plan,
    model_of_request,
    simulated_choice,
)
from flyball_wire.plans.plan import Plan, Slowdown
from flyball_wire.read_models import Frontier


@dataclass(frozen=True, kw_only=True)
class SlowedRequest:
    """Input of a plan for GPUs with different slowdown factors.

    Attributes:
        request: request of the job; its profile is merged over all ranks of each stage.
        slowdowns: those that apply to an instruction multiply.
        num_pipelines: data-parallel ones, at least 1.

    Raises:
        PlanningError: a slowdown factor is of a stage or pipeline that there is not.
    """

    request: PlanRequest
    slowdowns: tuple[Slowdown, ...]
    num_pipelines: int = 1

    def __post_init__(self) -> None:
        if self.num_pipelines < 1:
            raise PlanningError(f"must be at least 1, not {self.num_pipelines}", field="pipelines")
        for slowed in self.slowdowns:
            if not 0 <= slowed.stage < self.request.profile.num_stages:
                raise PlanningError(
                    f"there is no stage {slowed.stage}; the profile has"
                    f" {self.request.profile.num_stages}",
                    field="stage",
                )
            if not 0 <= (slowed.dp_rank or 0) < self.num_pipelines:
                raise PlanningError(
                    f"there is no pipeline {slowed.dp_rank}; there are {self.num_pipelines}",
                    field="dp_rank",
                )


def make_slowed_plan(slowed: SlowedRequest) -> Plan:
    """The plan for these slowdowns; the baseline is all of it at the highest clocks, as slowed.

    So target `fastest` means no longer than T', which the slowest pipeline needs in any case, and
    `slowdown` is relative to that. Energies are of all that the profile holds. Every pipeline
    keeps its order.

    Returns:
        Where all pipelines are alike, one plan for all; else one for each class of them.

    Raises:
        PlanningError: a part of the request cannot be used; names its field.
        TargetUnreachableError: no plan of this policy meets the target.
    """
    classes = slowdown_classes(slowed.slowdowns, slowed.num_pipelines)
    if classes == {(): tuple(range(slowed.num_pipelines))}:
        return make_plan(slowed.request).plan
    request = slowed.request
    model = model_of_request(request)
    models = _class_models(model, classes)
    if len(classes) == 1:
        plan = simulated_choice(request, models, choose_clocks(request, *models)).plan
    else:
        plan = plan_models(request, models, dp_ranks=tuple(classes.values())).plan
    drifted = slowed_model(model, _without_stragglers(slowed), share=1.0)
    without_s, _ = time_and_energy(drifted, drifted.baseline())
    stragglers_s = max(0.0, plan.predicted.baseline_iteration_time_s - without_s)
    return replace(
        plan,
        prediction=replace(plan.predicted, stragglers_s=stragglers_s),
        blocking_power_w=model.blocking_power_w * len(classes),
        pipelines=tuple(
            replace(pipeline, slowdowns=of_class)
            for pipeline, of_class in zip(plan.pipelines, classes, strict=True)
        ),
    )


def _without_stragglers(slowed: SlowedRequest) -> list[Slowdown]:
    """Return the drifts; of a single pipeline, one of a straggler's stage is the straggler's."""
    theirs = {
        slowdown.stage
        for slowdown in slowed.slowdowns
        if slowdown.dp_rank is not None and slowed.num_pipelines == 1
    }
    return [
        slowdown
        for slowdown in slowed.slowdowns
        if slowdown.dp_rank is None and slowdown.stage not in theirs
    ]


def make_slowed_frontier(slowed: SlowedRequest, num_points: int) -> Frontier:
    """Return the whole frontier for these slowdowns, as `make_frontier` does.

    Raises:
        PlanningError: a part of the request cannot be used; names its field.
    """
    model = model_of_request(slowed.request)
    classes = slowdown_classes(slowed.slowdowns, slowed.num_pipelines)
    return frontier_of_models(slowed.request, _class_models(model, classes), num_points)


def _class_models(
    model: PipelineModel, classes: Mapping[tuple[Slowdown, ...], tuple[int, ...]]
) -> list[PipelineModel]:
    """Return the model of each class of pipelines; a single class stands for all ranks."""
    num_pipelines = sum(map(len, classes.values()))
    return [
        slowed_model(model, slowdowns, share=len(dp_ranks) / num_pipelines)
        for slowdowns, dp_ranks in classes.items()
    ]


def slowdown_classes(
    slowdowns: Sequence[Slowdown], num_pipelines: int
) -> dict[tuple[Slowdown, ...], tuple[int, ...]]:
    """Return the pipelines of each different set of slowdown factors, by the lowest of them."""
    classes: dict[tuple[Slowdown, ...], tuple[int, ...]] = {}
    for dp_rank in range(num_pipelines):
        own = tuple(
            sorted(
                (
                    replace(slowed, dp_rank=None)
                    for slowed in slowdowns
                    if slowed.dp_rank in (None, dp_rank) and slowed.slowdown != 1
                ),
                key=lambda slowed: (slowed.stage, slowed.kind or "", slowed.slowdown),
            )
        )
        classes[own] = (*classes.get(own, ()), dp_rank)
    return classes


def slowed_model(
    model: PipelineModel, slowdowns: Sequence[Slowdown], *, share: float
) -> PipelineModel:
    """The model with these slowdowns, of such a share of the ranks that the profile merges."""
    alike, alike_of_node = model.dag.alike
    profiled = dict(zip(alike_of_node, model.points, strict=True))
    made = [
        _slowed_points(
            profiled[number],
            math.prod(
                slowed.slowdown
                for slowed in slowdowns
                if slowed.stage == stage and slowed.kind in (None, kind)
            ),
            share,
        )
        for number, (stage, kind, _) in enumerate(alike)
    ]
    return replace(
        model,
        points=tuple(map(made.__getitem__, alike_of_node)),
        # What a stage's ranks draw while they wait is what counts, and a share of the ranks that
        # a profile holds need not be a whole number.
        blocking_power_w=tuple(share * power_w for power_w in model.blocking_power_w),
    )


def _slowed_points(
    points: tuple[OperatingPoint, ...], slowdown: float, share: float
) -> tuple[OperatingPoint, ...]:
    if slowdown == share == 1:
        return points
    try:
        return tuple(
            replace(
                point,
                time_s=slowdown * point.time_s,
                energy_j=slowdown * share * point.energy_j,
                time_error_s=slowdown * point.time_error_s,
            )
            for point in points
        )
    except ProfileError as error:
        raise PlanningError(
            f"at {slowdown:g} times as long {error.message}", field="slowdown"
        ) from None
