from __future__ import annotations

from dataclasses import replace

import pytest

from flyball_client.profiling.points_file import MeasuredPoint
from flyball_client.profiling.repetition import Sweep
from flyball_profiles.stage_profile import InstructionKind

FORWARD = InstructionKind.FORWARD
CLOCKS_MHZ = tuple(range(1400, 300, -100))


def point(kind: InstructionKind, frequency_mhz: int, energy_j: float = 1.0) -> MeasuredPoint:
    return MeasuredPoint(
        kind=kind,
        frequency_mhz=frequency_mhz,
        time_s=1.0,
        time_error_s=0.0,
        energy_j=energy_j,
        energy_error_j=0.0,
        num_repetitions=10,
        sm_clock_mhz=frequency_mhz,
        held_by=None,
        is_settled=True,
    )


class Valley:
    """Measures an energy that falls down to a clock and rises below it."""

    def __init__(self, least_energy_mhz: int, *, held_above_mhz: int = 100_000) -> None:
        self.asked: list[tuple[InstructionKind, int]] = []
        self._valley_mhz = least_energy_mhz
        self._held_above_mhz = held_above_mhz

    def __call__(self, kind: InstructionKind, clock_mhz: int) -> MeasuredPoint:
        self.asked.append((kind, clock_mhz))
        measured = point(kind, clock_mhz, 10.0 + abs(clock_mhz - self._valley_mhz) / 100)
        is_held = clock_mhz > self._held_above_mhz
        return replace(measured, held_by="power") if is_held else measured


@pytest.mark.parametrize(("num_rises", "last_mhz"), [(5, 500), (2, 800), (0, 400), (9, 400)])
def test_a_sweep_ends_after_so_many_rises_of_energy_in_a_row(num_rises: int, last_mhz: int) -> None:
    sweep = Sweep((FORWARD,), CLOCKS_MHZ, num_rises=num_rises)
    assert [each.frequency_mhz for each in sweep.run(Valley(1000))][-1] == last_mhz
    assert sweep.stopped_at_mhz == ({FORWARD: last_mhz} if last_mhz > 400 else {})


def test_a_fall_in_between_begins_the_count_anew_and_points_held_below_the_lock_are_no_rises() -> (
    None
):
    energies_j = dict(zip(CLOCKS_MHZ, (5, 6, 7, 8, 9, 8.5, 9, 10, 11, 12, 13), strict=True))
    sweep = Sweep((FORWARD,), CLOCKS_MHZ)
    points = list(sweep.run(lambda kind, mhz: point(kind, mhz, energies_j[mhz])))
    assert len(points) == 11
    # Held at one clock, all take the same energy but for noise; that says nothing of lower ones.
    held = Valley(1400, held_above_mhz=900)
    points = list(Sweep((FORWARD,), CLOCKS_MHZ, num_rises=3).run(held))
    assert points[-1].frequency_mhz == 600


def test_what_is_known_is_not_measured_again_but_counts() -> None:
    known = [point(FORWARD, mhz, 20.0 - mhz / 100) for mhz in (1400, 1300, 1200)]
    measure = Valley(1400)
    points = list(Sweep((FORWARD,), CLOCKS_MHZ, num_rises=3, known=known).run(measure))
    assert measure.asked == [(FORWARD, 1100)]
    assert [each.frequency_mhz for each in points] == [1100]
