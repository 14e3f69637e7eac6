"""Offline profiler: measures a stage's instructions at each SM clock of one GPU."""
