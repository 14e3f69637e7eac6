"""Both schedules and both ways of hooking, run by each rank of test_megatron_pipeline.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal
from unittest import mock

import torch
import torch.distributed
from megatron.core.pipeline_parallel import schedules
from megatron.core.rerun_state_machine import RerunDataIterator
from megatron.core.timers import Timers
from megatron.core.transformer import enums
from tests.integration.megatron_cpu import Training, cuda_is_cpu
from tests.integration.rank_server import Findings
from tests.integration.trainings import emulated_gpu, plan_of

from flyball_client.session.rank_session import RankSession
from flyball_integrations.megatron.pipeline import attach, detach, microbatches, training_step

NUM_MICROBATCHES = 4
NUM_CHUNKS = 2


def scenarios() -> Iterator[tuple[str, Findings]]:
    """Each schedule without Flyball, and with it in both ways."""
    with cuda_is_cpu():
        for schedule, training in _trainings():
            found: Findings = {"losses": training.run(), "gradients": training.gradients()}
            yield (
                schedule,
                found
                | {"patch": _hooked(training, hooks="patch")}
                | {"timers": _hooked(training, hooks="timers")}
                | {"whole": _hooked_at_steps(training)}
                | {"announced": _announced(training)},
            )


def _trainings() -> Iterator[tuple[str, Training]]:
    yield "1f1b", Training(num_microbatches=NUM_MICROBATCHES)
    for overlap_p2p in (True, False):
        yield (
            "interleaved, overlapped" if overlap_p2p else "interleaved",
            Training(
                num_microbatches=NUM_MICROBATCHES, num_chunks=NUM_CHUNKS, overlap_p2p=overlap_p2p
            ),
        )


def _hooked(training: Training, *, hooks: Literal["patch", "timers"]) -> Findings:
    """A step, an evaluation, a step with an optimizer's part, and one after it is over."""
    config = training.config
    config.timers = Timers(log_level=2, log_option="minmax") if hooks == "timers" else None
    before = dict(vars(schedules)), config.timers
    session = attach(
        config,
        job_id="job",
        num_microbatches=NUM_MICROBATCHES,
        hooks=hooks,
        gpu=emulated_gpu(training.stage, _num_stages()),
        lease_s=60.0,
    )
    found: Findings = {
        "rebound": sorted(
            name for name, value in vars(schedules).items() if value is not before[0].get(name)
        ),
        "losses": training.run(),
        "gradients": training.gradients(),
        "first_step": _instructions(session),
    }
    if hooks == "timers":
        # The timers that were there have gone on.
        found["forward_compute_s"] = config.timers("forward-compute", log_level=2).elapsed()
        found["receive_s"] = sum(timing.receive_time_s for timing in session.last_step_timings)
    # The timers are told of no more than that no gradients are wanted.
    with torch.set_grad_enabled(hooks == "patch"):
        training.run(forward_only=True)
    found["steps_after_evaluation"] = len(session.history)
    with training_step():
        training.run()
        found["steps_inside_a_step"] = len(session.history)
    found["second_step"] = _instructions(session)
    found["attached_twice"] = _attached_twice(training)
    training.gradients()
    detach()
    found["losses_after_detach"] = training.run()
    found["gradients_after_detach"] = training.gradients()
    found["steps"] = len(session.history)
    found["left_behind"] = [
        name for name, value in vars(schedules).items() if value is not before[0].get(name)
    ]
    found["timers_are_restored"] = config.timers is before[1]
    config.timers = None
    return found


def _hooked_at_steps(training: Training) -> Findings:
    """Train as with a CUDA graph of the full iteration, which leaves no place for other hooks."""
    config = training.config
    before, scope = dict(vars(schedules)), config.cuda_graph_scope
    # A name before megatron-core 0.16.
    scopes = getattr(enums, "CudaGraphScope", None)
    config.cuda_graph_scope = "full_iteration" if scopes is None else [scopes.full_iteration]
    session = attach(
        config,
        job_id="job",
        num_microbatches=NUM_MICROBATCHES,
        gpu=emulated_gpu(training.stage, _num_stages()),
        lease_s=60.0,
    )
    session.plans.put(plan_of(1, NUM_MICROBATCHES), 0)
    rebound = [name for name, value in before.items() if vars(schedules)[name] is not value]
    with training_step():
        found: Findings = {"losses": training.run(), "gradients": training.gradients()}
    clocks = [(one.kind, one.sm_clock_mhz) for one in session.last_step_timings]
    steps = [(one.plan_version, one.num_unplanned) for one in session.history]
    detach()
    config.cuda_graph_scope = scope
    return found | {"rebound": rebound, "ran": clocks, "steps": steps}


def _announced(training: Training) -> Findings:
    """Train two steps without Flyball, and with their microbatches read ahead."""
    data = training.data()
    found: Findings = {
        "stock": [training.run(data=data), training.run(data=data), training.gradients()]
    }
    attach(
        training.config,
        job_id="job",
        num_microbatches=NUM_MICROBATCHES,
        gpu=emulated_gpu(training.stage, _num_stages()),
        lease_s=60.0,
        announces_work=True,
    )
    announced: list[tuple[int, int]] = []

    def announce_step(session: RankSession, work: Any, *, step: int) -> None:  # noqa: ANN401
        announced.append((step, len(work)))

    rerun = RerunDataIterator(data)
    read_ahead = [microbatches(each, lengths=lambda _: [3, 4]) for each in (rerun, None)]
    data = microbatches(training.data(), lengths=lambda sample: [len(sample)])
    with mock.patch.object(RankSession, "announce_step", announce_step):
        found["flyball"] = [training.run(data=data), training.run(data=data), training.gradients()]
    detach()
    return found | {
        "announced": announced,
        "are_as_given": read_ahead[0] is rerun and read_ahead[1] is None,
    }


def _attached_twice(training: Training) -> str:
    try:
        attach(training.config, job_id="job", num_microbatches=NUM_MICROBATCHES)
    except ValueError as error:
        return str(error)
    return "attached"


def _instructions(session: RankSession) -> str:
    """`F0a F1a ...`: kind, microbatch, chunk."""
    return " ".join(
        f"{timing.kind[0].upper()}{timing.microbatch}{'abcd'[timing.chunk]}"
        for timing in session.last_step_timings
    )


def _num_stages() -> int:
    num_ranks: int = torch.distributed.get_world_size()
    return num_ranks
