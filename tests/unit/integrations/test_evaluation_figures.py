"""EnvPipe's figures: which runs they hold, and what becomes of the results."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from flyball_client.__main__ import main
from flyball_lab.evaluation import command
from flyball_lab.evaluation.configurations import (
    BASELINE,
    ENVPIPE,
    FITTED,
    FRONTIER_1F1B,
    GIVEN,
    Configuration,
    example_model,
    fitted_model,
    given_models,
)
from flyball_lab.evaluation.figures import Figure, make_figure
from flyball_lab.evaluation.planned_run import RunResult
from flyball_lab.evaluation.tables import printed_table, rows_of, write_csv
from flyball_profiles.examples import example_profile_path
from flyball_wire.command import CommandError

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0


def tiny_figure() -> Figure:
    """One model, three runs of two microbatches."""
    model = fitted_model("megatron-125m")
    runs = tuple(
        Configuration(model=model, manner=manner, num_microbatches=2)
        for manner in (BASELINE, ENVPIPE, FRONTIER_1F1B)
    )
    return Figure(name="9", title="a tiny figure", groups={"megatron": runs})


def result_of(run: Configuration, time_s: float, energy_j: float) -> RunResult:
    """A result that is just as predicted."""
    return RunResult(
        configuration=run,
        emulated_iteration_time_s=time_s,
        emulated_energy_j=energy_j,
        predicted_iteration_time_s=time_s,
        predicted_energy_j=energy_j,
        lower_bound_j=None,
        num_switches=5,
        peak_activations=(2, 2, 2, 1),
    )


# ------------------------------------------------------------------ profiles of a folder


def test_given_profiles_are_told_from_fitted_ones(tmp_path: Path) -> None:
    for name in ("my-model+A40", example_profile_path().stem):
        (tmp_path / f"{name}.csv").write_bytes(example_profile_path().read_bytes())
    example, mine = given_models(tmp_path)
    assert (mine.name, mine.gpu, mine.origin) == ("my-model+A40", "a40", GIVEN)
    assert mine.blocking_power_w == 70.38
    assert example.name != example_model().name
    labels = make_figure("9", [example_model(), example, mine]).groups
    assert [label for label in labels if GIVEN in label.split("\n")[1]] == list(labels)[-2:]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a100.csv", "stage\n", r"a100\.csv:1: missing column"),
        ("model.csv", None, r"must contain the GPU, .*: one of a100, a40"),
        ("model-v100.csv", None, r"must contain the GPU"),
        ("a100.txt", None, r"no stage profile"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_in_one_line(
    tmp_path: Path, name: str, text: str | None, message: str
) -> None:
    content = example_profile_path().read_text() if text is None else text
    (tmp_path / name).write_text(content)
    with pytest.raises(CommandError, match=message):
        given_models(tmp_path)


# ------------------------------------------------------------------ what becomes of results


def test_rows_compare_each_run_with_the_first_of_its_group(tmp_path: Path) -> None:
    figure = tiny_figure()
    baseline, envelope, frontier = figure.runs
    results = {
        baseline: result_of(baseline, 2.0, 100.0),
        envelope: result_of(envelope, 2.5, 90.0),
        frontier: result_of(frontier, 2.0, 80.0),
    }
    rows = rows_of(figure, results)
    assert [row["energy_saving_percent"] for row in rows] == [0.0, 10.0, 20.0]
    assert [row["slowdown_percent"] for row in rows] == [0.0, 25.0, 0.0]
    assert [row["normalized_throughput"] for row in rows] == [1.0, 0.8, 1.0]
    # Two microbatches of four samples in 2 s.
    assert rows[0]["emulated_throughput_microbatches_per_s"] == 1.0
    assert rows[0]["emulated_throughput_samples_per_s"] == 4.0
    assert rows[0]["emulated_average_power_w"] == 50.0
    assert {row["profile_origin"] for row in rows} == {FITTED}
    write_csv(rows, tmp_path / "figure.csv")
    with (tmp_path / "figure.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [row["policy"] for row in read] == ["baseline", "envelope", "frontier"]
    assert read[0]["lower_bound_j"] == ""
    assert read[0]["emulated_energy_j"] == "100.0"
    assert read[0]["emulated_average_power_w"] == "50.0"
    table = printed_table(figure, rows)
    assert "emulated" in table
    assert FITTED in table
    assert "-0.0" not in table


# ------------------------------------------------------------------ the command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--figure", "8"], r"invalid choice: '8'"),
        (["--steps", "0"], r"--steps must be from 1 to 1000, not 0"),
        (["--switch-latency", "nan"], r"--switch-latency must be from 0 to 1000 ms"),
        (["--switch-latency", "-1"], r"--switch-latency must be from 0 to 1000 ms"),
        (["--profiles", "nowhere"], r"--profiles nowhere: No such file or directory"),
        (["-o", "taken"], r"--output taken: File exists"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line_with_status_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken").touch()
    assert main(["evaluate", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(rf"flyball evaluate: .*{message}.*\n", captured.err)


def test_the_whole_command_writes_its_files_and_prints_json_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "make_figure", lambda *_: tiny_figure())
    options = ["--steps", "1", "--switch-latency", "0", "--json", "--print-plans"]
    status = main(["evaluate", "--figure", "9", "-o", str(tmp_path), *options])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    document = json.loads(captured.out)
    assert document["emulated"] is True
    assert document["switch_latency_s"] == 0.0
    assert [row["policy"] for row in document["rows"]] == ["baseline", "envelope", "frontier"]
    assert document["largest_time_difference_percent"] < 0.001
    assert {path.name for path in tmp_path.iterdir()} == {
        "figure-9.csv",
        "figure-9.png",
        "figure-9.svg",
    }
    steps = re.findall(r"^CURRENT_STEP (\d+)$", captured.err, flags=re.MULTILINE)
    assert steps == [str(number) for number in range(len(steps))]
    assert re.search(r"^Stage 3 \| \[F0 1530 \d+\.\d\]", captured.err, flags=re.MULTILINE)


def test_ctrl_c_ends_the_command_and_its_planner(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "flyball_client", "evaluate", "--figure", "13", "-o", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert "figure 13" in process.stderr.readline()
        children = children_of(process.pid)
        assert children, "the planner runs as a process"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait(PATIENCE_S)
    assert (process.returncode, output, errors) == (130, "", "")
    deadline_s = time.monotonic() + PATIENCE_S
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        assert time.monotonic() < deadline_s, "the planner outlived the command"
        time.sleep(0.01)


def children_of(pid: int) -> list[int]:
    """The processes that this one has started."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def test_without_matplotlib_the_command_names_the_extra_that_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["evaluate", "--figure", "9", "-o", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (
        "",
        "flyball evaluate: missing: matplotlib, of the extra 'plot': pip install '.[plot]' in a"
        " clone of Flyball\n",
    )


@pytest.mark.parametrize(("options", "status"), [(["--switch-latency", "0"], 1), ([], 0)])
def test_a_missed_prediction_fails_the_command_only_where_clocks_change_at_once(
    options: list[str],
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "make_figure", lambda *_: tiny_figure())
    monkeypatch.setattr(command, "_planner", lambda _: nullcontext(("", tmp_path, {})))
    monkeypatch.setattr(
        command,
        "run_configuration",
        lambda _url, _job, run, **_: replace(
            result_of(run, 2.0, 100.0), predicted_iteration_time_s=1.999
        ),
    )
    assert main(["evaluate", "--figure", "9", "-o", str(tmp_path), *options]) == status
    captured = capsys.readouterr()
    assert ("differ by more than 0.01 %" in captured.err) == bool(status)
    assert "0.0500" in captured.out
