"""Commands, files written whole and child processes, for planner and client."""
