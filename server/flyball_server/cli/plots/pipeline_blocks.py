"""Data-parallel pipelines as text: a heading and EnvPipe's rows for each, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from flyball_server.planning.documents.plan_text import Paint, plan_rows
from flyball_server.planning.model.data_parallel import JointSimulation
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel


def pipeline_blocks(
    models: Sequence[PipelineModel],
    assignments: Sequence[Assignment],
    simulation: JointSimulation,
    paint: Paint | None = None,
) -> str:
    """One block per pipeline, by `dp_rank`, an empty line between them.

    Units in `[ ]` are on the pipeline's own longest path; `paint` None: without colour.
    """
    whole_s = simulation.whole.iteration_time_s
    blocks: list[str] = []
    for dp_rank, (model, assignment, own) in enumerate(
        zip(models, assignments, simulation.pipelines, strict=True)
    ):
        waits_ms = (whole_s - own.iteration_time_s) * 1e3
        heading = (
            f"dp_rank {dp_rank}: done at {own.iteration_time_s:.4f} s, then waits"
            f" {waits_ms:.1f} ms; {own.energy_j:.2f} J in all"
        )
        blocks.append("\n".join([heading, *plan_rows(model, assignment, own, paint)]))
    return "\n\n".join(blocks)
