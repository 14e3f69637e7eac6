"""What any integration opens when it is attached to a framework's object, and closes again.

Nothing here knows a framework.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from flyball_client.gpu._base import GpuDevice
from flyball_client.gpu.open_gpu import open_local_gpu
from flyball_client.planner_client import PlannerClient
from flyball_client.rank_settings import RankSettings, WithoutPlanner
from flyball_client.wire import JobRegistration
from flyball_integrations.job_registrar import JobRegistrar
from flyball_integrations.rank_memory import RankMemory


@dataclass(frozen=True, kw_only=True)
class RankEnds:
    """What a rank's session stands between.

    Attributes:
        settings: of the rank, from arguments and environment.
        planner: None: none is asked.
        gpu: the one given, or this process's own.
    """

    settings: RankSettings
    planner: PlannerClient | None
    gpu: GpuDevice


def open_rank(
    opened: ExitStack,
    *,
    planner_url: str | None,
    token: str | None,
    without_planner: WithoutPlanner | None,
    lease_s: float | None,
    gpu: GpuDevice | None,
) -> RankEnds:
    """Open the planner's client and the GPU; `opened` closes them, but no GPU that was given.

    Raises:
        ValueError: the planner's address or token cannot be one, or a variable of the
            environment cannot be used.
        GpuError: this rank's GPU cannot be found.
    """
    settings = RankSettings.read(
        os.environ,
        planner_url=planner_url,
        token=token,
        without_planner=without_planner,
        lease_s=lease_s,
    )
    planner = settings.open_planner()
    if planner is not None:
        opened.callback(planner.close)
    if gpu is None:
        gpu = open_local_gpu(settings.local_rank, os.environ)
        opened.callback(gpu.close)
    return RankEnds(settings=settings, planner=planner, gpu=gpu)


class Registering:
    """Makes the job known from one rank, once all is known of it; elsewhere nothing.

    A plan of another order than 1F1B is bounded by memory, and a job that is planned cannot be
    registered with another memory: so it is not registered before memory is known.

    Args:
        planner: None on all ranks but one.
        job_id: the job's name at the planner.
        registration: what is known when it is attached.
    """

    def __init__(
        self, planner: PlannerClient | None, *, job_id: str, registration: JobRegistration
    ) -> None:
        self._planner = planner
        self._job_id = job_id
        self._registration = registration
        self._registrar: JobRegistrar | None = None

    def begin(self, stages: Sequence[RankMemory] = ()) -> None:
        """Register, with the memory of each stage where it counts; in the background."""
        if self._planner is None:
            return
        registration = self._registration
        if stages:
            registration = replace(
                registration,
                activation_bytes=tuple(stage.activation_bytes for stage in stages),
                free_memory_bytes=tuple(stage.free_bytes for stage in stages),
            )
        self._registrar = JobRegistrar(
            self._planner, job_id=self._job_id, registration=registration
        )

    def close(self) -> None:
        """Stop registering it."""
        if self._registrar is not None:
            self._registrar.close()


class Overrides:
    """Attributes set on objects' instances, and put back exactly as they were."""

    def __init__(self) -> None:
        self._replaced: list[tuple[object, str, bool, object]] = []

    def set(self, target: object, name: str, value: object) -> None:
        """Let `target.name` be this value until `remove`."""
        attributes = vars(target)
        self._replaced.append((target, name, name in attributes, attributes.get(name)))
        attributes[name] = value

    def remove(self) -> None:
        """Put all of them back, the last first; any number of times."""
        while self._replaced:
            target, name, was_set, value = self._replaced.pop()
            if was_set:
                vars(target)[name] = value
            else:
                vars(target).pop(name, None)
