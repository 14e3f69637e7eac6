"""Flyball in DeepSpeed pipelines."""
