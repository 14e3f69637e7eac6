"""Trainings of a few tiny steps, run by each rank of test_deepspeed_engine.py."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal, cast
from unittest import mock

import deepspeed
import torch
import torch.distributed
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe import p2p, schedule
from deepspeed.runtime.pipe.engine import PipelineEngine
from tests.integration.rank_server import Findings
from tests.integration.trainings import (
    BLOCKING_POWER_W,
    alike_stages,
    emulated_gpu,
    numbers_of,
    plan_of,
    rank_0_says,
    samples,
    steps_of,
    takes_profile,
)
from tests.unit.integrations.hook_log import HookLog
from torch import nn

from flyball_client.api.planner_client import PlannerClient
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_client.session.rank_session import RankSession
from flyball_integrations.deepspeed.pipeline import EnginePatch, attach, detach, microbatches
from flyball_lab.demo.training_loop import leave_out_deepspeed_helper
from flyball_wire.measurements import MeasurementDetail

_STOCK_P2P = (p2p.send, p2p.recv)
_TOUCHED = {"_INSTRUCTION_MAP", "_exec_schedule", "train_batch", "num_pipe_buffers"}
_NUM_STEPS = 14
_SAMPLES_PER_MICROBATCH = 2
_WIDTH = 8
JOB_ID = "orders"
# Of plans that are put by hand.
FIRST_PLANNED_STEP = 10
# Microbatches of a step after the batch has grown from 4.
GROWN = 6
_LARGER_STEPS = MappingProxyType(dict.fromkeys(range(8, 11), 6))
_TWO_STAGES: Mapping[str, Any] = MappingProxyType({"num_stages": 2, "num_microbatches": 4})
_FOUR_STAGES: Mapping[str, Any] = MappingProxyType({"num_stages": 4, "num_microbatches": 6})


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
        self.engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
            config={
                "train_micro_batch_size_per_gpu": _SAMPLES_PER_MICROBATCH,
                "gradient_accumulation_steps": num_microbatches,
                "zero_optimization": {"stage": zero_stage},
                "steps_per_print": 10**9,
            },
        )
        self.orders: list[str] = []
        self.losses: list[str] = []
        self.evaluations: list[str] = []
        self.stock_p2p: list[bool] = []
        self._samples = self.samples(self.engine.grid.get_data_parallel_rank())
        executed = self.engine._INSTRUCTION_MAP
        self.engine._INSTRUCTION_MAP = {
            **executed,
            schedule.ForwardPass: self._noting("F", executed[schedule.ForwardPass]),
            schedule.BackwardPass: self._noting("B", executed[schedule.BackwardPass]),
        }

    @staticmethod
    def samples(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Microbatches without end."""
        return samples(_SAMPLES_PER_MICROBATCH, _WIDTH, seed=11 + seed)

    def step(self, num_microbatches: int | None = None) -> None:
        """Train one step, of another number of microbatches where one is given."""
        usual = self.engine.train_batch_size()
        if num_microbatches is not None:
            self.engine.set_train_batch_size(num_microbatches * _SAMPLES_PER_MICROBATCH)
        self.orders.append("")
        self.losses.append(float(self.engine.train_batch(self._samples)).hex())
        self.engine.set_train_batch_size(usual)

    def evaluate(self) -> None:
        """Evaluate on samples of their own; the order that this runs is not kept."""
        self.orders.append("")
        self.evaluations.append(float(self.engine.eval_batch(self.samples(100))).hex())
        self.orders.pop()

    def run(
        self,
        larger_steps: Mapping[int, int] = MappingProxyType({}),
        before_step: Callable[[int], None] = lambda step: None,
    ) -> None:
        """Train with two evaluations in between; `larger_steps` have other sizes."""
        for step in range(_NUM_STEPS):
            before_step(step)
            self.step(larger_steps.get(step))
            if step in {4, _NUM_STEPS - 1}:
                self.evaluate()

    def findings(self) -> Findings:
        """Return what must not depend on the order, and the order."""
        return {
            "losses": self.losses,
            "evaluations": self.evaluations,
            "parameters": numbers_of(self.engine.module.parameters()),
            "orders": self.orders,
        }

    def _noting(self, letter: str, execute: Callable[..., Any]) -> Callable[..., Any]:
        def noting(engine: PipelineEngine, **kwargs: object) -> object:
            self.orders[-1] += letter
            self.stock_p2p.append((p2p.send, p2p.recv) == _STOCK_P2P)
            return execute(engine, **kwargs)

        return noting


# ------------------------------------------------------------------ scenarios


def hooked() -> Findings:
    """Two training steps with an evaluation between them, and one without hooks."""
    training = Training(**_FOUR_STAGES)
    hooks = HookLog()
    patch = EnginePatch(training.engine, hooks, synchronize=lambda: None, around_step=nullcontext)
    training.step()
    training.evaluate()
    training.step()
    patch.remove()
    training.step()
    return {"stage": training.engine.stage_id, "calls": hooks.log}


def trained_as_deepspeed_does(
    larger_steps: Mapping[int, int] = MappingProxyType({}),
    **model: Any,  # noqa: ANN401 - as Training has it
) -> Findings:
    """Train without Flyball."""
    training = Training(**model)
    training.run(larger_steps)
    return training.findings() | {"attributes": sorted(vars(training.engine))}


def attached_without_planner() -> Findings:
    """Eager P2P, and a planner's address where nobody listens."""
    training = Training(**_FOUR_STAGES)
    engine = training.engine
    before = dict(vars(engine))
    gpu = emulated_gpu(engine.stage_id, engine.num_stages)
    url = os.environ["NOBODY_THERE"]
    session = attach(engine, job_id="away", planner_url=url, gpu=gpu, p2p="eager")
    attached_twice = ""
    try:
        attach(engine, job_id="away", gpu=gpu)
    except ValueError as error:
        attached_twice = str(error)
    replaced = [name for name, value in vars(engine).items() if before.get(name) is not value]
    training.run()
    detach(engine)
    detach(engine)
    num_trained = sum(map(len, training.orders))
    return (
        training.findings()
        | steps_of(session)
        | {
            "replaced": sorted(replaced),
            "attached_twice": attached_twice,
            "clock_mhz": gpu.sm_clock_mhz(),
            "attributes": sorted(vars(engine)),
            # Evaluations run forwards only.
            "num_with_eager_p2p": [training.stock_p2p.count(False), num_trained],
            "is_stock_p2p": (p2p.send, p2p.recv) == _STOCK_P2P,
        }
    )


def trained_in_order(
    extra_forwards: Sequence[int] | None,
    *,
    sends: str,
    larger_steps: Mapping[int, int] = MappingProxyType({}),
    **model: Any,  # noqa: ANN401 - as Training has it
) -> Findings:
    """Train in EnvPipe's order, on a plan that the ranks receive in different steps."""
    training = Training(**model)
    engine = training.engine
    before = dict(vars(engine))
    session = _attach(training, sends=sends, extra_forwards=extra_forwards)
    num_stages, stage = engine.num_stages, engine.stage_id
    # By default one forward more for each later stage.
    extra = num_stages - 1 - stage if extra_forwards is None else extra_forwards[stage]
    num_in_front = min(num_stages - stage + extra, engine.micro_batches)
    plan = plan_of(num_in_front, engine.micro_batches)

    def receive(step: int) -> None:
        if step == 3 + engine.global_rank % 3:
            session.plans.put(plan, FIRST_PLANNED_STEP)

    training.run(larger_steps, receive)
    detach(engine)
    after = vars(engine)
    return (
        training.findings()
        | steps_of(session)
        | {
            "changed_by_detach": [name for name in _TOUCHED if before.get(name) != after.get(name)],
            "num_slots": [len(slots) for slots in engine.pipe_buffers.values()],
            "is_stock_p2p": (p2p.send, p2p.recv) == _STOCK_P2P,
        }
    )


def probed_before_planned() -> Findings:
    """Two probe plans, then a plan, all in EnvPipe's order."""
    training = Training(**_TWO_STAGES)
    session = _attach(training, sends="pulled", profiling="online")
    in_front = (3, 1)[training.engine.stage_id]
    plans = {
        4: _probe_plan(in_front, version=1, rows_mhz=(1410, 1200)),
        8: _probe_plan(in_front, version=2, rows_mhz=(1200, 1200, 1410)),
        12: plan_of(in_front, 4, version=3),
    }
    clocks_mhz: list[list[int | None]] = []
    for step in range(_NUM_STEPS):
        if step in plans:
            session.plans.put(plans[step], step)
        training.step()
        clocks_mhz.append(list({timing.sm_clock_mhz for timing in session.last_step_timings}))
    detach(training.engine)
    return training.findings() | steps_of(session) | {"clocks_mhz": clocks_mhz}


def attached_in_other_orders() -> Findings:
    """Rank 0 runs DeepSpeed's order and the others EnvPipe's; then all of them one order."""
    training = Training(**_TWO_STAGES)
    engine = training.engine
    before = dict(vars(engine))
    others: dict[str, Any] = {"schedule": "envpipe", "p2p": "eager"}
    problem = ""
    try:
        attach(
            engine,
            job_id="mixed",
            gpu=emulated_gpu(engine.stage_id, 2),
            **({} if engine.global_rank == 0 else others),
        )
    except ValueError as error:
        problem = str(error)
    is_untouched = vars(engine) == before
    session = _attach(training, sends="eager")
    training.step()
    detach(engine)
    return {
        "problem": problem,
        "is_untouched": is_untouched,
        "num_steps": len(session.history),
        "orders": training.orders,
    }


def order_beside_a_real_planner() -> Findings:
    """The planner has no profile before step 3; clocks are set once all ranks have the plan.

    Then the batch grows, and there is another plan for that.
    """
    training = Training(**_TWO_STAGES)
    engine = training.engine
    url = os.environ["PLANNER_URL"]
    session = attach(
        engine,
        job_id=JOB_ID,
        planner_url=url,
        gpu=emulated_gpu(engine.stage_id, 2, time_scale=1e-3),
        schedule="envpipe",
        p2p="eager",
        blocking_power_w=[BLOCKING_POWER_W],
        effort="low",
    )
    sizes: list[int] = []
    is_profiled = False
    with PlannerClient(url) as planner:
        for version, num_microbatches in ((1, 4), (2, GROWN)):
            num_planned, is_over = 0, False
            give_up_s = time.monotonic() + 120.0
            while not is_over:
                training.step(num_microbatches)
                sizes.append(num_microbatches)
                if engine.global_rank == 0 and not is_profiled and len(sizes) >= 3:
                    is_profiled = takes_profile(planner, JOB_ID, alike_stages(2))
                num_planned += session.active_version == version
                # On a busy machine a rank may learn later than the other of the first step.
                fewest = torch.tensor(num_planned)
                torch.distributed.all_reduce(fewest, op=torch.distributed.ReduceOp.MIN)
                is_over = rank_0_says(fewest.item() >= 4 or time.monotonic() > give_up_s)
                time.sleep(0.002)
    detach(engine)
    stock = Training(**_TWO_STAGES)
    for num_microbatches in sizes:
        stock.step(num_microbatches)
    found = {"as DeepSpeed does": stock.findings(), "sizes": sizes}
    return training.findings() | steps_of(session) | found


def announced() -> Findings:
    """Read each step's microbatches while the one before runs, one step with a larger batch."""
    training = Training(**_TWO_STAGES)
    engine = training.engine
    gpu = emulated_gpu(engine.stage_id, engine.num_stages)
    attach(engine, job_id="announced", gpu=gpu, announces_work=True)
    training._samples = microbatches(engine, training._samples, lengths=lengths_of)
    posted: list[Any] = []
    with mock.patch.object(RankSession, "_post", lambda _, each: posted.append(each.work)):
        # Between steps, for the exchange.
        training.run(_LARGER_STEPS, before_step=lambda step: time.sleep(0.1))
    detach(engine)
    return training.findings() | {"work": posted}


def lengths_of(microbatch: tuple[torch.Tensor, torch.Tensor]) -> list[int]:
    """Return lengths that tell microbatches apart."""
    sample, _ = microbatch
    return [int(1000 * abs(float(row[0]))) for row in sample]


def scenarios() -> Iterator[tuple[str, Findings]]:
    """All that this number of ranks can run, by name."""
    leave_out_deepspeed_helper()
    deepspeed.init_distributed("gloo")
    yield from _two_stages() if torch.distributed.get_world_size() == 2 else _four_ranks()


def _two_stages() -> Iterator[tuple[str, Findings]]:
    yield "stock", trained_as_deepspeed_does(**_TWO_STAGES)
    for sends in ("eager", "pulled"):
        yield f"gpipe {sends}", trained_in_order([2, 3], sends=sends, **_TWO_STAGES)
    sizes: dict[str, Any] = {"larger_steps": _LARGER_STEPS}
    yield "stock resized", trained_as_deepspeed_does(**_TWO_STAGES, **sizes)
    yield "envpipe resized", trained_in_order(None, sends="pulled", **_TWO_STAGES, **sizes)
    yield "announced", announced()
    yield "probed", probed_before_planned()
    yield "mixed", attached_in_other_orders()
    yield "planner", order_beside_a_real_planner()


def _four_ranks() -> Iterator[tuple[str, Findings]]:
    yield "hooked", hooked()
    two_more: dict[str, Any] = {**_TWO_STAGES}
    variants: dict[str, tuple[list[int] | None, tuple[str, ...], dict[str, Any]]] = {
        "pipeline": (None, ("eager", "pulled"), {**_FOUR_STAGES}),
        "checkpointing": ([2, 2, 1, 0], ("pulled",), {**_FOUR_STAGES, "checkpointing": True}),
        "ZeRO-0": ([2, 0], ("eager",), two_more),
        "ZeRO-1": ([2, 0], ("pulled",), {**two_more, "zero_stage": 1}),
    }
    if not _can_checkpoint_activations():
        del variants["checkpointing"]
    for name, (extra, all_sends, model) in variants.items():
        yield f"{name} stock", trained_as_deepspeed_does(**model)
        for sends in all_sends:
            yield f"{name} {sends}", trained_in_order(extra, sends=sends, **model)
    yield "away", attached_without_planner()


# ------------------------------------------------------------------ parts


def _attach(
    training: Training,
    *,
    sends: str,
    extra_forwards: Sequence[int] | None = None,
    **options: Any,  # noqa: ANN401 - of `attach`
) -> Any:  # noqa: ANN401 - a RankSession whose plans are put by hand
    engine = training.engine
    return attach(
        engine,
        job_id="written",
        gpu=emulated_gpu(engine.stage_id, engine.num_stages),
        schedule="envpipe",
        p2p=cast("Literal['eager', 'pulled']", sends),
        extra_forwards=extra_forwards,
        **options,
    )


def _layer(index: int, dropout: float) -> nn.Module:
    linear = nn.Linear(_WIDTH, _WIDTH)
    # An order that drew random numbers otherwise would show.
    has_dropout = dropout > 0 and index % 2 == 1
    return nn.Sequential(linear, nn.Dropout(dropout)) if has_dropout else linear


def _can_checkpoint_activations() -> bool:
    """Return False for the oldest DeepSpeed on the CPU, which needs a CUDA stream."""
    try:
        deepspeed.checkpointing.checkpoint(torch.sigmoid, torch.ones(1, requires_grad=True))
    except TypeError:
        return False
    return True


def _probe_plan(num_in_front: int, *, version: int, rows_mhz: tuple[int, ...]) -> CompiledPlan:
    """A cycle of steps, each at one clock."""
    plan = plan_of(num_in_front, 4, version=version)
    cycle_mhz = tuple((clock_mhz,) * len(plan.kinds) for clock_mhz in rows_mhz)
    return replace(plan, cycle_mhz=cycle_mhz, measurement_detail=MeasurementDetail.CLOCKS)
