"""Flyball in torch.distributed.pipelining."""

from flyball_integrations.torch.pipelining import attach, detach, steps
from flyball_integrations.torch.profile_workloads import torch_workload

__all__ = ["attach", "detach", "steps", "torch_workload"]
