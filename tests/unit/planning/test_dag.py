"""The dependency DAG: who waits for whom, and orders that cannot run."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.dag import NONE, DependencyDag, build_dag
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.schedules._base import Instruction, Schedule, VirtualStages

from .tiny_pipelines import B, F, I, R, W, any_models

Unit = tuple[InstructionKind, int] | tuple[InstructionKind, int, int]


def dag_of(
    *stages: Sequence[Unit],
    num_microbatches: int = 1,
    virtual_stages: VirtualStages = (),
    weight_versions: tuple[int, ...] | None = None,
) -> DependencyDag:
    return build_dag(
        Schedule(
            name="by hand",
            num_microbatches=num_microbatches,
            virtual_stages=virtual_stages,
            weight_versions=weight_versions,
            stages=tuple(tuple(Instruction(*unit) for unit in stage) for stage in stages),
        )
    )


def test_a_whole_backward_waits_for_the_next_stage_and_for_its_own_order() -> None:
    dag = dag_of([(F, 0), (B, 0)], [(F, 0), (B, 0)])
    assert dag.stage == (0, 0, 1, 1)
    assert dag.order_predecessor == (NONE, 0, NONE, 2)
    assert dag.data_predecessor == (NONE, 3, 0, 2)
    assert [dag.predecessors(node) for node in range(4)] == [(), (0, 3), (0,), (2, 2)]
    assert dag.topological_order == (0, 2, 3, 1)


def test_a_weight_part_waits_for_its_input_part_and_the_neighbour_for_the_input_part() -> None:
    stage = [(F, 0), (I, 0), (W, 0)]
    dag = dag_of(stage, stage)
    assert dag.data_predecessor == (NONE, 4, 1, 0, 3, 4)


def test_a_whole_backward_before_a_split_one_waits_for_the_input_part() -> None:
    dag = dag_of([(F, 0), (B, 0)], [(F, 0), (I, 0), (W, 0)])
    assert dag.data_predecessor == (NONE, 3, 0, 2, 3)


def test_a_split_backward_before_a_whole_one_waits_for_the_whole() -> None:
    dag = dag_of([(F, 0), (I, 0), (W, 0)], [(F, 0), (B, 0)])
    assert dag.data_predecessor == (NONE, 4, 1, 0, 3)


def test_a_recomputation_waits_for_its_own_forward_only() -> None:
    dag = dag_of([(F, 0), (R, 0), (B, 0)], [(F, 0), (B, 0)])
    assert dag.data_predecessor == (NONE, 0, 4, 0, 3)


def test_microbatches_are_matched_by_number() -> None:
    dag = dag_of(
        [(F, 0), (F, 1), (B, 0), (B, 1)], [(F, 0), (B, 0), (F, 1), (B, 1)], num_microbatches=2
    )
    assert dag.data_predecessor == (NONE, NONE, 5, 7, 0, 4, 1, 6)


@given(any_models())
def test_the_topological_order_has_every_node_after_its_predecessors(model: PipelineModel) -> None:
    position = {node: index for index, node in enumerate(model.dag.topological_order)}
    assert sorted(position) == list(range(model.dag.num_nodes))
    for node in range(model.dag.num_nodes):
        assert all(position[before] < position[node] for before in model.dag.predecessors(node))


@pytest.mark.parametrize(
    "stages",
    [
        ([(F, 0), (B, 0), (F, 1), (B, 1)], [(F, 1), (B, 1), (F, 0), (B, 0)]),
        ([(F, 0), (B, 0), (F, 1), (B, 1)], [(F, 0), (F, 1), (B, 0), (B, 1)]),
    ],
    ids=["crossed", "two forwards wanted and one sent"],
)
def test_an_order_that_waits_for_itself_is_refused(stages: tuple[list[Unit], ...]) -> None:
    with pytest.raises(PlanningError, match=r"deadlocks: stage \d waits for ever before") as error:
        dag_of(*stages, num_microbatches=2)
    assert error.value.field == "schedule"


def test_backwards_in_another_order_than_they_arrive_only_wait() -> None:
    dag = dag_of(
        [(F, 0), (F, 1), (B, 1), (B, 0)], [(F, 0), (B, 0), (F, 1), (B, 1)], num_microbatches=2
    )
    assert dag.topological_order[-2:] == (2, 3)


def test_chunks_placed_around_the_loop_wait_for_the_last_stage_of_the_chunk_before() -> None:
    """Stage 0: F0 F0.1 B0.1 B0, virtual stages 0 and 2; stage 1 the same, 1 and 3."""
    stage: list[Unit] = [(F, 0, 0), (F, 0, 1), (B, 0, 1), (B, 0, 0)]
    dag = dag_of(stage, stage, virtual_stages=((0, 2), (1, 3)))
    assert dag.data_predecessor == (NONE, 4, 6, 7, 0, 1, 5, 2)


def test_chunks_in_the_shape_of_a_v_turn_round_on_the_last_stage() -> None:
    """Virtual stages 0 and 3 on stage 0, 1 and 2 on stage 1: its chunk 1 waits for its chunk 0."""
    stage: list[Unit] = [(F, 0, 0), (F, 0, 1), (I, 0, 1), (W, 0, 1), (B, 0, 0)]
    dag = dag_of(stage, stage, virtual_stages=((0, 3), (1, 2)))
    assert dag.data_predecessor == (NONE, 6, 1, 2, 9, 0, 5, 2, 7, 7)


def test_a_chunk_that_comes_later_in_the_model_cannot_run_first_on_its_stage() -> None:
    late: list[Unit] = [(F, 0, 1), (F, 0, 0), (B, 0, 1), (B, 0, 0)]
    with pytest.raises(PlanningError, match="deadlocks"):
        dag_of(late, virtual_stages=((0, 1),))


def test_in_a_steady_state_a_stage_has_a_node_for_each_kind_and_waits_for_itself_alone() -> None:
    """The backward of microbatch 0 belongs to a forward of the period before."""
    dag = dag_of(
        [(F, 1), (B, 0), (F, 0), (B, 1)],
        [(F, 0), (B, 0), (F, 1), (B, 1)],
        num_microbatches=2,
        weight_versions=(2, 1),
    )
    assert dag.instruction == (Instruction(F, 0), Instruction(B, 0)) * 2
    assert dag.data_predecessor == (NONE,) * 4
    assert dag.order_predecessor == (NONE, 0, NONE, 2)
