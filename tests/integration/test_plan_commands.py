"""`flyball plan` and `flyball simulate`: output, files and refusals."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

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

from flyball_server.planning import planner
from flyball_server.planning.model import simulator
from flyball_server.planning.planner import PhaseReport, PlanRequest, make_plan
from flyball_server.planning.simulated_plan import SimulatedPlan

ASKED = ("--microbatches", "2", "--blocking-power", "5")


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return one_pipeline(tmp_path)


@pytest.fixture
def plan(tmp_path: Path, profile: Path) -> Path:
    path = tmp_path / "plan.json"
    assert flyball("plan", profile, *ASKED, "--policy", "envelope", "-o", path).returncode == 0
    return path


def test_plan_and_simulate_print_the_agreed_keys_and_the_figures_worked_out_by_hand(
    profile: Path, plan: Path
) -> None:
    """The baseline's figures are those worked out in tests/unit/planning/test_planner.py."""
    document = document_of("plan", profile, *ASKED)
    assert set(document) == {
        "policy", "reconfigure", "schedule", "target", "num_stages", "num_microbatches",
        "blocking_power_w", "iteration_time_s", "energy_j", "baseline", "saving_percent",
        "slowdown_percent", "lower_bound_j", "gap_percent", "transition_ms", "num_switches",
        "solve_s", "compared", "stages", "saving_sources", "stage_predictions",
    }  # fmt: skip
    assert document["baseline"] == {"iteration_time_s": 9.0, "energy_j": 190.0}
    assert document["blocking_power_w"] == [5.0, 5.0]
    assert document["solve_s"] > 0
    envelope = json.loads(plan.read_text(encoding="utf-8"))
    assert (envelope["iteration_time_s"], envelope["energy_j"]) == (9.0, 174.25)
    assert envelope["stages"][0] == [
        ["forward", 0, 1410], ["forward", 1, 1000], ["backward", 0, 1000], ["backward", 1, 1410],
    ]  # fmt: skip
    simulated = document_of("simulate", profile, plan)
    assert set(simulated) == {
        "iteration_time_s", "energy_j", "bubble_fraction", "peak_activations", "critical_path",
    }  # fmt: skip
    assert simulated["peak_activations"] == [2, 1]
    assert simulated["critical_path"] == [
        [0, "forward", 0], [1, "forward", 0], [1, "backward", 0],
        [1, "forward", 1], [1, "backward", 1], [0, "backward", 1],
    ]  # fmt: skip


def test_what_prints_and_draws_a_plan_evaluates_nothing(
    profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(request: PlanRequest, report: PhaseReport) -> SimulatedPlan:
        solved = make_plan(request, report)
        monkeypatch.delattr(simulator, "_busy")
        return solved

    monkeypatch.setattr(planner, "make_plan", made)
    shown = flyball("plan", profile, *ASKED, "--transition-ms", "250", "--timeline")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "saved by bubbles" in shown.stdout
    assert "\nStage 1 |" in shown.stdout


def test_late_clock_changes_are_in_a_plan_and_its_file(profile: Path, tmp_path: Path) -> None:
    """Chosen are the clocks by hand above; stage 0 changes to 1000 MHz before its F1."""
    envelope, path = (*ASKED, "--policy", "envelope"), tmp_path / "late.json"
    asked = (*envelope, "--transition-ms", "250")
    document = document_of("plan", profile, *asked, "-o", path)
    # F1 begins with 0.25 s at 1410 MHz; the change for B1, back to that, is hidden by its wait.
    late_j = 174.25 + 0.25 * (10 - 8) - 5 * (1.1875 - 1.25) + 0.0
    assert (document["transition_ms"], document["num_switches"]) == (250.0, 2)
    assert document["iteration_time_s"] == 9.0
    assert document["energy_j"] == pytest.approx(late_j)
    assert document_of("simulate", profile, path)["energy_j"] == pytest.approx(late_j)
    at_once = document_of("simulate", profile, path, "--no-transitions")
    assert at_once["energy_j"] == 174.25
    shown = flyball("plan", profile, *asked).stdout
    assert "(predicted, one iteration, clock changes 250 ms late)" in shown
    assert "\n2 clock changes an iteration; the clocks were chosen as if they changed at" in shown
    # The same from a file of times, which stay in the plan.
    times = tmp_path / "times.toml"
    times.write_text(
        '[transitions]\nup_ms = { p5 = 100, p50 = 250, p95 = 300, source = "x" }\n'
        'down_ms = { p5 = 100, p50 = 250, p95 = 400, source = "x" }\n',
        encoding="utf-8",
    )
    document = document_of("plan", profile, *envelope, "--transitions", times, "-o", path)
    assert document["transition_ms"] is None
    assert document["transitions"]["down_p95_s"] == 0.4
    for options in ((), ("--transition-ms", "250")):
        again = document_of("simulate", profile, path, *options)
        assert again["energy_j"] == pytest.approx(document["energy_j"])


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


def test_a_budget_of_limits_is_the_sum_that_the_profile_was_measured_under(profile: Path) -> None:
    header, *rows = profile.read_text(encoding="utf-8").splitlines()
    limits = {"0": "power_limit_w=10.5", "1": "power_limit_w=9.5"}
    lines = [f"{header},conditions", *(f"{row},{limits[row[0]]}" for row in rows), ""]
    profile.write_text("\n".join(lines), encoding="utf-8")
    document = document_of("plan", profile, *ASKED, "--target", "power:limit")
    assert document["target"] == "power:20"
    assert document["energy_j"] / document["iteration_time_s"] <= 20


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("deadline:2900", "times the time at the highest clocks; its unit is s"),
        ("power:1e6", "times the power at the highest clocks; its unit is W"),
        ("deadline:60", None),
    ],
)
def test_a_target_that_may_be_in_another_unit_is_planned_with_a_word(
    profile: Path, target: str, said: str | None
) -> None:
    run = flyball("plan", profile, *ASKED, "--target", target)
    assert run.returncode == 0
    last = run.stdout.splitlines()[-1]
    assert last.endswith(said) if said else "unit" not in last


def test_a_bad_profile_is_refused_with_file_and_line(tmp_path: Path, plan: Path) -> None:
    path = tmp_path / "bad.csv"
    for text, command, place in (
        ("", ("simulate", path, plan), ""),
        (
            HEADER + "0,forward,1410,1.0,10.0\n0,forward,1000,nan,8.0\n",
            ("plan", path, *ASKED),
            ":3",
        ),
    ):
        path.write_text(text, encoding="utf-8")
        assert refusal(flyball(*command)).startswith(f"flyball {command[0]}: {path}{place}: ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--microbatches 0", "--microbatches: must be a whole number from 1 to 65536"),
        ("--policy eco", "--policy: must be one of baseline, uniform, envelope, global"),
        ("--blocking-power 90000", "profile.csv: a GPU of stage 0 draws"),
        ("--target soon", "--target: must be fastest, least-energy, slowdown:5%, deadline"),
        ("--target power:limit", "--target: power:limit needs a profile with its GPUs' power"),
        ("--policy uniform --reserve 0.1", "--reserve: is for policy frontier, not unif"),
        ("--policy uniform --effort low", "--effort: is for policy frontier, not uniform"),
        ("--policy envelope --max-switches 1", "--max-switches: is for policy frontier, not"),
        ("--transition-ms 5 --no-transitions", "--no-transitions: not allowed with argument --tra"),
        ("--transitions none.toml", "--transitions: none.toml: No such file or directory"),
        ("--reconfigure greedy", "--reconfigure: is for policies baseline, uniform, envelope"),
        ("--gpu a1000", "--gpu: unknown GPU 'a1000'; known: a100"),
        ("--blocking-power 1,2,3", "--blocking-power: has 3 values for 2 stages"),
        ("--blocking-power much", "--blocking-power: must be a number of W from 0 to 1000"),
        ("--activation-bytes 10", "--free-memory-bytes: must be given: activation_bytes and"),
        ("--activation-bytes 1,2,3 --free-memory-bytes 4 --schedule=envpipe",
         "--activation-bytes: has 3 values for 2 stages; give one, or one per stage"),
        ("--transfer-ms 1,2", "--transfer-ms: has 2 values for 2 stages; give one, or one for"),
        ("--gpus-in-node 2", "--gpus-in-node: has no effect: it needs the time of a call"),
        ("--data-parallel separate", "profile.csv: the profile has no column dp_rank"),
    ],
)  # fmt: skip
def test_a_bad_option_is_refused_by_its_name(profile: Path, options: str, said: str) -> None:
    # Of an option that is given twice the later counts.
    assert said in refusal(flyball("plan", profile, *ASKED, *options.split()))


def test_a_process_of_its_own_prints_and_refuses_the_same(profile: Path, tmp_path: Path) -> None:
    """The other tests here run the command in this process."""
    for path in (profile, tmp_path / "none.csv"):
        asked = ("plan", path, *ASKED, "--policy", "envelope")
        assert run_apart(*asked) == flyball(*asked)
    line = refusal(flyball("plan", profile, "--microbatches", "2"))
    assert "give --blocking-power W" in line
    assert "--gpu NAME" in line


def test_uniform_is_not_reconfigured_unless_asked(profile: Path) -> None:
    """EnvPipe's figure 10 pairs it with `default`; `balanced` would give envelope's plan."""
    plain, default, balanced, envelope = (
        document_of("plan", profile, *ASKED, "--policy", *options)
        for options in (
            ("uniform",),
            ("uniform", "--reconfigure", "default"),
            ("uniform", "--reconfigure", "balanced"),
            ("envelope",),
        )
    )
    assert (plain["reconfigure"], plain["stages"]) == ("default", default["stages"])
    assert (envelope["reconfigure"], envelope["stages"]) == ("balanced", balanced["stages"])
    assert balanced["stages"] != default["stages"]


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
    plan = tmp_path / "plan.json"
    asked = (*ASKED, "--policy", "baseline", "--tail-ms", "500", "--transfer-ms", "250")
    printed = flyball("plan", profile, *asked, "-o", plan).stdout
    document = json.loads(plan.read_text(encoding="utf-8"))
    assert document["iteration_time_s"] == document["baseline"]["iteration_time_s"] == 10.0
    assert (document["tail_ms"], document["transfer_ms"]) == (500.0, [250.0])
    counted = "a tail of 500 ms and transfers of 250 ms between stages"
    assert f"counted beside the instructions: {counted}" in printed
    assert f"counted beside    {counted}" in flyball("simulate", profile, plan).stdout
    for given, time_s in (
        ((), 10.0),
        (("--tail-ms", "100"), 9.6),
        (("--transfer-ms", "20"), 9.54),
        (("--tail-ms", "0", "--transfer-ms", "0"), 9.0),
    ):
        simulated = document_of("simulate", profile, plan, *given)
        assert simulated["iteration_time_s"] == pytest.approx(time_s)
    printed = flyball("simulate", profile, plan, "--tail-ms", "100").stdout
    assert "counted beside    a tail of 100 ms and transfers of 250 ms between stages" in printed
    for wrong, said in (
        (
            ("--transfer-ms", "1,2"),
            "--transfer-ms: has 2 values for 2 stages; give one, or one for",
        ),
        (("--tail-ms", "-1"), "--tail-ms: must be a number of ms from 0 to 600000 (20), not -1"),
    ):
        assert said in refusal(flyball("simulate", profile, plan, *wrong))


def test_the_calls_of_a_node_are_told_and_limit_the_changes(profile: Path, tmp_path: Path) -> None:
    """Two stages, 9 s; a plan of two changes, which two GPUs in a node make with a call each."""
    times = tmp_path / "times.toml"

    def shown(call_ms: int, *options: str) -> str:
        times.write_text(
            f"""
            [transitions]
            up_ms = {{ p5 = 10, p50 = 10, p95 = 10, source = "measured" }}
            down_ms = {{ p5 = 10, p50 = 10, p95 = 10, source = "measured" }}
            call_ms = {{ p50 = {call_ms}, p95 = {call_ms}, source = "measured" }}
            """,
            encoding="utf-8",
        )
        return flyball("plan", profile, *ASKED, "--transitions", times, *options).stdout

    quick, slow = shown(100), shown(5000)
    for text in (quick, slow):
        assert "no plan within the target needs less, at one waiting power" in text
    assert "Where 2 of these GPUs share a node" not in quick
    assert "Where 2 of these GPUs share a node" in slow
    assert "takes 111 % of an iteration, which makes it longer: give" in slow
    assert "clock changes an iteration" not in shown(5000, "--gpus-in-node", "2")
    told = shown(100, "--gpus-in-node", "2")
    assert "\nsetting the clocks of 2 GPUs in a node takes 2 % of an iteration" in told


def test_an_output_that_is_refused_leaves_nothing_behind(
    tmp_path: Path, profile: Path, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    before, content = sorted(tmp_path.rglob("*")), plan.read_bytes()
    for output in (".", "", "/", "folder", "folder/.."):
        refused = refusal(flyball("plan", profile, *ASKED, "-o", output))
        assert "is a folder; name a file in it" in refused
    refusal(flyball("plan", profile, *ASKED, "--target", "soon", "-o", plan))
    assert sorted(tmp_path.rglob("*")) == before
    assert plan.read_bytes() == content


def test_a_plan_file_that_cannot_be_used_is_refused_with_the_part(
    profile: Path, plan: Path
) -> None:
    made = json.loads(plan.read_bytes())
    for content, said in (
        (b"[" * 100_000, "not a plan in JSON"),
        ({}, "policy: is missing"),
        (made | {"energy_j": float("nan")}, "energy_j: must be a finite number"),
        (
            made | {"stages": [[["forward", 0, 1410]]]},
            "schedule: stage 0 does not run one forward and",
        ),
    ):
        plan.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        line = refusal(flyball("simulate", profile, plan))
        assert line.startswith(f"flyball simulate: {plan}: {said}")


# ------------------------------------------------------------------ data-parallel pipelines

WIDE_HEADER = "dp_rank," + HEADER
# Two stages; the second pipeline takes a tenth longer for everything.
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
        assert set(made["pipelines"][0]) == {"dp_rank", "iteration_time_s", "energy_j", "stages"}
        assert "stages" not in made
        assert (made["num_stages"], made["blocking_power_w"]) == (2, [5.0] * 4)
        pairs += zip(simulated["pipelines"], made["pipelines"], strict=True)
        assert {tuple(own["peak_activations"]) for own in simulated["pipelines"]} == {(2, 1)}
    for own, planned in pairs:
        for figure in ("iteration_time_s", "energy_j"):
            assert own[figure] == planned[figure]


# ------------------------------------------------------------------ progress on a terminal

# `flyball` with stdout in a file and a progress line from the beginning.
EAGER = """
import sys
from flyball_server.cli import progress_line
progress_line.SHOWN_AFTER_S = 0.0
sys.stdout = open(sys.argv[1], "w")
from flyball_client.__main__ import main
sys.exit(main(sys.argv[2:]))
"""


def test_a_terminal_shows_progress_and_is_clean_at_the_end(tmp_path: Path, profile: Path) -> None:
    stdout = tmp_path / "stdout"
    asked = map(str, (stdout, "plan", profile, *ASKED, "--json"))
    with on_a_terminal(sys.executable, "-c", EAGER, *asked) as running:
        assert running.end() == 0
        assert b", 0 s" in running.written
        assert running.shown.strip() == ""
    assert json.loads(stdout.read_text(encoding="utf-8"))["num_stages"] == 2


def test_an_interrupt_leaves_the_terminal_clean(tmp_path: Path, profile: Path) -> None:
    stdout = tmp_path / "stdout"
    asked = ("frontier", profile, "--microbatches", "64", "--blocking-power", "5")
    long = (*asked, "--points", "10000", "--effort", "high")  # takes minutes
    with on_a_terminal(sys.executable, "-c", EAGER, *map(str, (stdout, *long))) as running:
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
    """An endless device, and a file of a terabyte."""
    large = tmp_path / "large"
    large.touch()
    os.truncate(large, 2**40)
    known = {"PROFILE": str(profile), "PLAN": str(plan)}
    for file, said in (
        (Path("/dev/zero"), "not a regular file"),
        (large, "larger than 64 MiB"),
    ):
        refused = refusal(flyball(*(known.get(each, each).format(file) for each in arguments)))
        assert str(file) in refused
        assert said in refused


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


NODE_OF_TWO = """
filter_max_mhz = { value = 1980, source = "x" }
filter_min_mhz = { value = 900, source = "x" }
granularity_mhz = { value = 90, source = "x" }
reconfigure_granularity_mhz = { value = 30, source = "x" }
blocking_power_w = { value = 5, source = "x" }
gpus_in_node = { value = 2, source = "x" }

[transitions]
up_ms = { p5 = 10, p50 = 10, p95 = 10, source = "x" }
down_ms = { p5 = 10, p50 = 10, p95 = 10, source = "x" }
call_ms = { p50 = 5000, p95 = 5000, source = "x" }
"""


def test_gpus_share_a_node_where_the_table_says_so_and_their_calls_would_not_fit(
    profile: Path, tmp_path: Path
) -> None:
    """Two changes of 5 s each in an iteration of 9 s: within half of that there is none."""
    gpu = tmp_path / "pair.toml"

    def planned(table: str, *options: str) -> tuple[str, list[str]]:
        gpu.write_text(table)
        asked: list[str | Path] = ["plan", profile, "--microbatches", "2", "--gpu", gpu, *options]
        result = flyball(*asked, "--json")
        assert json.loads(result.stdout)["num_switches"] == (0 if result.stderr else 2)
        return flyball(*asked).stdout, result.stderr.splitlines()

    shown, [note] = planned(NODE_OF_TWO)
    assert shown.splitlines()[-1] == note
    assert note.startswith(
        "Assumed: 2 of these GPUs share a node, as they usually do. A plan for a"
    )
    assert "in one node setting its clocks takes 111 % of an iteration, which makes" in note
    for table, options in (
        (NODE_OF_TWO, ("--gpus-in-node", "1")),
        (NODE_OF_TWO.replace("5000", "500"), ()),
        (NODE_OF_TWO.replace("value = 2,", "value = 1,"), ()),
        (NODE_OF_TWO.replace("gpus_in_node", "# gpus_in_node"), ()),
        (NODE_OF_TWO, ("--transition-ms", "10")),
    ):
        shown, notes = planned(table, *options)
        assert (notes, "Assumed" in shown) == ([], False)
    assert "setting the clocks of 1" not in planned(NODE_OF_TWO, "--gpus-in-node", "1")[0]


def test_of_capped_gpus_fixed_clocks_stand_before_a_plan_that_saves_little_more(
    tmp_path: Path,
) -> None:
    """Forwards and backwards take the same time under every lock from 1400 MHz on."""
    rows = [
        f"0,{kind},{mhz},{time_s},{energy_j},{held_by}"
        for kind in ("forward", "backward")
        for mhz, time_s, energy_j, held_by in (
            (1700, 1.0, 60, "power"),
            (1550, 1.0, 60, "power"),
            (1400, 1.0, 57, ""),
            (1200, 1.2, 50, ""),
        )
    ]
    profile = tmp_path / "capped.csv"
    profile.write_text("\n".join(["stage,instruction,frequency,time,energy,held_by", *rows]))
    asked: list[str | Path] = ["plan", profile, *ASKED]
    lines = flyball(*asked).stdout.splitlines()
    names = [line.split()[0] for line in lines[2:6]]
    assert names == ["baseline", "constant", "global", "plan"]
    limit = (
        "clocks above 1400 MHz are not held (power): the baseline is what the GPUs do"
        " when left alone"
    )
    assert lines[2].endswith(limit)
    for line in lines[3:6]:
        assert "saves 5.00 %, +0.00 % time" in line
    assert lines[-1].startswith("Changing clocks saves only 0.00 points more than one clock per")
    held = profile.read_text().replace("power", "")
    profile.write_text(held)
    assert "not held" not in flyball(*asked).stdout
