"""Recorded steps that differ, under a static plan and a plan for each step."""
