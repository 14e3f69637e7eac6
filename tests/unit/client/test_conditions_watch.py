"""Conditions of a rank's GPU that change while it trains."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.client.recording_gpu import RecordingGpu
from tests.unit.client.tiny_profile import HandClock

from flyball_client.gpu._base import GpuError
from flyball_client.session.conditions_watch import READ_PERIOD_S, ConditionsWatch
from flyball_profiles.gpu_conditions import GpuConditions

FULL = GpuConditions(power_limit_w=700.0, memory_clock_mhz=2619)
CAPPED = replace(FULL, power_limit_w=500.0)


def test_they_are_read_at_the_first_step_and_once_a_minute_and_a_change_is_logged(
    gpu: RecordingGpu, caplog: pytest.LogCaptureFixture
) -> None:
    clock = HandClock()
    watch = ConditionsWatch(gpu, rank_name="job j rank 0", now_s=clock.now_s)
    gpu.gpu_conditions = FULL
    assert [watch.read_if_due() for _ in range(3)] == [FULL, None, None]
    gpu.gpu_conditions = CAPPED
    clock.move(READ_PERIOD_S - 0.1)
    assert watch.read_if_due() is None
    clock.move(0.1)
    assert watch.read_if_due() == CAPPED
    assert caplog.messages == [
        "job j rank 0: its GPU's conditions have changed: power limit 500 W (before: 700 W)"
    ]


def test_what_cannot_be_read_any_more_is_as_it_was(
    gpu: RecordingGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = HandClock()
    watch = ConditionsWatch(gpu, rank_name="job j rank 0", now_s=clock.now_s)
    gpu.gpu_conditions = FULL
    watch.read_if_due()
    gpu.gpu_conditions = GpuConditions(power_limit_w=500.0)  # it is idle
    clock.move(READ_PERIOD_S)
    assert watch.read_if_due() == CAPPED

    def fail() -> GpuConditions:
        raise GpuError("lost")

    monkeypatch.setattr(gpu, "conditions", fail)
    clock.move(READ_PERIOD_S)
    assert watch.read_if_due() is None
    assert ConditionsWatch(None, rank_name="job j rank 1").read_if_due() is None
