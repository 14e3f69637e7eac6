"""`flyball plan` and `simulate` with orders of one's own, chunks, and no flush."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_plan_commands import rows_of
from tests.unit.planning.tiny_pipelines import B, F, I, R, W, timed_profile

from flyball_client.__main__ import main
from flyball_profiles.stage_profile_csv import write_stage_profile

HEADER = "stage,instruction,frequency,time,energy\n"
ONE = [["forward", 0], ["backward", 0]]
TWO = [["forward", 0], ["backward", 0], ["forward", 1], ["backward", 1]]
V = [["forward", 0], ["forward", 0, 1], ["backward", 0, 1], ["backward", 0]]


@dataclass(frozen=True)
class CommandLine:
    """`flyball` inside this process: starting one for each of many refusals would take long."""

    captured: pytest.CaptureFixture[str]

    def printed(self, *arguments: str | Path) -> dict[str, Any]:
        """Return what a command that succeeds prints on stdout, which must be one JSON object."""
        assert main([*map(str, arguments), "--json"]) == 0
        out, errors = self.captured.readouterr()
        assert errors == ""
        document: dict[str, Any] = json.loads(out)
        return document

    def refusal(self, *arguments: str | Path) -> str:
        """The one line on stderr of a command that must refuse its input with status 2."""
        assert main(list(map(str, arguments))) == 2
        out, errors = self.captured.readouterr()
        assert out == ""
        assert len(errors.splitlines()) == 1, errors
        return errors.strip()


@pytest.fixture
def flyball(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Two equal stages, forward 1 s and backward 2 s."""
    path = tmp_path / "profile.csv"
    path.write_text(HEADER + rows_of(2), encoding="utf-8")
    return path


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
    flyball: CommandLine, tmp_path: Path, profile: Path, name: str, order: object
) -> None:
    """One microbatch after the other, 6 s each."""
    plan = tmp_path / "plan.json"
    path = written(tmp_path, order, name)
    made = flyball.printed("plan", profile, *asked(2), "--order", path, "-o", plan)
    assert (made["schedule"], made["iteration_time_s"]) == ("explicit", 12.0)
    assert [entry[:2] for entry in made["stages"][1]] == TWO
    simulated = flyball.printed("simulate", profile, plan)
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
    flyball: CommandLine,
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
    made = flyball.printed("plan", chunked, *asked(2), *options, "-o", plan)
    assert made["iteration_time_s"] == iteration_time_s
    assert {key: made[key] for key in ("virtual_stages", "weight_versions") if key in made} == shape
    simulated = flyball.printed("simulate", chunked, plan)
    assert simulated["iteration_time_s"] == made["iteration_time_s"]
    assert simulated["energy_j"] == made["energy_j"]


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ("", "order.json: not an order ("),

        ({}, "order.json: order: must be an object with a list of stages"),

        ({"stages": [ONE, [["sideways", 0]]]}, "order.json: order[1][0]: unknown instruction"),



        ({"stages": [ONE, ONE[:1]]}, "--order: stage 1 does not run one forward and one backward"),

        ({"stages": [ONE, ONE, ONE]}, "--order: has 3 stages, the profile 2"),

        (
            {"stages": [V, V], "virtual_stages": [[0, 3], [1, 2]]},
            "PROFILE.csv: has no chunks, and 2 are run; measure each chunk",
        ),
    ],
    ids=[
        "empty", "no stages", "unknown kind",
        "incomplete", "stage more",
        "chunks not profiled",
    ],
)  # fmt: skip
def test_a_json_order_that_cannot_be_used_is_refused_in_one_line(
    flyball: CommandLine, tmp_path: Path, profile: Path, order: object, said: str
) -> None:
    assert said in flyball.refusal("plan", profile, *asked(), "--order", written(tmp_path, order))


def test_an_order_that_deadlocks_is_refused_by_its_name(
    flyball: CommandLine, tmp_path: Path, profile: Path
) -> None:
    order = written(tmp_path, {"stages": [TWO, TWO[2:] + TWO[:2]]})
    line = flyball.refusal("plan", profile, *asked(2), "--order", order)
    assert "--order: the order deadlocks: stage" in line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "--order: every stage must run something"),
        ("0F0,0B0\n1F0,1Q0\n", "order.csv: line 2: '1Q0' is no action such as 2F0"),






    ],
    ids=[
        "empty", "unknown action",

    ],
)  # fmt: skip
def test_a_csv_order_that_cannot_be_used_is_refused_in_one_line(
    flyball: CommandLine, tmp_path: Path, profile: Path, text: str, said: str
) -> None:
    path = written(tmp_path, text, "order.csv")
    assert said in flyball.refusal("plan", profile, *asked(), "--order", path)


def test_an_order_that_cannot_be_read_is_refused_with_its_path(
    flyball: CommandLine, tmp_path: Path, profile: Path
) -> None:
    missing = tmp_path / "missing.json"
    assert f"{missing}: No such file" in flyball.refusal(
        "plan", profile, *asked(), "--order", missing
    )
    assert "Is a directory" in flyball.refusal("plan", profile, *asked(), "--order", tmp_path)
    latin = tmp_path / "latin.csv"
    latin.write_bytes(b"0F0,\xff\n")
    assert f"{latin}: not an order" in flyball.refusal("plan", profile, *asked(), "--order", latin)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--schedule", "explicit"), "--order: schedule explicit needs an order"),
        (("--checkpoint", "always"), "--checkpoint: is for schedule torchgpipe, not 1f1b"),
        (("--schedule", "zb-h1"), "PROFILE.csv: has no backward_input of stage 0; zb-h1 runs a"),
        (("--schedule", "pipedream-2bw"), "--microbatches: must be at least 2, one per stage"),
    ],
)
def test_a_schedule_that_cannot_be_made_is_refused_by_the_option_to_mend(
    flyball: CommandLine, profile: Path, options: tuple[str, ...], said: str
) -> None:
    assert said in flyball.refusal("plan", profile, *asked(), *options)
