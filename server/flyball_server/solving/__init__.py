"""Where plans are solved: in the caller's thread, in processes of the planner, or on Dask."""
