"""Figures for a training loop's log, in the page's examples too, and what is posted of steps."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from types import ModuleType
from unittest.mock import MagicMock

import pytest
from tests.documentation.blocks import ROOT, blocks_of
from tests.unit.client.memory_planner import MemoryPlanner, SessionMaker, compiled_plan
from tests.unit.client.recording_gpu import RecordingGpu
from tests.unit.client.test_rank_session import run_step, wait_until
from tests.unit.client.tiny_profile import HandClock, tiny_profile

from flyball_client.gpu.emulated import IDEAL_GPU, EmulatedGpu
from flyball_client.session.rank_session import RankSession
from flyball_wire.measurements import MeasurementDetail, StepMeasurement

PLAN = (("forward", 0, 900), ("backward", 0, 1200))
PAGE = ROOT / "docs/metrics.md"
(EXAMPLE,) = [block for block in blocks_of(PAGE) if block.language == "python"]


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def session(make_session: SessionMaker, clock: HandClock) -> RankSession:
    """On an emulated GPU; a plan takes effect in step 1."""
    gpu = EmulatedGpu(tiny_profile(), 0, blocking_power_w=80.0, clock=clock, settings=IDEAL_GPU)
    made = make_session(gpu, planner=None)
    made.plans.put(compiled_plan(*PLAN), 1)
    return made


def test_they_are_the_last_steps_and_totals(session: RankSession, clock: HandClock) -> None:
    assert session.metrics()["flyball/total_num_steps"] == 0
    assert "flyball/step_time_s" not in session.metrics()
    run_step(session)  # 3 s, 900 J
    without_plan = session.metrics(prefix="")
    assert (without_plan["step"], without_plan["plan_version"]) == (0, 0)
    assert (without_plan["step_time_s"], without_plan["step_energy_j"]) == (3.0, 900.0)
    assert without_plan["step_power_w"] == 300.0
    run_step(session)  # 5 s, 650 J
    planned = session.metrics(prefix="")
    assert (planned["step"], planned["plan_version"]) == (1, 1)
    assert (planned["step_time_s"], planned["step_energy_j"]) == (5.0, 650.0)
    assert (planned["total_time_s"], planned["total_energy_j"]) == (8.0, 1550.0)
    assert (planned["total_num_steps"], planned["total_num_steps_without_plan"]) == (2, 1)
    assert planned["total_num_clock_changes"] == session.clock_report.num_switches > 0
    session.on_step_begin()
    session.on_instruction_begin("forward")
    clock.move(2.5)
    session.on_instruction_end("forward")
    for _ in range(2):
        session.on_instruction_begin("forward")
        session.on_instruction_end("forward")
    session.on_step_end()
    run_step(session)
    last = session.metrics(prefix="")
    assert (last["step_num_overruns"], last["step_num_unplanned"]) == (0, 0)
    assert (last["total_num_overruns"], last["total_num_unplanned"]) == (1, 2)
    assert (last["sets_clocks"], last["is_planner_lost"], last["is_emulated"]) == (1, 0, 1)


def test_totals_hold_more_steps_than_the_history(make_session: SessionMaker) -> None:
    gpu = RecordingGpu()
    session = make_session(gpu, planner=None, history_length=2)
    for energy_j in (10.0, 30.0, 70.0, 150.0):
        session.on_step_begin()
        gpu.energy_j = energy_j
        session.on_step_end()
    metrics = session.metrics(prefix="")
    assert (metrics["total_num_steps"], metrics["total_energy_j"]) == (4, 150.0)
    assert metrics["is_emulated"] == 0
    session.close()
    assert session.metrics(prefix="") == metrics | {"sets_clocks": 0.0}


def test_what_is_not_measured_is_missing(make_session: SessionMaker) -> None:
    session = make_session(None, planner=None)
    run_step(session)
    names = set(session.metrics(prefix=""))
    assert not names & {"step_energy_j", "step_power_w", "step_sm_clock_mhz", "total_energy_j"}
    assert {"step_time_s", "total_time_s"} <= names
    assert session.metrics()["flyball/sets_clocks"] == 0


def test_every_figure_is_a_finite_float_and_documented(session: RankSession) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for _ in range(2):
        run_step(session)
    for name, value in session.metrics().items():
        assert type(value) is float, name
        assert math.isfinite(value), name
        assert f"`{name.removeprefix('flyball/')}`" in page, name


def _module(**names: object) -> ModuleType:
    module = ModuleType("false")
    vars(module).update(names)
    return module


def test_the_pages_example_logs_each_step(
    session: RankSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[dict[str, float]] = []
    run = MagicMock()
    run.log = noted.append
    monkeypatch.setitem(sys.modules, "wandb", _module(init=lambda project: run))

    def train_step(batch: int) -> float:
        run_step(session)
        return 0.5 * batch

    exec(  # noqa: S102 - the page's own code
        EXAMPLE.text, {"session": session, "batches": range(3), "train_step": train_step}
    )
    assert [metrics["flyball/step_time_s"] for metrics in noted] == [3.0, 5.0, 5.0]
    assert [metrics["loss"] for metrics in noted] == [0.0, 0.5, 1.0]


# ------------------------------------------------------------------ posts of steps


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
