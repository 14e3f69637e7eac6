"""Job store in memory, and the coordination within one process."""
