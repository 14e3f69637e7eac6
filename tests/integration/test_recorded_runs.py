"""Recorded runs of a planner's job: over REST, exported, and replayed against a known truth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.command_in_process import Done, document_of, flyball, printed, refusal
from tests.planner.live import LivePlanner, live_planner
from tests.planner.measuring import COMPARISON, TruthfulRanks
from tests.planner.patience import wait_until
from tests.recorded_run_schema import validate
from tests.unit.replay.synthetic_runs import Truth, recording_of

from flyball_wire import routes

RECORDED_RUNS = routes.fill(routes.RECORDED_RUNS, job_id="job")
TRUTH = Truth(num_microbatches=12)
Trained = tuple[LivePlanner, TruthfulRanks]
TARGETS = (
    {"policy": "baseline"},
    {"policy": "frontier", "target": "fastest"},
    *({"target": f"slowdown:{share}"} for share in (0.03, 0.06, 0.09, 0.12, 0.16, 0.2, 0.25)),
    {"target": "least-energy"},
)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLYBALL_PLANNER_URL", "FLYBALL_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def trained() -> Iterator[Trained]:
    """A job that ran ten versions of its plan, 40 steps each, and reported its clocks' times."""
    with live_planner() as planner:
        ranks = TruthfulRanks(planner, TRUTH, noise_percent=0.3, reports_clocks=True)
        ranks.register(policy="baseline")
        ranks.run(40)
        for target in TARGETS[1:]:
            ranks.run(40, **target)
        yield planner, ranks


@pytest.fixture
def ranks(planner: LivePlanner) -> TruthfulRanks:
    """Ranks that have run one version for 10 steps."""
    ranks = TruthfulRanks(planner, TRUTH)
    ranks.register()
    ranks.run(10)
    return ranks


def command(planner: LivePlanner, *arguments: str | Path) -> Done:
    return flyball(*arguments, "--planner", str(planner.http.base_url))


def recorded(planner: LivePlanner) -> dict[str, Any]:
    answer = planner.http.get(RECORDED_RUNS)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    validate(body["document"])
    return body


def clocks_of(planner: LivePlanner, version: int) -> list[list[int]]:
    path = routes.fill(routes.PLAN, job_id="job", version=version)
    plan = planner.http.get(path).json()["plan"]
    return [[mhz for _, _, mhz, *_ in of_stage] for of_stage in plan["stages"]]


def test_each_version_is_a_run_with_what_its_ranks_measured(trained: Trained) -> None:
    planner, ranks = trained
    body = recorded(planner)
    assert (body["job_id"], body["left_out"]) == ("job", [])
    document = body["document"]
    assert document["emulated"] is True
    names = [f"version-{version}" for version in range(1, 1 + len(TARGETS))]
    assert [run["name"] for run in document["runs"]] == names
    for version, run in enumerate(document["runs"], start=1):
        assert run["clocks_mhz"] == clocks_of(planner, version)
        time_s, energies_j = ranks.truth.iteration(run["clocks_mhz"])
        totals = run["iterations"]
        # The first step of a version does not count; some run on while the next one is taken.
        assert totals["count"] >= 39
        assert totals["time_s_mean"] == pytest.approx(time_s, rel=2e-3)
        assert totals["time_s_deviation"] == pytest.approx(0.003 * time_s, rel=0.5)
        assert run["energy_j_per_stage"] == pytest.approx(energies_j, rel=2e-3)
        for times in run["instruction_times"]:
            assert times["time_s_mean"] == pytest.approx(
                ranks.truth.time_s(times["stage"], times["instruction"], times["frequency_mhz"])
            )
            assert "source" not in times or times["source"] != "profile"
            assert times["samples"] > 1


def test_the_export_is_the_planners_document_and_replays_as_the_job(
    trained: Trained, tmp_path: Path
) -> None:
    planner, _ = trained
    exported = printed(command(planner, "export", "--recorded", "job"))
    assert exported == recorded(planner)["document"]
    path = tmp_path / "runs.json"
    done = command(planner, "export", "--recorded", "job", "-o", path)
    assert done.stdout == f"{path}: {len(TARGETS)} runs (measured); flyball replay predicts them\n"
    assert json.loads(path.read_text(encoding="utf-8")) == exported
    of_file = document_of("replay", path)
    of_job = printed(command(planner, "replay", "--job", "job", "--json"))
    assert (of_file.pop("source"), of_job.pop("source")) == (str(path), "job job")
    assert of_job == of_file
    # Times of the stage profile are named.
    said = "instruction times of the stage profile, not measured in the run: version-1, version-3"
    assert not any(each.startswith(said) for each in of_job["notes"])
    for run in exported["runs"]:
        for times in run["instruction_times"]:
            times |= {"source": "profile", "samples": 1}
    path.write_text(json.dumps(exported), encoding="utf-8")
    assert any(each.startswith(said) for each in document_of("replay", path)["notes"])


def test_a_replayed_job_is_predicted_close_to_the_hidden_truth(trained: Trained) -> None:
    planner, ranks = trained
    document = printed(command(planner, "replay", "--job", "job", "--json"))
    held_out = [run for run in document["runs"] if not run["fitted"]]
    assert len(held_out) == len(TARGETS) // 2
    for run in held_out:
        version = int(run["name"].removeprefix("version-"))
        time_s, energies_j = ranks.truth.iteration(clocks_of(planner, version))
        assert run["predicted_s"] == pytest.approx(time_s, rel=2e-3)
        assert run["predicted_j"] == pytest.approx(sum(energies_j), rel=5e-3)
    assert document["tail_s"] == pytest.approx(ranks.truth.tail_s, rel=0.05)
    errors, unchanged = document["mean_absolute_error_percent"], document["unchanged"]
    assert errors["time"] < min(0.1, 0.1 * unchanged["time"])
    assert errors["energy"] < min(0.3, 0.1 * unchanged["energy"])
    text = command(planner, "replay", "--job", "job").stdout
    assert "measured (emulated GPUs)" in text
    assert "5 runs fitted, 5 predicted from them" in text


def test_only_steps_that_count_are_in_it(planner: LivePlanner, ranks: TruthfulRanks) -> None:
    ranks.measure(5, num_unplanned=1)
    num_before = ranks.next_step
    ranks.run(0, target="fastest", policy="frontier")
    num_until_the_change = ranks.next_step - num_before
    ranks.run(10, policy="baseline")
    document = recorded(planner)
    runs = {run["name"]: run["iterations"]["count"] for run in document["document"]["runs"]}
    # These ranks report no times of instructions: they are the profile's.
    for run in document["document"]["runs"]:
        for times in run["instruction_times"]:
            assert (times["source"], times["samples"]) == ("profile", 1)
    (left_out,) = document["left_out"]
    assert left_out.startswith("version-2: has ")
    assert left_out.endswith("measured steps that count; at least 4 are needed")
    assert list(runs) == ["version-3", "version-1"]
    # The first step of a version does not count, nor do those that left the plan.
    assert runs == {"version-3": 9, "version-1": 9 + num_until_the_change}
    done = command(planner, "export", "--recorded", "job")
    assert done.stderr == f"left out: {left_out}\n"


def test_steps_at_the_highest_clocks_of_a_comparison_are_a_run_that_comes_first(
    planner: LivePlanner, ranks: TruthfulRanks
) -> None:
    planner.http.put(COMPARISON, json={"num_pairs": 6}).raise_for_status()
    path = routes.fill(routes.JOB, job_id="job")
    wait_until(lambda: planner.http.get(path).json()["newest_version"] == 2)
    ranks.run(40)
    document = recorded(planner)["document"]
    names = ["version-2-highest", "version-1", "version-2"]
    assert [run["name"] for run in document["runs"]] == names
    highest, first, second = document["runs"]
    assert {mhz for of_stage in highest["clocks_mhz"] for mhz in of_stage} == {1400}
    assert first["clocks_mhz"] == second["clocks_mhz"]
    recording_of(document)


def test_a_job_without_runs_to_replay_is_refused_with_the_reason(
    planner: LivePlanner, ranks: TruthfulRanks
) -> None:
    answer = planner.http.get(RECORDED_RUNS)
    assert answer.status_code == 409
    said = "job job has no runs to replay: 1 plan versions have measured steps that count"
    assert said in answer.json()["detail"].lower()
    for arguments in (("export", "--recorded", "job"), ("replay", "--job", "job")):
        assert "has no runs to replay" in refusal(command(planner, *arguments))
        other = (*arguments[:-1], "jib")
        assert refusal(command(planner, *other)).endswith("has no job 'jib'; of 1 the newest: job")
        assert "--planner URL, or set FLYBALL_PLANNER_URL" in refusal(flyball(*arguments))
    ranks.run(10, policy="baseline")
    assert "at least 3 are needed" in refusal(command(planner, "replay", "--job", "job"))
    assert planner.http.get(routes.fill(routes.RECORDED_RUNS, job_id="jib")).status_code == 404
    trace = ("--chrome-trace", "trace.json")
    assert "takes no PROFILE.csv" in refusal(flyball("export", "--recorded", "job", *trace))
    assert "--recorded JOB" in refusal(flyball("export", *trace))
    assert "-o is the file for --recorded" in refusal(flyball("export", "-o", "runs.json"))
