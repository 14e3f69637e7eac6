"""The exact time-energy frontier: a lower bound for every iteration time, and plans near it.

`curves` turns measured points into what the optimisation sees; `event_network` is the DAG as a
network of event times; `relaxation` solves it with any mix of clocks allowed, which bounds all
plans from below (`parametric_simplex`, `interior_point`; `highs_relaxation` is the reserve and
what tests compare with; `certificate` computes the bound); `rounding` finds one clock per
instruction (`annealing`); `solver` puts them together for one deadline, `sweep` for the whole
frontier; `targets` says which deadline a target means.
"""
