"""Caches and coalescing: one of each kind for the whole planner."""
