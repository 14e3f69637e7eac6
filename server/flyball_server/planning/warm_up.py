"""A plan made at start, so that the first real one does not wait for the compiler."""

from __future__ import annotations

import numpy as np

from flyball_profiles.stage_profile import InstructionKind, OperatingPoint, StageProfile
from flyball_server.planning.model.finish_times import earliest_of, latest_of
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_wire.plan_options import Effort, PlanOptions


def warm_up() -> None:
    """Compile and load what the policy `frontier` needs: seconds at first, then a moment."""
    points = tuple(
        OperatingPoint(frequency_mhz=mhz, time_s=1000 / mhz, energy_j=mhz / 1000)
        for mhz in (1000, 800)
    )
    kinds = (InstructionKind.FORWARD, InstructionKind.BACKWARD)
    profile = StageProfile(
        points={(stage, kind): points for stage in range(2) for kind in kinds},
        num_ranks_per_stage=(1, 1),
    )
    request = PlanRequest(
        profile=profile,
        num_microbatches=2,
        options=PlanOptions(blocking_power_w=(0.1,), effort=Effort.LOW),
    )
    model = make_plan(request).model
    dag, durations_s = model.dag, np.array(model.durations_s(model.baseline()))
    finish_s = earliest_of(
        dag.order_array, dag.predecessor_array, durations_s
    )  # of large pipelines
    latest_of(dag.order_array, dag.predecessor_array, durations_s, float(finish_s.max()))
