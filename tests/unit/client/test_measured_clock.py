"""The SM clock as it is read back, from an emulated GPU to a step, and the GPU's conditions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.client.recording_gpu import RecordingGpu
from tests.unit.client.tiny_profile import HandClock, tiny_profile

from flyball_client.governor._base import ClockReport
from flyball_client.governor.clock_controller import READ_PERIOD_S, SETTLE_S
from flyball_client.governor.in_process import InProcessGovernor
from flyball_client.gpu._base import GpuError
from flyball_client.gpu.emulated import IDEAL_GPU, EmulatedGpu
from flyball_client.session import conditions_watch
from flyball_client.session.conditions_watch import ConditionsWatch
from flyball_client.session.rank_session import RankSession
from flyball_profiles.gpu_conditions import GpuConditions


def test_an_emulated_clock_is_read_as_late_and_as_often_in_emulated_time_as_a_real_one() -> None:
    clock, time_scale = HandClock(), 20.0
    gpu = EmulatedGpu(
        tiny_profile(),
        0,
        blocking_power_w=80.0,
        clock=clock,
        time_scale=time_scale,
        settings=IDEAL_GPU,
    )
    governor = InProcessGovernor(gpu, "rank 0")

    def samples_after(emulated_s: float) -> tuple[int, int]:
        clock.move(emulated_s * time_scale)
        governor.on_instruction_end()
        report = governor.report()
        return report.num_samples, report.samples_mhz

    governor.set_mhz(1200)
    assert samples_after(0.9 * SETTLE_S) == (0, 0)
    assert samples_after(0.2 * SETTLE_S) == (1, 1200)
    assert samples_after(0.9 * READ_PERIOD_S) == (1, 1200)
    assert samples_after(0.2 * READ_PERIOD_S) == (2, 2400)
    governor.set_mhz(900)
    assert samples_after(2 * SETTLE_S) == (2, 2400)
    assert samples_after(READ_PERIOD_S) == (3, 3300)
    assert samples_after(0.9 * READ_PERIOD_S) == (3, 3300)
    governor.pause()
    assert samples_after(0.9 * SETTLE_S) == (3, 3300)
    assert samples_after(0.2 * SETTLE_S) == (4, 4700)


@pytest.mark.parametrize(
    ("began", "ended", "mean_mhz"),
    [
        ((0, 0), (0, 0), None),
        ((5, 6000), (5, 6000), None),
        ((0, 0), (3, 3600), 1200.0),
        ((5, 6000), (7, 6000 + 1410 + 1200), 1305.0),
        # The word that they are counted in has begun again: its count, its sum.
        ((9, 9000), (1, 10_200), None),
        ((9, 9000), (10, 200), None),
    ],
)
def test_the_mean_of_a_step_is_that_of_the_samples_within_it(
    began: tuple[int, int], ended: tuple[int, int], mean_mhz: float | None
) -> None:
    first = ClockReport(num_samples=began[0], samples_mhz=began[1])
    last = ClockReport(num_samples=ended[0], samples_mhz=ended[1])
    assert last.mean_sm_clock_mhz(first) == mean_mhz


def test_each_step_tells_the_clock_that_was_read_in_it_whether_one_was_set_or_not() -> None:
    """Each instruction takes 1 s or more, and is read once at its end."""
    gpu = EmulatedGpu(
        tiny_profile(), 0, blocking_power_w=80.0, settings=IDEAL_GPU, clock=HandClock()
    )
    governor = InProcessGovernor(gpu, "rank 0")
    with RankSession(
        gpu=gpu, job_id="gpt", rank=0, stage=0, planner=None, governor=governor
    ) as session:
        for clocks_mhz in ((None, None), (1200, 900), (900, 900), ()):
            session.on_step_begin()
            for kind, sm_clock_mhz in zip(("forward", "backward"), clocks_mhz, strict=False):
                if sm_clock_mhz is not None:
                    governor.set_mhz(sm_clock_mhz)
                session.on_instruction_begin(kind)
                session.on_instruction_end(kind)
            session.on_step_end()
    measured_mhz = [step.sm_clock_mhz for step in session.history]
    assert measured_mhz == [1400.0, 1050.0, 900.0, None]


# ------------------------------------------------------------------ changing conditions

FULL = GpuConditions(power_limit_w=700.0, memory_clock_mhz=2619)
CAPPED = replace(FULL, power_limit_w=500.0)


def watched(gpu: RecordingGpu) -> tuple[HandClock, ConditionsWatch]:
    gpu.gpu_conditions, clock = FULL, HandClock()
    return clock, ConditionsWatch(gpu, rank_name="job j rank 0", now_s=clock.now_s)


def test_they_are_read_at_the_first_step_and_once_a_minute_and_a_change_is_logged(
    gpu: RecordingGpu, caplog: pytest.LogCaptureFixture
) -> None:
    clock, watch = watched(gpu)
    assert [watch.read_if_due() for _ in range(3)] == [FULL, None, None]
    gpu.gpu_conditions = CAPPED
    clock.move(conditions_watch.READ_PERIOD_S - 0.1)
    assert watch.read_if_due() is None
    clock.move(0.1)
    assert watch.read_if_due() == CAPPED
    assert caplog.messages == [
        "job j rank 0: its GPU's conditions have changed: power limit 500 W (before: 700 W)"
    ]


def test_what_cannot_be_read_any_more_is_as_it_was(
    gpu: RecordingGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, watch = watched(gpu)
    watch.read_if_due()
    gpu.gpu_conditions = GpuConditions(power_limit_w=500.0)  # it is idle
    clock.move(conditions_watch.READ_PERIOD_S)
    assert watch.read_if_due() == CAPPED

    def fail() -> GpuConditions:
        raise GpuError("lost")

    monkeypatch.setattr(gpu, "conditions", fail)
    clock.move(conditions_watch.READ_PERIOD_S)
    assert watch.read_if_due() is None
    assert ConditionsWatch(None, rank_name="job j rank 1").read_if_due() is None
