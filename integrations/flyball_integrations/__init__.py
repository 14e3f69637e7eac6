"""Flyball inside training frameworks: hooks, and the demo that shows the whole loop."""
