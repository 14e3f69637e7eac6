"""Flyball in torch.distributed.pipelining."""

from flyball_integrations.torch.pipelining import attach, detach, on_all_ranks_or_none
from flyball_integrations.torch.profile_workloads import torch_workload

__all__ = ["attach", "detach", "on_all_ranks_or_none", "torch_workload"]
