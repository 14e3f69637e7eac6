"""Advice to run a job in another order from its next start on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.schedule import Schedule
from flyball_pipeline.schedules.envpipe import ENVPIPE
from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.planner import PlanRequest, model_of_request, schedule_context
from flyball_server.planning.schedule_choice import choose_schedule
from flyball_server.planning.scheduling import extra_warmup_forwards
from flyball_wire.orders import OrderAdvice
from flyball_wire.plan_options import Effort, Policy

# Share of the energy below which an order is not advised. Of recorded runs on GPUs the energy of a
# plan is predicted to within 1 %, and both orders' are.
LEAST_SAVING = 0.02
# Name of the job's own order among those that are compared.
_OWN = "own"
_EXTRA_FORWARDS = "{extra_forwards}"


def advise_order(request: PlanRequest, lines: Mapping[str, str]) -> OrderAdvice | None:
    """Return the order that saves most against the request's own; None: none saves enough.

    All orders are planned at the same target, with low effort. Of `envpipe` each stage has at most
    one more forward in front for each later stage, which holds less than twice the activations of
    1F1B. Orders that the profile or the given memory does not allow, or that place the chunks of
    the stages otherwise, are left out.

    Args:
        request: request of the job, without slowdown factors; policies other than `frontier` get
            no advice.
        lines: by schedule, the line that sets it, as in `OtherOrder`.

    Raises:
        PlanningError: the request's own order cannot be planned.
    """
    if request.options.policy != Policy.FRONTIER:
        return None
    own = model_of_request(request)
    others: dict[str, PlanRequest] = {}
    models: dict[str, PipelineModel | PipelineError] = {_OWN: own}
    for name in lines:
        cancellation_point()
        try:
            others[name] = _in_order(request, name)
            model = model_of_request(others[name])
        except PipelineError:
            continue
        others_schedule, own_schedule = model.schedule, own.schedule
        if (
            others_schedule.virtual_stages == own_schedule.virtual_stages
            and others_schedule.stages != own_schedule.stages
        ):
            models[name] = model
    if len(models) == 1:
        return None
    options = replace(request.options, effort=Effort.LOW)
    chosen = choose_schedule(models, options, lambda _: None, reference=_OWN)
    energies_j = {considered.schedule: considered.energy_j for considered in chosen.considered}
    own_j, least_j = energies_j[_OWN], energies_j[chosen.name]
    if own_j is None or least_j is None or least_j > (1 - LEAST_SAVING) * own_j:
        return None
    extra = others[chosen.name].options.extra_forwards or ()
    return OrderAdvice(
        schedule=chosen.name,
        instead_of=request.options.schedule,
        saving_percent=100 * (1 - least_j / own_j),
        most_held=_most_held(chosen.model.schedule),
        most_held_now=_most_held(own.schedule),
        line=lines[chosen.name].replace(_EXTRA_FORWARDS, ",".join(map(str, extra))),
    )


def _in_order(request: PlanRequest, name: str) -> PlanRequest:
    """Return the request with the schedule of this name."""
    named = request.with_options(
        schedule=name, order=None, virtual_stages=None, extra_forwards=None, checkpoint=None
    )
    if name != ENVPIPE:
        return named
    later_stages = reversed(range(request.profile.num_stages))
    extra = map(min, extra_warmup_forwards(schedule_context(named)), later_stages)
    return named.with_options(extra_forwards=tuple(extra))


def _most_held(schedule: Schedule) -> float:
    """Return the largest number of microbatches that a stage holds activations of."""
    return float(Fraction(max(schedule.peak_activations), schedule.num_chunks))
