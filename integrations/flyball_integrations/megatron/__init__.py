"""Flyball in Megatron-Core's pipeline schedules."""
