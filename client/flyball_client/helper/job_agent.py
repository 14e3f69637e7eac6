"""A job's agent, which keeps it registered."""

from __future__ import annotations

import logging

from flyball_client.api.errors import PlannerError, PlannerRefusedError
from flyball_client.api.planner_client import MAX_WAIT_S, PlannerClient
from flyball_client.helper.planner_calls import Backoff, Owner, PlannerThread
from flyball_wire import routes
from flyball_wire.messages import JobRegistration

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_CHECK_PERIOD_S = 15.0
_CONFLICT = 409

_logger = logging.getLogger(__name__)


class JobAgent(PlannerThread):
    """Thread that registers a job and keeps it registered; see JobRegistrar."""

    def __init__(
        self,
        job_id: str,
        registration: JobRegistration,
        planner: PlannerClient,
        registrar: Owner,
    ) -> None:
        super().__init__(
            "flyball-job-registrar",
            f"job {job_id} is no longer kept registered",
            at_end=registrar.left,
        )
        self._planner = planner
        self._job_id = job_id
        self._registration = registration

    def ask(self, question: object) -> None:
        """Do nothing: a job has no steps."""

    def close(self, timeout_s: float = 0.0) -> None:
        """Stop the thread, and wait at most `timeout_s` for a call in progress."""
        self.stop(timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            is_known = self._register()
            self._wait_until_missing(is_known)

    def _register(self) -> bool:
        """Return whether the planner has accepted the job; False: it refused the values."""
        backoff = Backoff(first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S)
        is_logged = False
        while not self._stopping.is_set():
            try:
                self._call("PUT", body=self._registration, wait_s=MAX_WAIT_S)
            except PlannerError as error:
                if isinstance(error, PlannerRefusedError) and error.status != _CONFLICT:
                    _logger.warning("the planner refused job %s: %s", self._job_id, error)
                    return False
                if not is_logged:
                    _logger.warning("job %s is not registered yet: %s", self._job_id, error)
                is_logged = True
                self._stopping.wait(backoff.next_pause_s())
            else:
                return True
        return False

    def _wait_until_missing(self, was_known: bool) -> None:
        """Return when the planner had the job and no longer has it."""
        while not self._stopping.wait(_CHECK_PERIOD_S):
            try:
                self._call("GET")
            except PlannerRefusedError as error:
                if error.status == 404 and was_known:
                    is_given = self._registration.profiling == "given"
                    _logger.warning(
                        "the planner no longer has job %s, which is registered again; %s",
                        self._job_id,
                        "put its profile again" if is_given else "it is profiled again",
                    )
                    return
            except PlannerError:
                continue  # logged by the ranks' sessions
            else:
                was_known = True

    def _call(self, method: str, *, body: object = None, wait_s: float | None = None) -> None:
        """Call for the job; what is answered, with all its ranks, is not read."""
        self._planner.send(
            method,
            routes.JOB,
            job_id=self._job_id,
            body=body,
            wait_s=wait_s,
            is_body_read=False,
        )
