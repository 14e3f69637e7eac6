"""`flyball frontier`, and `plan` with the policy `frontier`."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.integration.command_in_process import (
    HEADER,
    document_of,
    flyball,
    printed,
    refusal,
    run_apart,
)

# Two stages whose backwards have a third clock; the valley is at 1000 MHz.
ROWS = "".join(
    f"{stage},forward,1410,1.0,10.0\n{stage},forward,1000,1.25,8.0\n"
    f"{stage},backward,1410,2.0,30.0\n{stage},backward,1200,2.2,23.0\n"
    f"{stage},backward,1000,2.5,20.0\n"
    for stage in range(2)
)
ASKED = ("--microbatches", "4", "--blocking-power", "5")


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.csv"
    path.write_text(HEADER + ROWS, encoding="utf-8")
    return path


def test_it_prints_the_agreed_keys_and_points_in_order(profile: Path) -> None:
    document = printed(flyball("frontier", profile, *ASKED, "--points", "6", "--json"))
    assert set(document) == {
        "points", "baseline", "envpipe", "constant", "global_clock", "reserve",
        "transitions", "solve_s",
    }  # fmt: skip
    assert document["reserve"] == {"share": 0.0, "choice": None}
    points = document["points"]
    assert len(points) >= 6
    for point in points:
        assert set(point) == {
            "iteration_time_s", "energy_j", "lower_bound_j", "gap_percent", "deadline_s",
        }  # fmt: skip
        assert point["lower_bound_j"] <= point["energy_j"] * (1 + 1e-12)
        gap_percent = 100 * (point["energy_j"] / point["lower_bound_j"] - 1)
        assert point["gap_percent"] == pytest.approx(gap_percent, abs=1e-9)
        assert point["iteration_time_s"] <= point["deadline_s"]
    times_s = [point["iteration_time_s"] for point in points]
    energies_j = [point["energy_j"] for point in points]
    assert times_s == sorted(set(times_s))
    assert energies_j == sorted(set(energies_j), reverse=True)


def test_the_same_input_gives_the_same_plans_in_every_process_and_order_of_rows(
    profile: Path, tmp_path: Path
) -> None:
    reversed_profile = tmp_path / "reversed.csv"
    rows = ROWS.splitlines(keepends=True)
    reversed_profile.write_text(HEADER + "".join(reversed(rows)), encoding="utf-8")
    plan = ("--policy", "frontier", "--target", "slowdown:0.1", "--json")
    first, second = (
        printed(run_apart("plan", path, *ASKED, *plan, PYTHONHASHSEED=seed))
        for path, seed in ((profile, "1"), (reversed_profile, "4321"))
    )
    assert json.dumps(first["stages"]) == json.dumps(second["stages"])
    assert first | {"solve_s": 0} == second | {"solve_s": 0}
    first, second = (
        document_of("frontier", path, *ASKED, "--points", "5")
        for path in (profile, reversed_profile)
    )
    assert first | {"solve_s": 0} == second | {"solve_s": 0}


def test_without_json_it_is_a_table_and_a_plot_has_labels(profile: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    svg, png = tmp_path / "frontier.svg", tmp_path / "frontier.png"
    for picture in (svg, png):
        done = flyball("frontier", profile, *ASKED, "--points", "4", "--plot", picture)
        assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert sum(line.startswith("frontier ") for line in lines) >= 4
    assert sum(line.startswith("EnvPipe ") for line in lines) == 3
    assert any(line.startswith("baseline ") for line in lines)
    drawn = ElementTree.parse(svg).getroot()  # noqa: S314 - made by the lines above
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    text = svg.read_text(encoding="utf-8")
    for label in ("lower bound", "baseline", "EnvPipe envelope, balanced", "predicted"):
        assert label in text
    assert png.read_bytes().startswith(b"\x89PNG\r\n")


def test_a_bad_option_is_refused_in_one_line(profile: Path) -> None:
    for arguments, named in (
        (("--points", "1"), "--points: must be from 2 to 10000, not 1"),
        (("--points", "many"), "--points"),
        (("--plot", "frontier.gif"), "--plot: frontier.gif must end in .svg or .png"),
    ):
        assert named in refusal(flyball("frontier", profile, *ASKED, *arguments))
