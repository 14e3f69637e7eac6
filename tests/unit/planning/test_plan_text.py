"""The plan as rows for a terminal, against blocks written by hand."""

from __future__ import annotations

from collections.abc import Sequence

from flyball_server.planning.documents.plan_text import plan_rows
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import simulate

from .tiny_pipelines import B, F, I, W, model_of, profile_of


def text_of(model: PipelineModel, assignment: Sequence[int]) -> str:
    return "\n".join(plan_rows(model, assignment, simulate(model, assignment)))


def test_a_row_a_stage_with_clock_wait_and_the_critical_path_in_brackets() -> None:
    """Forward 10 ms and backward 20 ms at 1980 MHz; F1 of stage 0 takes 15 ms at 900 MHz."""
    stage = {F: [(1980, 0.01, 1.0), (900, 0.015, 1.0)], B: [(1980, 0.02, 1.0), (900, 0.03, 1.0)]}
    model = model_of(profile_of([stage, stage]), 2)
    assert text_of(model, [0, 1, 0, 0, 0, 0, 0, 0]) == (
        "Stage 0 | [F0 1980 0.0]   F1 900 0.0     B0 1980 15.0  [B1 1980 10.0]\n"
        "Stage 1 | [F0 1980 10.0] [B0 1980 0.0]  [F1 1980 0.0]  [B1 1980 0.0]"
    )


def test_parts_of_a_split_backward_have_letters_of_their_own() -> None:
    parts = {kind: [(2, 0.001, 1.0), (1, 0.002, 1.0)] for kind in (F, I, W)}
    model = model_of(profile_of([parts]), 1)
    assert text_of(model, model.baseline()) == "Stage 0 | [F0 2 0.0] [I0 2 0.0] [W0 2 0.0]"
