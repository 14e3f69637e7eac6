"""What the demo needs on this machine, and the environment its processes run in."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec

_DEMO_EXTRA = "of the extra 'demo': pip install '.[demo]' in a clone of Flyball"
_PACKAGES = ("torch", "deepspeed", "fastapi", "uvicorn", "sqlalchemy", "numpy", "rich")
# Left over from another launcher these would make DeepSpeed believe in other ranks.
_LAUNCHER_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "LOCAL_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "CROSS_RANK",
    "CROSS_SIZE",
)


def missing_prerequisites() -> list[str]:
    """What is missing, each with where to get it; empty when the demo can run."""
    return [f"{name} ({_DEMO_EXTRA})" for name in _PACKAGES if find_spec(name) is None]


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the demo's processes: this one, on the CPU and on loopback.

    `FLYBALL_*` settings of the user are left out: the demo has its own planner.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith("FLYBALL_") and name not in _LAUNCHER_VARIABLES
    }
    kept |= {
        "PYTHONUNBUFFERED": "1",
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    if sys.platform == "linux":
        kept["GLOO_SOCKET_IFNAME"] = "lo"
    return kept
