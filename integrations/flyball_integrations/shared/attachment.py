"""Resources that an integration opens when it is attached to a framework's object.

Independent of any framework.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.version

from flyball_client.gpu._base import GpuDevice, GpuError
from flyball_client.gpu.registry import uuid_of_framework
from flyball_client.session.rank_session import RankSession
from flyball_client.session.rank_settings import RankSettings
from flyball_client.session.registration import JobRegistrar
from flyball_client.steps.agreement import AgreementError, Coupling
from flyball_integrations.shared.attach_options import (
    AttachOptions,
    announces_work,
    registered_fields,
)
from flyball_integrations.shared.device_hooks import DeviceHooks
from flyball_integrations.shared.start_exchange import exchange_start
from flyball_integrations.shared.step_agreement import agree_on_steps, decline_to_agree
from flyball_integrations.shared.whole_steps import NoInstructions, WholeStepPlans
from flyball_profiles.gpu_windows import GpuTableError, gpu_folder, load_gpu_window
from flyball_wire.messages import JobRegistration

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RankLayout:
    """Place of a rank: its number in the job, its stage, and its place within the stage."""

    rank: int
    stage: int
    dp_rank: int = 0
    tp_rank: int = 0
    cp_rank: int = 0


class RankEnds:
    """Planner client and GPU of a rank, and the session between them.

    Args:
        opened: stack that closes all of it, except a GPU that was given.
        options: of `attach`.
        device: of the framework, whose GPU it is.
        job_id: the job's name at the planner.
        layout: of this rank.
        initial_step: number of the first step, where training resumes.
        num_chunks: of the model, on this rank.
        has_whole_steps: True: each step of the pipeline is hooked as one instruction.

    Attributes:
        opened: stack for further resources.

    Raises:
        ValueError: the planner's address or token cannot be one, or an option or a variable of
            the environment cannot be used.
        GpuError, OSError: with `strict`, this rank's GPU cannot be found, or the machine lacks
            something else.
    """

    def __init__(
        self,
        opened: ExitStack,
        options: AttachOptions,
        *,
        device: torch.device,
        job_id: str,
        layout: RankLayout,
        initial_step: int,
        num_chunks: int = 1,
        has_whole_steps: bool = False,
    ) -> None:
        self.opened = opened
        self._device = device
        self._has_whole_steps = has_whole_steps
        self._initial_step = initial_step
        self._fields = registered_fields(options)
        self._observer = options.get("observer")
        #: Whether the work of steps is announced.
        self.announces_work = announces_work(options)
        self._job_id = job_id
        self._layout = layout
        self._settings = RankSettings.read(
            os.environ,
            planner_url=options.get("planner_url"),
            token=options.get("token"),
            without_planner=options.get("without_planner"),
            lease_s=options.get("lease_s"),
            strict=options.get("strict"),
            timing=options.get("timing"),
        )
        self._planner = self._settings.open_planner()
        self._start_id: Future[str | None] | None = None
        if self._planner is not None:
            opened.callback(self._planner.close)
            exchange = exchange_start(job_id, layout.rank)
            opened.callback(exchange.close)
            self._start_id = exchange.start_id
        gpu = options.get("gpu")
        if gpu is None:
            gpu = self._settings.open_gpu(
                os.environ,
                uuid=_uuid_of(device),
                stage=layout.stage,
                dp_rank=layout.dp_rank,
                num_chunks=num_chunks,
                blocking_power_w=_blocking_power_w(self._fields, layout.stage),
            )
            if gpu is not None:
                opened.callback(_close, gpu)
        self._gpu = gpu

    @property
    def registers_job(self) -> bool:
        """True on rank 0 where there is a planner."""
        return self._planner is not None and self._layout.rank == 0

    def register(
        self,
        pipeline: JobRegistration,
        session: RankSession,
        for_microbatches: Callable[[int], JobRegistration] | None = None,
    ) -> None:
        """Register the job with these options, in the background; only rank 0 does.

        Args:
            pipeline: registration without the options.
            session: of this rank; where its steps have another number of microbatches, the job is
                registered for that.
            for_microbatches: returns the registration for another number, without the options, or
                raises ValueError; None: the number is always the same.
        """
        if self._planner is None or self._start_id is None or not self.registers_job:
            return
        is_emulated = self._gpu is not None and self._gpu.is_emulated

        def with_options(pipeline: JobRegistration) -> JobRegistration:
            return replace(pipeline, emulated=is_emulated, **self._fields)

        registrar = JobRegistrar(
            self._planner,
            job_id=self._job_id,
            registration=with_options(pipeline),
            start_id=self._start_id.result(),
            for_microbatches=None
            if for_microbatches is None
            else lambda number: with_options(for_microbatches(number)),
        )
        self.opened.callback(registrar.close)
        if for_microbatches is not None:
            session.watch_shape(registrar.take_microbatches)

    def device_hooks(self) -> DeviceHooks:
        """Return what calls the hooks, of a session that is opened next."""
        # The emulated time of an emulated GPU is that of its hooks.
        is_emulated = self._gpu is not None and self._gpu.is_emulated
        waits = self._has_whole_steps or is_emulated
        return DeviceHooks(self._device, "synchronize" if waits else self._settings.timing)

    def open_session(self, *, hooks: DeviceHooks | None = None) -> RankSession:
        """Return the rank's session, not started yet.

        Args:
            hooks: what calls the session's hooks; None: the caller, after a wait for the device.
        """
        plans = None
        if self._has_whole_steps:
            plans = WholeStepPlans(f"job {self._job_id} rank {self._layout.rank}")
        session = RankSession(
            gpu=self._gpu,
            job_id=self._job_id,
            planner=self._planner,
            observer=NoInstructions() if self._has_whole_steps else self._observer,
            without_planner=self._settings.without_planner,
            lease_s=self._settings.lease_s,
            initial_step=self._initial_step,
            plans=plans,
            clock=None if hooks is None else hooks.clock_s,
            start_id=self._start_id,
            strict=self._settings.strict,
            **asdict(self._layout),
        )
        self.opened.callback(session.close)
        if hooks is not None:
            self.opened.callback(hooks.close)
        return session

    def start(self, session: RankSession, *, coupling: Coupling) -> None:
        """Start the session.

        With announced work every rank must call it, and waits for the others. Where they cannot
        agree on steps, they train without clocks of their own for each.

        Args:
            session: of this rank.
            coupling: where data-parallel ranks wait for each other.

        Raises:
            GpuError, OSError: as `RankSession.start`.
        """
        if self.announces_work:
            layout, agreement = self._layout, None
            try:
                agreement = agree_on_steps(
                    (layout.dp_rank, layout.stage, layout.tp_rank, layout.cp_rank)
                )
            except AgreementError as error:
                _logger.warning("steps get no clocks of their own: %s", error)
                coupling = "unknown"
            session.plan_steps(agreement, coupling=coupling)
        else:
            decline_to_agree()
        session.start()


def _uuid_of(device: torch.device) -> str | None:
    """Return the UUID of a device's GPU; None: it has none, or torch (below 2.4) hides it."""
    if device.type != "cuda":
        return None
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    backend = "hip" if torch.version.hip else "cuda"
    return None if uuid is None else uuid_of_framework(uuid, backend)


def _blocking_power_w(fields: Mapping[str, Any], stage: int) -> float | None:
    """Return the blocking power in W of a stage in the registered fields; None: not given."""
    if (powers_w := fields.get("blocking_power_w")) is not None:
        return float(powers_w[stage] if stage < len(powers_w) else powers_w[0])
    if "gpu" not in fields:
        return None
    with suppress(GpuTableError):  # the planner says that there is no such GPU
        return load_gpu_window(fields["gpu"], folder=gpu_folder(os.environ)).blocking_power_w
    return None


def _close(gpu: GpuDevice) -> None:
    """Free the GPU at the end of training; one that was lost meanwhile is only logged."""
    try:
        gpu.close()
    except GpuError as error:
        _logger.debug("%s could not be closed: %s", gpu.uuid, error)


class Overrides:
    """Attributes set on instances of objects, and restored exactly."""

    def __init__(self) -> None:
        self._replaced: list[tuple[object, str, bool, object]] = []

    def set(self, target: object, name: str, value: object) -> None:
        """Set `target.name` to this value until `remove`."""
        attributes = vars(target)
        self._replaced.append((target, name, name in attributes, attributes.get(name)))
        attributes[name] = value

    def remove(self) -> None:
        """Restore all attributes, the last first; idempotent."""
        while self._replaced:
            target, name, was_set, value = self._replaced.pop()
            if was_set:
                vars(target)[name] = value
            else:
                vars(target).pop(name, None)
