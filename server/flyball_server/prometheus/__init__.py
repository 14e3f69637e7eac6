"""What the planner tells of itself and its jobs to Prometheus."""
