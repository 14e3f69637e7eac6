"""Places of forwards and backwards among Merak's commands, and names of folders."""

from __future__ import annotations

from itertools import product

import pytest
from tests.unit.replay.perseus_tree import merak_commands

from flyball_server.replay.perseus_artifact import ArtifactWorkload, computing_commands
from flyball_server.replay.recorded_runs import RecordingError, schedule_of


def test_two_stages_of_two_microbatches_by_hand() -> None:
    # Stage 0: load F0, send, load F1, send+receive B0, receive B1, and three at the end.
    assert computing_commands(0, 2, 2) == ((1, 4, 6, 8), 12)
    # Stage 1: receive load F0, B0, send+receive load F1, B1, send, and three at the end.
    assert computing_commands(1, 2, 2) == ((2, 3, 6, 7), 12)


def test_as_many_commands_as_the_published_plan_of_four_stages_has() -> None:
    # perseus/A100/dp1+pp4+tp1/merak+bert-huge-uncased+...+nmb32: ranks 0 to 3.
    assert [computing_commands(stage, 4, 32)[1] for stage in range(4)] == [134, 136, 134, 132]


@pytest.mark.parametrize(("num_stages", "num_microbatches"), [*product((1, 2, 3, 5), (1, 2, 4, 9))])
def test_commands_are_those_of_the_steps_in_the_order_of_1f1b(
    num_stages: int, num_microbatches: int
) -> None:
    schedule = schedule_of("1f1b", num_stages, num_microbatches)
    for stage in range(num_stages):
        commands = merak_commands(stage, num_stages, num_microbatches)
        places, num_commands = computing_commands(stage, num_stages, num_microbatches)
        assert num_commands == len(commands)
        assert [commands[place] for place in places] == [
            str(instruction.kind) for instruction in schedule.stages[stage]
        ]


def test_a_folder_names_its_workload() -> None:
    workload = ArtifactWorkload.of_folder(
        "2024-01-02+merak+gpt3-6.7b+custom:0,8,16+dp2+pp4+tp2+mbs4+nmb64+PointSolution3D", "A40"
    )
    assert workload == ArtifactWorkload(
        model="gpt3-6.7b",
        partition="custom:0,8,16",
        gpu="A40",
        dp=2,
        pp=4,
        tp=2,
        microbatch_size=4,
        num_microbatches=64,
    )
    assert workload.num_ranks == 16


@pytest.mark.parametrize(
    "name",
    ["", "merak", "alpa+m+p+dp1+pp4+tp1+mbs8+nmb32+X", "merak+m+p+dp1+pp0+tp1+mbs8+nmb32+X"],
)
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(RecordingError, match="the folder's name must be merak"):
        ArtifactWorkload.of_folder(name, "A100")
