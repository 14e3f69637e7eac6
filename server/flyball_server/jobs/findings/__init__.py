"""What a job has learned of itself, with its memory: changed only past a threshold."""
