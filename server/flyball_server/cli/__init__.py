"""Commands of the planner package: serve, token and offline planning."""
