"""The order that a job's ranks run in place of their framework's own."""

from __future__ import annotations

from flyball_pipeline.instruction import equal_stages
from flyball_pipeline.schedule import Schedule
from flyball_pipeline.schedules.envpipe import ENVPIPE
from flyball_pipeline.schedules.inputs import ScheduleInputs
from flyball_pipeline.schedules.table import make_schedule
from flyball_wire.messages import JobRegistration


def order_to_run(registration: JobRegistration) -> Schedule | None:
    """Return the order to run in place of the framework's own; None: it stays.

    Raises:
        PipelineError: the stages cannot run it.
    """
    if registration.extra_forwards is None:
        return None
    shape = equal_stages(registration.num_stages, registration.num_microbatches)
    inputs = ScheduleInputs(shape=shape, extra_forwards=registration.extra_forwards)
    return make_schedule(ENVPIPE, inputs)
