"""One rank's side of running a plan's order: is there room, do all agree, which plan is in force.

Nothing here knows a framework; what runs an order is told of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from flyball_client.session.plan_cursor import CompiledPlan
from flyball_integrations.shared.order_agreement import Offer, OrderAgreement
from flyball_integrations.shared.rank_memory import RankMemory, gather_memory, registered_memory
from flyball_integrations.shared.stage_orders import OrderError, StageOrder, one_f_one_b

_logger = logging.getLogger(__name__)

# The first step makes the optimizer's states; the second is a step like all others.
_MEASURED_STEPS = 2


@dataclass(frozen=True, kw_only=True)
class RankPlace:
    """Where a rank stands, and what a step is.

    Attributes:
        rank: of the job.
        stage: of the pipeline.
        num_stages: of the pipeline.
        num_microbatches: of a step.
    """

    rank: int
    stage: int
    num_stages: int
    num_microbatches: int


class OrderNegotiation:
    """Finds, with all other ranks, the order to run; every rank must make it and begin each step.

    Until a plan's order is agreed on, 1F1B runs. Its memory is measured in the second step;
    `on_memory` is told what the stages have before the third begins.

    A plan whose clocks go in a cycle measures something, a profile or a baseline, in an order
    that runs already: its clocks need no agreement, and it makes nobody change the order.

    Args:
        place: of this rank.
        agreement: among the ranks; closed here.
        activation_bytes: asked when two steps are over: of a microbatch in flight; 0: unknown,
            so that there is room for none more.
        free_bytes: asked then too: bytes free beside what 1F1B holds.
        on_memory: told every stage's memory, on every rank.
    """

    def __init__(
        self,
        place: RankPlace,
        *,
        agreement: OrderAgreement,
        activation_bytes: Callable[[], int],
        free_bytes: Callable[[], int],
        on_memory: Callable[[tuple[RankMemory, ...]], None],
    ) -> None:
        self._place = place
        self._agreement = agreement
        self._activation_bytes = activation_bytes
        self._free_bytes = free_bytes
        self._on_memory = on_memory
        self._num_steps = 0
        self._memory: RankMemory | None = None
        self._newest: Offer | None = None
        self._agreed: CompiledPlan | None = None
        # Of all stages: what was agreed on last, until then 1F1B.
        self._running = tuple(
            one_f_one_b(place.num_microbatches, place.num_stages, stage)
            for stage in range(place.num_stages)
        )

    @property
    def is_measured_step(self) -> bool:
        """Whether the step that has begun is the one whose memory counts."""
        return self._num_steps == _MEASURED_STEPS

    def choose_plan(self, due: tuple[CompiledPlan, ...]) -> CompiledPlan | None:
        """Of the plans that this rank holds, the one that all ranks run from this step on."""
        newest = due[-1]
        order = self._offered_order(newest)
        # Offered all the same: in plans of different orders a stage may have the same one, and
        # the other stages wait for what it offers.
        if newest.cycle_mhz is not None and order == self._running[self._place.stage]:
            return newest
        return next((plan for plan in due if plan is self._agreed), None)

    def on_step_begin(self) -> tuple[StageOrder, ...] | None:
        """A training step begins.

        Returns:
            The orders of all stages, if other ones are to be run from this step on.
        """
        if self._num_steps == _MEASURED_STEPS:
            self._gather_memory()
        self._num_steps += 1
        decision = self._agreement.on_step_begin(
            self._newest, num_microbatches=self._place.num_microbatches
        )
        if decision is None:
            return None
        plan, orders = decision.offer.plan, decision.orders
        if orders is None:
            if self._place.rank == 0:
                _logger.warning(
                    "plan version %d is not run, what is in force goes on: %s",
                    plan.version,
                    decision.problem,
                )
            return None
        self._agreed = plan
        if plan.cycle_mhz is not None and orders == self._running:
            return None
        self._running = orders
        _logger.info(
            "rank %d: order of plan version %d from now on, at most %d microbatches in flight",
            self._place.rank,
            plan.version,
            orders[self._place.stage].num_in_flight,
        )
        return orders

    def close(self) -> None:
        """Every rank must call it at the same time."""
        self._agreement.close()

    def _offered_order(self, newest: CompiledPlan) -> StageOrder | None:
        """Of the newest plan, which is offered from now on; None: this rank cannot run it (yet)."""
        if self._memory is None:
            return None
        if self._newest is None or self._newest.plan is not newest:
            order = self._order_of(newest, self._memory.num_more)
            self._newest = Offer(plan=newest, order=order)
        return self._newest.order

    def _gather_memory(self) -> None:
        """Tell the stages' memory; where it fails, no order but 1F1B has room."""
        place, memory = self._place, self._measured_memory()
        try:
            stages = gather_memory(
                memory,
                stage=place.stage,
                num_stages=place.num_stages,
                group=self._agreement.group,
            )
        except RuntimeError as error:
            _logger.warning("the ranks' memory is not known, and 1F1B goes on: %s", error)
            return
        self._memory = memory
        self._on_memory(
            tuple(
                registered_memory(stage, num_microbatches=place.num_microbatches)
                for stage in stages
            )
        )

    def _measured_memory(self) -> RankMemory:
        # Whatever becomes of it here: the other ranks wait for this one's figures.
        activation_bytes = self._activation_bytes()
        free_bytes = 0
        try:
            free_bytes = self._free_bytes()
        except RuntimeError as error:
            _logger.warning("rank %d: free memory cannot be found: %s", self._place.rank, error)
        return RankMemory(
            activation_bytes=max(1, activation_bytes),
            free_bytes=free_bytes if activation_bytes > 0 else 0,
        )

    def _order_of(self, plan: CompiledPlan, num_more: int) -> StageOrder | None:
        """The plan's order, if this rank can run it; else one line in the log."""
        place = self._place
        try:
            order = StageOrder.of_instructions(plan.kinds, plan.microbatches)
            stock = one_f_one_b(order.num_microbatches, place.num_stages, place.stage)
            wanted = order.num_in_flight - stock.num_in_flight
            if wanted > num_more:
                raise OrderError(
                    f"it holds {wanted} microbatches more than 1F1B, and memory is free for"
                    f" {num_more}"
                )
        except OrderError as error:
            _logger.warning(
                "rank %d cannot run the order of plan version %d: %s",
                place.rank,
                plan.version,
                error,
            )
            return None
        return order
