"""Registration of a job by one of its ranks, in the background."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import replace

from flyball_client.api.errors import PlannerError, PlannerRefusedError
from flyball_client.api.planner_client import PlannerClient
from flyball_client.session.rank_settings import launch_of
from flyball_wire.messages import JobRegistration

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_CHECK_PERIOD_S = 15.0
_CONFLICT = 409

logger = logging.getLogger(__name__)


class JobRegistrar:
    """Thread that registers a job and keeps it registered until it is closed.

    It tries again while the planner cannot be reached, and while ranks of an earlier start are
    registered differently. Every 15 s it checks that the planner still has the job, and registers
    it again where the planner came back with an empty database. A job that is refused for its
    values is not registered again.

    Args:
        planner: client that it calls; it may be used for other calls too.
        job_id: the job's name at the planner.
        registration: all but the launcher's fields, which it reads from the environment.
    """

    def __init__(
        self, planner: PlannerClient, *, job_id: str, registration: JobRegistration
    ) -> None:
        self._planner = planner
        self._job_id = job_id
        launch = launch_of(os.environ)
        self._registration = replace(
            registration, run=launch.run, restart_count=launch.restart_count
        )
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flyball-job-registrar", daemon=True)
        self._thread.start()

    def close(self, *, timeout_s: float = 2.0) -> None:
        """Stop trying; waits at most `timeout_s` for a call in progress."""
        self._closing.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                is_known = self._register()
                self._until_forgotten(is_known)
        except Exception:
            # The planner's connections may be closed under us at the end.
            if not self._closing.is_set():
                logger.exception("job %s is no longer kept registered", self._job_id)

    def _register(self) -> bool:
        """Return whether the planner has taken the job; False where it refused it."""
        pause_s = _FIRST_PAUSE_S
        while not self._closing.is_set():
            try:
                self._planner.put_job(self._job_id, self._registration)
            except PlannerError as error:
                if isinstance(error, PlannerRefusedError) and error.status != _CONFLICT:
                    logger.warning("the planner refused job %s: %s", self._job_id, error)
                    return False
                if pause_s == _FIRST_PAUSE_S:
                    logger.warning("job %s is not registered yet: %s", self._job_id, error)
                self._closing.wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                return True
        return False

    def _until_forgotten(self, was_known: bool) -> None:
        """Return when the planner knew the job and does not any more."""
        while not self._closing.wait(_CHECK_PERIOD_S):
            try:
                self._planner.get_job(self._job_id)
            except PlannerRefusedError as error:
                if error.status == 404 and was_known:
                    is_given = self._registration.profiling == "given"
                    logger.warning(
                        "the planner has forgotten job %s, which is registered again; %s",
                        self._job_id,
                        "put its profile again" if is_given else "it is profiled again",
                    )
                    return
            except PlannerError:
                continue  # the ranks' sessions log that the planner is lost
            else:
                was_known = True
