"""Virtual stages of an interleaved pipeline: the place of each stage's chunks in the model.

A model cut into `v P` parts for P stages has virtual stages 0 .. v P - 1, in the order in which a
microbatch goes through them. Each stage (a pipeline rank) holds v of them, its model chunks.
"""

from __future__ import annotations

from flyball_server.planning.errors import PlanningError

VirtualStages = tuple[tuple[int, ...], ...]
"""Per stage, the virtual stage of each of its chunks."""


def one_chunk_each(num_stages: int) -> VirtualStages:
    """Stage s is virtual stage s."""
    return looped(num_stages, 1)


def looped(num_stages: int, num_chunks: int) -> VirtualStages:
    """Chunk c of stage s is virtual stage `c P + s`: after the last stage comes the first again."""
    return tuple(
        tuple(chunk * num_stages + stage for chunk in range(num_chunks))
        for stage in range(num_stages)
    )


def v_shaped(num_stages: int) -> VirtualStages:
    """Two chunks: down the stages and up again, so stage 0 holds the first and the last."""
    return tuple((stage, 2 * num_stages - 1 - stage) for stage in range(num_stages))


def check_virtual_stages(virtual_stages: VirtualStages, num_stages: int) -> None:
    """Check that all stages hold equally many chunks, and each virtual stage has a holder.

    Raises:
        PlanningError: it is not so.
    """
    if len(virtual_stages) != num_stages:
        raise PlanningError(
            f"{len(virtual_stages)} entries for {num_stages} stages; give one per stage",
            field="virtual_stages",
        )
    if len({len(of_stage) for of_stage in virtual_stages}) != 1:
        raise PlanningError("all stages must hold as many chunks", field="virtual_stages")
    held = sorted(virtual for of_stage in virtual_stages for virtual in of_stage)
    if held != list(range(len(held))):
        raise PlanningError(
            f"must hold each of 0 to {len(held) - 1} once, not {', '.join(map(str, held))}",
            field="virtual_stages",
        )
