"""Replay: predict recorded runs from others of the same workload. Pure, as planning is."""
