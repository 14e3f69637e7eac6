"""Registration of a job by one of its ranks, in the background."""

from __future__ import annotations

import logging
import os
from dataclasses import replace

from flyball_client.api.errors import PlannerError, PlannerRefusedError
from flyball_client.api.planner_client import MAX_WAIT_S, PlannerClient
from flyball_client.session.planner_calls import Backoff, PlannerThread
from flyball_client.session.process_caller import open_caller
from flyball_client.session.rank_registration import launch_of
from flyball_wire.messages import JobRegistration

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_CHECK_PERIOD_S = 15.0
_CONFLICT = 409
# A job with all its ranks, 64,000 of them; read and not decoded.
_MAX_JOB_BYTES = 32 * 2**20

logger = logging.getLogger(__name__)


class JobRegistrar(PlannerThread):
    """Thread that registers a job and keeps it registered until it is closed.

    It retries while the planner cannot be reached, and while ranks of an earlier start are
    registered differently. Every 15 s it checks that the planner still has the job, and registers
    it again where the planner returned with an empty database. A job whose values are refused is
    not registered again. Where no thread can be started, that is logged, and nothing registered.

    Args:
        planner: Client of the planner; may be used for other calls too.
        job_id: Name of the job.
        registration: Registration without the launcher's fields, which are read from the
            environment.
    """

    def __init__(
        self, planner: PlannerClient, *, job_id: str, registration: JobRegistration
    ) -> None:
        super().__init__("flyball-job-registrar", f"job {job_id} is no longer kept registered")
        self._caller = open_caller(planner, max_answer_bytes=_MAX_JOB_BYTES)
        self._job_id = job_id
        launch = launch_of(os.environ)
        self._registration = replace(
            registration, run=launch.run, restart_count=launch.restart_count
        )
        try:
            self.start()
        except RuntimeError as error:  # no thread can be started
            logger.warning("job %s is not registered, training continues: %s", job_id, error)

    def close(self, *, timeout_s: float = 2.0) -> None:
        """Stop the thread, and wait at most `timeout_s` for a call in progress."""
        self.stop(timeout_s)
        self._caller.close()

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
                self._caller.call("put_job", self._job_id, self._registration, wait_s=MAX_WAIT_S)
            except PlannerError as error:
                if isinstance(error, PlannerRefusedError) and error.status != _CONFLICT:
                    logger.warning("the planner refused job %s: %s", self._job_id, error)
                    return False
                if not is_logged:
                    logger.warning("job %s is not registered yet: %s", self._job_id, error)
                is_logged = True
                self._stopping.wait(backoff.next_pause_s())
            else:
                return True
        return False

    def _wait_until_missing(self, was_known: bool) -> None:
        """Return when the planner had the job and no longer has it."""
        while not self._stopping.wait(_CHECK_PERIOD_S):
            try:
                self._caller.call("find_job", self._job_id)
            except PlannerRefusedError as error:
                if error.status == 404 and was_known:
                    is_given = self._registration.profiling == "given"
                    logger.warning(
                        "the planner no longer has job %s, which is registered again; %s",
                        self._job_id,
                        "put its profile again" if is_given else "it is profiled again",
                    )
                    return
            except PlannerError:
                continue  # logged by the ranks' sessions
            else:
                was_known = True
