"""Client of the planner for training ranks: hooks, clocks, calls to the planner.

Needs httpx and nvidia-ml-py; imports neither torch nor numpy nor pydantic. The names below are
public, and imported when they are first used, since the governor process needs few.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flyball_client.api.errors import PlannerError
    from flyball_client.api.planner_client import PlannerClient
    from flyball_client.gpu._base import GpuDevice
    from flyball_client.gpu.emulated import EmulatedGpu, EmulatedGpuSettings, EmulatedNode
    from flyball_client.gpu.registry import open_local_gpu
    from flyball_client.profiling.workload import Workload
    from flyball_client.session.rank_session import RankSession
    from flyball_client.session.rank_settings import RankSettings
    from flyball_client.session.registration import JobRegistrar
    from flyball_wire.messages import JobRegistration

__all__ = [
    "EmulatedGpu",
    "EmulatedGpuSettings",
    "EmulatedNode",
    "GpuDevice",
    "JobRegistrar",
    "JobRegistration",
    "PlannerClient",
    "PlannerError",
    "RankSession",
    "RankSettings",
    "Workload",
    "open_local_gpu",
]

_PLACES = {
    "EmulatedGpu": "flyball_client.gpu.emulated",
    "EmulatedGpuSettings": "flyball_client.gpu.emulated",
    "EmulatedNode": "flyball_client.gpu.emulated",
    "GpuDevice": "flyball_client.gpu._base",
    "JobRegistrar": "flyball_client.session.registration",
    "JobRegistration": "flyball_wire.messages",
    "PlannerClient": "flyball_client.api.planner_client",
    "PlannerError": "flyball_client.api.errors",
    "RankSession": "flyball_client.session.rank_session",
    "RankSettings": "flyball_client.session.rank_settings",
    "Workload": "flyball_client.profiling.workload",
    "open_local_gpu": "flyball_client.gpu.registry",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return __all__
