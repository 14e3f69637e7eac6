"""Registration of a rank, and of its job by one of its ranks, in the background."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from flyball_client.api.planner_client import PlannerClient
from flyball_client.gpu._base import GpuDevice, GpuError
from flyball_client.helper.job_agent import JobAgent
from flyball_client.helper.link import OpenAgent, open_agent
from flyball_client.session.conditions_watch import conditions_of
from flyball_profiles.stage_profile import EnergyScope
from flyball_wire.command.command import flyball_version
from flyball_wire.messages import JobRegistration, RankRegistration

# torchrun's name of a run that has none.
_UNNAMED = "none"
_RUNS = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PMIX_NAMESPACE")
_RESTART_COUNTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
# What Slurm sets alike for all tasks of a start, unlike torchrun's count, which each agent has.
_OF_SLURM_START = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
_MAX_CHARACTERS = 256
# The same in all containers of a machine, unlike its name.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Name and UUID in the registration of a rank without a GPU.
_NO_GPU = "none"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LaunchedRun:
    """Run of a training, as its launcher names it; None: not known."""

    run: str | None = None
    restart_count: int | None = None


def launch_of(environ: Mapping[str, str]) -> LaunchedRun:
    """Return the run that torchrun, Slurm, PBS or LSF name; unusable values are left out."""
    runs = (environ.get(name, "") for name in _RUNS)
    usable = (run for run in runs if run not in {"", _UNNAMED} and run.isprintable())
    counts = (environ.get(name, "") for name in _RESTART_COUNTS)
    digits = (count for count in counts if count.isascii() and count.isdigit() and len(count) < 10)
    run, count = next(usable, None), next(digits, None)
    return LaunchedRun(
        run=None if run is None else run[:_MAX_CHARACTERS],
        restart_count=None if count is None else int(count),
    )


def start_of(environ: Mapping[str, str]) -> str | None:
    """Return the identity of this start by its launcher's run; None: the launcher names none.

    It is the same for all ranks, and for another start of the same run too, except for Slurm's: a
    training that has a store for its ranks should bring an identity to them that way.
    """
    run = launch_of(environ).run
    if run is None or run != environ.get("SLURM_JOB_ID"):
        return run
    return ".".join(filter(None, map(environ.get, _OF_SLURM_START)))[:_MAX_CHARACTERS]


def named_start(
    environ: Mapping[str, str], start_id: str | Future[str | None] | None
) -> Future[str | None]:
    """Return the start that a rank belongs to: the given one, or else its launcher's run."""
    if isinstance(start_id, Future):
        return start_id
    named = Future[str | None]()
    named.set_result(start_id or start_of(environ))
    return named


def supported_clocks_mhz(
    gpu: GpuDevice | None, give_up: Callable[[Exception], None]
) -> tuple[int, ...]:
    """Return the SM clocks of a GPU in MHz, falling; give up and return none on an error."""
    if gpu is None:
        return ()
    try:
        supported_mhz = gpu.supported_sm_clocks_mhz()
        if not supported_mhz:
            raise GpuError("the GPU lists no SM clock that can be locked")
    except Exception as error:
        give_up(error)
        return ()
    return supported_mhz


def registration_of_rank(
    gpu: GpuDevice | None,
    supported_mhz: tuple[int, ...],
    stage: int,
    layout: tuple[int, int, int],
) -> RankRegistration:
    """Return the registration of the rank of this process, without its start.

    Args:
        gpu: Its GPU; None: it has none that can be used.
        supported_mhz: SM clocks of the GPU in MHz, falling; empty: not known.
        stage: Stage that it runs.
        layout: Its ranks in data, tensor and context parallelism.
    """
    dp_rank, tp_rank, cp_rank = layout
    conditions = conditions_of(gpu)
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
        energy_scope=_energy_scope(gpu),
        conditions=None if conditions is None else conditions.at_rest,
    )


def _energy_scope(gpu: GpuDevice | None) -> EnergyScope | None:
    try:
        return None if gpu is None else gpu.energy_scope()
    except GpuError:
        return None


def _boot_id() -> str | None:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


class JobRegistrar:
    """Keeps a job registered until it is closed, from the rank's helper process.

    It retries while the planner cannot be reached, and while ranks of another start are present.
    Every 15 s it checks that the planner still has the job, and registers it again where the
    planner returned with an empty database. A job whose values are refused is not registered again.
    Where no thread can be started, that is logged, and nothing registered.

    Args:
        planner: Client of the planner; may be used for other calls too.
        job_id: Name of the job.
        registration: Registration without start, host and the launcher's fields, which are read
            from the environment.
        start_id: Identity of this start, as of its ranks' sessions; None: the launcher's run.
        for_microbatches: Function that returns the registration for another number of microbatches,
            or raises ValueError; None: it is the same with that number, unless it names an order.
    """

    def __init__(
        self,
        planner: PlannerClient,
        *,
        job_id: str,
        registration: JobRegistration,
        start_id: str | None = None,
        for_microbatches: Callable[[int], JobRegistration] | None = None,
    ) -> None:
        self._job_id = job_id
        self._start_id = start_id or start_of(os.environ)
        self._registration = self._of_this_start(registration)
        self._for_microbatches = for_microbatches or self._with_microbatches
        self._changing = threading.Lock()
        self._is_closed = False
        self._planner = planner
        self._has_left = threading.Event()
        self.left = self._has_left.set
        self._agent: OpenAgent | None = None
        try:
            self._agent = open_agent(planner, self)
        except RuntimeError as error:  # no thread can be started
            logger.warning("job %s is not registered, training continues: %s", job_id, error)

    def take_microbatches(self, num_microbatches: int) -> None:
        """Register the job for this number of microbatches a step, in the background."""
        if num_microbatches == self._registration.num_microbatches:
            return
        try:
            threading.Thread(
                target=self._change, args=(num_microbatches,), name="flyball-shape", daemon=True
            ).start()
        except RuntimeError as error:  # no thread can be started
            self._warn_unplanned(num_microbatches, error)

    def _change(self, num_microbatches: int) -> None:
        try:
            registration = self._for_microbatches(num_microbatches)
        except ValueError as error:
            self._warn_unplanned(num_microbatches, error)
            return
        with self._changing:
            if self._is_closed or self._agent is None:
                return
            logger.info(
                "job %s is registered for %d microbatches a step, %d before",
                self._job_id,
                num_microbatches,
                self._registration.num_microbatches,
            )
            self._agent.close()
            self._registration = self._of_this_start(registration)
            self._agent = open_agent(self._planner, self)

    def _warn_unplanned(self, num_microbatches: int, error: Exception) -> None:
        logger.warning(
            "job %s: steps of %d microbatches run without a plan: %s",
            self._job_id,
            num_microbatches,
            error,
        )

    def _with_microbatches(self, num_microbatches: int) -> JobRegistration:
        if self._registration.order is not None:
            raise ValueError("its order is registered for another number")
        return replace(self._registration, num_microbatches=num_microbatches)

    def _of_this_start(self, registration: JobRegistration) -> JobRegistration:
        launch = launch_of(os.environ)
        return replace(
            registration,
            start_id=self._start_id,
            run=launch.run,
            restart_count=launch.restart_count,
            host=socket.gethostname(),
        )

    def agent_maker(self) -> partial[JobAgent]:
        """Return what makes the job's agent."""
        return partial(JobAgent, self._job_id, self._registration)

    def helper_ended(self, why: str) -> None:
        """Do nothing: the ranks' sessions log it."""

    def close(self, *, timeout_s: float = 2.0) -> None:
        """End the registrar, and wait at most `timeout_s` for a call in progress."""
        with self._changing:
            self._is_closed = True
        if self._agent is not None:
            self._agent.stop()
            self._has_left.wait(timeout_s)
            self._agent.close()
