"""Plan versions on their way to the ranks."""
