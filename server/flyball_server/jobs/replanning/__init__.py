"""Planning of a stored job and its publication."""
