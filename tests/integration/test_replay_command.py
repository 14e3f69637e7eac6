"""`flyball replay`: what it prints, and files that it refuses."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tests.integration.command_in_process import document_of, flyball
from tests.integration.command_in_process import refusal as refusal_of
from tests.unit.replay.small_steps import PROFILE_TEXT, alone
from tests.unit.replay.synthetic_runs import Document, synthetic_document


def refusal(*arguments: str | Path) -> str:
    """Return the one line of a command that must be refused, without its name."""
    return refusal_of(flyball("replay", *arguments)).removeprefix("flyball replay: ")


def written(folder: Path, document: Document, name: str = "runs.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return written(tmp_path, synthetic_document(noise_percent=0.2))


def test_one_file_is_one_document_and_several_are_a_list(runs: Path, tmp_path: Path) -> None:
    document = document_of("replay", runs)
    assert {"runs", "mean_absolute_error_percent", "unchanged"} <= set(document)
    assert document["source"] == str(runs)
    assert [run["fitted"] for run in document["runs"]] == [True, False] * 8
    other = written(tmp_path, synthetic_document(seed=1), "other.json")
    recordings = document_of("replay", runs, other, "--fit", "spread:6")["recordings"]
    assert [each["source"] for each in recordings] == [str(runs), str(other)]
    assert [sum(run["fitted"] for run in each["runs"]) for each in recordings] == [6, 6]


def test_a_saving_is_predicted_on_request(runs: Path) -> None:
    saving = document_of("replay", runs, "--saving")["saving"]
    assert saving["baseline"] == "baseline"
    plan = saving["predicted"]
    low, high = plan["saving_percent_interval"]
    assert low < plan["saving_percent"] < high
    assert [len(of_stage) for of_stage in plan["clocks_mhz"]] == [16, 16, 16]
    text = flyball("replay", runs, "--saving").stdout
    assert "Flyball, predicted" in text
    assert "baseline, measured" in text


def test_it_is_drawn_and_the_text_says_what_is_measured_and_what_predicted(
    runs: Path, tmp_path: Path
) -> None:
    plot = tmp_path / "replay.png"
    text = flyball("replay", runs, runs, "--plot", plot).stdout
    assert plot.stat().st_size > 10_000
    assert "8 runs fitted, 8 predicted from them" in text
    assert "all as baseline, mean" in text


def test_what_is_no_file_of_runs_is_refused(tmp_path: Path) -> None:
    assert refusal().startswith("give RUN.json, a file of recorded runs, or --from-perseus")
    assert refusal(tmp_path / "none.json").endswith("No such file or directory")
    assert "not a regular file" in refusal(Path("/dev/zero"))
    path = tmp_path / "broken.json"
    for content in (b"", b"\xff\xfe", b"[" * 100_000):
        path.write_bytes(content)
        assert f"{path}: not recorded runs in JSON" in refusal(path)
    with path.open("wb") as file:
        file.truncate(65 * 2**20)
    assert "larger than 64 MiB" in refusal(path)
    document = synthetic_document(count=4)
    document["runs"][2]["energy_j_per_stage"][1] = float("nan")
    assert refusal(written(tmp_path, document)) == (
        f"{tmp_path}/runs.json: runs[2].energy_j_per_stage[1] must be a finite number, not nan"
    )


def test_options_are_refused(runs: Path, tmp_path: Path) -> None:
    assert refusal(runs, "--fit", "names:baseline,zzz").startswith(f"{runs}: run zzz: --fit names")
    assert "unknown 'half'" in refusal(runs, "--fit", "half")
    assert "must end in .svg or .png" in refusal(runs, "--plot", tmp_path / "replay.pdf")
    assert "cannot be written" in refusal(runs, "--plot", tmp_path / "none" / "replay.png")


@pytest.fixture
def steps(tmp_path: Path) -> list[str | Path]:
    """Return the arguments for recorded steps: two ranks that take turns."""
    recorded, its_profile = tmp_path / "steps.csv", tmp_path / "profile.csv"
    recorded.write_text(alone([[(0.12, 0.24), (0.1, 0.2)], [(0.1, 0.2), (0.12, 0.24)]]))
    its_profile.write_text(PROFILE_TEXT)
    return ["--steps", recorded, "--profile", its_profile, "--blocking-power", "80"]


def test_recorded_steps_are_compared_under_four_plans(
    steps: list[str | Path], tmp_path: Path
) -> None:
    document = document_of("replay", *steps, "--no-transitions")
    assert set(document) == {"steps", "static", "one_clock", "per_step", "bound_saved_percent"}
    assert document["steps"] == 2
    assert document["static"] == {"time_percent": 0.0, "saved_percent": pytest.approx(0)}
    # The quick rank's 0.36 s have room for 1200 MHz: 12 J less in 0.03 s more, of 202.4 + 4.8 J.
    assert document["per_step"]["saved_percent"] == pytest.approx(100 * 14.4 / 207.2, abs=0.01)
    assert document["one_clock"] == pytest.approx(document["per_step"])
    out = tmp_path / "clocks.csv"
    text = flyball("replay", *steps, "--transition-ms", "2", "--clocks", out).stdout
    assert "2 steps, 4 pipeline steps; clock changes take 2 ms up, 2 ms down; predicted" in text
    lines = out.read_text().splitlines()
    assert lines[:2] == [
        "step,dp_rank,stage,instruction,microbatch,clock_mhz",
        "0,0,0,forward,0,1400",
    ]
    assert len(lines) == 9
    assert "0,1,0,backward,0,1200" in lines


def test_an_error_of_prediction_has_a_reserve(steps: list[str | Path]) -> None:
    document = document_of("replay", *steps, "--error", "2", "--shared-error")
    assert 0 <= document["reserve_percent"] <= 8
    text = flyball("replay", *steps, "--error", "2").stdout
    assert "times with an error of 2 % an instruction, with a reserve of" in text


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--curve", "3"], "--curve: the profile has stages 0 to 0, not 3"),
        (["--error", "90"], "argument --error: must be a number of percent from 0 to 50, not 90"),
        (["--error", "nan"], "argument --error: must be a number of percent from 0 to 50, not nan"),
        (["--shared-error"], "--shared-error needs --error PERCENT"),
        (["--saving"], "--saving is for recorded runs; leave it out with --steps"),
        (["--trace-names", "step=x"], "--trace-names is for traces, and "),
        (["--trace-places", "0:0"], "--trace-places is for traces, and "),
        (["--transition-ms", "-1"], "argument --transition-ms: must be a number of ms from 0 to"),
        (["--clocks", "."], ".: is a folder; name a file in it"),
    ],
)
def test_steps_are_refused_with_one_line(
    steps: list[str | Path], arguments: list[str], fault: str
) -> None:
    assert refusal(*steps, *arguments).startswith(fault)


def test_faults_of_recorded_steps_name_file_and_line(
    steps: list[str | Path], tmp_path: Path
) -> None:
    recorded = tmp_path / "steps.csv"
    recorded.write_text(recorded.read_text().replace("0.24\n", "-1\n", 1))
    recorded.write_bytes(b"\xef\xbb\xbf" + recorded.read_bytes())
    assert refusal(*steps) == (f"{recorded}: line 3: time_s must be above 0, at most 1e+06, not -1")
    recorded.write_bytes(b"\xff")
    assert refusal(*steps).startswith(f"{recorded}: not a CSV file in UTF-8")
    assert refusal(*steps[:2]) == "--steps needs --profile PROFILE.csv, energies by clock"
    assert refusal("--curve", "3") == "--curve needs --steps FILE, times of recorded steps"
    assert refusal(*steps[:4]).startswith("blocking power is needed: give --blocking-power W")


def test_traces_packed_or_not_are_replayed(steps: list[str | Path], tmp_path: Path) -> None:
    plain, packed = tmp_path / "0.json", tmp_path / "1.json.gz"
    for rank, path in enumerate((plain, packed)):
        ranges = [("iteration", 0, 900), ("fwd", 10, 100 + rank), ("bwd", 200, 210)]
        events = [
            {"ph": "X", "name": name, "ts": 1e3 * begin, "dur": 1e3 * time}
            for name, begin, time in ranges
        ]
        path.write_text(f"\ufeff\n{json.dumps(events)}", encoding="utf-8")
    packed.write_bytes(gzip.compress(packed.read_bytes()))
    names = [
        *("--trace-names", "step=iteration", "--trace-names", "forward=fwd"),
        *("--trace-names", "backward=bwd"),
    ]
    rest = steps[2:]
    text = flyball("replay", "--steps", plain, packed, *names, "--trace-places", "0:0,1:0", *rest)
    assert text.stdout.startswith("1 steps, 2 pipeline steps; ")
    assert refusal("--steps", plain, packed, *rest) == (
        f"{plain}: no range is called as an instruction; of torch's Schedule1F1B record with"
        " profile(..., with_stack=True), of others give --trace-names KIND=REGEX"
    )
    assert refusal("--steps", plain, packed, *names, *rest).startswith(
        f"{plain} and 1 more: trace 1 has no stage"
    )
    for given, fault in (("fwd", "must be KIND=REGEX, not 'fwd'"), ("up=fwd", "unknown name 'up'")):
        assert refusal("--steps", plain, "--trace-names", given, *rest).startswith(
            f"--trace-names: {fault}"
        )
    assert refusal("--steps", plain, "--trace-places", "0", *rest) == (
        "--trace-places: must be DP_RANK:STAGE,..., as 0:0,0:1"
    )
    packed.write_bytes(packed.read_bytes()[:20])
    assert refusal("--steps", packed, *rest).startswith(f"{packed}: ")
    plain.write_text("{")
    assert refusal("--steps", plain, *rest).startswith(f"{plain}: not a trace in JSON")
