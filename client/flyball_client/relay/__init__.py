"""A node's relay: its ranks' calls to the planner over one process, joined into few."""
