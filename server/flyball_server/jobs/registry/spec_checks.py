"""Checks of a specification that need no profile."""

from __future__ import annotations

from flyball_pipeline.dag import build_dag
from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import equal_stages
from flyball_pipeline.schedules.envpipe import ENVPIPE
from flyball_pipeline.schedules.explicit import EXPLICIT, explicit_order, schedule_of_order
from flyball_pipeline.schedules.inputs import ScheduleInputs
from flyball_pipeline.schedules.table import SCHEDULES, make_schedule
from flyball_server.jobs.bounds import check_count, check_text
from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.probing import probing_schedule
from flyball_server.jobs.wanted.request import GpuTable, given_power_w, gpu_window
from flyball_server.planning.request_options import with_known_transitions
from flyball_server.planning.schedule_choice import is_auto
from flyball_wire.messages import Adaptation, JobSpec
from flyball_wire.options import OptionError
from flyball_wire.plan_options import Policy, check_together, plan_options

MAX_OTHER_ORDERS = 16


def check_spec(spec: JobSpec, gpu_table: GpuTable) -> None:
    """Check a specification whose fields were read one by one: all but what its profile decides.

    Raises:
        InvalidFieldError: a value is missing or for nothing, or a name is unknown.
    """
    if spec.num_expected_ranks < spec.num_stages:
        raise InvalidFieldError(
            "num_ranks",
            f"must be at least one for each of {spec.num_stages} stages, not {spec.num_ranks}",
        )
    _check_other_orders(spec)
    _check_schedule(spec)
    _check_adaptation(spec)
    window = gpu_window(spec, gpu_table)
    if not spec.is_profiled_online:
        given_power_w(spec, window)
    try:
        check_together(spec, spec.num_stages)
        with_known_transitions(plan_options(spec), window.transitions if window else None)
        _check_order(spec)
    except PipelineError as error:
        raise InvalidFieldError(error.field, error.message) from None
    if spec.is_profiled_online:
        probing_schedule(spec)


def _check_other_orders(spec: JobSpec) -> None:
    check_count("other_orders", len(spec.other_orders), most=MAX_OTHER_ORDERS)
    for other in spec.other_orders:
        check_text("other_orders", other.schedule)
        check_text("other_orders", other.line)


def _check_adaptation(spec: JobSpec) -> None:
    if spec.adaptation == Adaptation.RECONFIGURE and spec.policy != Policy.ENVELOPE:
        raise InvalidFieldError(
            "adaptation", f"reconfigure raises clocks of policy envelope, not of {spec.policy}"
        )
    if spec.adaptation == Adaptation.FRONTIER and spec.policy != Policy.FRONTIER:
        raise InvalidFieldError(
            "adaptation", f"frontier plans with policy frontier, not with {spec.policy}"
        )


def _check_order(spec: JobSpec) -> None:
    """Check that the order of the ranks is known and runs to its end."""
    if spec.schedule == ENVPIPE:
        if spec.extra_forwards is None:
            raise OptionError(
                f"must be given with schedule {ENVPIPE}, as its ranks run it",
                field="extra_forwards",
            )
        shape = equal_stages(spec.num_stages, spec.num_microbatches)
        make_schedule(ENVPIPE, ScheduleInputs(shape=shape, extra_forwards=spec.extra_forwards))
    if spec.schedule != EXPLICIT:
        return
    if spec.order is None:
        raise OptionError(f"must be given with schedule {EXPLICIT}", field="order")
    if len(spec.order) != spec.num_stages:
        message = f"must have {spec.num_stages} values, not {len(spec.order)}"
        raise InvalidFieldError("order", message)
    try:
        order = explicit_order(spec.order, spec.virtual_stages)
        build_dag(schedule_of_order(order, spec.num_microbatches))
    except PipelineError as error:
        field = "order" if error.field == "schedule" else error.field
        raise InvalidFieldError(field, error.message) from None


def _check_schedule(spec: JobSpec) -> None:
    """Check that the order is known before the job's first step, from which on it holds."""
    if is_auto(spec.schedule):
        raise InvalidFieldError(
            "schedule",
            "auto is for `flyball plan` and `flyball frontier` only: a job's order holds from its"
            " first step; name the order that its ranks run, and `flyball report` says which other"
            " order saves more",
        )
    if spec.schedule not in SCHEDULES:
        known = ", ".join(SCHEDULES)
        raise InvalidFieldError("schedule", f"unknown {spec.schedule!r}; known: {known}")
