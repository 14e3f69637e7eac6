"""Posts of a session whose plan asks for more than totals."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.client.memory_planner import MemoryPlanner, SessionMaker
from tests.unit.client.test_rank_session import PLAN, run_step, wait_until
from tests.unit.client.tiny_profile import HandClock, tiny_profile

from flyball_client.gpu.emulated import EmulatedGpu
from flyball_client.session.rank_session import RankSession
from flyball_wire.measurements import MeasurementDetail, StepMeasurement


@pytest.fixture
def emulated() -> EmulatedGpu:
    """Forward 1 s at 1400 and 1200 MHz, 2 s at 900; backward 2 s at 1400, 3 s at the others."""
    return EmulatedGpu(tiny_profile(), 0, blocking_power_w=80.0, clock=HandClock())


def posted(
    planner: MemoryPlanner, session: RankSession, *, num_steps: int
) -> tuple[tuple[StepMeasurement, ...], tuple[StepMeasurement, ...]]:
    """Return what the planner has got when all is over, and what the session has kept."""
    with session:
        wait_until(planner, lambda: len(session.plans) > 0)
        for _ in range(num_steps):
            run_step(session)
    return tuple(measured for _, measured in sorted(planner.measurements.items())), session.history


@pytest.mark.parametrize("detail", list(MeasurementDetail))
def test_single_instructions_are_posted_of_a_plans_second_steps_whatever_the_detail(
    planner: MemoryPlanner,
    emulated: EmulatedGpu,
    make_session: SessionMaker,
    detail: MeasurementDetail,
) -> None:
    version = planner.publish(*PLAN, measurement_detail=detail, num_timed_steps=2)
    planner.name_first_step(version, 1)
    found, kept = posted(planner, make_session(emulated), num_steps=6)
    planned, timed = [1, 2, 3, 4, 5], [2, 3]
    with_instructions = [step.step for step in found if step.instructions is not None]
    assert with_instructions == (planned if detail == MeasurementDetail.INSTRUCTIONS else timed)
    with_clocks = [step.step for step in found if step.by_clock is not None]
    assert with_clocks == (timed if detail == MeasurementDetail.TOTALS else planned)
    # What is kept here stays small.
    assert kept == tuple(replace(step, by_clock=None, instructions=None) for step in found)
