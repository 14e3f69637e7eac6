"""Calls of a rank to its planner, and what its threads share: reachability, pauses, shutdown."""

from __future__ import annotations

import logging
import random
import threading
from abc import ABC, abstractmethod
from typing import cast

from flyball_client.api.errors import PlannerBusyError, PlannerRefusedError
from flyball_client.api.planner_client import PlannerClient
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_client.session.planner_procedures import NO_PLAN, KnownPlan
from flyball_client.session.process_caller import open_caller
from flyball_wire.errors import FlyballError
from flyball_wire.messages import (
    Accepted,
    Acknowledgement,
    MeasurementBatch,
    PlanVersion,
    RankRegistration,
    StepMeasurement,
)

_logger = logging.getLogger(__name__)

# Refusals in a row from which on a missing registration is no longer normal.
_MANY_REFUSALS = 6


class PlannerThread(ABC):
    """Daemon thread that calls the planner until it is stopped; subclasses implement `_run`.

    Args:
        name: Name of the thread.
        consequence: Log line for an unexpected error, which ends the thread.
    """

    def __init__(self, name: str, consequence: str) -> None:
        self._consequence = consequence
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run_guarded, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; may be called once."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Stop the thread, and wait at most `timeout_s` for a call in progress."""
        self._stopping.set()
        if self._thread.ident is not None:  # otherwise it could not be started
            self._thread.join(timeout_s)

    @property
    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return self._thread.is_alive()

    def _run_guarded(self) -> None:
        try:
            self._run()
        except Exception:
            # The planner's connections may be closed before the thread is stopped.
            if not self._stopping.is_set():
                _logger.exception(self._consequence)

    @abstractmethod
    def _run(self) -> None:
        """Make calls until the thread is stopped."""


class RankCalls:
    """Calls of one rank, which carry the run of the job that it is registered in.

    Args:
        planner: Client of the planner; not closed here. Unless its transport replaces the network,
            the calls are made in another process, see `process_caller`.
        job_id: Name of the job.
        rank: Rank within the job.

    Attributes:
        name: Job and rank, for the log.
        rank: Rank within the job.
        is_registered: Event that is set once the planner has registered the rank.
    """

    def __init__(self, planner: PlannerClient, job_id: str, rank: int) -> None:
        self.name = f"job {job_id} rank {rank}"
        self.rank = rank
        self.is_registered = threading.Event()
        self._caller = open_caller(planner)
        self._job_id = job_id
        self._run_id: str | None = None
        self._registration: RankRegistration | None = None

    def register(self, registration: RankRegistration) -> None:
        """Register the rank."""
        answer = self._caller.call("put_rank", self._job_id, self.rank, registration)
        self._run_id = cast("str", answer)
        self._registration = registration
        self.is_registered.set()

    def newest_plan(self, known: KnownPlan | None, wait_s: float) -> CompiledPlan | None:
        """Return the newest plan if it is not the known one; None: not within `wait_s`.

        Raises:
            UnusablePlanError: There is one that this rank cannot run.
        """
        arguments = (self._job_id, self.rank, known or NO_PLAN, wait_s, self._registration)
        answer = self._caller.call("newest_plan", *arguments, wait_s=wait_s)
        return cast("CompiledPlan | None", answer)

    def acknowledge(self, version: int, current_step: int, wait_s: float) -> PlanVersion:
        """Acknowledge a plan version, and wait up to `wait_s` for its first step."""
        acknowledgement = Acknowledgement(
            version=version, current_step=current_step, run_id=self._run_id
        )
        arguments = (self._job_id, self.rank, acknowledgement, wait_s)
        answer = self._caller.call("acknowledge", *arguments, wait_s=wait_s)
        return cast("PlanVersion", answer)

    def post(self, steps: tuple[StepMeasurement, ...]) -> Accepted:
        """Post measured steps."""
        batch = MeasurementBatch(steps=steps, run_id=self._run_id)
        answer = self._caller.call("post", self._job_id, self.rank, batch)
        return cast("Accepted", answer)

    def leave(self) -> None:
        """Report the end of the rank's training; a failure is only logged."""
        try:
            self._caller.call("leave", self._job_id, self.rank, self._run_id)
        except FlyballError as error:
            _logger.debug("%s: its end was not reported: %s", self.name, error)

    def close(self) -> None:
        """End calls in progress; those that come fail."""
        self._caller.close()


class PlannerReachability:
    """Reachability of the planner, shared by a rank's threads; only changes are logged.

    A planner that cannot be reached is lost for all threads. Refusals are stored by what was
    called, since one call may be refused while another succeeds.

    Args:
        rank_name: Job and rank, for the log.
    """

    def __init__(self, rank_name: str) -> None:
        self._rank_name = rank_name
        self._lock = threading.Lock()
        self._is_lost = False
        # Status of the last refusals, and their number in a row.
        self._refusals: dict[str, tuple[int, int]] = {}
        self._was_known = False

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
                self._is_lost = True
                _logger.warning(
                    "%s: planner lost, training continues and calls are retried: %s",
                    self._rank_name,
                    error,
                )

    def back(self, what: str) -> None:
        """Record a successful call for `what`."""
        with self._lock:
            is_news = self._is_lost or what in self._refusals
            self._is_lost = False
            self._refusals.pop(what, None)
            self._was_known = True
            if is_news:
                _logger.info("%s: planner back", self._rank_name)

    def _refused(self, what: str, error: PlannerRefusedError) -> None:
        status, count = self._refusals.get(what, (0, 0))
        count = 1 if self._is_lost or status != error.status else count + 1
        self._is_lost = False
        self._refusals[what] = error.status, count
        is_awaited = error.status in {404, 409} and not self._was_known
        if count not in ({1, _MANY_REFUSALS} if is_awaited else {1}):
            return
        if is_awaited and count == 1:
            # Normal at the start, until another rank has registered the job or its new run.
            _logger.info("%s: waiting for the job's registration: %s", self._rank_name, error)
        else:
            _logger.warning(
                "%s: the planner refuses calls, training continues and calls are retried: %s",
                self._rank_name,
                error,
            )


class Backoff:
    """Pauses that double up to a limit, with jitter so that ranks do not return together.

    Args:
        first_s: First pause in s, above 0.
        longest_s: Longest pause in s.
    """

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
