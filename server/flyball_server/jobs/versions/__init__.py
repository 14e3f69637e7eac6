"""Distribution of plan versions to the ranks."""
