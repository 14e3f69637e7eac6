"""Where plans are solved: in threads or processes of the planner, or on Dask."""
