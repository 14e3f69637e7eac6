"""Online profiling. Pure: what was observed in, what to run next out; no files or clocks.

A new job's operating points are measured in its own training: some instructions of each step run
at lower clocks, as many as a slowdown cap allows; their times are read at the hooks, their
energies follow from the energy counters by regression over steps.
"""
