"""The offline profiler: a stage's instructions, measured at each SM clock of one GPU."""
