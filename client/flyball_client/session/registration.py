"""Registration of a rank, and of its job by one of its ranks, in the background."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from flyball_client.api.errors import PlannerError, PlannerRefusedError
from flyball_client.api.planner_client import MAX_WAIT_S, PlannerClient
from flyball_client.gpu._base import GpuDevice
from flyball_client.session.planner_calls import Backoff, PlannerThread
from flyball_client.session.process_caller import open_caller
from flyball_wire.command import flyball_version
from flyball_wire.messages import JobRegistration, RankRegistration

# torchrun's name of a run that has none.
_UNNAMED = "none"
_RUNS = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
_RESTART_COUNTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
_MAX_CHARACTERS = 256
# The same in all containers of a machine, unlike its name.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Name and UUID in the registration of a rank without a GPU.
_NO_GPU = "none"
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_CHECK_PERIOD_S = 15.0
_CONFLICT = 409
# A job with all its ranks, 64,000 of them; read and not decoded.
_MAX_JOB_BYTES = 32 * 2**20

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Run of a job, as its launcher names it; None: not known.

    Attributes:
        run: Name of the run.
        restart_count: Number of automatic restarts of that run.
    """

    run: str | None = None
    restart_count: int | None = None


def launch_of(environ: Mapping[str, str]) -> Launch:
    """Return the run that torchrun, Slurm, PBS or LSF name; unusable values are left out."""
    runs = (environ.get(name, "") for name in _RUNS)
    usable = (run for run in runs if run not in {"", _UNNAMED} and run.isprintable())
    counts = (environ.get(name, "") for name in _RESTART_COUNTS)
    digits = (count for count in counts if count.isascii() and count.isdigit() and len(count) < 10)
    run, count = next(usable, None), next(digits, None)
    return Launch(
        run=None if run is None else run[:_MAX_CHARACTERS],
        restart_count=None if count is None else int(count),
    )


def registration_of_rank(
    gpu: GpuDevice | None,
    supported_mhz: tuple[int, ...],
    stage: int,
    layout: tuple[int, int, int],
) -> RankRegistration:
    """Return the registration of the rank of this process.

    Args:
        gpu: Its GPU; None: it has none that can be used.
        supported_mhz: SM clocks of the GPU in MHz, falling; empty: not known.
        stage: Stage that it runs.
        layout: Its ranks in data, tensor and context parallelism.
    """
    dp_rank, tp_rank, cp_rank = layout
    launch = launch_of(os.environ)
    return RankRegistration(
        stage=stage,
        host=socket.gethostname(),
        gpu_name=_NO_GPU if gpu is None else gpu.name,
        gpu_uuid=_NO_GPU if gpu is None else gpu.uuid,
        emulated=gpu is not None and gpu.is_emulated,
        client_version=flyball_version(),
        dp_rank=dp_rank,
        tp_rank=tp_rank,
        cp_rank=cp_rank,
        node=_boot_id(),
        sm_clocks_mhz=supported_mhz or None,
        run=launch.run,
        restart_count=launch.restart_count,
    )


def _boot_id() -> str | None:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


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
