"""`flyball plan` and `flyball simulate`: output, files and refusals."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.integration.command_in_process import (
    HEADER,
    document_of,
    flyball,
    one_pipeline,
    refusal,
    run_apart,
)
from tests.integration.on_a_terminal import on_a_terminal
from tests.planner.live import live_planner

ASKED = ("--microbatches", "2", "--blocking-power", "5")


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return one_pipeline(tmp_path)


@pytest.fixture
def plan(tmp_path: Path, profile: Path) -> Path:
    path = tmp_path / "plan.json"
    assert flyball("plan", profile, *ASKED, "--policy", "envelope", "-o", path).returncode == 0
    return path


def test_plan_prints_the_agreed_keys_and_the_figures_of_the_paper_example(profile: Path) -> None:
    """The figures are those worked out in tests/unit/planning/test_planner.py."""
    document = document_of("plan", profile, *ASKED)
    assert set(document) == {
        "policy", "reconfigure", "schedule", "target", "num_stages", "num_microbatches",
        "blocking_power_w", "iteration_time_s", "energy_j", "baseline", "saving_percent",
        "slowdown_percent", "lower_bound_j", "gap_percent", "transition_ms", "num_switches",
        "solve_s", "compared", "stages", "saving_sources",
    }  # fmt: skip
    assert set(document["baseline"]) == {"iteration_time_s", "energy_j"}
    assert document["baseline"] == {"iteration_time_s": 9.0, "energy_j": 190.0}
    assert document["blocking_power_w"] == [5.0, 5.0]
    assert document["solve_s"] > 0


def test_the_envelope_plan_has_the_clocks_worked_out_by_hand(profile: Path) -> None:
    document = document_of("plan", profile, *ASKED, "--policy", "envelope")
    assert (document["iteration_time_s"], document["energy_j"]) == (9.0, 174.25)
    assert document["stages"][0] == [
        ["forward", 0, 1410], ["forward", 1, 1000], ["backward", 0, 1000], ["backward", 1, 1410],
    ]  # fmt: skip


def test_late_clock_changes_are_in_a_plan_and_its_file(profile: Path, tmp_path: Path) -> None:
    """Chosen are the clocks by hand above; stage 0 changes to 1000 MHz before its F1."""
    asked = (*ASKED, "--policy", "envelope", "--transition-ms", "250")
    path = tmp_path / "late.json"
    document = document_of("plan", profile, *asked, "-o", path)
    # F1 begins with 0.25 s at 1410 MHz; the change for B1, back to that, is hidden by its wait.
    late_j = 174.25 + 0.25 * (10 - 8) - 5 * (1.1875 - 1.25) + 0.0
    assert document["transition_ms"] == 250.0
    assert document["num_switches"] == 2
    assert document["iteration_time_s"] == 9.0
    assert document["energy_j"] == pytest.approx(late_j)
    assert document_of("simulate", profile, path)["energy_j"] == pytest.approx(late_j)
    at_once = document_of("simulate", profile, path, "--no-transitions")
    assert at_once["energy_j"] == 174.25
    shown = flyball("plan", profile, *asked).stdout
    assert "(predicted, one iteration, clock changes 250 ms late)" in shown
    assert "\n2 clock changes an iteration; the clocks were chosen as if they changed at" in shown


def test_a_file_of_times_applies_and_stays_in_the_plan(profile: Path, tmp_path: Path) -> None:
    times, path = tmp_path / "times.toml", tmp_path / "late.json"
    times.write_text(
        '[transitions]\nup_ms = { p5 = 100, p50 = 250, p95 = 300, source = "x" }\n'
        'down_ms = { p5 = 100, p50 = 250, p95 = 400, source = "x" }\n',
        encoding="utf-8",
    )
    asked = (*ASKED, "--policy", "envelope", "--transitions", times)
    document = document_of("plan", profile, *asked, "-o", path)
    assert document["transition_ms"] is None
    assert document["transitions"]["down_p95_s"] == 0.4
    again = document_of("simulate", profile, path)
    assert again["energy_j"] == pytest.approx(document["energy_j"])
    exact = document_of("simulate", profile, path, "--transition-ms", "250")
    assert exact["energy_j"] == pytest.approx(document["energy_j"])


def test_simulate_prints_the_agreed_keys(profile: Path, plan: Path) -> None:
    document = document_of("simulate", profile, plan)
    assert set(document) == {
        "iteration_time_s", "energy_j", "bubble_fraction", "peak_activations", "critical_path",
    }  # fmt: skip
    assert document["peak_activations"] == [2, 1]
    assert document["critical_path"] == [
        [0, "forward", 0], [1, "forward", 0], [1, "backward", 0],
        [1, "forward", 1], [1, "backward", 1], [0, "backward", 1],
    ]  # fmt: skip


def test_a_summary_is_shown_and_the_rows_only_with_timeline(profile: Path, plan: Path) -> None:
    asked = ("plan", profile, *ASKED, "--policy", "envelope")
    shown = flyball(*asked, "--timeline").stdout
    assert "saves 8.29 %, +0.00 % time" in shown
    rows = (
        "Stage 0 | [F0 1410 0.0]     F1 1000 0.0      B0 1000 1750.0  [B1 1410 500.0]\n"
        "Stage 1 | [F0 1410 1000.0] [B0 1410 0.0]    [F1 1410 0.0]    [B1 1410 0.0]\n"
    )
    assert shown.endswith(rows)
    assert flyball(*asked).stdout == shown.removesuffix(f"\n{rows}")
    simulated = flyball("simulate", profile, plan, "--timeline").stdout
    assert simulated == flyball("simulate", profile, plan).stdout + f"\n{rows}"


@pytest.mark.parametrize(
    ("command", "text", "place"),
    [
        ("simulate", "", "bad.csv"),
        ("plan", HEADER + "0,forward,1410,1.0,10.0\n0,forward,1000,nan,8.0\n", "bad.csv:3"),
    ],
)
def test_a_bad_profile_is_refused_with_file_and_line(
    tmp_path: Path, plan: Path, command: str, text: str, place: str
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text, encoding="utf-8")
    rest = ASKED if command == "plan" else (plan,)
    line = refusal(flyball(command, path, *rest))
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
        (
            ("--policy", "uniform", "--reserve", "0.1"),
            "--reserve: is for policy frontier, not unif",
        ),
        (
            ("--transition-ms", "-1"),
            "--transition-ms: must be from 0 to 10000 ms, not -1",
        ),
        (
            ("--transition-ms", "5", "--no-transitions"),
            "argument --no-transitions: not allowed with argument --transition-ms",
        ),
        (("--transitions", "none.toml"), "--transitions: none.toml: No such file or directory"),
        (
            ("--policy", "uniform", "--effort", "low"),
            "--effort: is for policy frontier, not uniform",
        ),
        (("--reconfigure", "greedy"), "--reconfigure: is for policies baseline, uniform, envelope"),
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
    assert said in refusal(flyball("plan", profile, *ASKED, *options))  # of two the later counts


def test_a_process_of_its_own_prints_and_refuses_the_same(profile: Path, tmp_path: Path) -> None:
    """The other tests here run the command in this process."""
    for path in (profile, tmp_path / "none.csv"):
        asked = ("plan", path, *ASKED, "--policy", "envelope")
        assert run_apart(*asked) == flyball(*asked)


def test_a_plan_without_blocking_power_is_refused(profile: Path) -> None:
    line = refusal(flyball("plan", profile, "--microbatches", "2"))
    assert "give --blocking-power W" in line
    assert "--gpu NAME" in line


def test_uniform_is_not_reconfigured_unless_asked(profile: Path) -> None:
    """EnvPipe's figure 10 pairs it with `default`; `balanced` would give envelope's plan."""

    def planned(*options: str) -> tuple[str, object]:
        document = document_of("plan", profile, *ASKED, *options)
        return document["reconfigure"], document["stages"]

    default = planned("--policy", "uniform", "--reconfigure", "default")
    assert planned("--policy", "uniform") == default
    asked = planned("--policy", "uniform", "--reconfigure", "balanced")
    assert asked == planned("--policy", "envelope")
    assert asked[1] != default[1]


GPU_FILE = """filter_max_mhz = { value = 1980, source = "asked of the device" }
filter_min_mhz = { value = 900, source = "chosen" }
granularity_mhz = { value = 90, source = "chosen" }
reconfigure_granularity_mhz = { value = 30, source = "chosen" }
blocking_power_w = { value = 70, source = "measured" }
"""


def test_a_gpu_of_ones_own_is_named_by_its_file_or_found_in_a_folder(
    profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.toml").write_text(GPU_FILE, encoding="utf-8")
    asked = ("plan", profile, "--microbatches", "2", "--gpu")
    assert "unknown GPU 'mine'" in refusal(flyball(*asked, "mine"))
    by_file = document_of(*asked, tmp_path / "mine.toml")
    assert by_file["blocking_power_w"] == [70.0, 70.0]
    monkeypatch.setenv("FLYBALL_GPU_FOLDER", str(tmp_path))
    assert document_of(*asked, "mine")["stages"] == by_file["stages"]
    with live_planner(gpu_folder=str(tmp_path)) as planner:
        job = {"num_stages": 2, "num_microbatches": 2, "gpu": "mine"}
        assert planner.http.put("/api/v1/jobs/job", json=job).is_success
    assert "--gpu: " in refusal(flyball(*asked, "./none.toml"))
    assert "which flyball profile blocking-power measures" in refusal(flyball(*asked, "h200"))


def test_times_of_clock_changes_are_the_gpu_tables_unless_others_are_given(
    profile: Path, tmp_path: Path
) -> None:
    asked = ("plan", profile, "--microbatches", "2", "--gpu", "a100")
    known, at_once = document_of(*asked), document_of(*asked, "--no-transitions")
    exact = document_of(*asked, "--transition-ms", "5")
    assert (known["transition_ms"], known["transitions"]["up_p95_s"]) == (None, 0.0092)
    assert (at_once["transition_ms"], exact["transition_ms"]) == (0.0, 5.0)
    assert "transitions" not in at_once | exact
    # No table of this GPU has any.
    others = document_of(*asked[:-1], "h100-sxm", "--blocking-power", "70")
    assert others["transition_ms"] == 0.0
    printed = flyball(*asked).stdout
    assert "(predicted, one iteration, clock changes 5.8 ms late up, 4.1 ms down)" in printed
    plan = tmp_path / "plan.json"
    assert flyball(*asked, "-o", plan).returncode == 0
    assert document_of("simulate", profile, plan)["energy_j"] == known["energy_j"]


def test_a_tail_and_transfers_are_in_the_plan_and_its_simulation(
    profile: Path, tmp_path: Path
) -> None:
    """The pipeline's 9 s, a tail of 0.5 s, and on its path a transfer there and one back."""
    asked = (*ASKED, "--policy", "baseline", "--tail-ms", "500", "--transfer-ms", "250")
    document = document_of("plan", profile, *asked)
    assert document["iteration_time_s"] == document["baseline"]["iteration_time_s"] == 10.0
    assert (document["tail_ms"], document["transfer_ms"]) == (500.0, [250.0])
    plan = tmp_path / "plan.json"
    printed = flyball("plan", profile, *asked, "-o", plan).stdout
    counted = "a tail of 500 ms and transfers of 250 ms between stages"
    assert f"counted beside the instructions: {counted}" in printed
    assert f"counted beside    {counted}" in flyball("simulate", profile, plan).stdout
    assert document_of("simulate", profile, plan)["iteration_time_s"] == 10.0
    wrong = refusal(flyball("plan", profile, *ASKED, "--transfer-ms", "1,2"))
    assert "--transfer-ms: 2 values for 2 stages; give one, or one for each pair of" in wrong


def test_a_plan_is_simulated_with_the_tail_and_the_transfers_that_are_given(
    profile: Path, tmp_path: Path
) -> None:
    """The pipeline's 9 s, and what is given in place of the plan's own 0.5 s and 0.25 s."""
    plan = tmp_path / "plan.json"
    asked = (*ASKED, "--policy", "baseline", "--tail-ms", "500", "--transfer-ms", "250")
    assert flyball("plan", profile, *asked, "-o", plan).returncode == 0
    for given, time_s in (
        (("--tail-ms", "100"), 9.6),
        (("--transfer-ms", "20"), 9.54),
        (("--tail-ms", "0", "--transfer-ms", "0"), 9.0),
    ):
        simulated = document_of("simulate", profile, plan, *given)
        assert simulated["iteration_time_s"] == pytest.approx(time_s)
    printed = flyball("simulate", profile, plan, "--tail-ms", "100").stdout
    assert "counted beside    a tail of 100 ms and transfers of 250 ms between stages" in printed
    wrong = refusal(flyball("simulate", profile, plan, "--transfer-ms", "1,2"))
    assert "--transfer-ms: 2 values for 2 stages; give one, or one for each pair of" in wrong
    wrong = refusal(flyball("simulate", profile, plan, "--tail-ms", "-1"))
    assert "--tail-ms: must be from 0 to 600000 ms, not -1" in wrong


def test_the_calls_of_a_node_are_told_and_limit_the_changes(profile: Path, tmp_path: Path) -> None:
    """Two stages, 9 s; a plan of two changes, which two GPUs in a node make with a call each."""
    times = tmp_path / "times.toml"
    waits = "waiting_power_w"
    for call_ms, takes in (("100", None), ("5000", 111)):
        times.write_text(
            f"""
            [transitions]
            up_ms = {{ p5 = 10, p50 = 10, p95 = 10, source = "measured" }}
            down_ms = {{ p5 = 10, p50 = 10, p95 = 10, source = "measured" }}
            call_ms = {{ p50 = {call_ms}, p95 = {call_ms}, source = "measured" }}
            clocks = [{{ mhz = 1410, {waits} = 50 }}, {{ mhz = 1000, {waits} = 20 }}]
            """,
            encoding="utf-8",
        )
        shown = flyball("plan", profile, *ASKED, "--transitions", times).stdout
        assert ("Where 2 of these GPUs share a node" in shown) is (takes is not None)
        if takes is not None:
            assert f"takes {takes} % of an iteration, which makes it longer: give" in shown
        assert "for waiting at higher clocks" in shown
        assert "the power of waiting depends on the clock" in shown
    told = flyball("plan", profile, *ASKED, "--transitions", times, "--gpus-in-node", "2").stdout
    assert "clock changes an iteration" not in told
    times.write_text(times.read_text(encoding="utf-8").replace("5000", "100"), encoding="utf-8")
    told = flyball("plan", profile, *ASKED, "--transitions", times, "--gpus-in-node", "2").stdout
    assert "\nsetting the clocks of 2 GPUs in a node takes 2 % of an iteration" in told
    wrong = refusal(flyball("plan", profile, *ASKED, "--gpus-in-node", "2"))
    assert "--gpus-in-node: has no effect: it needs the time of a call" in wrong


def test_the_number_of_clock_changes_is_limited(profile: Path) -> None:
    free, limited = document_of("plan", profile, *ASKED), ("--max-switches", "1")
    assert (
        free["num_switches"] > 1 >= document_of("plan", profile, *ASKED, *limited)["num_switches"]
    )
    assert "clock changes an iteration" in flyball("plan", profile, *ASKED, *limited).stdout
    wrong = refusal(flyball("plan", profile, *ASKED, *limited, "--policy", "envelope"))
    assert "--max-switches: is for policy frontier, not envelope" in wrong


@pytest.mark.parametrize("output", [".", "", "/", "folder", "folder/.."])
def test_a_folder_as_the_output_is_refused_and_nothing_is_left_behind(
    tmp_path: Path, profile: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    done = flyball("plan", profile, *ASKED, "-o", output)
    assert done.returncode == 2
    assert "is a folder; name a file in it" in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_a_plan_that_cannot_be_made_leaves_an_older_file_as_it_was(
    tmp_path: Path, profile: Path, plan: Path
) -> None:
    before = plan.read_bytes()
    refusal(flyball("plan", profile, *ASKED, "--target", "soon", "-o", plan))
    assert plan.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"profile.csv", "plan.json"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[" * 100_000, "not a plan in JSON"),
        (b"{}", "baseline: must be an object"),
        ({"energy_j": float("nan")}, "energy_j: must be a number above 0"),
        ({"stages": [[["forward", 0, 1410]]]}, "schedule: stage 0 does not run one forward and"),
    ],
    ids=["nested too deep", "an empty object", "nan", "incomplete"],
)
def test_a_plan_file_that_cannot_be_used_is_refused_with_the_part(
    profile: Path, plan: Path, content: bytes | dict[str, Any], said: str
) -> None:
    if isinstance(content, dict):
        content = json.dumps(json.loads(plan.read_bytes()) | content).encode()
    plan.write_bytes(content)
    line = refusal(flyball("simulate", profile, plan))
    assert line.startswith(f"flyball simulate: {plan}: {said}")


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
    document = document_of("plan", wide, *ASKED, *SEPARATE)
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


@pytest.mark.parametrize(
    "options",
    [
        ("--schedule", "gpipe", "--reconfigure", "greedy"),
        ("--schedule", "1f1b", "--reconfigure", "default"),
        ("--schedule", "envpipe", "--reconfigure", "balanced"),
        (*SEPARATE, "--policy", "uniform"),
        (*SEPARATE, "--policy", "frontier"),
    ],
)
def test_simulating_a_written_plan_agrees_to_the_last_digit(
    tmp_path: Path, wide: Path, options: tuple[str, ...]
) -> None:
    path = tmp_path / "plan.json"
    asked: tuple[str | Path, ...] = ("plan", wide, *ASKED, "--policy", "envelope", *options)
    made = document_of(*asked, "-o", path)
    assert json.loads(path.read_text(encoding="utf-8")) == made
    simulated = document_of("simulate", wide, path)
    pairs = [(simulated, made)]
    if "pipelines" in made:
        pairs += zip(simulated["pipelines"], made["pipelines"], strict=True)
        assert {tuple(own["peak_activations"]) for own in simulated["pipelines"]} == {(2, 1)}
    for own, planned in pairs:
        for figure in ("iteration_time_s", "energy_j"):
            assert own[figure] == planned[figure]


def test_a_profile_that_cannot_be_separated_is_refused(profile: Path) -> None:
    for command in ("plan", "frontier"):
        line = refusal(flyball(command, profile, *ASKED, *SEPARATE))
        assert "profile.csv: the profile has no column dp_rank" in line


# ------------------------------------------------------------------ progress on a terminal

# `flyball` with stdout in a file and a progress line from the beginning.
EAGER = """
import sys
from tests.planner.live import live_planner

from flyball_server.cli import progress_line
progress_line.SHOWN_AFTER_S = 0.0
sys.stdout = open(sys.argv[1], "w")
from flyball_client.__main__ import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_terminal_shows_progress_and_is_clean_at_the_end(
    tmp_path: Path, profile: Path, options: tuple[str, ...]
) -> None:
    stdout = tmp_path / "stdout"
    asked = map(str, (stdout, "plan", profile, *ASKED, *options))
    with on_a_terminal(sys.executable, "-c", EAGER, *asked) as running:
        assert running.end() == 0
        assert b", 0 s" in running.written
        assert running.shown.strip() == ""
    text = stdout.read_text(encoding="utf-8")
    assert "\r" not in text
    assert not options or json.loads(text)["num_stages"] == 2


def test_an_interrupt_leaves_the_terminal_clean(tmp_path: Path, profile: Path) -> None:
    stdout = tmp_path / "stdout"
    asked = ("frontier", profile, "--microbatches", "64", "--blocking-power", "5")
    long = (*asked, "--points", "10000", "--effort", "high")  # takes minutes
    command = map(str, (stdout, *long))
    with on_a_terminal(sys.executable, "-c", EAGER, *command) as running:
        running.wait_for_text("wanted")
        running.process.send_signal(signal.SIGINT)
        assert running.end() == 130
        assert running.shown.strip() == ""
    assert stdout.read_text(encoding="utf-8") == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "{}", *ASKED),
        ("plan", "PROFILE", *ASKED, "--order", "{}"),
        ("plan", "{}", *ASKED, "--data-parallel", "separate"),
        ("frontier", "{}", *ASKED),
        ("simulate", "PROFILE", "{}"),
        ("simulate", "{}", "PLAN"),
        ("export", "PROFILE", "{}", "--chrome-trace", "trace.json"),
        ("convert", "{}", "out.csv", "--merge"),
        ("profile", "join", "{}", "{}", "-o", "out.csv"),
        ("clocks", "--profile", "{}"),
    ],
)
def test_no_command_reads_a_file_without_an_end(
    tmp_path: Path, profile: Path, plan: Path, arguments: tuple[str, ...]
) -> None:
    """Endless devices, pipes that nobody writes to, and a file of a terabyte."""
    pipe, large = tmp_path / "pipe", tmp_path / "large"
    os.mkfifo(pipe)
    large.touch()
    os.truncate(large, 2**40)
    known = {"PROFILE": str(profile), "PLAN": str(plan)}
    for file, said in (
        (Path("/dev/zero"), "not a regular file"),
        (pipe, "not a regular file"),
        (large, "larger than 64 MiB"),
    ):
        done = flyball(*(known.get(each, each).format(file) for each in arguments))
        said_of_file = refusal(done)
        assert str(file) in said_of_file
        assert said in said_of_file


def test_an_output_that_is_a_pipe_is_written_to_and_a_link_stays_one(
    tmp_path: Path, profile: Path
) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("plan.json")
    reader = os.open(pipe, os.O_RDWR)  # so that nobody waits for the other end
    try:
        assert flyball("plan", profile, *ASKED, "-o", pipe).returncode == 0
        assert pipe.is_fifo()
        through_pipe = json.loads(os.read(reader, 2**16))
    finally:
        os.close(reader)
    assert flyball("plan", profile, *ASKED, "-o", link).returncode == 0
    assert link.is_symlink()
    assert json.loads((tmp_path / "plan.json").read_text())["stages"] == through_pipe["stages"]
