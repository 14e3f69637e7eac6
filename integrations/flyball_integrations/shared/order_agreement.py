"""Agreement of all ranks on the step in which they change to a plan's order.

Ranks receive a plan at different times, and a pipeline that runs a mixture of two orders may
deadlock. So every few steps they compare their newest plans, and exchange the orders before
they change. Both collectives are begun in one step and read in the next: they run while the
step computes, and no rank waits for them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed

from flyball_client.session.plan_cursor import CompiledPlan
from flyball_integrations.shared.rank_memory import (
    MicrobatchMeter,
    RankMemory,
    free_cuda_bytes,
    gather_memory,
    registered_memory,
)
from flyball_integrations.shared.stage_orders import (
    OrderError,
    StageOrder,
    Unit,
    check_orders,
    one_f_one_b,
)

_logger = logging.getLogger(__name__)

PERIOD_STEPS = 8
_CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True, eq=False, kw_only=True)
class Offer:
    """Newest plan of a rank; an offer that is repeated is the same object.

    Attributes:
        plan: its version is at least 1.
        order: order of this rank's stage; None: it cannot be run here.
    """

    plan: CompiledPlan
    order: StageOrder | None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Decision of all ranks about a plan, in the same step.

    Attributes:
        offer: offer of this rank.
        orders: orders of all stages from this step on; None: the plan is not run.
        problem: reason why the plan is not run.
    """

    offer: Offer
    orders: tuple[StageOrder, ...] | None = None
    problem: str = ""


class OrderAgreement:
    """Part of one rank in the agreement of all ranks of the job.

    Every rank must create, call and close it at the same time: it has a process group of its
    own, over gloo, whatever training uses. A collective that fails ends it, with one line in
    the log; the current order continues.

    Args:
        stage: of this rank.
        num_stages: of the pipeline.
        period_steps: steps from one comparison to the next, at least 3.
    """

    def __init__(self, *, stage: int, num_stages: int, period_steps: int = PERIOD_STEPS) -> None:
        if period_steps < 3:
            raise ValueError(f"period_steps must be at least 3, not {period_steps}")
        self.group = torch.distributed.new_group(backend="gloo")
        self._stage = stage
        self._num_stages = num_stages
        self._period_steps = period_steps
        self._step = 0
        self._is_over = False
        self._work: torch.distributed.Work | None = None
        self._asked: Offer | None = None
        self._exchanged: Offer | None = None
        self._decided: Offer | None = None
        self._comparison = torch.empty(3, dtype=torch.int64)
        self._rows: list[torch.Tensor] = []

    def on_step_begin(self, newest: Offer | None, *, num_microbatches: int) -> Decision | None:
        """Begin a training step.

        Args:
            newest: newest plan of this rank.
            num_microbatches: of the step; the same on all ranks.

        Returns:
            The decision of all ranks from this step on; None: no new one.
        """
        turn = self._step % self._period_steps
        self._step += 1
        if self._is_over:
            return None
        try:
            if turn == 0:
                self._compare(newest)
            elif turn == 1:
                self._exchange(num_microbatches)
            elif turn == 2 and self._exchanged is not None:
                return self._decide(self._exchanged)
        except RuntimeError as error:
            self._is_over = True
            _logger.warning(
                "orders are no longer changed, and training continues in the current one: %s", error
            )
        return None

    def close(self) -> None:
        """Free the process group; every rank must call it at the same time."""
        if self._work is not None:
            try:
                self._work.wait(timedelta(seconds=_CLOSE_TIMEOUT_S))
            except RuntimeError:
                return  # a rank has ended: freeing the group would wait for it
        torch.distributed.destroy_process_group(self.group)

    def _compare(self, newest: Offer | None) -> None:
        self._asked = newest
        version = 0 if newest is None else newest.plan.version
        is_undecided = newest is not None and newest is not self._decided
        # One minimum gives the least and greatest version, and a flag for an undecided offer.
        self._comparison = torch.tensor([version, -version, -int(is_undecided)])
        self._work = torch.distributed.all_reduce(
            self._comparison,
            op=torch.distributed.ReduceOp.MIN,
            group=self.group,
            async_op=True,
        )

    def _exchange(self, num_microbatches: int) -> None:
        self._wait()
        least, minus_greatest, minus_undecided = self._comparison.tolist()
        is_agreed = least == -minus_greatest and minus_undecided != 0
        # The least version is 0 where a rank has none: then no rank continues.
        if least == 0 or not is_agreed or self._asked is None:
            return
        self._exchanged = self._asked
        row = _encoded(self._exchanged.order, self._stage, num_microbatches)
        self._rows = [torch.empty_like(row) for _ in range(self.group.size())]
        self._work = torch.distributed.all_gather(self._rows, row, group=self.group, async_op=True)

    def _decide(self, offer: Offer) -> Decision:
        self._wait()
        rows, self._rows = [row.tolist() for row in self._rows], []
        self._decided, self._exchanged = offer, None
        try:
            orders = orders_of_stages(rows, num_stages=self._num_stages)
        except OrderError as error:
            return Decision(offer=offer, problem=str(error))
        return Decision(offer=offer, orders=orders)

    def _wait(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.wait()


def orders_of_stages(rows: Sequence[Sequence[int]], *, num_stages: int) -> tuple[StageOrder, ...]:
    """Return the orders that the ranks have sent if a pipeline can run them, equal on all ranks.

    Args:
        rows: of each rank, its stage and its encoded order, zeros where it cannot run it.
        num_stages: of the pipeline.

    Raises:
        OrderError: they cannot be run together.
    """
    unable = [str(rank) for rank, row in enumerate(rows) if not any(row[1:])]
    if unable:
        raise OrderError(f"rank {', '.join(unable)} cannot run it; see the log there")
    by_stage: dict[int, StageOrder] = {}
    for stage, *codes in rows:
        order = _decoded(codes)
        if by_stage.setdefault(stage, order) != order:
            raise OrderError(f"ranks of stage {stage} have different orders of one version")
    orders = tuple(by_stage[stage] for stage in range(num_stages))
    check_orders(orders)
    return orders


def _encoded(order: StageOrder | None, stage: int, num_microbatches: int) -> torch.Tensor:
    """Stage, then microbatch + 1 for each forward and its negative for each backward."""
    row = torch.zeros(1 + 2 * num_microbatches, dtype=torch.int64)
    row[0] = stage
    if order is not None and order.num_microbatches == num_microbatches:
        codes = [unit.microbatch + 1 for unit in order.units]
        signs = [1 if unit.is_forward else -1 for unit in order.units]
        row[1:] = torch.tensor(codes) * torch.tensor(signs)
    return row


def _decoded(codes: Sequence[int]) -> StageOrder:
    return StageOrder(tuple(Unit(code > 0, abs(code) - 1) for code in codes))


# The first step makes the optimizer's states; the second is a step like all others.
_MEASURED_STEPS = 2


@dataclass(frozen=True, kw_only=True)
class RankPlace:
    """Place of a rank, and the size of its step.

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
    """Choice of the order to run; every rank must create it and begin each step with it.

    Until a plan's order is agreed on, 1F1B runs. Its memory is measured in the second step;
    `on_memory` is called with the memory of all stages before the third begins.

    A plan with a cycle of clocks measures a profile or a baseline in an order that runs already:
    its clocks need no agreement, and it changes no order.

    Args:
        place: of this rank.
        agreement: among the ranks; closed here.
        activation_bytes: called after two steps: bytes of a microbatch in flight; 0: unknown, so
            that no further one fits.
        free_bytes: called after two steps: bytes free beside what 1F1B holds.
        on_memory: called with every stage's memory, on every rank.
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
        """Return whether the step that has begun is the one whose memory counts."""
        return self._num_steps == _MEASURED_STEPS

    def choose_plan(self, due: tuple[CompiledPlan, ...]) -> CompiledPlan | None:
        """Return the plan, out of those due, that all ranks run from this step on."""
        newest = due[-1]
        order = self._offered_order(newest)
        # Offered nevertheless: in plans of different orders a stage may have the same one, and the
        # other stages wait for its offer.
        if newest.cycle_mhz is not None and order == self._running[self._place.stage]:
            return newest
        return next((plan for plan in due if plan is self._agreed), None)

    def on_step_begin(self) -> tuple[StageOrder, ...] | None:
        """Begin a training step.

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
                    "plan version %d is not run, the current one continues: %s",
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
        """Close the agreement; every rank must call it at the same time."""
        self._agreement.close()

    def _offered_order(self, newest: CompiledPlan) -> StageOrder | None:
        """Offer the newest plan, and return its order; None: this rank cannot run it (yet)."""
        if self._memory is None:
            return None
        if self._newest is None or self._newest.plan is not newest:
            order = self._order_of(newest, self._memory.num_more)
            self._newest = Offer(plan=newest, order=order)
        return self._newest.order

    def _gather_memory(self) -> None:
        """Gather the stages' memory; after a failure no order but 1F1B has room."""
        place, memory = self._place, self._measured_memory()
        try:
            stages = gather_memory(
                memory,
                stage=place.stage,
                num_stages=place.num_stages,
                group=self._agreement.group,
            )
        except RuntimeError as error:
            _logger.warning("the memory of the ranks is unknown, and 1F1B continues: %s", error)
            return
        self._memory = memory
        self._on_memory(
            tuple(
                registered_memory(stage, num_microbatches=place.num_microbatches)
                for stage in stages
            )
        )

    def _measured_memory(self) -> RankMemory:
        # It must not raise: the other ranks wait for the figures of this one.
        activation_bytes = self._activation_bytes()
        free_bytes = 0
        try:
            free_bytes = self._free_bytes()
        except RuntimeError as error:
            _logger.warning("rank %d: free memory cannot be read: %s", self._place.rank, error)
        return RankMemory(
            activation_bytes=max(1, activation_bytes),
            free_bytes=free_bytes if activation_bytes > 0 else 0,
        )

    def _order_of(self, plan: CompiledPlan, num_more: int) -> StageOrder | None:
        """Return the plan's order if this rank can run it; else log one line."""
        place = self._place
        try:
            # Of any other size it is not looked at, since this is done as a step begins.
            if len(plan.kinds) != 2 * place.num_microbatches:
                raise OrderError(
                    f"it has {len(plan.kinds)} instructions, where a step has"
                    f" {place.num_microbatches} microbatches"
                )
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


def open_negotiation(
    place: RankPlace,
    meter: MicrobatchMeter,
    *,
    free_memory_bytes: int | None,
    on_memory: Callable[[tuple[RankMemory, ...]], None],
) -> OrderNegotiation:
    """Return the negotiation of this rank; every rank must open it at the same time.

    Args:
        place: of this rank.
        meter: of a microbatch in flight.
        free_memory_bytes: bytes free beside what 1F1B holds; None: read from the GPU.
        on_memory: called with every stage's memory, on every rank.
    """
    return OrderNegotiation(
        place,
        agreement=OrderAgreement(stage=place.stage, num_stages=place.num_stages),
        activation_bytes=lambda: meter.activation_bytes,
        free_bytes=lambda: free_cuda_bytes() if free_memory_bytes is None else free_memory_bytes,
        on_memory=on_memory,
    )
