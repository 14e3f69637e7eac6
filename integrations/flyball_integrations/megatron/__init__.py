"""Flyball in Megatron-Core's pipeline schedules."""

from flyball_integrations.megatron.pipeline import (
    attach,
    detach,
    microbatches,
    training_step,
)

__all__ = ["attach", "detach", "microbatches", "training_step"]
