"""States and ends of jobs."""
