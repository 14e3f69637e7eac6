"""Plans as data and as text."""
