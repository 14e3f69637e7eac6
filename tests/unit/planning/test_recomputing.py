"""Orders that compute activations again: torchgpipe's and Merak's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_server.planning.model.pipeline_model import PipelineModel, build_model
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.schedules import make_schedule
from flyball_server.planning.schedules._base import ScheduleContext
from flyball_wire.plan_options import Checkpoint

from .tiny_pipelines import B, F, R, refuses, timed_profile, written

TIMES_S = {F: 1.0, R: 1.0, B: 2.0}


def torchgpipe(
    num_stages: int, num_microbatches: int, checkpoint: Checkpoint | None
) -> PipelineModel:
    profile = timed_profile(num_stages, TIMES_S)
    context = ScheduleContext(
        profile=profile, num_microbatches=num_microbatches, checkpoint=checkpoint
    )
    return build_model(profile, make_schedule("torchgpipe", context), (5.0,))


@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [
        ("never", "F0 F1 F2 B2 B1 B0"),
        ("except_last", "F0 F1 F2 B2 R1 B1 R0 B0"),
        (None, "F0 F1 F2 B2 R1 B1 R0 B0"),
        ("always", "F0 F1 F2 R2 B2 R1 B1 R0 B0"),
    ],
)
def test_torchgpipe_runs_backwards_from_the_last_and_computes_again_what_it_did_not_keep(
    checkpoint: Checkpoint | None, expected: str
) -> None:
    model = torchgpipe(2, 3, checkpoint)
    assert [written(stage) for stage in model.schedule.stages] == [expected] * 2


@given(st.integers(1, 5), st.integers(1, 6), st.sampled_from(["never", "except_last", "always"]))
def test_torchgpipe_takes_a_forward_more_for_each_microbatch_computed_again(
    num_stages: int, num_microbatches: int, checkpoint: Checkpoint
) -> None:
    """Equal stages of 1 s forward and recompute and 2 s backward.

    Forwards go down in M + K-1 s. The last stage is then busy for R recomputations and M
    backwards; above it backwards of 2 s follow each other with a recomputation between, so the
    last gradient goes up through K-1 more backwards. (Recomputing waits for no gradient: above
    the last stage the first recomputation hides behind the wait.)
    """
    simulation = simulate(
        model := torchgpipe(num_stages, num_microbatches, checkpoint), model.baseline()
    )
    recomputed = {
        "never": 0,
        "except_last": num_microbatches - 1,
        "always": num_microbatches,
    }[checkpoint]
    assert simulation.iteration_time_s == (
        num_microbatches + num_stages - 1 + recomputed + 2 * (num_microbatches + num_stages - 1)
    )


@pytest.mark.parametrize("schedule", ["gpipe", "early-recompute-1f1b"])
def test_a_checkpoint_mode_is_torchgpipes_alone(schedule: str) -> None:
    context = ScheduleContext(
        profile=timed_profile(2, TIMES_S), num_microbatches=2, checkpoint=Checkpoint.ALWAYS
    )
    with refuses("checkpoint", f"is for schedule torchgpipe, not {schedule}"):
        make_schedule(schedule, context)
