"""Implementations of the JobStore contract."""
