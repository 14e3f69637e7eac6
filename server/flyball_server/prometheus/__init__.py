"""Metrics of the planner and its jobs for Prometheus."""
