"""What a pipeline is: instructions, orders, dependencies and paths (standard library only)."""
