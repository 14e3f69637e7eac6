"""What a counter's readings say of its period."""

from __future__ import annotations

import pytest

from counter_movements import CounterFigure, Reading
from measured_process import BenchmarkError


def readings_of(moments: list[tuple[float, float]]) -> list[Reading]:
    """(Before the call, s; energy, J) each; a call takes a millisecond."""
    return [
        Reading(before_s=before_s, after_s=before_s + 0.001, energy_j=energy_j)
        for before_s, energy_j in moments
    ]


def test_by_hand() -> None:
    # Read every 10 ms; it moves at 20, 120, 220, 330, 420 and 520 ms, by 5 J and once by 6.
    levels = {2: 5.0, 12: 10.0, 22: 15.0, 33: 21.0, 42: 26.0, 52: 31.0}
    energy_j, moments = 0.0, []
    for number in range(60):
        energy_j = levels.get(number, energy_j)
        moments.append((0.01 * number, energy_j))
    found = CounterFigure.of(readings_of(moments))

    assert found.num_movements == 6
    # 100, 100, 110, 90 and 100 ms.
    assert found.period_ms == pytest.approx((100, 90, 110, 110))
    # From the begin of the reading before to the end of the one that saw it.
    assert found.late_ms == pytest.approx(11)
    assert found.rise_j == pytest.approx(5)
    assert found.power_w == pytest.approx((31 - 5) / 0.5)
    assert found.is_resolved


def test_a_counter_that_moves_at_every_reading_was_read_too_seldom() -> None:
    found = CounterFigure.of(readings_of([(0.01 * number, 1.0 * number) for number in range(20)]))
    assert found.period_ms[0] == pytest.approx(10)
    assert not found.is_resolved


@pytest.mark.parametrize(
    ("num_readings", "line"),
    [(0, r"moved 0 times in 0\.0 s"), (41, r"moved 4 times in 4\.0 s")],
)
def test_few_movements_are_no_period(num_readings: int, line: str) -> None:
    moments = [(0.1 * number, 1.0 * (number // 10)) for number in range(num_readings)]
    with pytest.raises(BenchmarkError, match=line):
        CounterFigure.of(readings_of(moments))
