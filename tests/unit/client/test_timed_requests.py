"""Clocks that a plan requests within an earlier instruction, over an emulated GPU."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.memory_planner import compiled_plan
from tests.unit.client.tiny_profile import HandClock, one_stage

from flyball_client.gpu.emulated import EmulatedGpu, EmulatedGpuSettings
from flyball_client.session.rank_session import RankSession

# MHz: time in s and energy in J of a forward; a backward takes twice as much of both.
FORWARD = {1400: (0.1, 30.0), 1200: (0.12, 27.0), 900: (0.15, 24.0)}
PROFILE = one_stage(FORWARD, backward_factor=2)
DELAY_S = 0.03

PLAN = (("forward", 0, 1200), ("forward", 1, 1200), ("backward", 0, 900), ("backward", 1, 1400))


class BusyRank:
    """A rank that computes without a break, in virtual time, on one plan from step 0."""

    def __init__(
        self,
        instructions: Sequence[tuple[str, int, int]] = PLAN,
        requests: tuple[tuple[int, int, float], ...] = (),
        *,
        delay_s: float = DELAY_S,
        time_scale: float = 1.0,
    ) -> None:
        self.clock = HandClock()
        self.gpu = EmulatedGpu(
            PROFILE,
            0,
            blocking_power_w=80.0,
            settings=EmulatedGpuSettings.exact_delay(delay_s),
            counter_period_s=1e-9,
            time_scale=time_scale,
            clock=self.clock,
        )
        self.instructions = instructions
        self.session = RankSession(gpu=self.gpu, job_id="gpt", rank=0, stage=0, planner=None)
        self.session.plans.put(compiled_plan(*instructions, requests=requests), 0)

    def run_step(self, *, waits_s: float = 0.0, names_microbatches: bool = True) -> list[float]:
        """Return the time of each instruction in s; the rank waits as long before each."""
        session = self.session
        session.on_step_begin()
        for kind, microbatch, _ in self.instructions:
            self.clock.move(waits_s)
            self.run(kind, microbatch if names_microbatches else None)
        session.on_step_end()
        return [timing.compute_time_s for timing in session.last_step_timings]

    def run(self, kind: str, microbatch: int | None = None) -> None:
        """Run an instruction."""
        self.session.on_instruction_begin(kind, microbatch=microbatch)
        self.session.on_instruction_end(kind, microbatch=microbatch)


@given(
    offset_s=st.floats(0, 0.4),
    delay_s=st.floats(0, 0.2),
    wait_s=st.sampled_from([0.0, 0.02]),
    late_s=st.sampled_from([0.0, 0.01]),
    time_scale=st.sampled_from([1.0, 3.0]),
)
def test_the_clock_changes_a_delay_after_its_request(
    offset_s: float, delay_s: float, wait_s: float, late_s: float, time_scale: float
) -> None:
    """It is requested at the earlier one of the first one's begin + offset and its own begin."""
    instructions = (("forward", 0, 1400), ("backward", 0, 900))
    rank = BusyRank(instructions, ((1, 0, offset_s),), delay_s=delay_s, time_scale=time_scale)
    session = rank.session
    session.on_step_begin()
    rank.clock.move(late_s * time_scale)
    began_s = rank.gpu.emulated_time_s()
    rank.run("forward", 0)
    first_s = rank.gpu.emulated_time_s() - began_s
    rank.clock.move(wait_s * time_scale)
    second_began_s = rank.gpu.emulated_time_s() - began_s
    rank.run("backward", 0)
    second_s = rank.gpu.emulated_time_s() - began_s - second_began_s

    effect_s = min(offset_s, second_began_s) + delay_s
    x_s = min(effect_s, 0.1)
    assert first_s == pytest.approx(x_s + 0.15 * (1 - x_s / 0.1))
    x_s = min(max(0.0, effect_s - second_began_s), 0.2)
    assert second_s == pytest.approx(x_s + 0.3 * (1 - x_s / 0.2))


def test_an_unplanned_instruction_or_a_failed_step_drops_a_timed_request() -> None:
    instructions = (("forward", 0, 1400), ("forward", 1, 1400), ("backward", 0, 900))
    rank = BusyRank(instructions, ((2, 0, 0.25),), delay_s=0.0)
    rank.session.on_step_begin()
    rank.run("forward", 0)
    # It gets the highest clock, which is the one in force.
    rank.run("forward", 7)
    rank.clock.move(1.0)
    assert rank.gpu.sm_clock_mhz() == 1400
    rank.run("backward", 0)
    rank.session.on_step_end()
    assert rank.session.clock_report.num_switches == 1
    assert rank.session.history[-1].num_unplanned == 2
    rank.session.on_step_begin()
    rank.session.on_instruction_begin("forward", microbatch=0)
    rank.session.on_step_failed()
    rank.clock.move(1.0)
    assert rank.gpu.requested_sm_clock_mhz == 1400


def test_a_timed_first_clock_is_made_in_the_tail_and_corrected_where_another_plan_is_due() -> None:
    instructions = (("forward", 0, 1200), ("backward", 0, 900))
    requests = ((2, 1, 0.4),)
    rank = BusyRank(instructions, requests, delay_s=0.0)
    rank.run_step()
    # The backward takes 0.3 s: 0.1 s of the tail are left, which the step's end does not cut.
    assert rank.gpu.requested_sm_clock_mhz == 900
    rank.clock.move(0.09)
    assert rank.gpu.requested_sm_clock_mhz == 900
    rank.session.on_step_begin()
    rank.clock.move(0.02)
    assert rank.gpu.requested_sm_clock_mhz == 1200
    for kind, microbatch, _ in instructions:
        rank.run(kind, microbatch)
    rank.session.plans.put(compiled_plan(("forward", 0, 1400)), 2)
    rank.session.on_step_end()
    assert rank.gpu.requested_sm_clock_mhz == 1400
    rank.clock.move(1.0)
    assert rank.gpu.requested_sm_clock_mhz == 1400
