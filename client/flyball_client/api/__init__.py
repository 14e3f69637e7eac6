"""Calls to the planner: client, connection, errors."""
