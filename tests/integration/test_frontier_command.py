"""`flyball frontier`, and `plan` with the policy `frontier`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from tests.integration.command_in_process import Done, run_apart, run_here

HEADER = "stage,instruction,frequency,time,energy\n"
# Two stages whose backwards have a third clock; the valley is at 1000 MHz.
ROWS = "".join(
    f"{stage},forward,1410,1.0,10.0\n{stage},forward,1000,1.25,8.0\n"
    f"{stage},backward,1410,2.0,30.0\n{stage},backward,1200,2.2,23.0\n"
    f"{stage},backward,1000,2.5,20.0\n"
    for stage in range(2)
)
ASKED = ("--microbatches", "4", "--blocking-power", "5")


def flyball(*arguments: str | Path, hash_seed: str | None = None) -> Done:
    """Within this process, or in one of its own where it gets a seed of its hashes."""
    if hash_seed is None:
        return run_here(*arguments)
    return run_apart(*arguments, PYTHONHASHSEED=hash_seed)


def printed(*arguments: str | Path, hash_seed: str | None = None) -> dict[str, Any]:
    """Return what a command that succeeds prints on stdout, which must be one JSON object."""
    done = flyball(*arguments, "--json", hash_seed=hash_seed)
    assert (done.returncode, done.stderr) == (0, "")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def refusal(*arguments: str | Path) -> str:
    """The one line on stderr of a command that must refuse its input."""
    done = flyball(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr.strip()


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.csv"
    path.write_text(HEADER + ROWS, encoding="utf-8")
    return path


def test_it_prints_the_agreed_keys_and_points_in_order(profile: Path) -> None:
    document = printed("frontier", profile, *ASKED, "--points", "6")
    assert set(document) == {"points", "baseline", "envpipe", "reserve", "solve_s"}
    assert document["reserve"] == 0.0
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
    assert document["solve_s"] > 0


def test_the_same_input_gives_the_same_clocks_in_every_process(profile: Path) -> None:
    asked = ("plan", profile, *ASKED, "--policy", "frontier", "--target", "slowdown:0.1")
    first, second = (printed(*asked, hash_seed=seed) for seed in ("1", "4321"))
    assert json.dumps(first["stages"]) == json.dumps(second["stages"])
    first.pop("solve_s"), second.pop("solve_s")
    assert first == second


def test_the_same_input_gives_the_same_frontier_whatever_the_order_of_its_rows(
    profile: Path, tmp_path: Path
) -> None:
    reversed_profile = tmp_path / "reversed.csv"
    rows = ROWS.splitlines(keepends=True)
    reversed_profile.write_text(HEADER + "".join(reversed(rows)), encoding="utf-8")
    asked = (*ASKED, "--points", "5")
    first = printed("frontier", profile, *asked, hash_seed="1")
    second = printed("frontier", reversed_profile, *asked, hash_seed="4321")
    assert json.dumps(first["points"]) == json.dumps(second["points"])


def test_without_json_it_is_a_table(profile: Path) -> None:
    done = flyball("frontier", profile, *ASKED, "--points", "4")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert sum(line.startswith("frontier ") for line in lines) >= 4
    assert sum(line.startswith("EnvPipe ") for line in lines) == 3
    assert any(line.startswith("baseline ") for line in lines)


def test_a_plot_as_svg_says_what_it_shows(profile: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    picture = tmp_path / "frontier.svg"
    done = flyball("frontier", profile, *ASKED, "--points", "4", "--plot", picture)
    assert (done.returncode, done.stderr) == (0, "")
    drawn = ElementTree.parse(picture).getroot()  # noqa: S314 - made by the line above
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    text = picture.read_text(encoding="utf-8")
    for label in ("lower bound", "baseline", "EnvPipe envelope, balanced", "predicted"):
        assert label in text


def test_a_plot_as_png_is_a_picture(profile: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    picture = tmp_path / "frontier.png"
    document = printed("frontier", profile, *ASKED, "--points", "4", "--plot", picture)
    assert document["points"]
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG\r\n")
    assert len(content) > 10_000


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--points", "1"), "--points: must be from 2 to 10000, not 1"),
        (("--points", "many"), "--points"),
        (("--plot", "frontier.gif"), "--plot: frontier.gif must end in .svg or .png"),
    ],
)
def test_what_it_cannot_use_it_refuses_in_one_line(
    profile: Path, arguments: tuple[str, str], named: str
) -> None:
    assert named in refusal("frontier", profile, *ASKED, *arguments)
