"""Executors of solves: threads or processes of the planner, or Dask."""
