"""What each rank of test_deepspeed_orders.py runs; the tests read its findings.

Starting ranks takes seconds, so one run goes through many trainings of a few tiny steps.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import deepspeed
import torch
import torch.distributed
from deepspeed.runtime.pipe import p2p, schedule
from deepspeed.runtime.pipe.engine import PipelineEngine
from tests.integration.deepspeed_ranks import Findings, run_ranks
from tests.integration.deepspeed_tiny import (
    SAMPLES_PER_MICROBATCH,
    emulated_gpu,
    loss_of_step,
    parameters_of,
    samples,
    stage_profile,
    tiny_engine,
)

from flyball_client.api.errors import PlannerRefusedError
from flyball_client.api.planner_client import PlannerClient
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_integrations.deepspeed.activation_memory import ActivationMeter
from flyball_integrations.deepspeed.pipeline import attach, detach
from flyball_profiles.stage_profile_csv import write_stage_profile

_STOCK_P2P = (p2p.send, p2p.recv)
# Compared at step 8, exchanged at 9, run from 10 on; one round later at 18.
FIRST_PLANNED_STEP = 10
_NUM_STEPS = 13
_MANY_BYTES = 2**30
JOB_ID = "orders"


class Training:
    """One engine from the same seed as all others, and what it ran step by step."""

    def __init__(self, *, dropout: float = 0.1, **model: Any) -> None:  # noqa: ANN401
        self.engine = engine = tiny_engine(dropout=dropout, **model)
        self.orders: list[str] = []
        self.losses: list[str] = []
        self._samples = samples(engine.grid.get_data_parallel_rank())
        engine._INSTRUCTION_MAP = {
            **engine._INSTRUCTION_MAP,
            schedule.ForwardPass: self._noting("F", engine._INSTRUCTION_MAP[schedule.ForwardPass]),
            schedule.BackwardPass: self._noting(
                "B", engine._INSTRUCTION_MAP[schedule.BackwardPass]
            ),
        }

    def step(self, num_microbatches: int | None = None) -> None:
        """Train one step, of another number of microbatches where one is given."""
        usual = self.engine.train_batch_size()
        if num_microbatches is not None:
            self.engine.set_train_batch_size(num_microbatches * SAMPLES_PER_MICROBATCH)
        self._train()
        if num_microbatches is not None:
            self.engine.set_train_batch_size(usual)

    def _train(self) -> None:
        self.orders.append("")
        self.losses.append(loss_of_step(self.engine, self._samples))

    def evaluate(self) -> str:
        """The loss of an evaluation on samples of its own."""
        self.orders.append("")
        loss = float(self.engine.eval_batch(samples(100))).hex()
        self.orders.pop()
        return loss

    def findings(self) -> Findings:
        """Return what must not depend on the order, and the order."""
        return {
            "losses": self.losses,
            "parameters": parameters_of(self.engine),
            "orders": self.orders,
        }

    def _noting(self, letter: str, execute: Callable[..., Any]) -> Callable[..., Any]:
        def noting(engine: PipelineEngine, **kwargs: object) -> object:
            self.orders[-1] += letter
            return execute(engine, **kwargs)

        return noting


# ------------------------------------------------------------------ scenarios


def trained_as_deepspeed_does(
    num_steps: int = _NUM_STEPS,
    *,
    larger_steps: Mapping[int, int] = MappingProxyType({}),
    **model: Any,  # noqa: ANN401 - as Training has it
) -> Findings:
    """Without Flyball; `larger_steps` have another number of microbatches."""
    training = Training(**model)
    evaluations = []
    for step in range(num_steps):
        training.step(larger_steps.get(step))
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
    larger_steps: Mapping[int, int] = MappingProxyType({}),
    **model: Any,  # noqa: ANN401 - as Training has it
) -> Findings:
    """A plan of another order comes to the ranks in different steps, to one very late."""
    training = Training(**model)
    engine = training.engine
    before = dict(vars(engine))
    session = attach(
        engine,
        job_id="written",
        gpu=emulated_gpu(engine),
        schedule=schedule_name,  # type: ignore[arg-type] # one of them
        p2p=sends,  # type: ignore[arg-type] # likewise
        free_memory_bytes=_MANY_BYTES,
    )
    plan = _plan(forwards_in_front[engine.stage_id], engine.micro_batches)
    heard_in_step = 9 if engine.global_rank == late_rank else 3 + engine.global_rank % 3
    evaluations = []
    for step in range(num_steps):
        if step == heard_in_step:
            session.plans.put(plan, 4)
        training.step(larger_steps.get(step))
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


def probed_before_planned() -> Findings:
    """Two probe plans in DeepSpeed's own order, then a plan of another one."""
    training = Training(num_stages=2, num_microbatches=4)
    engine = training.engine
    session = attach(
        engine,
        job_id="probed",
        gpu=emulated_gpu(engine),
        schedule="auto",
        p2p="pulled",
        free_memory_bytes=_MANY_BYTES,
        profiling="online",
    )
    own, planned = (2, 1)[engine.stage_id], (3, 1)[engine.stage_id]
    plans = {
        4: _probe_plan(own, version=1, rows_mhz=(1410, 1200)),
        8: _probe_plan(own, version=2, rows_mhz=(1200, 1200, 1410)),
        12: _plan(planned, 4, version=3),
    }
    clocks_mhz: list[list[int | None]] = []
    for step in range(20):
        if step in plans:
            session.plans.put(plans[step], step)
        training.step()
        clocks_mhz.append(list({timing.sm_clock_mhz for timing in session.last_step_timings}))
    detach(engine)
    return training.findings() | {
        "versions": [measured.plan_version for measured in session.history],
        "num_unplanned": [measured.num_unplanned for measured in session.history],
        "clocks_mhz": clocks_mhz,
    }


def refused_orders() -> Findings:
    """One plan whose orders deadlock, and one that has no room; training goes on in 1F1B."""
    training = Training(num_stages=2, num_microbatches=4)
    engine = training.engine
    session = attach(
        engine,
        job_id="refused",
        gpu=emulated_gpu(engine),
        schedule="envpipe",
        p2p="eager",
        free_memory_bytes=0 if engine.stage_id == 0 else _MANY_BYTES,
    )
    with _flyballs_log() as lines:
        for step in range(20):
            if step == 3:
                session.plans.put(_plan((2, 4)[engine.stage_id], 4, version=1), 0)
            if step == 12:
                session.plans.put(_plan((3, 1)[engine.stage_id], 4, version=2), 0)
            training.step()
    detach(engine)
    return training.findings() | {
        "versions": [measured.plan_version for measured in session.history],
        "log": lines,
    }


def order_of_a_real_planner() -> Findings:
    """The planner has no profile before step 3; the order it chooses is run once all have it."""
    training = Training(num_stages=2, num_microbatches=4)
    engine = training.engine
    url = os.environ["PLANNER_URL"]
    session = attach(
        engine,
        job_id=JOB_ID,
        planner_url=url,
        gpu=emulated_gpu(engine, time_scale=1e-3),
        schedule="auto",
        p2p="eager",
        free_memory_bytes=_MANY_BYTES,
        blocking_power_w=[80.0],
    )
    num_planned = 0
    registration: Findings = {}
    with PlannerClient(url) as planner:
        is_over = False
        while not is_over:
            training.step()
            if engine.global_rank == 0 and not registration and len(training.losses) >= 3:
                registration = _given_profile(planner)
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
    """Return what a microbatch in flight is measured to hold."""
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
    # All the while the ranks compare and exchange, and one step more.
    sizes: dict[str, Any] = {"larger_steps": dict.fromkeys(range(8, FIRST_PLANNED_STEP + 1), 6)}
    yield "stock resized", trained_as_deepspeed_does(**model, **sizes)
    yield (
        "envpipe resized",
        trained_in_order([3, 1], schedule_name="envpipe", sends="pulled", **model, **sizes),
    )
    yield "probed", probed_before_planned()
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


def _probe_plan(num_in_front: int, *, version: int, rows_mhz: tuple[int, ...]) -> CompiledPlan:
    """A cycle of steps, each all at one clock."""
    plan = _plan(num_in_front, 4, version=version)
    cycle_mhz = tuple((clock_mhz,) * len(plan.kinds) for clock_mhz in rows_mhz)
    return replace(plan, cycle_mhz=cycle_mhz, report="clocks")


def _given_profile(planner: PlannerClient) -> Findings:
    """The job's registration, once it is known and has its profile; until then nothing."""
    try:
        job = planner.put_profile_csv(JOB_ID, write_stage_profile(stage_profile(2)))
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


if __name__ == "__main__":
    run_ranks(scenarios, sys.argv[1:])
