"""The dependency DAG: who waits for whom, and orders that cannot run."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.planning.model.dag import NONE, DependencyDag, build_dag
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.schedules._base import Instruction, Schedule, VirtualStages

from .tiny_pipelines import B, F, I, R, W, any_models, refuses

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


SPLIT: list[Unit] = [(F, 0), (I, 0), (W, 0)]
WHOLE: list[Unit] = [(F, 0), (B, 0)]
TWO_CHUNKS: list[Unit] = [(F, 0, 0), (F, 0, 1), (B, 0, 1), (B, 0, 0)]
PARTLY_SPLIT: list[Unit] = [(F, 0, 0), (F, 0, 1), (I, 0, 1), (W, 0, 1), (B, 0, 0)]


@pytest.mark.parametrize(
    ("stages", "virtual_stages", "expected"),
    [
        # A weight part waits for its input part, the neighbour for the input part.
        ((SPLIT, SPLIT), (), (NONE, 4, 1, 0, 3, 4)),
        ((WHOLE, SPLIT), (), (NONE, 3, 0, 2, 3)),
        ((SPLIT, WHOLE), (), (NONE, 4, 1, 0, 3)),
        # A recomputation waits for its own forward only.
        (([(F, 0), (R, 0), (B, 0)], WHOLE), (), (NONE, 0, 4, 0, 3)),
        # Around the loop: chunk 1 of stage 0 waits for chunk 0 of stage 1.
        ((TWO_CHUNKS, TWO_CHUNKS), ((0, 2), (1, 3)), (NONE, 4, 6, 7, 0, 1, 5, 2)),
        # In the shape of a V chunk 1 of stage 1 waits for its own chunk 0.
        ((PARTLY_SPLIT,) * 2, ((0, 3), (1, 2)), (NONE, 6, 1, 2, 9, 0, 5, 2, 7, 7)),
    ],
)
def test_each_instruction_waits_for_the_data_that_it_needs(
    stages: tuple[list[Unit], ...], virtual_stages: VirtualStages, expected: tuple[int, ...]
) -> None:
    assert dag_of(*stages, virtual_stages=virtual_stages).data_predecessor == expected


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
    ("num_microbatches", "stages", "virtual_stages"),
    [
        (2, ([*WHOLE, (F, 1), (B, 1)], [(F, 1), (B, 1), *WHOLE]), ()),
        # Stage 1 needs two forwards where stage 0 sends one.
        (2, ([*WHOLE, (F, 1), (B, 1)], [(F, 0), (F, 1), (B, 0), (B, 1)]), ()),
        # Chunk 1, later in the model, runs first.
        (1, ([(F, 0, 1), (F, 0, 0), (B, 0, 1), (B, 0, 0)],), ((0, 1),)),
    ],
)
def test_an_order_that_waits_for_itself_is_refused(
    num_microbatches: int, stages: tuple[list[Unit], ...], virtual_stages: VirtualStages
) -> None:
    with refuses("schedule", "deadlocks: stage "):
        dag_of(*stages, num_microbatches=num_microbatches, virtual_stages=virtual_stages)


def test_backwards_in_another_order_than_they_arrive_only_wait() -> None:
    dag = dag_of(
        [(F, 0), (F, 1), (B, 1), (B, 0)], [(F, 0), (B, 0), (F, 1), (B, 1)], num_microbatches=2
    )
    assert dag.topological_order[-2:] == (2, 3)


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
