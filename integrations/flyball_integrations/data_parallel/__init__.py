"""Flyball in a training loop without a pipeline: DDP, FSDP2, or a single GPU."""

from flyball_integrations.data_parallel.training import attach, detach, steps, training_step

__all__ = ["attach", "detach", "steps", "training_step"]
