"""`flyball replay --from-perseus`: trees in the artifact's shape, whole and broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.command_in_process import document_of, flyball
from tests.integration.test_replay_command import refusal, written
from tests.shared_data import needs_shared_data, recorded_runs
from tests.unit.replay.perseus_tree import write_perseus_tree
from tests.unit.replay.synthetic_runs import Document, synthetic_document

from flyball_server.cli.replay import read_recording, read_workload


@pytest.fixture
def document() -> Document:
    document = synthetic_document(count=8, noise_percent=0.2)
    document["runs"][-1]["name"] = "envpipe"
    return document


Change = Callable[[Any], None]


def test_an_artifacts_tree_gives_the_predictions_of_the_runs_it_holds(
    document: Document, tmp_path: Path
) -> None:
    folder = write_perseus_tree(tmp_path, document)
    expected = document_of("replay", written(tmp_path, document))
    found = document_of("replay", "--from-perseus", tmp_path)
    assert found["source"] == str(folder)
    assert found["workload"] == expected["workload"]
    names = ["baseline", *(f"perseus-{place}" for place in range(6)), "envpipe"]
    assert [run["name"] for run in found["runs"]] == names
    for one, other in zip(found["runs"], expected["runs"], strict=True):
        assert one.keys() == other.keys()
        for key in ("measured_s", "predicted_s", "measured_j", "predicted_j"):
            assert one[key] == pytest.approx(other[key], rel=1e-9)
        assert one["fitted"] == other["fitted"]


def test_ranks_of_a_stage_are_added_and_must_have_one_plan(
    document: Document, tmp_path: Path
) -> None:
    document["dp"], document["tp"] = 2, 2
    folder = write_perseus_tree(tmp_path, document)
    recording = read_workload(folder)
    assert (recording.dp, recording.tp) == (2, 2)
    for run, expected in zip(recording.runs, document["runs"], strict=True):
        assert run.energy_j_per_stage == pytest.approx(expected["energy_j_per_stage"])
        assert run.iteration_time_s == pytest.approx(expected["iteration_time_s"])
    # An iteration takes the mean of what its twelve ranks measured.
    first = recording.runs[1].iteration_time_s
    assert first is not None
    _change(folder / "2.prof.json", _set(1, "iter_time", 2, to=first[1] + 1.2))
    assert read_workload(folder).runs[1].iteration_time_s == pytest.approx(
        [first[0], first[1] + 0.1, *first[2:]]
    )
    _change(folder / "3.sched.json", _set(7, "power_states", 1, to=1234))
    assert refusal("--from-perseus", tmp_path) == (
        f"{folder / '3.sched.json'}: run perseus-1: stage 1: rank 7: power_states: has other"
        " clocks than rank 1 of the same stage"
    )


@needs_shared_data
def test_published_runs_survive_the_way_through_a_tree(tmp_path: Path) -> None:
    path = next(path for path in recorded_runs() if path.stem.startswith("gpt3-xl"))
    folder = write_perseus_tree(tmp_path, json.loads(path.read_text(encoding="utf-8")))
    found, expected = read_workload(folder), read_recording(path)
    assert found.title == expected.title
    for one, other in zip(found.runs, expected.runs, strict=True):
        assert (one.name, one.clocks_mhz) == (other.name, other.clocks_mhz)
        assert one.instruction_times == other.instruction_times
        assert one.iteration_time_s == pytest.approx(other.iteration_time_s, rel=1e-12)
        assert one.energy_j_per_stage == pytest.approx(other.energy_j_per_stage, rel=1e-12)


def _set(*path: str | int, to: Any) -> Change:  # noqa: ANN401 - any JSON
    def change(content: Any) -> None:  # noqa: ANN401 - any JSON
        *outer, last = path
        for key in outer:
            content = content[key]
        if to is GONE:
            del content[last]
        else:
            content[last] = to

    return change


def _drop(*path: str | int) -> Change:
    return _set(*path, to=GONE)


def _change(path: Path, *changes: Change) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    for change in changes:
        change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


NAN, GONE = float("nan"), object()
PLAN, MEASURED = "4.sched.json", "4.prof.json"
POWER, FORWARDS = (0, "power_states"), (2, "time_breakdown", "forward")
# Rank 1 measured an iteration less than the others.
SHORTER = tuple(
    _drop(1, *path, -1)
    for path in (
        ("iter_time",),
        ("iter_energy",),
        ("time_breakdown", "forward"),
        ("time_breakdown", "backward"),
    )
)


@pytest.mark.parametrize(
    ("file", "changes", "said"),
    [
        (PLAN, [_drop(1)], "each once; rank 1 of stage 1 is missing"),
        (PLAN, [_set(1, "rank", to=0)], "must have ranks 0 to 2, each once"),
        (PLAN, [_set(1, "rank", to="1")], ": [1].rank must be a whole number"),
        (PLAN, [_drop(*POWER, 5)], "power_states: has 36 clocks; Merak's 1F1B of 8 microbatches"),
        (PLAN, [_set(*POWER, 1, to=0)], "[1]: must be a finite positive number, not 0"),
        (
            MEASURED,
            [_set(2, "iter_time", 1, to=NAN)],
            ": [2].iter_time[1] must be a finite number, not nan",
        ),
        (MEASURED, [_set(2, "iter_time", to=[1.0])], ": rank 2: iter_time: has 1 iter"),
        (MEASURED, [_drop(2, "iter_time")], ": [2].iter_time is missing"),
        (MEASURED, [*SHORTER], "rank 1: iter_time: has 4 iterations, iter_time of rank 0 5"),
        (MEASURED, [_set(2, "iter_energy", 1, to=-1.0)], "rank 2: iter_energy: must be above 0"),
        (MEASURED, [_drop(*FORWARDS, 3, 4)], "forward: has 7 microbatches, the folder's name"),
    ],
)
def test_a_fault_is_named_with_file_run_and_stage(
    document: Document, tmp_path: Path, file: str, changes: list[Change], said: str
) -> None:
    folder = write_perseus_tree(tmp_path, document)
    _change(folder / file, *changes)
    refused = refusal("--from-perseus", tmp_path)
    assert refused.startswith(f"{folder / file}: run perseus-2")
    assert said in refused


def test_a_file_that_is_cut_off_or_without_its_twin_is_named(
    document: Document, tmp_path: Path
) -> None:
    folder = write_perseus_tree(tmp_path, document)
    profile = folder / "5.prof.json"
    profile.write_text(profile.read_text(encoding="utf-8")[:-100], encoding="utf-8")
    assert refusal("--from-perseus", tmp_path).startswith(
        f"{profile}: run perseus-3: not complete JSON ("
    )
    profile.unlink()
    assert refusal("--from-perseus", tmp_path) == (
        f"{profile}: run perseus-3: No such file or directory"
    )


def test_a_folder_without_runs_or_baseline_is_named(document: Document, tmp_path: Path) -> None:
    assert refusal("--from-perseus", tmp_path / "none").endswith("of the Perseus artifact")
    folder = write_perseus_tree(tmp_path, document)
    envpipe = tmp_path / "envpipe" / folder.relative_to(tmp_path / "perseus")
    for kind in ("prof", "sched"):
        (envpipe / f"2.{kind}.json").unlink()
    assert refusal("--from-perseus", tmp_path) == (f"{envpipe}: has no 2.prof.json, EnvPipe's plan")
    for kind in ("prof", "sched"):
        (folder / f"1.{kind}.json").unlink()
    assert refusal("--from-perseus", tmp_path) == f"{folder}: has no 1.prof.json, the baseline"
    for path in folder.iterdir():
        path.unlink()
    assert refusal("--from-perseus", tmp_path) == (
        f"{folder}: has no runs, which are files N.prof.json and N.sched.json"
    )


def test_a_workload_that_cannot_be_read_does_not_stop_the_others(
    document: Document, tmp_path: Path
) -> None:
    good = write_perseus_tree(tmp_path, document)
    broken = write_perseus_tree(tmp_path, {**document, "model": "broken"})
    (broken / "3.sched.json").write_text("[", encoding="utf-8")
    (tmp_path / "perseus" / "V100" / "dp1" / "notes").mkdir(parents=True)
    found = document_of("replay", "--from-perseus", tmp_path)
    assert [each["source"] for each in found["recordings"]] == [str(good)]
    second, first = found["not_replayed"]
    assert first.startswith(f"{broken / '3.sched.json'}: run perseus-1: not complete JSON")
    assert "the folder's name must be" in second
    text = flyball("replay", "--from-perseus", tmp_path).stdout
    assert f"not replayed: {broken}" in text
    (good / "3.sched.json").unlink()
    assert refusal("--from-perseus", tmp_path).endswith("(and 2 other workloads)")


def test_runs_that_scatter_or_wait_elsewhere_are_named(document: Document, tmp_path: Path) -> None:
    folder = write_perseus_tree(tmp_path, document)

    def slow(content: Any) -> None:  # noqa: ANN401 - any JSON
        for rank in content:
            rank["iter_time"] = [time_s + 1 for time_s in rank["iter_time"]]
            rank["iter_time"][2] += 0.5

    _change(folder / "5.prof.json", slow)
    text = flyball("replay", "--from-perseus", tmp_path).stdout
    assert "note: perseus-3: iterations scatter by" in text
    assert "of its time" in text.partition("note: perseus-3")[2]
