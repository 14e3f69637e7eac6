"""Flyball in DeepSpeed pipelines."""

from flyball_integrations.deepspeed.config_file import attach_from_config
from flyball_integrations.deepspeed.pipeline import attach, detach, microbatches

__all__ = ["attach", "attach_from_config", "detach", "microbatches"]
