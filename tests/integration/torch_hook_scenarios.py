"""What each rank of test_torch_pipelining.py runs; the tests read its findings.

Starting ranks takes seconds, so one run goes through all schedules in a few tiny steps each and
writes a JSON file per rank.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

from flyball_client.gpu.emulated import EmulatedGpu
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_integrations.torch.pipelining import (
    attach,
    detach,
    on_all_ranks_or_none,
    registration_of,
)
from flyball_profiles.stage_profile import InstructionKind, OperatingPoint, StageProfile

SINGLE = ("GPipe", "1F1B")
LOOPED = ("LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble")
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")
SCHEDULES = (*SINGLE, *LOOPED, *V_SHAPED)
NUM_MICROBATCHES = 8
_NUM_STEPS = 3
# Compared at step 8, exchanged at 9, run from 10 on.
_NUM_STEPS_TO_CHANGE = 13
_WIDTH = 8
_MANY_BYTES = 2**30

Findings = dict[str, Any]


class Training:
    """One schedule and its stages, from the same seed as all others."""

    def __init__(self, name: str, *, dropout: float = 0.1) -> None:
        rank, num_ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        indices = _stage_indices(name, rank, num_ranks)
        num_stages = num_ranks * len(indices)
        torch.manual_seed(7)
        modules = [_layer(dropout) for _ in range(num_stages)]
        device = torch.device("cpu")
        self.stages = [PipelineStage(modules[i], i, num_stages, device) for i in indices]
        make = get_schedule_class(name)
        stages = self.stages[0] if name in SINGLE else self.stages
        self.schedule = make(stages, NUM_MICROBATCHES, loss_fn=nn.functional.mse_loss)
        self.parameters = [
            parameter for stage in self.stages for parameter in stage.submod.parameters()
        ]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-2)
        self.losses: list[str] = []
        self.orders: list[str] = []
        self._generator = torch.Generator().manual_seed(11)
        for stage in self.stages:
            vars(stage)["forward_one_chunk"] = self._noting("F", stage.forward_one_chunk)
            vars(stage)["backward_one_chunk"] = self._noting("B", stage.backward_one_chunk)

    def step(self) -> None:
        """Train one step."""
        self.optimizer.zero_grad()
        self.step_of_schedule()
        self.optimizer.step()

    def step_of_schedule(self) -> None:
        """Add gradients."""
        self.orders.append("")
        losses: list[torch.Tensor] = []
        self._call(self.schedule.step, losses=losses)
        self.losses += [loss.item().hex() for loss in losses]

    def evaluate(self) -> None:
        """The losses of an evaluation on samples of its own."""
        self.orders.append("")
        losses: list[torch.Tensor] = []
        with torch.no_grad():
            self._call(self.schedule.eval, losses=losses)
        self.losses += [loss.item().hex() for loss in losses]
        self.orders.pop()

    def findings(self) -> Findings:
        """Return what must not depend on Flyball."""
        parameters = [
            value.hex()
            for parameter in self.parameters
            for value in parameter.detach().flatten().tolist()
        ]
        return {"losses": self.losses, "parameters": parameters, "orders": self.orders}

    def _call(self, step: Callable[..., object], *, losses: list[torch.Tensor]) -> None:
        batch = torch.randn(2 * NUM_MICROBATCHES, _WIDTH, generator=self._generator)
        inputs = (batch,) if any(stage.is_first for stage in self.stages) else ()
        is_last = any(stage.is_last for stage in self.stages)
        target = {"target": batch.roll(1, dims=1), "losses": losses} if is_last else {}
        step(*inputs, **target)

    def _noting(self, letter: str, execute: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: object, **kwargs: object) -> object:
            self.orders[-1] += letter
            return execute(*args, **kwargs)

        return noting


# ------------------------------------------------------------------ scenarios


def trained_as_torch_does(name: str, num_steps: int = _NUM_STEPS) -> Findings:
    """Without Flyball, with an evaluation in between."""
    training = Training(name)
    for step in range(num_steps):
        training.step()
        if _is_evaluated(name, step, num_steps):
            training.evaluate()
    return training.findings()


def trained_with_flyball(name: str) -> Findings:
    """The same, hooked; and what the hooks saw."""
    training = Training(name)
    before = _attributes(training)
    pairs = [_num_pairs(training.schedule)]
    session = attach(training.schedule, job_id="hooks", gpu=_gpu(training))
    pairs.append(_num_pairs(training.schedule))
    timings, seen_in_evaluation = [], []
    for step in range(_NUM_STEPS):
        training.step()
        timings.append(session.last_step_timings)
        if _is_evaluated(name, step, _NUM_STEPS):
            training.evaluate()
            seen_in_evaluation.append(session.last_step_timings != timings[-1])
    detach(training.schedule)
    rank = torch.distributed.get_rank()
    return training.findings() | {
        "steps": [_as_torch_writes(timings_of_step, training) for timings_of_step in timings],
        "hooks": [[one.kind, one.microbatch, one.chunk] for one in timings[-1]],
        "receive_s": [one.receive_time_s for one in timings[-1]],
        "seen_in_evaluation": any(seen_in_evaluation),
        "pipeline_order": _written_order(training.schedule, rank),
        "registration": asdict(registration_of(training.schedule)),
        "changed_by_detach": [
            f"{where}.{attribute}"
            for where, attributes in _attributes(training).items()
            for attribute in {*attributes, *before[where]}
            if attributes.get(attribute) != before[where].get(attribute)
        ],
        "history": [measured.step for measured in session.history],
        "pairs": [*pairs, _num_pairs(training.schedule)],
    }


def accumulated_gradients() -> Findings:
    """Two schedule steps for each step of the optimizer, which ends the second."""
    found: Findings = {}
    for name, is_given in (("with optimizer", True), ("without", False)):
        training = Training("Interleaved1F1B")
        optimizer = training.optimizer if is_given else None
        session = attach(
            training.schedule, job_id="accumulated", gpu=_gpu(training), optimizer=optimizer
        )
        num_ended = []
        for _ in range(2):
            training.optimizer.zero_grad()
            for _ in range(2):
                training.step_of_schedule()
                num_ended.append(len(session.history))
            training.optimizer.step()
            num_ended.append(len(session.history))
        detach(training.schedule)
        num_hooks = len(training.optimizer._optimizer_step_post_hooks)
        found[name] = {"num_ended": num_ended, "num_optimizer_hooks": num_hooks}
    return found


def attached_where_one_rank_fails() -> Findings:
    """Overlapped pairs, and rank 2 gives what is refused; then all ranks do it right."""
    training = Training("DualPipeV")
    before = _attributes(training)
    refused: Any = [training.optimizer] if torch.distributed.get_rank() == 2 else None
    problem = ""
    try:
        attach(training.schedule, job_id="joint", gpu=_gpu(training), optimizer=refused)
    except ValueError as error:
        problem = str(error)
    is_untouched = _attributes(training) == before
    training.step()
    session = attach(training.schedule, job_id="joint", gpu=_gpu(training))
    training.step()
    detach(training.schedule)
    return {
        "problem": problem,
        "is_untouched": is_untouched,
        "num_steps": len(session.history),
    }


def joint_without_one_rank() -> Findings:
    """The last rank does not come; the last scenario, for ranks then count groups differently."""
    rank, num_ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    problem = ""
    if rank < num_ranks - 1:
        try:
            with on_all_ranks_or_none(timeout_s=1.0):
                pass
        except ValueError as error:
            problem = str(error)
    return {"problem": problem}


def trained_in_order(forwards_in_front: tuple[int, ...]) -> Findings:
    """A plan with more forwards in front comes to the ranks in different steps."""
    training = Training("1F1B")
    rank = torch.distributed.get_rank()
    before = _attributes(training)
    session = attach(
        training.schedule,
        job_id="ordered",
        gpu=_gpu(training),
        order="envpipe",
        free_memory_bytes=_MANY_BYTES,
    )
    for step in range(_NUM_STEPS_TO_CHANGE):
        if step == 3 + rank:
            session.plans.put(_plan(forwards_in_front[rank]), 4)
        training.step()
        if _is_evaluated("1F1B", step, _NUM_STEPS_TO_CHANGE):
            training.evaluate()
    detach(training.schedule)
    after = _attributes(training)
    return training.findings() | {
        "versions": [measured.plan_version for measured in session.history],
        "num_unplanned": [measured.num_unplanned for measured in session.history],
        "changed_by_detach": [
            f"{where}.{attribute}"
            for where, attributes in after.items()
            for attribute in {*attributes, *before[where]}
            if attributes.get(attribute) != before[where].get(attribute)
        ],
    }


def scenarios() -> Iterator[tuple[str, Findings]]:
    """All, by name."""
    for name in SCHEDULES:
        yield f"{name} stock", trained_as_torch_does(name)
        yield name, trained_with_flyball(name)
    yield "accumulated", accumulated_gradients()
    yield "order stock", trained_as_torch_does("1F1B", _NUM_STEPS_TO_CHANGE)
    yield "order", trained_in_order((8, 6, 3, 1)[-torch.distributed.get_world_size() :])
    yield "one rank fails", attached_where_one_rank_fails()
    yield "one rank is away", joint_without_one_rank()


# ------------------------------------------------------------------ parts


def _stage_indices(name: str, rank: int, num_ranks: int) -> list[int]:
    if name in SINGLE:
        return [rank]
    return [rank, 2 * num_ranks - 1 - rank] if name in V_SHAPED else [rank, num_ranks + rank]


def _is_evaluated(name: str, step: int, num_steps: int) -> bool:
    """After two steps; torch itself cannot evaluate where both ends of a V are on one rank."""
    return name not in V_SHAPED and step in {0, num_steps - 2}


def _layer(dropout: float) -> nn.Module:
    # Random numbers that are drawn in another order would show.
    return nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Dropout(dropout))


def _attributes(training: Training) -> dict[str, dict[str, object]]:
    """Return what is set on the schedule's and the stages' instances, of what Flyball may touch."""
    touched = {
        *("step", "_maybe_compute_loss", "_step_microbatches", "_flyball_attachment"),
        *("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk"),
        *("stage_index_to_group_rank", "pipeline_order_with_comms"),
    }
    targets = {"schedule": training.schedule}
    targets |= {f"stage {stage.stage_index}": stage for stage in training.stages}
    return {
        where: {name: value for name, value in vars(target).items() if name in touched}
        for where, target in targets.items()
    }


def _as_torch_writes(timings: Any, training: Training) -> list[str]:  # noqa: ANN401
    letters = {"forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W"}
    indices = sorted(stage.stage_index for stage in training.stages)
    return [f"{indices[one.chunk]}{letters[one.kind]}{one.microbatch}" for one in timings]


def _written_order(schedule: Any, rank: int) -> list[str]:  # noqa: ANN401 - torch's
    """Return what torch prints of the order, each half of an overlapped pair by itself."""
    texts = [str(action) for action in schedule.pipeline_order[rank] if action is not None]
    return [one for text in texts for one in re.findall(r"\d+[FBIW]\d+", text)]


def _num_pairs(schedule: Any) -> int:  # noqa: ANN401 - torch's
    """Forwards and backwards that are sent together, on all ranks."""
    executed = getattr(schedule, "pipeline_order_with_comms", {})
    return sum("OVERLAP" in str(action) for actions in executed.values() for action in actions)


def _gpu(training: Training) -> EmulatedGpu:
    del training
    rank, num_ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    points = tuple(
        OperatingPoint(frequency_mhz=mhz, time_s=time_s, energy_j=energy_j)
        for mhz, time_s, energy_j in ((1410, 0.1, 30.0), (1200, 0.11, 20.0))
    )
    profile = StageProfile(
        points={
            (stage, kind): points
            for stage in range(num_ranks)
            for kind in InstructionKind
            if kind is not InstructionKind.RECOMPUTE
        },
        num_ranks_per_stage=(1,) * num_ranks,
    )
    return EmulatedGpu(profile, rank, blocking_power_w=80.0, time_scale=1e-4)


def _plan(num_in_front: int) -> CompiledPlan:
    """So many forwards, then alternation, then the backwards that are left."""
    kinds = ["forward"] * num_in_front
    microbatches = list(range(num_in_front))
    for microbatch in range(NUM_MICROBATCHES):
        kinds.append("backward")
        microbatches.append(microbatch)
        if num_in_front + microbatch < NUM_MICROBATCHES:
            kinds.append("forward")
            microbatches.append(num_in_front + microbatch)
    return CompiledPlan(
        version=1,
        kinds=tuple(kinds),
        microbatches=tuple(microbatches),
        chunks=(0,) * len(kinds),
        sm_clocks_mhz=(1200,) * len(kinds),
        highest_sm_clock_mhz=1410,
        num_raised=0,
    )


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    findings = {}
    for name, found in scenarios():
        findings[name] = found
        print(f"rank {rank}: {name} is over", flush=True)
    (folder / f"rank-{rank}.json").write_text(json.dumps(findings))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
