"""The SM clock as it is read back, from an emulated GPU to what a step tells of it."""

from __future__ import annotations

import pytest
from tests.unit.client.tiny_profile import HandClock, tiny_profile

from flyball_client.governor._base import ClockReport
from flyball_client.governor.clock_controller import READ_PERIOD_S, SETTLE_S
from flyball_client.governor.in_process import InProcessGovernor
from flyball_client.gpu.emulated import IDEAL_GPU, EmulatedGpu, EmulatedGpuSettings
from flyball_client.session.rank_session import RankSession


class Desk:
    """A governor of an emulated GPU, and the time that it looks at."""

    def __init__(self, *, time_scale: float = 1.0, delay_s: float = 0.0) -> None:
        self.clock = HandClock()
        self.time_scale = time_scale
        self.gpu = EmulatedGpu(
            tiny_profile(),
            0,
            blocking_power_w=80.0,
            clock=self.clock,
            time_scale=time_scale,
            settings=EmulatedGpuSettings.exact_delay(delay_s),
        )
        self.governor = InProcessGovernor(self.gpu, "rank 0")

    def end_instruction_after(self, emulated_s: float) -> None:
        self.clock.move(emulated_s * self.time_scale)
        self.governor.on_instruction_end()

    @property
    def samples(self) -> tuple[int, int]:
        report = self.governor.report()
        return report.num_samples, report.samples_mhz


@pytest.mark.parametrize("time_scale", [0.01, 1.0, 20.0])
def test_an_emulated_clock_is_read_as_late_and_as_often_in_emulated_time_as_a_real_one(
    time_scale: float,
) -> None:
    desk = Desk(time_scale=time_scale)
    desk.governor.set_mhz(1200)
    desk.end_instruction_after(0.9 * SETTLE_S)
    assert desk.samples == (0, 0)
    desk.end_instruction_after(0.2 * SETTLE_S)
    assert desk.samples == (1, 1200)
    desk.end_instruction_after(0.9 * READ_PERIOD_S)
    assert desk.samples == (1, 1200)
    desk.end_instruction_after(0.2 * READ_PERIOD_S)
    assert desk.samples == (2, 2400)
    desk.governor.set_mhz(900)
    desk.end_instruction_after(2 * SETTLE_S)
    assert desk.samples == (2, 2400)
    desk.end_instruction_after(READ_PERIOD_S)
    assert desk.samples == (3, 3300)
    desk.end_instruction_after(0.9 * READ_PERIOD_S)
    desk.governor.pause()
    desk.end_instruction_after(0.9 * SETTLE_S)
    assert desk.samples == (3, 3300)
    desk.end_instruction_after(0.2 * SETTLE_S)
    assert desk.samples == (4, 4700)


def test_a_clock_that_was_asked_for_and_is_not_in_force_yet_is_not_what_is_read() -> None:
    desk = Desk(delay_s=1.0)
    desk.governor.set_mhz(900)
    desk.end_instruction_after(0.5)
    desk.end_instruction_after(1.0)
    assert desk.samples == (2, 1400 + 900)


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
