"""Measured clocks on their way from an emulated GPU to whoever looks at the job."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.planner.live import LivePlanner, live_planner
from tests.planner.patience import wait_until
from tests.planner.samples import rank_registration
from tests.unit.client.tiny_profile import HandClock, tiny_profile

from flyball_client.api.planner_client import PlannerClient
from flyball_client.governor.in_process import InProcessGovernor
from flyball_client.gpu.emulated import EmulatedGpu
from flyball_client.session.rank_session import RankSession
from flyball_wire import routes
from flyball_wire.codec import decode_list
from flyball_wire.read_models import StagesOfStep

STAGES = routes.fill(routes.STAGES_OF_STEPS, job_id="job")


@pytest.fixture
def planner() -> Iterator[LivePlanner]:
    """With a job of two stages, a rank each."""
    with live_planner() as live:
        live.put_job().raise_for_status()
        for rank in (0, 1):
            path = routes.fill(routes.RANK, job_id="job", rank=rank)
            live.http.put(path, json=rank_registration(rank)).raise_for_status()
        yield live


def steps(planner: LivePlanner) -> tuple[StagesOfStep, ...]:
    return decode_list(StagesOfStep, planner.http.get(STAGES).raise_for_status().json())


def test_what_a_rank_reads_back_is_told_of_its_stage(planner: LivePlanner) -> None:
    gpu = EmulatedGpu(tiny_profile(), 0, blocking_power_w=80.0, clock=HandClock())
    governor = InProcessGovernor(gpu, "rank 0")
    with (
        PlannerClient(str(planner.http.base_url)) as client,
        RankSession(
            gpu=gpu, job_id="job", rank=0, stage=0, planner=client, governor=governor
        ) as session,
    ):
        for sm_clock_mhz in (None, 1200, 900):
            session.on_step_begin()
            if sm_clock_mhz is not None:
                governor.set_mhz(sm_clock_mhz)
            session.on_instruction_begin("forward")
            session.on_instruction_end("forward")
            session.on_step_end()
        wait_until(lambda: len(steps(planner)) == 3)
    clocks_mhz = [[stage.sm_clock_mhz for stage in step.stages] for step in steps(planner)]
    assert clocks_mhz == [[1400.0], [1200.0], [900.0]]


def test_a_post_with_an_unknown_field_is_refused_and_names_it(planner: LivePlanner) -> None:
    step = {"step": 0, "plan_version": None, "time_s": 1.0, "energy_j": 1.0, "field_to_come": 1.0}
    path = routes.fill(routes.RANK_MEASUREMENTS, job_id="job", rank=0)
    answer = planner.http.post(path, json={"steps": [step] * 256})
    assert answer.status_code == 422
    assert "field_to_come" in answer.json()["detail"][:200]
