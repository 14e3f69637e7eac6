"""Megatron's interleaved order is the one that the planner generates by its name."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
from tests.unit.planning.tiny_pipelines import B, F, context_of, profile_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Megatron's own, at its import
    pytest.importorskip("megatron.core", reason="needs megatron-core")
    from megatron.core.pipeline_parallel import schedules

from flyball_integrations.megatron.order import interleaved
from flyball_server.planning.schedules import make_schedule


@pytest.mark.parametrize(
    ("num_stages", "num_chunks", "num_microbatches"),
    [(2, 2, 2), (2, 2, 6), (2, 3, 4), (3, 2, 9), (4, 2, 4), (4, 2, 16), (4, 4, 8)],
)
def test_the_planner_generates_the_order_that_megatron_runs(
    num_stages: int, num_chunks: int, num_microbatches: int
) -> None:
    stage = {F: [(1410, 1.0, 1.0), (1000, 2.0, 1.0)], B: [(1410, 2.0, 1.0), (1000, 3.0, 1.0)]}
    profile = profile_of([stage] * num_stages)
    with_chunks = replace(profile, chunks=(profile,) * num_chunks)
    generated = make_schedule("interleaved-1f1b", context_of(with_chunks, num_microbatches)).stages
    of_megatron = interleaved(
        schedules,
        num_stages=num_stages,
        num_chunks=num_chunks,
        num_microbatches=num_microbatches,
        group_size=num_stages,
    )
    for own, stage_order in zip(generated, of_megatron, strict=True):
        assert [(kind.value, m, chunk) for kind, m, chunk in own] == list(
            stage_order.instructions()
        )
