from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_client.session.instruction_timings import InstructionTiming
from flyball_client.session.step_recorder import num_details, with_details
from flyball_wire.messages import MeasurementDetail, StepMeasurement

TOTALS = StepMeasurement(step=3, plan_version=2, time_s=10.0, energy_j=2000.0, num_unplanned=1)


def ran(
    kind: str, time_s: float, sm_clock_mhz: int | None, *, chunk: int = 0, microbatch: int = 0
) -> InstructionTiming:
    return InstructionTiming(
        kind=kind,
        microbatch=microbatch,
        chunk=chunk,
        sm_clock_mhz=sm_clock_mhz,
        began_s=1.0,
        compute_time_s=time_s,
        receive_time_s=0.25,
        send_time_s=0.125,
    )


def by_clock(
    *timings: InstructionTiming,
) -> dict[tuple[str, int, int | None], tuple[int, float, float]]:
    detailed = with_details(TOTALS, timings, MeasurementDetail.CLOCKS, were_clocks_set=True)
    assert detailed.by_clock is not None
    assert detailed.instructions is None
    return {row[:3]: row[3:] for row in detailed.by_clock}


def test_instructions_are_told_apart_by_kind_chunk_and_clock() -> None:
    found = by_clock(
        ran("forward", 1.0, 1400),
        ran("backward", 2.0, 1400),
        ran("forward", 3.0, 1400),
        ran("forward", 0.0, 1400),  # its end was not told
        ran("forward", 5.0, 1400, chunk=1),
        ran("forward", 7.0, 900),
    )
    assert found == {
        ("forward", 0, 1400): (2, 2.0, 2.0),
        ("backward", 0, 1400): (1, 2.0, 0.0),
        ("forward", 1, 1400): (1, 5.0, 0.0),
        ("forward", 0, 900): (1, 7.0, 0.0),
    }


@given(st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=30))
def test_count_mean_and_variance_are_those_of_the_times(times_s: list[float]) -> None:
    found = by_clock(*(ran("forward", time_s, 1400) for time_s in times_s))
    count, mean_s, variance_s2 = found["forward", 0, 1400]
    assert count == len(times_s)
    assert mean_s == pytest.approx(statistics.fmean(times_s))
    assert variance_s2 == pytest.approx(statistics.variance(times_s), rel=1e-6, abs=1e-20)


def test_each_instruction_is_told_where_it_is_asked_for_and_the_totals_stay() -> None:
    timings = (ran("forward", 0.0, None), ran("backward", 2.0, 900, microbatch=5, chunk=1))
    detailed = with_details(TOTALS, timings, MeasurementDetail.INSTRUCTIONS, were_clocks_set=True)
    assert detailed.instructions == (
        ("forward", 0, 0, 1.0, 0.0, 0.25, 0.125),
        ("backward", 5, 1, 1.0, 2.0, 0.25, 0.125),
    )
    assert detailed.by_clock == (("backward", 1, 900, 1, 2.0, 0.0),)
    assert num_details(detailed) == 3
    assert num_details(TOTALS) == 0
    assert (detailed.step, detailed.energy_j, detailed.num_unplanned) == (3, 2000.0, 1)
