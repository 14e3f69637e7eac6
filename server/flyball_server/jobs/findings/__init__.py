"""Findings about a job, with their memory: changed only past a threshold."""
