"""Steps that differ: announced work, agreement of the ranks, each step's own clocks."""
