"""Calls of a rank to its planner, and what its threads share: reachability, pauses, shutdown."""

from __future__ import annotations

import logging
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, Protocol

from flyball_client.api.connection import not_a_planner
from flyball_client.api.errors import PlannerBusyError, PlannerRefusedError
from flyball_client.api.planner_client import PlannerClient
from flyball_client.helper.frames import MAX_COUNT
from flyball_client.session.active_plan import compile_plan
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_client.steps.step_plans import AsksForSteps
from flyball_wire.errors import CodecError, FlyballError
from flyball_wire.measurements import Accepted, MeasurementBatch, StepMeasurement
from flyball_wire.messages import Acknowledgement, PlanVersion, RankRegistration
from flyball_wire.plans.rank_plan import RankPlan

_logger = logging.getLogger(__name__)

# Refusals in a row from which on a missing registration is no longer normal.
_MANY_REFUSALS = 6
_MAX_NAME_CHARS = 256
# Longest wait in s of a rank that leaves for the end of its registration.
_REGISTERING_S = 2.0


class PlannerThread(ABC):
    """Daemon thread that calls the planner until it is stopped; subclasses implement `_run`.

    Args:
        name: Name of the thread.
        consequence: Log line for an unexpected error, which ends the thread.
        at_end: Called on the thread as it ends.
    """

    def __init__(
        self, name: str, consequence: str, *, at_end: Callable[[], None] = lambda: None
    ) -> None:
        self._consequence = consequence
        self._at_end = at_end
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run_guarded, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; may be called once."""
        self._thread.start()

    def stop(self, timeout_s: float = 0.0) -> None:
        """Stop the thread, and wait at most `timeout_s` for a call in progress."""
        self._stopping.set()
        if timeout_s and self._thread.ident is not None:  # otherwise it could not be started
            self._thread.join(timeout_s)

    def _run_guarded(self) -> None:
        try:
            self._run()
        except Exception:
            # The planner's connections may be closed before the thread is stopped.
            if not self._stopping.is_set():
                _logger.exception(self._consequence)
        finally:
            self._at_end()

    @abstractmethod
    def _run(self) -> None:
        """Make calls until the thread is stopped."""


class KnownPlan(NamedTuple):
    """A plan that a rank has received.

    Attributes:
        version: Its version; 0: there is none.
        plan_id: Its identity beside that; None: not given.
    """

    version: int
    plan_id: str | None


NO_PLAN = KnownPlan(0, None)


class UnusablePlanError(CodecError):
    """The rank cannot run this plan."""

    def __init__(self, message: str, plan: KnownPlan) -> None:
        super().__init__(message)
        self.plan = plan


class Owner(Protocol):
    """Rank or registrar that has an agent, as that sees it."""

    def left(self) -> None:
        """Report that the agent has done all that it had to do before its end."""
        ...


class Rank(Owner, AsksForSteps, Protocol):
    """Rank as its agent sees it; any thread of the agent may call."""

    def current_step(self) -> int:
        """Return the current training step."""
        ...

    def take_steps(self) -> tuple[StepMeasurement, ...]:
        """Return the oldest measured steps that are not posted."""
        ...

    def posted(self, num_dropped: int, /) -> None:
        """Report that the steps taken last are posted, or will never be: so many of them."""
        ...

    def registered(self, start_id: str) -> None:
        """Report the start that the rank is registered in."""
        ...

    def activate(self, plan: CompiledPlan, first_step: int) -> None:
        """Hand over a plan with the first step on which all ranks run it."""
        ...

    def set_lost(self, is_lost: bool) -> None:
        """Report that the planner is lost, or back."""
        ...


class RankClient:
    """Calls of one rank, which name the start of the job that it is registered in.

    Args:
        planner: Client of the planner; not closed here.
        job_id: Name of the job.
        rank: Rank within the job.
        registration: Registration of the rank.
        start_id: Start that it is registered in; None: it is not registered.
        received: Called with each plan that the rank can run.
    """

    def __init__(
        self,
        planner: PlannerClient,
        job_id: str,
        rank: int,
        registration: RankRegistration,
        *,
        start_id: str | None = None,
        received: Callable[[RankPlan], None] = lambda plan: None,
    ) -> None:
        self.name = f"job {job_id} rank {rank}"
        self.rank = rank
        self.is_registered = threading.Event()
        if start_id is not None:
            self.is_registered.set()
        self._planner = planner
        self._job_id = job_id
        self._start_id = start_id
        self._registering = threading.Lock()
        self._registration = registration
        self._received = received

    def register(self) -> str:
        """Register the rank, and return the start of the job that it is registered in."""
        with self._registering:
            registered = self._planner.put_rank(self._job_id, self.rank, self._registration)
            self._check_name("start_id", registered.start_id)
            self._start_id = registered.start_id
            self.is_registered.set()
        return registered.start_id

    def is_registered_at_last(self) -> bool:
        """Return whether the rank is registered, after a registration that is in progress."""
        if self._registering.acquire(timeout=_REGISTERING_S):
            self._registering.release()
        return self.is_registered.is_set()

    def newest_plan(self, known: KnownPlan, wait_s: float) -> CompiledPlan | None:
        """Return the newest plan if it is not the known one; None: not within `wait_s`.

        Raises:
            UnusablePlanError: There is one that this rank cannot run.
        """
        plan = self._planner.get_rank_plan(
            self._job_id,
            self.rank,
            after_version=known.version,
            plan_id=known.plan_id,
            start_id=self._start_id,
            wait_s=wait_s,
        )
        if plan is None:
            return None
        self._check_count("version", plan.version)
        self._check_name("plan_id", plan.plan_id or "")
        own = self._registration
        try:
            compiled = compile_plan(plan, stage=own.stage, supported_mhz=own.sm_clocks_mhz or ())
        except CodecError as error:
            raise UnusablePlanError(str(error), KnownPlan(plan.version, plan.plan_id)) from None
        self._received(plan)
        return compiled

    def acknowledge(self, version: int, current_step: int, wait_s: float) -> PlanVersion:
        """Acknowledge a plan version, and wait up to `wait_s` for its first step."""
        acknowledgement = Acknowledgement(
            version=version, current_step=current_step, start_id=self._start_id
        )
        activation = self._planner.acknowledge(
            self._job_id, self.rank, acknowledgement, wait_s=wait_s
        )
        self._check_count("version", activation.version)
        self._check_count("first_step", activation.first_step or 0)
        return activation

    def post(self, steps: tuple[StepMeasurement, ...]) -> Accepted:
        """Post measured steps."""
        batch = MeasurementBatch(steps=steps, start_id=self._start_id)
        return self._planner.post_measurements(self._job_id, self.rank, batch)

    def leave(self) -> None:
        """Report the end of the rank's training; a failure is only logged."""
        try:
            self._planner.leave(self._job_id, self.rank, start_id=self._start_id)
        except FlyballError as error:
            _logger.debug("%s: its end was not reported: %s", self.name, error)

    def _check_count(self, name: str, value: int) -> None:
        if not 0 <= value <= MAX_COUNT:
            raise not_a_planner(self._planner.base_url, f"its {name} is not from 0 to {MAX_COUNT}")

    def _check_name(self, name: str, value: str) -> None:
        if len(value) > _MAX_NAME_CHARS:
            raise not_a_planner(
                self._planner.base_url, f"its {name} has over {_MAX_NAME_CHARS} characters"
            )


class PlannerReachability:
    """Reachability of the planner, shared by a rank's threads; only changes are logged.

    A planner that cannot be reached is lost for all threads. Refusals are stored by what was
    called, since one call may be refused while another succeeds.

    Args:
        rank_name: Job and rank, for the log.
        is_lost: True: it could not be reached before.
        was_known: True: it has answered before.
        report: Called with True when the planner is lost, with False when it is back.
    """

    def __init__(
        self,
        rank_name: str,
        *,
        is_lost: bool = False,
        was_known: bool = False,
        report: Callable[[bool], None] = lambda is_lost: None,
    ) -> None:
        self._rank_name = rank_name
        self._report = report
        self._lock = threading.Lock()
        self._is_lost = is_lost
        # Status of the last refusals, and their number in a row.
        self._refusals: dict[str, tuple[int, int]] = {}
        self._was_known = was_known
        self._has_warned = is_lost

    @property
    def is_lost(self) -> bool:
        """Return whether the last call could not reach the planner."""
        return self._is_lost

    def lost(self, what: str, error: FlyballError) -> None:
        """Record a failed call for `what` (`plans`, `measurements`)."""
        with self._lock:
            if isinstance(error, PlannerBusyError):
                _logger.debug("%s: %s", self._rank_name, error)
            elif isinstance(error, PlannerRefusedError):
                self._refused(what, error)
            elif not self._is_lost:
                self._set_lost(True)
                self._has_warned = True
                _logger.warning(
                    "%s: planner lost, training continues and calls are retried: %s",
                    self._rank_name,
                    error,
                )

    def back(self, what: str) -> None:
        """Record a successful call for `what`."""
        with self._lock:
            is_news = self._is_lost or what in self._refusals
            self._set_lost(False)
            self._refusals.pop(what, None)
            self._was_known = True
            if is_news:
                # As loud as what it answers.
                level = logging.WARNING if self._has_warned else logging.INFO
                _logger.log(level, "%s: planner back", self._rank_name)
                self._has_warned = False

    def _set_lost(self, is_lost: bool) -> None:
        if is_lost != self._is_lost:
            self._is_lost = is_lost
            self._report(is_lost)

    def _refused(self, what: str, error: PlannerRefusedError) -> None:
        status, count = self._refusals.get(what, (0, 0))
        count = 1 if self._is_lost or status != error.status else count + 1
        self._set_lost(False)
        self._refusals[what] = error.status, count
        is_awaited = error.status in {404, 409} and not self._was_known
        if count not in ({1, _MANY_REFUSALS} if is_awaited else {1}):
            return
        if is_awaited and count == 1:
            # Normal at first, until rank 0 has registered the job for this start.
            _logger.info("%s: waiting for the job's registration: %s", self._rank_name, error)
        else:
            self._has_warned = True
            _logger.warning(
                "%s: the planner refuses calls, training continues and calls are retried: %s",
                self._rank_name,
                error,
            )


class Backoff:
    """Pauses that double up to a limit, with jitter so that ranks do not return together."""

    def __init__(self, *, first_s: float, longest_s: float) -> None:
        if not 0 < first_s <= longest_s:
            raise ValueError(
                f"backoff must be 0 < first_s <= longest_s, not {first_s}, {longest_s}"
            )
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s

    def next_pause_s(self) -> float:
        """Return the next pause in s, half to all of the doubled time."""
        pause_s = self._next_s
        self._next_s = min(2 * pause_s, self._longest_s)
        return pause_s * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start with the first pause again."""
        self._next_s = self._first_s
