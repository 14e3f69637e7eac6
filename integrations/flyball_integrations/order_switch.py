"""Which order a DeepSpeed engine runs: 1F1B until all ranks have agreed on a plan's order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.engine import PipelineEngine

from flyball_client.plan_cursor import CompiledPlan
from flyball_integrations.activation_memory import (
    ActivationMeter,
    RankMemory,
    gather_memory,
    registered_memory,
)
from flyball_integrations.eager_p2p import EagerP2P
from flyball_integrations.instruction_hooks import Execute, Instructions
from flyball_integrations.order_agreement import Decision, Offer, OrderAgreement
from flyball_integrations.planned_schedule import OrderedP2P, PlannedSchedule
from flyball_integrations.stage_orders import OrderError, StageOrder, one_f_one_b

_logger = logging.getLogger(__name__)

# The first step makes the optimizer's states; the second is a step like all others.
_MEASURED_STEPS = 2


class OrderSwitch:
    """The order of one engine; every rank must make it, and begin each step with it.

    Until a plan's order is agreed on, DeepSpeed's own schedule runs. Its memory is measured in
    the first steps; `on_memory` is told what the stages have before the third begins.

    Args:
        engine: DeepSpeed's `PipelineEngine`.
        agreement: among the ranks; closed here.
        free_memory_bytes: asked when the first steps are over: bytes free beside what 1F1B
            holds.
        on_memory: told every stage's memory, on every rank.
        eager: what sends; None: DeepSpeed's own P2P, with pulled sends (see `PlannedSchedule`).
        meter: of activations.
    """

    def __init__(
        self,
        engine: PipelineEngine,
        *,
        agreement: OrderAgreement,
        free_memory_bytes: Callable[[], int],
        on_memory: Callable[[tuple[RankMemory, ...]], None],
        eager: EagerP2P | None = None,
        meter: ActivationMeter | None = None,
    ) -> None:
        self._engine = engine
        self._p2p: OrderedP2P = "pulled" if eager is None else "eager"
        self._agreement = agreement
        self._free_memory_bytes = free_memory_bytes
        self._on_memory = on_memory
        self._eager = eager
        self._meter = meter or ActivationMeter.of_device(engine.device)
        self._loss_of_buffer: dict[int, Any] = {}
        self._num_pipe_buffers = engine.num_pipe_buffers
        self._num_steps = 0
        self._memory: RankMemory | None = None
        self._newest: Offer | None = None
        self._agreed: CompiledPlan | None = None
        self._orders: tuple[StageOrder, ...] | None = None
        self._schedule: PlannedSchedule | None = None

    # ------------------------------------------------------------------ for the session

    def choose_plan(self, due: tuple[CompiledPlan, ...]) -> CompiledPlan | None:
        """Of the plans that this rank holds, the one that all ranks run from this step on."""
        newest = due[-1]
        is_held = self._newest is not None and self._newest.plan is newest
        if self._memory is not None and not is_held:
            order = self._order_of(newest, self._memory.num_more)
            self._newest = Offer(plan=newest, order=order)
        return next((plan for plan in due if plan is self._agreed), None)

    # ------------------------------------------------------------------ for the engine's patch

    @contextmanager
    def around_step(self) -> Iterator[None]:
        """A training step; entered before the session is told of it."""
        self._on_step_begin()
        with self._meter.measuring_step() if self._num_steps == 1 else nullcontext():
            yield

    def schedule_for(self, stock: schedule.PipeSchedule) -> schedule.PipeSchedule:
        """What runs in the place of this schedule of DeepSpeed's; evaluations stay."""
        planned = self._schedule
        if type(stock) is not schedule.TrainSchedule:
            return stock
        if planned is None or planned.num_micro_batches != stock.num_micro_batches:
            self._limit_sends(None)
            return stock
        self._limit_sends(self._orders)
        return planned

    def wrap(self, instructions: Instructions) -> Instructions:
        """Keep a loss for each buffer of the last stage, and measure the first step.

        DeepSpeed has one loss, which is enough where each backward follows its forward at once.
        """
        if self._engine.is_last_stage():
            wrapped = {
                schedule.ForwardPass: self._keeping_loss(instructions[schedule.ForwardPass]),
                schedule.BackwardPass: self._with_its_loss(instructions[schedule.BackwardPass]),
            }
            instructions = {**instructions, **wrapped}
        return self._meter.wrap(instructions)

    def close(self) -> None:
        """Leave DeepSpeed's buffers as they were; every rank must call it at the same time."""
        for slots in self._engine.pipe_buffers.values():
            del slots[self._num_pipe_buffers :]
        self._engine.num_pipe_buffers = self._num_pipe_buffers
        self._agreement.close()

    # ------------------------------------------------------------------ inside

    def _on_step_begin(self) -> None:
        if self._num_steps == _MEASURED_STEPS:
            self._gather_memory()
        self._num_steps += 1
        decision = self._agreement.on_step_begin(
            self._newest, num_microbatches=self._engine.micro_batches
        )
        if decision is not None:
            self._take(decision)

    def _gather_memory(self) -> None:
        """Tell the stages' memory; where it fails, no order but 1F1B has room."""
        engine, memory = self._engine, self._measured_memory()
        try:
            stages = gather_memory(
                memory,
                stage=engine.stage_id,
                num_stages=engine.num_stages,
                group=self._agreement.group,
            )
        except RuntimeError as error:
            _logger.warning("the ranks' memory is not known, and 1F1B goes on: %s", error)
            return
        self._memory = memory
        self._on_memory(
            tuple(
                registered_memory(stage, num_microbatches=engine.micro_batches) for stage in stages
            )
        )

    def _measured_memory(self) -> RankMemory:
        # Whatever becomes of it here: the other ranks wait for this one's figures.
        activation_bytes = self._meter.activation_bytes
        free_bytes = 0
        try:
            free_bytes = self._free_memory_bytes()
        except RuntimeError as error:
            _logger.warning(
                "rank %d: free memory cannot be found: %s", self._engine.global_rank, error
            )
        return RankMemory(
            activation_bytes=max(1, activation_bytes),
            free_bytes=free_bytes if activation_bytes > 0 else 0,
        )

    def _order_of(self, plan: CompiledPlan, num_more: int) -> StageOrder | None:
        """The plan's order, if this rank can run it; else one line in the log."""
        engine = self._engine
        try:
            order = StageOrder.of_instructions(plan.kinds, plan.microbatches)
            stock = one_f_one_b(order.num_microbatches, engine.num_stages, engine.stage_id)
            wanted = order.num_in_flight - stock.num_in_flight
            if wanted > num_more:
                raise OrderError(
                    f"it holds {wanted} microbatches more than 1F1B, and memory is free for"
                    f" {num_more}"
                )
        except OrderError as error:
            _logger.warning(
                "rank %d cannot run the order of plan version %d: %s",
                engine.global_rank,
                plan.version,
                error,
            )
            return None
        return order

    def _take(self, decision: Decision) -> None:
        engine, plan = self._engine, decision.offer.plan
        if decision.orders is None:
            if engine.global_rank == 0:
                _logger.warning(
                    "plan version %d is not run, what is in force goes on: %s",
                    plan.version,
                    decision.problem,
                )
            return
        self._orders = decision.orders
        self._schedule = PlannedSchedule(decision.orders, stage_id=engine.stage_id, p2p=self._p2p)
        self._agreed = plan
        _logger.info(
            "rank %d: order of plan version %d from now on, at most %d microbatches in flight",
            engine.global_rank,
            plan.version,
            decision.orders[engine.stage_id].num_in_flight,
        )

    def _limit_sends(self, orders: tuple[StageOrder, ...] | None) -> None:
        """How many sends may be under way follows from the microbatches in flight."""
        if self._eager is None:
            return
        if orders is None:
            self._eager.follow_one_f_one_b()
            return
        stage = self._engine.stage_id
        self._eager.follow(
            num_in_flight=orders[stage].num_in_flight,
            num_in_flight_before=orders[max(0, stage - 1)].num_in_flight,
        )

    def _keeping_loss(self, execute: Execute) -> Execute:
        def execute_and_keep(engine: PipelineEngine, buffer_id: int, **kwargs: object) -> object:
            result = execute(engine, buffer_id=buffer_id, **kwargs)
            self._loss_of_buffer[buffer_id] = engine.loss
            return result

        return execute_and_keep

    def _with_its_loss(self, execute: Execute) -> Execute:
        def execute_with_loss(engine: PipelineEngine, buffer_id: int, **kwargs: object) -> object:
            engine.loss = self._loss_of_buffer.pop(buffer_id, engine.loss)
            return execute(engine, buffer_id=buffer_id, **kwargs)

        return execute_with_loss
