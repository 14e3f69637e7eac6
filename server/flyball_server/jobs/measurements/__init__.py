"""Measured steps of a job."""
