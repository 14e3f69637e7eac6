"""Options of a demo run: its sizes, and the emulated pipeline."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from flyball_profiles.examples import load_example_profile
from flyball_profiles.gpu_windows import load_gpu_window
from flyball_profiles.stage_profile import StageProfile

_DEMO_EXTRA = "of the extra 'demo': pip install '.[demo]' in a clone of Flyball"
_PACKAGES = ("torch", "deepspeed", "fastapi", "uvicorn", "sqlalchemy", "numpy", "rich")
# From another launcher these would make DeepSpeed wait for other ranks.
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
    """Return missing packages, each with its extra; empty when the demo can run."""
    return [f"{name} ({_DEMO_EXTRA})" for name in _PACKAGES if find_spec(name) is None]


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the demo's processes: this process's, on the CPU and on loopback.

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


NUM_STAGES = 4
GPU_TYPE = "a100"
JOB_ID = "demo"
# Of the example's eight stages: three alike, and the last with the loss, which is heavier.
_EXAMPLE_STAGES = (0, 1, 2, 7)


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Sizes of a demo run."""

    #: Steps measured at the highest clocks, and again on the plan.
    num_steps: int = 8
    num_microbatches: int = 8
    #: Wall seconds of an emulated second; the larger, the smaller the share of the computer's own
    #: overheads.
    time_scale: float = 2.0
    #: Train on sequences that differ in length, and announce them; `num_steps` are pairs then.
    lengths: bool = False

    @property
    def max_steps(self) -> int:
        """Number of steps after which training ends without a plan, or a comparison's end."""
        return (4 if self.lengths else 2) * self.num_steps + 60 + 140 * self.lengths


def demo_profile() -> StageProfile:
    """Return four stages of the shipped example profile."""
    return load_example_profile().select_stages(_EXAMPLE_STAGES)


def demo_blocking_power_w() -> float:
    """Return the power in W of an emulated GPU that waits in communication."""
    power_w = load_gpu_window(GPU_TYPE).blocking_power_w
    if power_w is None:
        raise LookupError(f"the GPU table has no blocking power for {GPU_TYPE}")
    return power_w
