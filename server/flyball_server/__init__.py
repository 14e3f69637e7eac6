"""The planner: computes frequency plans and serves them."""
