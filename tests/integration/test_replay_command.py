"""`flyball replay`: what it prints, and files that it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.integration.command_in_process import document_of, flyball
from tests.integration.command_in_process import refusal as refusal_of
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
