"""Training steps as one instruction each, where nothing is hooked inside."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

from flyball_client.session.active_plan import PendingPlans
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_client.session.rank_session import RankSession

_logger = logging.getLogger(__name__)

STEP = "step"


class WholeSteps:
    """Hooks around the training steps of one rank.

    Args:
        session: session of the rank.
        synchronize: waits until the device has finished what was launched on the current stream.
        inside: returns a context for the inside of each step.
    """

    def __init__(
        self,
        session: RankSession,
        *,
        synchronize: Callable[[], None],
        inside: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._session = session
        self._synchronize = synchronize
        self._inside = inside
        self._is_in_step = False

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run the block as one training step; within another step it has no effect."""
        if self._is_in_step:
            yield
            return
        self._synchronize()
        self._session.on_step_begin()
        self._session.on_instruction_begin(STEP, microbatch=0)
        self._is_in_step = True
        try:
            with self._inside():
                yield
                self._synchronize()
        except BaseException:
            self._session.on_step_failed()
            raise
        finally:
            self._is_in_step = False
        self._session.on_instruction_end(STEP, microbatch=0)
        self._session.on_step_end()


class WholeStepPlans(PendingPlans):
    """Received plans of a pipeline whose ranks are hooked at their steps alone.

    Of a plan with several clocks in a step, as of another policy than `constant`, a step runs at
    the highest clock: never slower than planned.
    """

    def __init__(self, rank_name: str) -> None:
        super().__init__()
        self._rank_name = rank_name

    def put(self, plan: CompiledPlan, first_step: int) -> None:
        """Add a plan, as one instruction a step."""
        if not plan.kinds:
            super().put(plan, first_step)
            return
        rows = (plan.sm_clocks_mhz,) if plan.cycle_mhz is None else plan.cycle_mhz
        if any(len(set(row)) > 1 for row in rows):
            _logger.warning(
                "%s: plan version %d changes clocks within a step, where nothing is hooked: steps"
                " run at the highest of its clocks; set policy constant",
                self._rank_name,
                plan.version,
            )
        cycle_mhz = None if plan.cycle_mhz is None else tuple((max(row),) for row in plan.cycle_mhz)
        whole = replace(
            plan,
            kinds=(STEP,),
            microbatches=(0,),
            chunks=(0,),
            sm_clocks_mhz=(max(plan.sm_clocks_mhz),),
            cycle_mhz=cycle_mhz,
        )
        super().put(whole, first_step)


class NoInstructions:
    """Observer of instructions that does nothing: a GPU's profile has none of whole steps."""

    def on_instruction_begin(self, kind: str, chunk: int = 0) -> None:
        """Do nothing."""

    def on_instruction_end(self, kind: str, chunk: int = 0) -> None:
        """Do nothing."""
