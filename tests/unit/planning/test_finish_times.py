"""Finish times, against their definition along all paths."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given, settings

from flyball_server.planning.model.finish_times import earliest_finish_s, latest_finish_s
from flyball_server.planning.model.pipeline_model import PipelineModel

from .tiny_pipelines import assigned_models


@settings(max_examples=25, deadline=None)
@given(assigned_models())
def test_finish_times_are_those_of_the_longest_paths(
    assigned: tuple[PipelineModel, list[int]],
) -> None:
    model, assignment = assigned
    dag, durations_s = model.dag, model.durations_s(assignment)
    nodes = range(dag.num_nodes)
    after = [[one for one in nodes if node in dag.predecessors(one)] for node in nodes]

    @functools.cache
    def longest_to(node: int) -> float:
        return max(map(longest_to, dag.predecessors(node)), default=0.0) + durations_s[node]

    @functools.cache
    def longest_from(node: int) -> float:
        return max((durations_s[one] + longest_from(one) for one in after[node]), default=0.0)

    end_s = max(map(longest_to, nodes))
    assert earliest_finish_s(dag, durations_s) == [longest_to(node) for node in nodes]
    assert latest_finish_s(dag, durations_s, end_s) == pytest.approx(
        [end_s - longest_from(node) for node in nodes]
    )
