"""Makes a job known to the planner from a background thread, as soon as the planner answers."""

from __future__ import annotations

import logging
import threading

from flyball_client.errors import PlannerError, PlannerRefusedError
from flyball_client.planner_client import PlannerClient
from flyball_client.wire import JobRegistration

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0

logger = logging.getLogger(__name__)


class JobRegistrar:
    """Registers one job: tries again while the planner is away, gives up when refused.

    Registering is repeatable, so a job that the planner already knows is no error. The
    training thread never waits for it.
    """

    def __init__(
        self, planner: PlannerClient, *, job_id: str, registration: JobRegistration
    ) -> None:
        self._planner = planner
        self._job_id = job_id
        self._registration = registration
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._register, name="flyball-job-registrar", daemon=True
        )
        self._thread.start()

    def close(self, *, timeout_s: float = 2.0) -> None:
        """Stop trying; waits at most `timeout_s` for a call in progress."""
        self._closing.set()
        self._thread.join(timeout_s)

    def _register(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._closing.is_set():
            try:
                self._planner.put_job(self._job_id, self._registration)
            except PlannerRefusedError as error:
                logger.warning("the planner refused job %s: %s", self._job_id, error)
                return
            except PlannerError as error:
                if pause_s == _FIRST_PAUSE_S:
                    logger.warning("job %s is not registered yet: %s", self._job_id, error)
                self._closing.wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                return
