"""The SM clock as it is read back, from an emulated GPU to what a step tells of it."""

from __future__ import annotations

import pytest
from tests.unit.client.tiny_profile import HandClock, tiny_profile

from flyball_client.governor._base import ClockReport
from flyball_client.governor.clock_controller import READ_PERIOD_S, SETTLE_S
from flyball_client.governor.in_process import InProcessGovernor
from flyball_client.gpu.emulated import IDEAL_GPU, EmulatedGpu
from flyball_client.session.rank_session import RankSession


@pytest.mark.parametrize("time_scale", [0.01, 20.0])
def test_an_emulated_clock_is_read_as_late_and_as_often_in_emulated_time_as_a_real_one(
    time_scale: float,
) -> None:
    clock = HandClock()
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
