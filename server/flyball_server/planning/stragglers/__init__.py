"""Plans for GPUs that differ from their profile."""
