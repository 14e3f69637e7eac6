"""Online profiling of a running job."""
