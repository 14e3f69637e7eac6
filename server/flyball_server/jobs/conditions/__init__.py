"""Conditions that a job's GPUs run under, against those that its profile was measured under."""
