"""Points of a profile: the clocks that a sweep measures, and the file that holds them."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from flyball_client.profiling.points_file import Measured, MeasuredPoint, PointsFile
from flyball_client.profiling.repetition import Sweep
from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.stage_profile import ProfileError

MEASURED = Measured(stage=0, gpu_name="GPU, one")


def point(
    frequency_mhz: int,
    kind: InstructionKind = InstructionKind.FORWARD,
    *,
    energy_j: float = 20 / 3,
    held_by: str | None = None,
) -> MeasuredPoint:
    return MeasuredPoint(
        kind=kind,
        frequency_mhz=frequency_mhz,
        time_s=1 / 3,
        time_error_s=0.001,
        energy_j=energy_j,
        energy_error_j=0.02,
        num_repetitions=77,
        sm_clock_mhz=frequency_mhz - (0 if held_by is None else 100),
        held_by=held_by,
        is_settled=frequency_mhz != 1200,
    )


POINTS = [point(mhz, kind) for kind in list(InstructionKind)[:2] for mhz in (1400, 1200)]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.csv"


def write(out: Path, points: list[MeasuredPoint], measured: Measured = MEASURED) -> PointsFile:
    file = PointsFile(out, measured)
    file.begin()
    for each in points:
        file.append(each)
    return file


@pytest.mark.parametrize(
    "measured",
    [
        MEASURED,
        Measured(stage=3, chunk=1, gpu_name="GPU"),
        Measured(stage=1, rank={"dp_rank": 2, "rank": 5}, gpu_name="GPU"),
    ],
)
def test_a_resumed_file_gives_back_every_point_exactly(out: Path, measured: Measured) -> None:
    points = [*POINTS, point(900, held_by="power thermal"), point(600, held_by="lost")]
    write(out, points, measured)
    assert PointsFile(out, measured).resume() == points


def clocks_in(file: Path) -> list[str]:
    with file.open() as opened:
        return [row["frequency"] for row in csv.DictReader(opened)]


def test_points_below_their_lock_stay_and_those_without_a_lock_go_aside(out: Path) -> None:
    file = write(out, [point(1500, held_by="power"), point(1400, held_by="lost")])
    files = [clocks_in(one) for one in (out, file.lost_file)]
    assert files == [["1500"], ["1400"]]


def test_a_row_that_was_cut_off_is_dropped_and_the_next_one_stands_whole(out: Path) -> None:
    write(out, POINTS)
    out.write_text(out.read_text()[:-20])
    file = PointsFile(out, MEASURED)
    assert file.resume() == POINTS[:-1]
    file.append(point(900))
    assert PointsFile(out, MEASURED).resume()[-1] == point(900)


def test_a_file_stays_as_it_was_until_there_is_a_point_to_write(out: Path) -> None:
    out.write_text("an earlier result\n")
    file = PointsFile(out, MEASURED)
    file.begin()
    assert out.read_text() == "an earlier result\n"
    file.append(POINTS[0])
    assert "earlier" not in out.read_text()


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (replace(MEASURED, stage=1), "out.csv:2: is of another stage, chunk, rank or GPU"),
        (replace(MEASURED, gpu_name="GPU two"), "out.csv:2: is of another stage"),
        (replace(MEASURED, chunk=0), "out.csv:1: was not measured with these options"),
        (replace(MEASURED, rank={"rank": 0}), "out.csv:1: was not measured with these options"),
    ],
)
def test_points_of_something_else_are_not_gone_on_with(
    out: Path, other: Measured, text: str
) -> None:
    write(out, POINTS)
    with pytest.raises(ProfileError, match=text):
        PointsFile(out, other).resume()


def test_a_file_of_somebody_else_is_not_touched(out: Path) -> None:
    out.write_text("my notes\nwithout an end")
    with pytest.raises(ProfileError, match=r"out.csv:1: missing column"):
        PointsFile(out, MEASURED).resume()
    assert out.read_text() == "my notes\nwithout an end"


FORWARD = InstructionKind.FORWARD
CLOCKS_MHZ = tuple(range(1400, 300, -100))


class Valley:
    """Measures an energy that falls down to a clock and rises below it."""

    def __init__(self, least_energy_mhz: int, *, held_above_mhz: int = 100_000) -> None:
        self.asked: list[tuple[InstructionKind, int]] = []
        self._valley_mhz = least_energy_mhz
        self._held_above_mhz = held_above_mhz

    def __call__(self, kind: InstructionKind, clock_mhz: int) -> MeasuredPoint:
        self.asked.append((kind, clock_mhz))
        energy_j = 10.0 + abs(clock_mhz - self._valley_mhz) / 100
        held_by = "power" if clock_mhz > self._held_above_mhz else None
        return point(clock_mhz, kind, energy_j=energy_j, held_by=held_by)


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
    points = list(sweep.run(lambda kind, mhz: point(mhz, kind, energy_j=energies_j[mhz])))
    assert len(points) == 11
    # Held at one clock, all take the same energy but for noise; that says nothing of lower ones.
    held = Valley(1400, held_above_mhz=900)
    points = list(Sweep((FORWARD,), CLOCKS_MHZ, num_rises=3).run(held))
    assert points[-1].frequency_mhz == 600


def test_what_is_known_is_not_measured_again_but_counts() -> None:
    known = [point(mhz, energy_j=20.0 - mhz / 100) for mhz in (1400, 1300, 1200)]
    measure = Valley(1400)
    points = list(Sweep((FORWARD,), CLOCKS_MHZ, num_rises=3, known=known).run(measure))
    assert measure.asked == [(FORWARD, 1100)]
    assert [each.frequency_mhz for each in points] == [1100]
