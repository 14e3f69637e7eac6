"""Measurement of how long clock changes take on the user's GPUs."""
