"""All schedules, a few tiny steps each, run by each rank of test_torch_pipelining.py."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed
from tests.integration.rank_server import Findings
from tests.integration.trainings import (
    emulated_gpu,
    numbers_of,
    plan_of,
    samples,
    steps_of,
)
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.profiler import ProfilerActivity, profile, schedule

from flyball_client.gpu.emulated import EmulatedGpu
from flyball_client.session.rank_session import RankSession
from flyball_integrations.shared.one_order import on_all_ranks_or_none
from flyball_integrations.torch.pipelining import attach, detach, registration_of, steps

SINGLE = ("GPipe", "1F1B")
LOOPED = ("LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble")
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")
SCHEDULES = (*SINGLE, *LOOPED, *V_SHAPED)
TRACED = ("GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble")
NUM_MICROBATCHES = 8
_NUM_STEPS = 2
_NUM_STEPS_IN_ORDER = 5
_WIDTH = 8


class Training:
    """One schedule and its stages, from the same seed as all others."""

    def __init__(self, name: str, *, dropout: float = 0.1) -> None:
        rank, num_ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        indices = stage_indices(name, rank, num_ranks)
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
        self._samples = samples(2 * NUM_MICROBATCHES, _WIDTH)
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
        parameters = numbers_of(iter(self.parameters))
        return {"losses": self.losses, "parameters": parameters, "orders": self.orders}

    def changed_since(self, before: Mapping[str, Mapping[str, object]]) -> list[str]:
        """Names of attributes that are not as they were."""
        return [
            f"{where}.{name}"
            for where, attributes in _attributes(self).items()
            for name in {*attributes, *before[where]}
            if attributes.get(name) != before[where].get(name)
        ]

    def _call(self, step: Callable[..., object], *, losses: list[torch.Tensor]) -> None:
        batch, target = next(self._samples)
        inputs = (batch,) if any(stage.is_first for stage in self.stages) else ()
        is_last = any(stage.is_last for stage in self.stages)
        step(*inputs, **({"target": target, "losses": losses} if is_last else {}))

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
    session = attach(training.schedule, job_id="hooks", gpu=_gpu())
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
        "changed_by_detach": training.changed_since(before),
        "history": [measured.step for measured in session.history],
        "pairs": [*pairs, _num_pairs(training.schedule)],
    }


def announced(name: str) -> Findings:
    """Train with each step announced by the ranks that have batches: the first and the last."""
    training = Training(name)
    attach(training.schedule, job_id="announced", gpu=_gpu(), announces_work=True)
    has_batches = any(stage.is_first or stage.is_last for stage in training.stages)
    numbers: Iterable[int] = range(_NUM_STEPS_IN_ORDER)
    if has_batches:
        numbers = steps(training.schedule, numbers, lengths=lengths_of_step)
    posted: list[Any] = []
    with mock.patch.object(RankSession, "_post", lambda _, each: posted.append(each.work)):
        for step in numbers:
            training.step()
            time.sleep(0.1)  # for the exchange
            if _is_evaluated(name, step, _NUM_STEPS_IN_ORDER):
                training.evaluate()
    detach(training.schedule)
    return training.findings() | {"work": posted}


def traced(name: str) -> Findings:
    """Train under torch's profiler, and return the trace."""
    training = Training(name)
    traces: list[str] = []

    def export(profiler: profile) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            traces.append(path.read_text())

    steps_to_record = schedule(wait=0, warmup=1, active=2)
    activities = [ProfilerActivity.CPU]
    with profile(
        activities=activities,
        schedule=steps_to_record,
        on_trace_ready=export,
        acc_events=True,
        with_stack=name == "1F1B",  # it has no names of its own
    ) as profiler:
        for _ in range(3):
            training.step()
            profiler.step()
    return {"trace": traces[0]}


def lengths_of_step(number: int) -> list[int]:
    """Return the lengths of a step's 16 sequences, two for each microbatch."""
    return [1 + number + sequence for sequence in range(2 * NUM_MICROBATCHES)]


def attached_where_one_rank_fails() -> Findings:
    """Overlapped pairs, and rank 2 gives what is refused; then all ranks do it right."""
    training = Training("DualPipeV")
    before = _attributes(training)
    refused: Any = [training.optimizer] if torch.distributed.get_rank() == 2 else None
    problem = ""
    try:
        attach(training.schedule, job_id="joint", gpu=_gpu(), optimizer=refused)
    except ValueError as error:
        problem = str(error)
    is_untouched = _attributes(training) == before
    training.step()
    session = attach(training.schedule, job_id="joint", gpu=_gpu())
    training.step()
    detach(training.schedule)
    return {
        "problem": problem,
        "is_untouched": is_untouched,
        "num_steps": len(session.history),
    }


def joint_without_one_rank() -> Findings:
    """The last rank does not come; the last scenario, for ranks then count differently."""
    rank, num_ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    problem = ""
    if rank < num_ranks - 1:
        try:
            with on_all_ranks_or_none(timeout_s=1.0):
                pass
        except ValueError as error:
            problem = str(error)
    return {"problem": problem}


def trained_in_order(extra_forwards: tuple[int, ...]) -> Findings:
    """More forwards in front from the first step on; a plan comes to the ranks one by one."""
    training = Training("1F1B")
    rank, num_ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    before = _attributes(training)
    session = attach(
        training.schedule,
        job_id="ordered",
        gpu=_gpu(),
        order="envpipe",
        extra_forwards=extra_forwards,
    )
    for step in range(_NUM_STEPS_IN_ORDER):
        if step == rank:
            num_in_front = num_ranks - rank + extra_forwards[rank]
            session.plans.put(plan_of(num_in_front, NUM_MICROBATCHES), 3)
        training.step()
        if _is_evaluated("1F1B", step, _NUM_STEPS_IN_ORDER):
            training.evaluate()
    detach(training.schedule)
    changed = training.changed_since(before)
    return training.findings() | steps_of(session) | {"changed_by_detach": changed}


def attached_in_other_orders() -> Findings:
    """The last rank has other forwards in front."""
    training = Training("1F1B")
    before = _attributes(training)
    is_last = torch.distributed.get_rank() == torch.distributed.get_world_size() - 1
    problems = []
    for extra_forwards in ((1, 1, 0), (3, 1, 0)):
        try:
            attach(
                training.schedule,
                job_id="mixed",
                gpu=_gpu(),
                order="envpipe",
                extra_forwards=(2, 1, 0) if is_last else extra_forwards,
            )
        except ValueError as error:
            problems.append(str(error))
    return {"problems": problems, "is_untouched": _attributes(training) == before}


def scenarios() -> Iterator[tuple[str, Findings]]:
    """All, by name."""
    for name in SCHEDULES:
        yield f"{name} stock", trained_as_torch_does(name)
        yield name, trained_with_flyball(name)
    for name in TRACED:
        yield f"{name} traced", traced(name)
    yield "order stock", trained_as_torch_does("1F1B", _NUM_STEPS_IN_ORDER)
    yield "order", trained_in_order((3, 1, 0))
    yield "announced", announced("1F1B")
    yield "mixed", attached_in_other_orders()
    yield "one rank fails", attached_where_one_rank_fails()
    yield "one rank is away", joint_without_one_rank()


# ------------------------------------------------------------------ parts


def _gpu() -> EmulatedGpu:
    return emulated_gpu(torch.distributed.get_rank(), torch.distributed.get_world_size())


def stage_indices(name: str, rank: int, num_ranks: int) -> list[int]:
    """Return the places in the model of a rank's parts."""
    if name in SINGLE:
        return [rank]
    return [rank, 2 * num_ranks - 1 - rank] if name in V_SHAPED else [rank, num_ranks + rank]


def _is_evaluated(name: str, step: int, num_steps: int) -> bool:
    """Between steps; torch itself cannot evaluate where both ends of a V are on one rank."""
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
