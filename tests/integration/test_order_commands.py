"""`flyball plan` and `simulate` with orders of one's own, chunks, and no flush."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration.command_in_process import document_of, flyball, one_pipeline, refusal
from tests.unit.planning.tiny_pipelines import B, F, I, R, W, timed_profile

from flyball_profiles.stage_profile_csv import write_stage_profile

TWO = [["forward", 0], ["backward", 0], ["forward", 1], ["backward", 1]]
V = [["forward", 0], ["forward", 0, 1], ["backward", 0, 1], ["backward", 0]]


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return one_pipeline(tmp_path)


@pytest.fixture
def chunked(tmp_path: Path) -> Path:
    """Two stages of two chunks, every kind of instruction 1 s, a whole backward 2 s."""
    path = tmp_path / "chunked.csv"
    times_s = {F: 1.0, B: 2.0, I: 1.0, W: 1.0, R: 1.0}
    path.write_text(write_stage_profile(timed_profile(2, times_s, 2)), encoding="utf-8")
    return path


def asked(num_microbatches: int = 1) -> tuple[str, ...]:
    return (
        "--microbatches", str(num_microbatches), "--blocking-power", "5", "--policy", "envelope",
    )  # fmt: skip


def written(tmp_path: Path, order: object, name: str = "order.json") -> Path:
    """The order as a JSON file, or as the text that it is."""
    path = tmp_path / name
    text = order if isinstance(order, str) else json.dumps(order)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("order.json", {"stages": [TWO, TWO]}),
        ("order.csv", "0F0,,0B0,0F1,0B1\n,1F0,1B0,1F1,1B1\n"),
    ],
)
def test_an_order_is_planned_and_its_plan_file_simulated(
    tmp_path: Path, profile: Path, name: str, order: object
) -> None:
    """One microbatch after the other, 6 s each."""
    plan = tmp_path / "plan.json"
    path = written(tmp_path, order, name)
    made = document_of("plan", profile, *asked(2), "--order", path, "-o", plan)
    assert (made["schedule"], made["iteration_time_s"]) == ("explicit", 12.0)
    assert [entry[:2] for entry in made["stages"][1]] == TWO
    simulated = document_of("simulate", profile, plan)
    assert simulated["iteration_time_s"] == 12.0
    assert simulated["peak_activations"] == [1, 1]


@pytest.mark.parametrize(
    ("options", "iteration_time_s", "shape"),
    [
        (("--schedule", "interleaved-1f1b"), 15, {"virtual_stages": [[0, 2], [1, 3]]}),
        (("--schedule", "zbv"), 14, {"virtual_stages": [[0, 3], [1, 2]]}),
        (("--schedule", "pipedream"), 12, {"weight_versions": [2, 1]}),
        (("--schedule", "torchgpipe", "--checkpoint", "always"), 22, {}),
    ],
)
def test_a_plan_file_of_any_schedule_simulates_to_what_it_says(
    tmp_path: Path,
    chunked: Path,
    options: tuple[str, ...],
    iteration_time_s: float,
    shape: dict[str, Any],
) -> None:
    """Two microbatches. Interleaved: 12 s busy and 3 s idle. ZBV: 12 s and 2 s.

    PipeDream: 2 (2 s + 4 s), of the whole stages. GPipe: (2 + 1) (2 s + 4 s), and 2 s for each of
    two recomputations.
    """
    plan = tmp_path / "plan.json"
    made = document_of("plan", chunked, *asked(2), *options, "-o", plan)
    assert made["iteration_time_s"] == iteration_time_s
    assert {key: made[key] for key in ("virtual_stages", "weight_versions") if key in made} == shape
    simulated = document_of("simulate", chunked, plan)
    assert simulated["iteration_time_s"] == made["iteration_time_s"]
    assert simulated["energy_j"] == made["energy_j"]


@pytest.mark.parametrize(
    ("name", "order", "said"),
    [
        ("order.json", "", "order.json: not an order ("),
        ("order.json", "[" * 99_999, "order.json: not an order ("),
        ("order.csv", "0" * 199_999, "order.csv: not an order ("),
        ("order.json", {}, "order.json: stages: is missing"),
        ("order.json", {"stages": [TWO, TWO[:2]]}, "--order: stage 1 does not run all 2 microb"),
        ("order.json", {"stages": [V, V], "virtual_stages": [[0, 3], [1, 2]]},
         "profile.csv: has no chunks, and 2 are run; measure each chunk"),
        ("order.csv", "", "--order: every stage must run something"),
        ("order.csv", "0F0,0B0\n1F0,1Q0\n", "line 2: '1Q0' is not an action such as 2F0"),
        ("order.csv", "0" * 9999, f"line 1: '{'0' * 40}' is not an action such as 2F0"),
        ("order.csv", "0" * 9999 + "F", f"line 1: '{'0' * 40}' names no microbatch"),
    ],
)  # fmt: skip
def test_an_order_that_cannot_be_used_is_refused_in_one_line(
    tmp_path: Path, profile: Path, name: str, order: object, said: str
) -> None:
    path = written(tmp_path, order, name)
    num_microbatches = 1 if "virtual_stages" in str(order) else 2
    assert said in refusal(flyball("plan", profile, *asked(num_microbatches), "--order", path))


def test_a_schedule_that_cannot_be_made_or_read_is_refused_by_the_option_to_mend(
    tmp_path: Path, profile: Path
) -> None:
    missing, latin = tmp_path / "missing.json", tmp_path / "latin.csv"
    latin.write_bytes(b"0F0,\xff\n")
    for options, said in (
        (("--order", missing), f"{missing}: No such file"),
        (("--order", tmp_path), "Is a directory"),
        (("--order", latin), f"{latin}: not an order"),
        (("--schedule", "explicit"), "--order: schedule explicit needs an order"),
        (("--checkpoint", "always"), "--checkpoint: is for schedule torchgpipe, not 1f1b"),
        (("--schedule", "pipedream-2bw"), "--microbatches: must be at least 2, one per stage"),
    ):
        assert said in refusal(flyball("plan", profile, *asked(), *options))
