"""`flyball plan` and `flyball simulate`: what they print, write and refuse."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from tests.integration.command_in_process import PROCESS_LIMIT_S, Done, run_apart, run_here

HEADER = "stage,instruction,frequency,time,energy\n"


# Equal stages: forward 1 s, backward 2 s at 1410 MHz; the valley is at 1000 MHz.
def rows_of(num_stages: int) -> str:
    return "".join(
        f"{stage},forward,1410,1.0,10.0\n{stage},forward,1000,1.25,8.0\n"
        f"{stage},backward,1410,2.0,30.0\n{stage},backward,1000,2.5,20.0\n"
        for stage in range(num_stages)
    )


GOOD_ROWS = rows_of(2)
ASKED = ("--microbatches", "2", "--blocking-power", "5")


def flyball(*arguments: str | Path, cwd: Path | None = None) -> Done:
    with chdir(Path.cwd() if cwd is None else cwd):
        return run_here(*arguments)


def printed(*arguments: str | Path) -> dict[str, Any]:
    """Return what a command that succeeds prints on stdout, which must be one JSON object."""
    done = flyball(*arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def refusal(*arguments: str | Path) -> str:
    """The one line on stderr of a command that must refuse its input."""
    done = flyball(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.endswith("\n")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr.strip()


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.csv"
    path.write_text(HEADER + GOOD_ROWS, encoding="utf-8")
    return path


@pytest.fixture
def plan(tmp_path: Path, profile: Path) -> Path:
    path = tmp_path / "plan.json"
    done = flyball("plan", profile, *ASKED, "--policy", "envelope", "-o", path)
    assert done.returncode == 0
    return path


def test_plan_prints_the_agreed_keys_and_the_figures_of_the_paper_example(profile: Path) -> None:
    """The figures are those worked out in tests/unit/planning/test_planner.py."""
    document = printed("plan", profile, *ASKED)
    assert set(document) == {
        "policy", "reconfigure", "schedule", "target", "num_stages", "num_microbatches",
        "blocking_power_w", "iteration_time_s", "energy_j", "baseline", "saving_percent",
        "slowdown_percent", "lower_bound_j", "gap_percent", "solve_s", "stages",
    }  # fmt: skip
    assert set(document["baseline"]) == {"iteration_time_s", "energy_j"}
    assert document["baseline"] == {"iteration_time_s": 9.0, "energy_j": 190.0}
    assert document["blocking_power_w"] == [5.0, 5.0]
    assert document["solve_s"] > 0


def test_the_envelope_plan_has_the_clocks_worked_out_by_hand(profile: Path) -> None:
    document = printed("plan", profile, *ASKED, "--policy", "envelope")
    assert (document["iteration_time_s"], document["energy_j"]) == (9.0, 174.25)
    assert document["stages"][0] == [
        ["forward", 0, 1410], ["forward", 1, 1000], ["backward", 0, 1000], ["backward", 1, 1410],
    ]  # fmt: skip


def test_simulate_prints_the_agreed_keys(profile: Path, plan: Path) -> None:
    document = printed("simulate", profile, plan)
    assert set(document) == {
        "iteration_time_s", "energy_j", "bubble_fraction", "peak_activations", "critical_path",
    }  # fmt: skip
    assert document["peak_activations"] == [2, 1]
    assert document["critical_path"] == [
        [0, "forward", 0], [1, "forward", 0], [1, "backward", 0],
        [1, "forward", 1], [1, "backward", 1], [0, "backward", 1],
    ]  # fmt: skip


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "envpipe"])
@pytest.mark.parametrize("reconfigure", ["default", "greedy", "balanced"])
def test_simulating_a_written_plan_agrees_to_the_last_digit(
    tmp_path: Path, profile: Path, schedule: str, reconfigure: str
) -> None:
    path = tmp_path / "plan.json"
    options = ("--schedule", schedule, "--reconfigure", reconfigure, "--policy", "envelope")
    made = printed("plan", profile, "--microbatches", "5", "--gpu", "a100", *options, "-o", path)
    assert json.loads(path.read_text(encoding="utf-8")) == made
    simulated = printed("simulate", profile, path)
    assert simulated["iteration_time_s"] == made["iteration_time_s"]
    assert simulated["energy_j"] == made["energy_j"]


def test_without_json_the_plan_is_shown_row_by_row(profile: Path, plan: Path) -> None:
    shown = flyball("plan", profile, *ASKED, "--policy", "envelope").stdout
    assert "saves 8.29 %, +0.00 % time" in shown
    rows = (
        "Stage 0 | [F0 1410 0.0]     F1 1000 0.0      B0 1000 1750.0  [B1 1410 500.0]\n"
        "Stage 1 | [F0 1410 1000.0] [B0 1410 0.0]    [F1 1410 0.0]    [B1 1410 0.0]\n"
    )
    assert shown.endswith(rows)
    assert flyball("simulate", profile, plan).stdout.count("Stage ") == 2


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "bad.csv"),
        (HEADER + GOOD_ROWS.replace("1000,1.25", "1000,nan", 1), "bad.csv:3"),
        (HEADER + GOOD_ROWS.replace("\n1,", "\n2,"), "bad.csv:6"),
    ],
    ids=["empty", "nan", "stage skipped"],
)
@pytest.mark.parametrize("command", ["plan", "simulate"])
def test_a_bad_profile_is_refused_with_file_and_line(
    tmp_path: Path, plan: Path, command: str, text: str, place: str
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text, encoding="utf-8")
    rest = ASKED if command == "plan" else (plan,)
    line = refusal(command, path, *rest)
    assert line.startswith(f"flyball {command}: {path.parent / place}: ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--microbatches", "0"), "--microbatches: must be from 1"),
        (("--microbatches", "many"), "--microbatches: invalid int value: 'many'"),
        (("--policy", "eco"), "--policy: unknown 'eco'; known: baseline"),
        (("--schedule", "2f2b"), "--schedule: unknown '2f2b'; known: gpipe"),
        (("--reconfigure", "eager"), "--reconfigure: unknown 'eager'; known: default"),
        (("--target", "soon"), "--target: unknown 'soon'"),
        (("--gpu", "a1000"), "--gpu: unknown GPU 'a1000'; known: a100"),
        (("--blocking-power", "1,2,3"), "--blocking-power: 3 values for 2 stages"),
        (("--blocking-power", "much"), "--blocking-power: 'much' is not a number of watts"),
        (("--blocking-power", "-5"), "--blocking-power: must be from 0 to 100000 W"),
        (("--activation-bytes", "10"), "--free-memory-bytes: give activation_bytes and free_mem"),
        (
            ("--activation-bytes", "1,2,3", "--free-memory-bytes", "4", "--schedule=envpipe"),
            "--activation-bytes: 3 values for 2 stages; give one, or one per stage",
        ),
    ],
)
def test_a_bad_option_is_refused_by_its_name(
    profile: Path, options: tuple[str, ...], said: str
) -> None:
    assert said in refusal("plan", profile, *ASKED, *options)  # of two the later counts


def test_a_process_of_its_own_prints_and_refuses_the_same(profile: Path, tmp_path: Path) -> None:
    """All other tests here run the command within this process."""
    for path in (profile, tmp_path / "none.csv"):
        asked = ("plan", path, *ASKED, "--policy", "envelope")
        assert run_apart(*asked) == flyball(*asked)


WITHOUT_MATPLOTLIB = """
import sys
sys.modules["matplotlib"] = None
from flyball_client.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_plot_without_matplotlib_names_the_extra(profile: Path, tmp_path: Path) -> None:
    asked = ["frontier", profile, *ASKED, "--points", "2", "--plot", tmp_path / "frontier.svg"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MATPLOTLIB, *map(str, asked)],
        capture_output=True,
        text=True,
        timeout=PROCESS_LIMIT_S,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "flyball frontier: --plot needs the extra 'plot': pip install '.[plot]' in a clone of"
        " Flyball\n"
    )


def test_a_plan_without_blocking_power_is_refused_never_guessed(profile: Path) -> None:
    line = refusal("plan", profile, "--microbatches", "2")
    assert "give --blocking-power W" in line
    assert "--gpu NAME" in line


def test_a_missing_profile_or_a_folder_is_refused(tmp_path: Path) -> None:
    assert "missing.csv: cannot read" in refusal("plan", tmp_path / "missing.csv", *ASKED)
    assert "cannot read" in refusal("plan", tmp_path, *ASKED)


@pytest.mark.parametrize("output", [".", "", "/", "folder", "folder/.."])
def test_a_folder_as_the_output_is_refused_and_nothing_is_left_behind(
    tmp_path: Path, profile: Path, output: str
) -> None:
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    done = flyball("plan", profile, *ASKED, "-o", output, cwd=tmp_path)
    assert done.returncode == 2
    assert "is a folder; name a file in it" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_a_plan_that_cannot_be_made_leaves_an_older_file_as_it_was(
    tmp_path: Path, profile: Path, plan: Path
) -> None:
    before = plan.read_bytes()
    refusal("plan", profile, *ASKED, "--target", "soon", "-o", plan)
    assert plan.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"profile.csv", "plan.json"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not a plan in JSON"),
        (b"[" * 100_000, "not a plan in JSON"),
        (b"{}", "baseline: must be an object"),
    ],
    ids=["empty", "nested too deep", "an empty object"],
)
def test_a_file_that_is_no_plan_is_refused(
    tmp_path: Path, profile: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    line = refusal("simulate", profile, path)
    assert line.startswith(f"flyball simulate: {path}: ")
    assert said in line


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("energy_j", float("nan"), "energy_j: must be a number above 0"),
        ("stages", [[["forward", 0, 1410]]], "schedule: stage 0 does not run one forward and one"),
        ("stages", [["forward"]], "stages[0][0]: must be a list"),
    ],
)
def test_a_plan_with_one_wrong_part_is_refused_with_the_part(
    profile: Path, plan: Path, key: str, value: object, said: str
) -> None:
    document = json.loads(plan.read_text(encoding="utf-8")) | {key: value}
    plan.write_text(json.dumps(document), encoding="utf-8")
    assert f"{plan}: {said}" in refusal("simulate", profile, plan)


# ------------------------------------------------------------------ data-parallel pipelines

WIDE_HEADER = "dp_rank," + HEADER
# Two stages; the second pipeline takes a tenth longer for everything: 9 s and 9.9 s.
WIDE_ROWS = "".join(
    f"{dp_rank},{stage},{kind},1410,{slower * time_s},{energy_j}\n"
    f"{dp_rank},{stage},{kind},1000,{slower * 1.25 * time_s},{0.75 * energy_j}\n"
    for dp_rank, slower in ((0, 1.0), (1, 1.1))
    for stage in range(2)
    for kind, time_s, energy_j in (("forward", 1.0, 10.0), ("backward", 2.0, 30.0))
)
SEPARATE = ("--data-parallel", "separate")


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    path = tmp_path / "wide.csv"
    path.write_text(WIDE_HEADER + WIDE_ROWS, encoding="utf-8")
    return path


def test_separate_pipelines_have_the_time_of_the_slowest_and_clocks_of_their_own(
    wide: Path,
) -> None:
    """Baseline: 160 J and 6 s of waiting at 5 W; likewise 6.6 s; and the first waits for 0.9 s."""
    document = printed("plan", wide, *ASKED, *SEPARATE)
    assert document["baseline"] == {
        "iteration_time_s": pytest.approx(9.9),
        "energy_j": pytest.approx(160 + 30 + 160 + 33 + 0.9 * 2 * 5),
    }
    assert document["iteration_time_s"] <= document["baseline"]["iteration_time_s"]
    assert document["lower_bound_j"] <= document["energy_j"] * (1 + 1e-12)
    assert document["num_stages"] == 2
    assert document["blocking_power_w"] == [5.0] * 4
    assert "stages" not in document
    first, second = document["pipelines"]
    assert set(first) == {"dp_rank", "iteration_time_s", "energy_j", "stages"}
    assert (first["dp_rank"], second["dp_rank"]) == (0, 1)
    ends_s = (first["iteration_time_s"], second["iteration_time_s"])
    assert document["iteration_time_s"] == max(ends_s)
    assert document["energy_j"] == pytest.approx(first["energy_j"] + second["energy_j"])
    slow_clocks = [
        sum(entry[2] == 1000 for stage in pipeline["stages"] for entry in stage)
        for pipeline in (first, second)
    ]
    assert slow_clocks[0] > slow_clocks[1]


@pytest.mark.parametrize("policy", ["baseline", "uniform", "envelope", "frontier"])
def test_simulating_separate_pipelines_agrees_to_the_last_digit(
    tmp_path: Path, wide: Path, policy: str
) -> None:
    path = tmp_path / "plan.json"
    made = printed("plan", wide, *ASKED, *SEPARATE, "--policy", policy, "-o", path)
    assert json.loads(path.read_text(encoding="utf-8")) == made
    simulated = printed("simulate", wide, path)
    assert set(simulated) == {"iteration_time_s", "energy_j", "bubble_fraction", "pipelines"}
    assert simulated["iteration_time_s"] == made["iteration_time_s"]
    assert simulated["energy_j"] == made["energy_j"]
    for own, planned in zip(simulated["pipelines"], made["pipelines"], strict=True):
        assert set(own) == {
            "dp_rank", "iteration_time_s", "energy_j", "bubble_fraction", "peak_activations",
            "critical_path",
        }  # fmt: skip
        for figure in ("dp_rank", "iteration_time_s", "energy_j"):
            assert own[figure] == planned[figure]
        assert own["peak_activations"] == [2, 1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEADER + GOOD_ROWS, "wide.csv: the profile has no column dp_rank"),
        (
            WIDE_HEADER + WIDE_ROWS.replace("\n1,", "\n3,"),
            "wide.csv:10: dp_rank 1 is missing; data-parallel ranks count from 0 without gaps",
        ),
        (
            WIDE_HEADER + WIDE_ROWS.replace("\n1,1,", "\n1,0,", 2),
            "wide.csv:14: dp_rank 1: stage 0 forward at 1410 MHz",
        ),
        (
            WIDE_HEADER + WIDE_ROWS[: WIDE_ROWS.index("1,1,forward,1410,1.1")],
            "wide.csv:8: stage 1 backward was measured on dp_rank 0 but not on dp_rank 1",
        ),
    ],
    ids=["no dp_rank", "a rank skipped", "a row twice", "other stages"],
)
def test_a_profile_that_cannot_be_separated_is_refused(wide: Path, text: str, said: str) -> None:
    wide.write_text(text, encoding="utf-8")
    assert said in refusal("plan", wide, *ASKED, *SEPARATE)
    assert said in refusal("frontier", wide, *ASKED, *SEPARATE)


# ------------------------------------------------------------------ progress on a terminal

# As `flyball`, with a line that does not wait for the first second.
EAGER = """
import sys
from flyball_server.cli import progress_line
progress_line.SHOWN_AFTER_S = 0.0
from flyball_client.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def screen(written: str) -> list[str]:
    """What a terminal shows in the end: a carriage return goes back, and letters overwrite."""
    lines: list[str] = []
    for row in written.replace("\r\n", "\n").split("\n"):
        shown = ""
        for part in row.split("\r"):
            shown = part + shown[len(part) :]
        lines.append(shown.rstrip())
    return lines


def on_a_terminal(
    stdout: Path, *arguments: str | Path, seen: Callable[[str, int], None] = lambda _, __: None
) -> tuple[int, str]:
    """Run a command with a terminal as stderr; its exit status, and all it wrote there.

    `seen` is told what has been written so far, and the process's id, after each piece.
    """
    ours, theirs = pty.openpty()
    with stdout.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", EAGER, *map(str, arguments)], stdout=file, stderr=theirs
        )
    os.close(theirs)
    written, ends_s = b"", time.monotonic() + PROCESS_LIMIT_S
    try:
        while time.monotonic() < ends_s and select.select([ours], [], [], PROCESS_LIMIT_S)[0]:
            try:
                written += os.read(ours, 4096)
            except OSError:  # the last writer has gone
                break
            seen(written.decode(), process.pid)
        return process.wait(PROCESS_LIMIT_S), written.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.parametrize("options", [(), ("--policy", "envelope"), ("--json",)])
def test_what_a_plan_is_doing_stands_on_a_terminal_and_is_gone_in_the_end(
    tmp_path: Path, profile: Path, options: tuple[str, ...]
) -> None:
    stdout = tmp_path / "stdout"
    status, written = on_a_terminal(stdout, "plan", profile, *ASKED, *options)
    assert status == 0
    assert ", 0 s" in written
    assert screen(written) == [""]
    printed_text = stdout.read_text(encoding="utf-8")
    assert "\r" not in printed_text
    if options == ("--json",):
        assert json.loads(printed_text)["num_stages"] == 2


def test_ctrl_c_leaves_nothing_on_the_terminal(tmp_path: Path, profile: Path) -> None:
    interrupted: list[int] = []

    def interrupt_once_planning(written: str, process_id: int) -> None:
        if "wanted" in written and not interrupted:
            interrupted.append(process_id)
            os.kill(process_id, signal.SIGINT)

    asked = ("frontier", profile, "--microbatches", "64", "--blocking-power", "5")
    status, written = on_a_terminal(
        tmp_path / "stdout",
        *asked,
        *("--points", "10000", "--effort", "high"),  # minutes, if nobody ends it
        seen=interrupt_once_planning,
    )
    assert interrupted
    assert status == 130
    assert screen(written) == [""]
    assert (tmp_path / "stdout").read_text(encoding="utf-8") == ""
