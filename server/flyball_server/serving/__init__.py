"""Planner process: socket, TLS, request deadlines."""
