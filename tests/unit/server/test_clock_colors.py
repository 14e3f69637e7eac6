"""Rows in colour: which colours they are, and that they change nothing else."""

from __future__ import annotations

import re

from hypothesis import given, settings
from rich.color import ColorSystem
from tests.unit.planning.tiny_pipelines import assigned_models, equal_profile, model_of

from flyball_server.cli.plots.clock_colors import row_colors
from flyball_server.planning.documents.plan_text import plan_rows
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import simulate

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@settings(max_examples=20)
@given(assigned_models())
def test_colours_add_escape_codes_alone(drawn: tuple[PipelineModel, list[int]]) -> None:
    model, assignment = drawn
    simulation = simulate(model, assignment)
    paint, legend = row_colors(ColorSystem.EIGHT_BIT, [model], [assignment])
    painted = plan_rows(model, assignment, simulation, paint)
    assert [_ESCAPE.sub("", row) for row in painted] == plan_rows(model, assignment, simulation)
    assert len(legend) == 1


def test_bold_is_the_critical_path_and_nothing_else() -> None:
    """Two equal stages: F0 and B1 of the first are on the longest path."""
    model = model_of(equal_profile(2), 2)
    assignment = [0] * len(model.points)
    paint, _ = row_colors(ColorSystem.TRUECOLOR, [model], [assignment])
    row = plan_rows(model, assignment, simulate(model, assignment), paint)[0]
    units = re.findall(r"\x1b\[([0-9;]+)m([^\x1b]+)\x1b\[0m", row)
    assert [(codes[:2], text[:3]) for codes, text in units] == [
        ("1;", "[F0"),
        ("38", " F1"),
        ("38", " B0"),
        ("1;", "[B1"),
    ]
