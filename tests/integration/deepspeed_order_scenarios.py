"""What each rank of test_deepspeed_orders.py runs under torchrun; the tests read its findings.

Starting ranks takes seconds, so one run goes through many trainings of a few tiny steps and
writes a JSON file per rank.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe import p2p, schedule
from deepspeed.runtime.pipe.engine import PipelineEngine
from torch import nn

from flyball_client.errors import PlannerRefusedError
from flyball_client.gpu.emulated import EmulatedGpu
from flyball_client.plan_cursor import CompiledPlan
from flyball_client.planner_client import PlannerClient
from flyball_integrations.activation_memory import ActivationMeter
from flyball_integrations.deepspeed_pipeline import attach, detach
from flyball_profiles.stage_profile import InstructionKind, OperatingPoint, StageProfile
from flyball_profiles.stage_profile_csv import write_stage_profile

_WIDTH = 8
_STOCK_P2P = (p2p.send, p2p.recv)
# Compared at step 8, exchanged at 9, run from 10 on; one round later at 18.
FIRST_PLANNED_STEP = 10
_NUM_STEPS = 13
_MANY_BYTES = 2**30
JOB_ID = "orders"

Findings = dict[str, Any]


class Training:
    """One engine from the same seed as all others, and what it ran step by step."""

    def __init__(
        self,
        *,
        num_stages: int,
        num_microbatches: int,
        checkpointing: bool = False,
        zero_stage: int = 0,
        dropout: float = 0.1,
    ) -> None:
        torch.manual_seed(7)
        model = PipelineModule(
            layers=[_layer(index, dropout) for index in range(2 * num_stages)],
            num_stages=num_stages,
            loss_fn=nn.functional.mse_loss,
            partition_method="uniform",
            activation_checkpoint_interval=int(checkpointing),
        )
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
            config={
                "train_micro_batch_size_per_gpu": 2,
                "gradient_accumulation_steps": num_microbatches,
                "zero_optimization": {"stage": zero_stage},
                "steps_per_print": 10**9,
            },
        )
        self.engine: PipelineEngine = engine
        self.orders: list[str] = []
        self.losses: list[str] = []
        self._samples = _samples(engine.grid.get_data_parallel_rank())
        engine._INSTRUCTION_MAP = {
            **engine._INSTRUCTION_MAP,
            schedule.ForwardPass: self._noting("F", engine._INSTRUCTION_MAP[schedule.ForwardPass]),
            schedule.BackwardPass: self._noting(
                "B", engine._INSTRUCTION_MAP[schedule.BackwardPass]
            ),
        }

    def step(self) -> None:
        """Train one step."""
        self.orders.append("")
        self.losses.append(float(self.engine.train_batch(self._samples)).hex())

    def evaluate(self) -> str:
        """The loss of an evaluation on samples of its own."""
        self.orders.append("")
        loss = float(self.engine.eval_batch(_samples(100))).hex()
        self.orders.pop()
        return loss

    def findings(self) -> Findings:
        """What must not depend on the order, and the order."""
        parameters = [
            value.hex()
            for parameter in self.engine.module.parameters()
            for value in parameter.detach().flatten().tolist()
        ]
        return {"losses": self.losses, "parameters": parameters, "orders": self.orders}

    def _noting(self, letter: str, execute: Callable[..., Any]) -> Callable[..., Any]:
        def noting(engine: PipelineEngine, **kwargs: object) -> object:
            self.orders[-1] += letter
            return execute(engine, **kwargs)

        return noting


# ------------------------------------------------------------------ scenarios


def trained_as_deepspeed_does(num_steps: int = _NUM_STEPS, **model: Any) -> Findings:  # noqa: ANN401
    """Without Flyball."""
    training = Training(**model)
    evaluations = []
    for step in range(num_steps):
        training.step()
        if step in {4, num_steps - 1}:
            evaluations.append(training.evaluate())
    return training.findings() | {"evaluations": evaluations}


def trained_in_order(
    forwards_in_front: Sequence[int],
    *,
    schedule_name: str,
    sends: str,
    late_rank: int | None = None,
    num_steps: int = _NUM_STEPS,
    **model: Any,  # noqa: ANN401 - as Training has it
) -> Findings:
    """A plan of another order comes to the ranks in different steps, to one very late."""
    training = Training(**model)
    engine = training.engine
    before = dict(vars(engine))
    gpu = EmulatedGpu(
        _profile(engine.num_stages), engine.stage_id, blocking_power_w=80.0, time_scale=1e-4
    )
    session = attach(
        engine,
        job_id="written",
        gpu=gpu,
        schedule=schedule_name,  # type: ignore[arg-type] # one of them
        p2p=sends,  # type: ignore[arg-type] # likewise
        free_memory_bytes=_MANY_BYTES,
    )
    plan = _plan(forwards_in_front[engine.stage_id], engine.micro_batches)
    heard_in_step = 9 if engine.global_rank == late_rank else 3 + engine.global_rank % 3
    evaluations = []
    for step in range(num_steps):
        if step == heard_in_step:
            session._plans.put(plan, 4)
        training.step()
        if step in {4, num_steps - 1}:
            evaluations.append(training.evaluate())
    detach(engine)
    after = vars(engine)
    return training.findings() | {
        "evaluations": evaluations,
        "versions": [measured.plan_version for measured in session.history],
        "num_unplanned": [measured.num_unplanned for measured in session.history],
        "changed_by_detach": sorted(
            name
            for name in {*before, *after}
            if name in {"_INSTRUCTION_MAP", "_exec_schedule", "train_batch", "num_pipe_buffers"}
            and before.get(name) != after.get(name)
        ),
        "num_slots": [len(slots) for slots in engine.pipe_buffers.values()],
        "is_stock_p2p": (p2p.send, p2p.recv) == _STOCK_P2P,
    }


def refused_orders() -> Findings:
    """One plan whose orders deadlock, and one that has no room; training goes on in 1F1B."""
    training = Training(num_stages=2, num_microbatches=4)
    engine = training.engine
    gpu = EmulatedGpu(_profile(2), engine.stage_id, blocking_power_w=80.0, time_scale=1e-4)
    session = attach(
        engine,
        job_id="refused",
        gpu=gpu,
        schedule="envpipe",
        p2p="eager",
        free_memory_bytes=0 if engine.stage_id == 0 else _MANY_BYTES,
    )
    with _flyballs_log() as lines:
        for step in range(20):
            if step == 3:
                session._plans.put(_plan((2, 4)[engine.stage_id], 4, version=1), 0)
            if step == 12:
                session._plans.put(_plan((3, 1)[engine.stage_id], 4, version=2), 0)
            training.step()
    detach(engine)
    return training.findings() | {
        "versions": [measured.plan_version for measured in session.history],
        "log": lines,
    }


def order_of_a_real_planner() -> Findings:
    """The planner has no profile before step 3; its order is run once all ranks have it."""
    training = Training(num_stages=2, num_microbatches=4)
    engine = training.engine
    profile = _profile(2)
    gpu = EmulatedGpu(profile, engine.stage_id, blocking_power_w=80.0, time_scale=1e-3)
    url = os.environ["PLANNER_URL"]
    session = attach(
        engine,
        job_id=JOB_ID,
        planner_url=url,
        gpu=gpu,
        schedule="envpipe",
        p2p="eager",
        free_memory_bytes=_MANY_BYTES,
        blocking_power_w=[80.0],
        policy="envelope",
    )
    num_planned = 0
    registration: Findings = {}
    with PlannerClient(url) as planner:
        is_over = False
        while not is_over:
            training.step()
            if engine.global_rank == 0 and not registration and len(training.losses) >= 3:
                registration = _given_profile(planner, profile)
            num_planned += session.active_version is not None
            is_over = _rank_0_says(num_planned >= 4 or len(training.losses) >= 2000)
            time.sleep(0.002)
    detach(engine)
    found = training.findings() | {
        "registration": registration,
        "versions": [measured.plan_version for measured in session.history],
        "num_unplanned": [measured.num_unplanned for measured in session.history],
    }
    stock = trained_as_deepspeed_does(len(training.losses), num_stages=2, num_microbatches=4)
    return found | {"as DeepSpeed does": stock}


def activation_bytes() -> Findings:
    """What a microbatch in flight is measured to hold."""
    found = {}
    for name, checkpointing in (("plain", False), ("checkpointing", True)):
        if checkpointing and not _can_checkpoint_activations():
            continue
        training = Training(
            num_stages=2, num_microbatches=4, checkpointing=checkpointing, dropout=0.0
        )
        meter = ActivationMeter.of_device(training.engine.device)
        training.engine._INSTRUCTION_MAP = meter.wrap(training.engine._INSTRUCTION_MAP)
        with meter.measuring_step():
            training.step()
        found[name] = meter.activation_bytes
        training.step()
        found[f"{name}, a step later"] = meter.activation_bytes
    return found


def scenarios() -> Iterator[tuple[str, Findings]]:
    """All that this number of ranks can run, by name."""
    num_ranks = torch.distributed.get_world_size()
    if num_ranks == 2:
        yield from _two_stages()
    else:
        yield from _four_ranks()


def _two_stages() -> Iterator[tuple[str, Findings]]:
    model: dict[str, Any] = {"num_stages": 2, "num_microbatches": 4}
    yield "stock", trained_as_deepspeed_does(**model)
    for sends in ("eager", "pulled"):
        for name, in_front in (("envpipe", [4, 1]), ("gpipe", [4, 4])):
            found = trained_in_order(in_front, schedule_name=name, sends=sends, **model)
            yield f"{name} {sends}", found
    yield "stock late", trained_as_deepspeed_does(20, **model)
    yield (
        "envpipe late",
        trained_in_order(
            [3, 1], schedule_name="envpipe", sends="eager", late_rank=1, num_steps=20, **model
        ),
    )
    yield "refused", refused_orders()
    yield "bytes", activation_bytes()
    yield "planner", order_of_a_real_planner()


def _four_ranks() -> Iterator[tuple[str, Findings]]:
    pipeline: dict[str, Any] = {"num_stages": 4, "num_microbatches": 6}
    parallel: dict[str, Any] = {"num_stages": 2, "num_microbatches": 4}
    variants: dict[str, tuple[list[int], dict[str, Any]]] = {
        "pipeline": ([6, 5, 3, 1], pipeline),
        "checkpointing": ([6, 5, 3, 1], pipeline | {"checkpointing": True}),
        "ZeRO-0": ([4, 1], parallel),
        "ZeRO-1": ([4, 1], parallel | {"zero_stage": 1}),
    }
    if not _can_checkpoint_activations():
        del variants["checkpointing"]
    for name, (forwards_in_front, model) in variants.items():
        yield f"{name} stock", trained_as_deepspeed_does(**model)
        for sends in ("eager", "pulled"):
            yield (
                f"{name} {sends}",
                trained_in_order(forwards_in_front, schedule_name="envpipe", sends=sends, **model),
            )


# ------------------------------------------------------------------ parts


class _Lines(logging.Handler):
    """The lines of a log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def _flyballs_log() -> Iterator[list[str]]:
    handler = _Lines()
    logger = logging.getLogger("flyball_integrations")
    logger.addHandler(handler)
    yield handler.lines
    logger.removeHandler(handler)


def _can_checkpoint_activations() -> bool:
    """Whether this DeepSpeed can on the CPU; the oldest asks for a stream, which there is not."""
    try:
        deepspeed.checkpointing.checkpoint(torch.sigmoid, torch.ones(1, requires_grad=True))
    except TypeError:
        return False
    return True


def _layer(index: int, dropout: float) -> nn.Module:
    linear = nn.Linear(_WIDTH, _WIDTH)
    # An order that drew random numbers otherwise would show.
    has_dropout = dropout > 0 and index % 2 == 1
    return nn.Sequential(linear, nn.Dropout(dropout)) if has_dropout else linear


def _samples(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(11 + seed)
    while True:
        sample = torch.randn(2, _WIDTH, generator=generator)
        yield sample, sample.roll(1, dims=1)


def _plan(num_in_front: int, num_microbatches: int, *, version: int = 1) -> CompiledPlan:
    """So many forwards, then alternation, then the backwards that are left."""
    kinds = ["forward"] * num_in_front
    microbatches = list(range(num_in_front))
    for microbatch in range(num_microbatches):
        kinds.append("backward")
        microbatches.append(microbatch)
        if num_in_front + microbatch < num_microbatches:
            kinds.append("forward")
            microbatches.append(num_in_front + microbatch)
    return CompiledPlan(
        version=version,
        kinds=tuple(kinds),
        microbatches=tuple(microbatches),
        chunks=(0,) * len(kinds),
        sm_clocks_mhz=(1200,) * len(kinds),
        highest_sm_clock_mhz=1410,
        num_raised=0,
    )


def _profile(num_stages: int) -> StageProfile:
    """Backwards take twice as long as forwards: one extra forward on the first of two stages."""
    points = {
        InstructionKind.FORWARD: ((1410, 0.1, 30.0), (1200, 0.11, 20.0)),
        InstructionKind.BACKWARD: ((1410, 0.2, 60.0), (1200, 0.22, 40.0)),
    }
    return StageProfile(
        points={
            (stage, kind): tuple(
                OperatingPoint(frequency_mhz=mhz, time_s=time_s, energy_j=energy_j)
                for mhz, time_s, energy_j in rows
            )
            for stage in range(num_stages)
            for kind, rows in points.items()
        },
        num_ranks_per_stage=(1,) * num_stages,
    )


def _given_profile(planner: PlannerClient, profile: StageProfile) -> Findings:
    """The job's registration, once it is known and has its profile; until then nothing."""
    try:
        job = planner.put_profile_csv(JOB_ID, write_stage_profile(profile))
    except PlannerRefusedError:
        return {}
    registered = job.registration
    return {
        "schedule": registered.schedule,
        "activation_bytes": registered.activation_bytes,
        "free_memory_bytes": registered.free_memory_bytes,
    }


def _rank_0_says(decision: bool) -> bool:
    said = torch.tensor([int(decision)])
    torch.distributed.broadcast(said, src=0)
    return bool(said.item())


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    rank = torch.distributed.get_rank()
    findings = {}
    for name, found in scenarios():
        findings[name] = found
        print(f"rank {rank}: {name} is over", flush=True)
    (folder / f"rank-{rank}.json").write_text(json.dumps(findings))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
