"""The exact time-energy frontier: a lower bound for every iteration time, and plans near it.

`curves` turns measured points into what the optimisation sees; `event_network` is the DAG as a
network of event times; `relaxation` solves it with any mix of clocks allowed, which bounds all
plans from below (`highs_relaxation` for small pipelines, `interior_point` for large ones);
`rounding` finds one clock per instruction (`annealing`); `solver` puts them together;
`targets` finds the deadline of a target, and plans within an average power.
"""
