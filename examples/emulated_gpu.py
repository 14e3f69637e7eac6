"""The GPU of the examples where there is none: an emulated one, so that they run anywhere."""

from __future__ import annotations

import os

import torch

from flyball_client import EmulatedGpu, EmulatedGpuSettings, EmulatedNode
from flyball_profiles.examples import load_example_profile
from flyball_profiles.gpu_windows import load_gpu_window


def emulated_gpu_on_cpu(stage: int) -> EmulatedGpu | None:
    """On a machine without CUDA an emulated A100 of one stage of the example profile.

    Returns:
        None where there is CUDA, or where FLYBALL_GPU names an emulated GPU: `attach` then takes
        this rank's own, or that one.
    """
    if torch.cuda.is_available() or os.environ.get("FLYBALL_GPU"):
        return None
    profile = load_example_profile()
    return EmulatedGpu(
        profile,
        stage % profile.num_stages,
        blocking_power_w=load_gpu_window("a100").blocking_power_w or 0.0,
        settings=EmulatedGpuSettings(seed=torch.distributed.get_rank()),
        node=EmulatedNode.of_machine(),
        product="A100",
    )
